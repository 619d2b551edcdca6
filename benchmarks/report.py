"""Computes ratios, prints the tables, writes the file, and checks the figures against targets."""

from __future__ import annotations

import json
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from benchmarks import measure
from benchmarks.bench import Bench
from benchmarks.measure import BARE, CORES

OUT = measure.OUT / "latest.json"
COSTS = (
    *(".cpu_us_per_request", ".cpu_us_per_event", ".cpu_us_per_step"),
    *(".rss_kib_per_stream", ".first_answer_ms"),
)


GROWTH = (
    ("stream5000", "stream100", "memory"),
    ("stream10000", "stream1000", "sqlite"),
    ("stream10000", "stream1000", "postgres"),
    *(
        (f"{work}{size}", f"{work}1k", store)
        for store in ("sqlite", "postgres")
        for work in ("get", "list", "liststate", "listcontext")
        for size in ("20k", "1m")
    ),
    ("older", "newer", "memory"),
)
"""Which of dragoman's costs is held against which."""


class Target(NamedTuple):
    """What a figure or ratio should reach."""

    key: str
    limit: float
    at_least: bool = True

    def met(self, value: float) -> bool:
        """Whether it does."""
        return value >= self.limit if self.at_least else value <= self.limit


TARGETS = (
    Target("send.memory.c32.vs.a2a-sdk", 25),
    Target("send.memory.c32.vs.fasta2a", 3),
    Target("send.memory.c1.vs.a2a-sdk", 12),
    Target("stream100.memory.vs.a2a-sdk", 60),
    Target("stream100await.memory.vs.a2a-sdk", 18),
    Target("stream5000.over.stream100", 1.2, at_least=False),
    Target("get.memory.vs.a2a-sdk", 12),
    Target("list10k.memory.vs.a2a-sdk", 80),
    Target("idle.memory.dragoman.rss_kib_per_stream", 20, at_least=False),
    Target("send.sqlite.c32.throughput.vs.a2a-sdk", 60),
    Target("send.postgres.c32.throughput.vs.a2a-sdk", 40),
    Target("send.postgres.c32.vs.a2a-sdk", 40),
    Target("stream10000.over.stream1000.postgres", 1.2, at_least=False),
    Target("stream1000.sqlite.vs.a2a-sdk", 100),
    Target("stream10000.over.stream1000.sqlite", 1.2, at_least=False),
    *(
        Target(f"{work}1m.over.{work}1k.{store}", 2, at_least=False)
        for store in ("sqlite", "postgres")
        for work in ("get", "list", "liststate", "listcontext")
    ),
    Target("idle.sqlite.dragoman.rss_kib_per_stream", 20, at_least=False),
    Target("start.dragoman.first_answer_ms", 300, at_least=False),
    Target("plan.sqlite.dragoman.cpu_us_per_step", 2000, at_least=False),
    Target("grpc.memory.c32.vs.a2a-sdk", 8),
    Target("grpc-stream100.memory.vs.a2a-sdk", 10),
    Target("grpc-stream1000.memory.vs.a2a-sdk", 10),
    Target("older.over.newer", 1.4, at_least=False),
    Target("client.send.c16.vs.a2a-sdk", 8),
    Target("client.stream100.vs.a2a-sdk", 5),
    Target("client.stream1000.vs.a2a-sdk", 12),
    Target("client.stream100slow.vs.a2a-sdk", 2),
    *(
        Target(f"cluster500.{bell}.dragoman.{cut}_ms", limit, at_least=False)
        for bell in ("postgres", "nats")
        for cut, limit in (("p50", 15), ("p99", 60))
    ),
    Target("fanout10k.postgres.dragoman.rss_kib_per_stream", 20, at_least=False),
    Target("fanout10k.postgres.dragoman.last_ms", 1000, at_least=False),
    Target("steps.sqlite.vs.dbos", 5),
    Target("steps.postgres.vs.dbos", 5),
    Target("registry10k.sqlite.dragoman.p95_ms", 50, at_least=False),
    Target("auth.warm.dragoman.cpu_us_per_request", 15, at_least=False),
)


def ratios(bench: Bench) -> dict[str, float]:
    """How often a peer's cost holds dragoman's, and how dragoman's grows with the answer."""
    found: dict[str, float] = {}
    for cost in COSTS:
        ending = f".dragoman{cost}"
        for key, ours in bench.figures.items():
            if key.endswith(ending):
                work = key.removesuffix(ending)
                for peer in bench.peers:
                    theirs = bench.figures.get(f"{work}.{peer}{cost}")
                    if peer != "dragoman" and theirs is not None and ours > 0:
                        found[f"{work}.vs.{peer}"] = theirs / ours
                if bare := bench.figures.get(f"{work}.{BARE}{cost}"):
                    found[f"{work}.over.{BARE}"] = ours / bare
    _throughput(bench, found)
    for large, small, store in GROWTH:
        over, under = (_cost(bench, f"{work}.{store}") for work in (large, small))
        if over and under:
            ending = "" if store == "memory" else f".{store}"
            found[f"{large}.over.{small}{ending}"] = over / under
    return found


def _throughput(bench: Bench, found: dict[str, float]) -> None:
    """Where a disk is waited for, requests in a second say what CPU does not."""
    for key, theirs in bench.figures.items():
        work, dot, peer = key.removesuffix(".requests_per_s").rpartition(".")
        ours = bench.figures.get(f"{work}.dragoman.requests_per_s")
        if dot and ours and peer in bench.peers and peer != "dragoman" and ".memory" not in work:
            found[f"{work}.throughput.vs.{peer}"] = ours / theirs


def _cost(bench: Bench, work: str) -> float | None:
    found = (bench.figures.get(f"{work}.dragoman{cost}") for cost in COSTS)
    return next((value for value in found if value is not None), None)


def write(bench: Bench) -> None:
    """Write everything that was found."""
    OUT.parent.mkdir(exist_ok=True)
    found = {
        "ratios": _rounded(ratios(bench)),
        "figures": _rounded(bench.figures),
        "samples": {key: [_short(one) for one in many] for key, many in bench.samples.items()},
        "environment": environment(bench),
        "notes": bench.notes,
    }
    OUT.write_text(json.dumps(found, indent=2) + "\n")


def environment(bench: Bench) -> dict[str, str]:
    """What the figures were measured on."""
    versions = {}
    for package in (
        *(p for p in bench.peers if p != "a2a-sdk-untraced"),
        "uvicorn",
        "uvloop",
        "httptools",
        "aiohttp",
        "httpx",
        "grpcio",
    ):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    if "sqlite" in bench.stores:
        versions["sqlite"] = sqlite3.sqlite_version
        folder = measure.disk()
        took = measure.sync(folder) * 1e6
        versions["disk"] = f"{measure.filesystem(folder)}, {took:.0f} us to sync a page"
    return {
        **versions,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {len(CORES)} cores to use",
        "rounds": str(bench.rounds),
        "quick": str(bench.quick).lower(),
    }


def show(bench: Bench) -> None:
    """Print it."""
    print("  ".join(f"{name} {value}" for name, value in environment(bench).items()))
    for cost in COSTS:
        _show_table(bench, cost)
    _show("stalled reader", {k: v for k, v in bench.figures.items() if k.startswith("stall.")})
    _show("waiting tasks", {k: v for k, v in bench.figures.items() if k.startswith("waiting")})
    _show("bare HTTP engines", {k: v for k, v in bench.figures.items() if k.startswith("engine.")})
    _show("bells", {k: v for k, v in bench.figures.items() if k.startswith("bell.")})
    _show("across replicas", {k: v for k, v in bench.figures.items() if k.startswith("cluster")})
    _show("fan-out", {k: v for k, v in bench.figures.items() if k.startswith("fanout")})
    _show("search", {k: v for k, v in bench.figures.items() if k.startswith("registry")})
    _show("bare gRPC", {k: v for k, v in bench.figures.items() if f".{BARE}." in k})
    found = ratios(bench)
    _show("growth of dragoman's cost", {k: v for k, v in found.items() if ".over." in k})
    _show("requests per second", {k: v for k, v in found.items() if ".throughput." in k})
    for note in bench.notes:
        print(f"note: {note}")


def _show(title: str, values: dict[str, float]) -> None:
    if values:
        print(f"\n{title}")
    for key, value in values.items():
        print(f"  {key:48}{_number(value):>12}")


def _show_table(bench: Bench, cost: str) -> None:
    rows = list(dict.fromkeys(_work(key, cost, bench) for key in bench.figures))
    rows = [row for row in rows if row]
    if not rows:
        return
    unit = cost.removeprefix(".").replace("_", " ")
    print(f"\n{unit:24}" + "".join(f"{peer:>32}" for peer in bench.peers))
    found = ratios(bench)
    for row in rows:
        cells = (_cell(bench, row, peer, cost, found) for peer in bench.peers)
        print(f"{row:24}" + "".join(f"{cell:>32}" for cell in cells))


def _work(key: str, cost: str, bench: Bench) -> str:
    for peer in bench.peers:
        if key.endswith(f".{peer}{cost}"):
            return key.removesuffix(f".{peer}{cost}")
    return ""


def _cell(bench: Bench, row: str, peer: str, cost: str, found: dict[str, float]) -> str:
    value = bench.figures.get(f"{row}.{peer}{cost}")
    if value is None:
        return "-"
    rate = bench.figures.get(f"{row}.{peer}.{cost.rpartition('_')[2]}s_per_s")
    ratio = found.get(f"{row}.vs.{peer}")
    return (
        _number(value)
        + (f"  {rate:,.0f}/s" if rate is not None else "")
        + (f"  {ratio:.1f}x" if ratio is not None else "")
    )


def misses(bench: Bench) -> list[str]:
    """Return the targets that are missed; print those that this run did not measure."""
    found = {**bench.figures, **ratios(bench)}
    missed = []
    for target in TARGETS:
        if target.key not in found:
            print(f"not measured: {target.key}")
        elif not target.met(found[target.key]):
            comparison = "at least" if target.at_least else "at most"
            value = _number(found[target.key])
            missed.append(f"{target.key} is {value}, should be {comparison} {target.limit:g}")
    return missed


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: _short(value) for key, value in values.items()}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.4g}"
