"""Writes docs/interop.md: what was run against what, and how it went.

`make interop` gives it to pytest as a plugin. Each test is told apart by its parameters: `peer` is
a foreign server that our client called, `foreign` a foreign client that called our server (or
`left_out`, if it did not), and `speak` the binding over which the reference SDK did so in this
process. What a test records as
`absent` are the features that the other side has no way to say. The results come home in the
`user_properties` of the reports, so that it does not matter in which process a test has run.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dragoman
from tests.interop.peers import FULL, environments, table

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "interop.md"
PACKAGES = {
    "reference": "a2a-sdk",
    "reference-0.3": "a2a-sdk",
    "reference-0.2": "a2a-sdk",
    "javascript": "@a2a-js/sdk",
    "javascript-0.3": "@a2a-js/sdk",
    "fasta2a": "fasta2a",
    "python-a2a": "python-a2a",
}
DIALECTS = {"reference-0.3": "0.3", "javascript-0.3": "0.3", "reference-0.2": "0.2"} | {
    "python-a2a": "0.1"
}
"""Of the peers that do not say it themselves, and are not of 1.0."""
DIRECTIONS = {
    "clients": ("Foreign clients, our server", "They call the test agent."),
    "servers": ("Our client, foreign servers", "All of them run the same test agent."),
}
ORDER = {"failed": 0, "skipped": 1, "absent": 2, "passed": 3}
"""The worst first: what several tests say of one feature is the worst that one of them says."""
WORDS = {"failed": "**failed**", "skipped": "skipped", "absent": "cannot", "passed": "yes"}


class Place(NamedTuple):
    """Where a feature was tried."""

    direction: str
    peer: str
    dialect: str
    binding: str


# ---- in the process of a test ----------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Write the place and the feature on every test that has one."""
    for item in items:
        if found := _place(getattr(getattr(item, "callspec", None), "params", {})):
            name = getattr(item, "originalname", item.name)
            feature = name.removeprefix("test_").replace("_", " ")
            item.user_properties.append(("interop", [*found, feature]))


def _place(params: dict[str, Any]) -> Place | None:
    if foreign := params.get("foreign") or params.get("left_out"):
        return Place("clients", foreign.name, foreign.dialect, foreign.binding)
    if peer := params.get("peer"):
        dialect = getattr(peer, "dialect", DIALECTS.get(peer.name, "1.0"))
        return Place("servers", peer.name, dialect, peer.binding)
    if isinstance(binding := params.get("speak") or params.get("meet"), str):
        return Place("clients", "reference", "1.0", binding)
    return None


# ---- in the process that writes --------------------------------------------------------------


class Report:
    """What has come home."""

    def __init__(self) -> None:
        self.results: dict[Place, dict[str, str]] = defaultdict(dict)
        self.reasons: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one test, or a part of it."""
        held = dict(report.user_properties)
        if "interop" not in held or (report.passed and report.when != "call"):
            return
        *where, feature = held["interop"]  # type: ignore[misc]
        place = Place(*where)
        if report.skipped and isinstance(report.longrepr, tuple):
            why = report.longrepr[2].removeprefix("Skipped: ")
            self.reasons[why.removeprefix(f"{place.peer}: ")].add(place.peer)
        if "absent" in held:
            for one in held["absent"]:  # type: ignore[attr-defined]
                self._take(place, one, "absent")
            if report.passed:
                return
        self._take(place, feature, report.outcome)

    def _take(self, place: Place, feature: str, outcome: str) -> None:
        known = self.results[place].get(feature, "passed")
        self.results[place][feature] = min(known, outcome, key=ORDER.__getitem__)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the page, if all has been run."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and self.results:
            PAGE.write_text("\n".join(self._page()) + "\n")

    # -- the page

    def _page(self) -> Iterator[str]:
        yield from (
            "# Interoperability",
            "",
            "Which peers were tested with dragoman, and the results. `make interop` runs all tests",
            "and writes this page.",
            "",
            *_versions(),
        )
        for direction, (title, words) in DIRECTIONS.items():
            found = (place for place in self.results if place.direction == direction)
            places = sorted(found, key=_rank)
            if places:
                yield from ("", f"## {title}", "", words, "", *self._summary(places))
                yield from self._details(places)
        yield from ("", "## Differences of foreign servers", "")
        yield "The tests compare each server with this table, so that a change is noticed."
        for one in (table.TABLE, table.OLDER, table.HTTP, table.GRPC):
            yield from ("", "```", one.strip(), "```")
        if self.reasons:
            yield from ("", "## Left out", "")
            for reason in sorted(self.reasons):
                yield f"- {', '.join(sorted(self.reasons[reason]))}: {reason}"

    def _summary(self, places: list[Place]) -> Iterator[str]:
        yield "| peer | version | dialect | binding | yes | cannot | failed | skipped |"
        yield "|---|---|---|---|---|---|---|---|"
        for place in places:
            found = list(self.results[place].values())
            counts = [str(found.count(name)) for name in ("passed", "absent", "failed", "skipped")]
            known = (_package(place.peer), _version(place.peer), place.dialect, place.binding)
            yield f"| {' | '.join((*known, *counts))} |"

    def _details(self, places: list[Place]) -> Iterator[str]:
        for peer in dict.fromkeys(place.peer for place in places):
            own = [place for place in places if place.peer == peer]
            features = sorted({feature for place in own for feature in self.results[place]})
            yield from ("", f"### {_package(peer)} {_version(peer)}", "")
            yield f"| | {' | '.join(place.binding for place in own)} |"
            yield f"|---|{'---|' * len(own)}"
            for feature in features:
                cells = (self.results[place].get(feature, "") for place in own)
                yield f"| {feature} | {' | '.join(WORDS.get(cell, '') for cell in cells)} |"


def _versions() -> Iterable[str]:
    """What it was run with."""
    found = {"dragoman": dragoman.__version__, "Python": platform.python_version()}
    if node := shutil.which("node"):
        said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
        found["Node"] = said.strip().removeprefix("v")
    for package in ("grpcio", "protobuf", "uvicorn"):
        found[package] = _installed(package)
    return [f"Run with {', '.join(f'{name} {version}' for name, version in found.items())}."]


def _rank(place: Place) -> tuple[object, ...]:
    """The newest dialect first; the bindings as the specification has them."""
    bindings = ("JSONRPC", "HTTP+JSON", "GRPC")
    dialects = ("1.0", "0.3", "0.2", "0.1")
    dialect = dialects.index(place.dialect) if place.dialect in dialects else len(dialects)
    return dialect, _package(place.peer), place.peer, bindings.index(place.binding)


def _package(peer: str) -> str:
    return PACKAGES.get(peer, peer)


def _version(peer: str) -> str:
    """Of the package that a peer is made of, as it is installed."""
    folder = environments.FOLDER / peer
    if peer in environments.NODE:
        file = folder / "node_modules" / _package(peer) / "package.json"
        return str(json.loads(file.read_text())["version"]) if file.is_file() else "not installed"
    if peer in environments.PYTHON:
        paths = [str(path) for path in folder.glob("lib/python*/site-packages")]
        return _installed(_package(peer), paths)
    return _installed(_package(peer))


def _installed(package: str, paths: list[str] | None = None) -> str:
    where = {} if paths is None else {"path": paths}
    found = metadata.distributions(name=package, **where)
    return next((one.version for one in found), "not installed")


def pytest_configure(config: pytest.Config) -> None:
    """Collect in the process that has all the reports, if everything is going to be run."""
    part = any(
        getattr(config.option, name, "") for name in ("keyword", "markexpr", "lf", "deselect")
    )
    whole = [Path(one).resolve() for one in config.args] == [HERE]
    if FULL and whole and not part and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(), "interop-report")
