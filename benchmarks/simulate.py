"""`python -m benchmarks.simulate`: simulates the model of `benchmarks.capacity`.

It needs no database: the costs are measured values or given ones. Databases share nothing, so it
simulates one database with its share of the processes and multiplies the rates.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from benchmarks.capacity import SIZES, Assumed, Costs, limits, table
from benchmarks.flow import DATABASE, LANE, LOG, PROCESS, Point, Set

# By `python -m benchmarks.capacity`, as docs/deploy.md has it; `each` is worked back from what its
# table says of the writer lane. The two that are 0 are not on that page, and not asked for here.
MEASURED = Costs(
    trip=0,
    write=0,
    each=84.49e-6,
    process=129.6e-6,
    database=176.0e-6,
    commits=0.1,
    wal=6557.4,
    disk=2920.7,
)
LOADS = (0.5, 0.8, 0.95, 1.2)
"""Parts of the first limit at which tasks come."""


def simulate(
    costs: Costs,
    assumed: Assumed,
    processes: int,
    databases: int,
    load: float,
    tasks: int = 60_000,
    seed: int = 1,
) -> Point:
    """So many tasks at a part of the first limit; rates are those of all databases."""
    rate = load * min(limit.rate for limit in limits(costs, assumed, processes, databases))
    share = max(1, round(processes / databases))
    point = Set(costs, assumed, share, rate / databases, tasks, seed).run()
    return replace(
        point,
        offered=rate,
        done=point.done * databases,
        written=point.written * databases,
    )


def ms(taken: tuple[float, float]) -> str:
    """Both, in milliseconds."""
    return " / ".join(f"{seconds * 1e3:,.0f}" for seconds in taken)


Found = Sequence[tuple[int, int, dict[float, Point]]]


def short(found: Found) -> Iterator[Sequence[str]]:
    """A line for each size."""
    yield (
        *("processes", "databases", "computed limit", "ended at 95 %", "written at 120 %"),
        *("ended at 120 %", "here at 80 %, ms", "elsewhere at 80 %, ms"),
    )
    for processes, databases, points in found:
        low, high, over = points[0.8], points[0.95], points[1.2]
        yield (
            *(f"{processes}", f"{databases}", f"{over.offered / 1.2:,.0f}", f"{high.done:,.0f}"),
            *(f"{over.written:,.0f}", f"{over.done:,.0f}", ms(low.here)),
            ms(low.elsewhere) if processes > 1 else "-",
        )


def long(found: Found) -> Iterator[Sequence[str]]:
    """A line for each size and load."""
    yield (
        *("processes", "databases", "load", "offered", "ended", "here, ms", "elsewhere, ms"),
        *("processes' CPU", "lanes", "PostgreSQL's CPU", "and wakes", "log", "NOTIFY's lock"),
        *("busiest", "queue that grows"),
    )
    for processes, databases, points in found:
        for load, point in points.items():
            use = [point.use[name] for name in (PROCESS, LANE, DATABASE)]
            used = (*use, point.wakes, point.use[LOG], point.lock)
            grows = load >= 1
            yield (
                *(f"{processes}", f"{databases}", f"{load:.0%}", f"{point.offered:,.0f}"),
                *(f"{point.done:,.0f}", "grows" if grows else ms(point.here)),
                "grows" if grows else ms(point.elsewhere) if processes > 1 else "-",
                *(f"{part:.0%}" for part in used),
                *(point.busiest, point.queue or "-"),
            )


def known(text: str) -> tuple[str, float]:
    """`name=value` of a cost."""
    name, _, value = text.partition("=")
    names = [field.name for field in fields(Costs)]
    if name not in names:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(names)}")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name}: {value!r} is no number") from None


def main(given: list[str] | None = None) -> int:
    """Play, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--tasks", type=int, default=60_000, help="for each size and load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs", type=known, nargs="+", default=[], metavar="NAME=VALUE")
    for field in fields(Assumed):
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    chosen = parser.parse_args(given)
    costs = replace(MEASURED, **dict(chosen.costs))
    assumed = Assumed(**{field.name: getattr(chosen, field.name) for field in fields(Assumed)})
    found = []
    try:
        for processes, databases in SIZES:
            points = {}
            for load in LOADS:
                size = (processes, databases)
                points[load] = simulate(costs, assumed, *size, load, chosen.tasks, chosen.seed)
            found.append((processes, databases, points))
    except KeyboardInterrupt:
        return 130
    print(f"tasks/s; half and 99 in 100 are answered within\n\n{table(list(short(found)))}")
    print(f"\n{table(list(long(found)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
