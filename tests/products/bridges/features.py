"""What a bridge can do, as the table of docs/bridges.md lists it. `make interop` gives this module
to pytest as a plugin: it writes the table from what has been run."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.products.bridges.desk import FRAMEWORKS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bridges.md"
BEGIN, END = "<!-- the table is written by `make interop` -->", "<!-- end of the table -->"
FEATURES = {
    "stream": "the answer is streamed as the model writes it",
    "tools": "tool calls are reported as progress",
    "files": "files and data of the message reach the model",
    "gone": "a note replaces a file of an earlier message that is gone",
    "made": "a file that the agent makes is an artifact",
    "structured": "a structured result is a data part",
    "schema": "the card has the schema of structured results",
    "usage": "the metadata of the result say what the model has used",
    "questions": "a pause asks the client (input-required), who answers in words",
    "attached": "a file in an answer to a question reaches the model",
    "approvals": "an approval needs a grant (auth-required); `yes` in words approves nothing",
    "words": '`approvals="text"`: `yes` in words approves',
    "memory": "the next task of the conversation remembers the first",
    "order": "two messages of a conversation at the same time run one after the other",
    "between": "a task that waits for an answer, and one that runs meanwhile, are both remembered",
    "own": "your own store of conversations is kept, with a name for each conversation and caller",
    "old": "a state that cannot be read fails the task with a clear message",
    "cancel": "a cancel stops the work",
    "waiting": "a cancel stops a task that waits for an answer",
    "masked": "an error is masked",
    "restart": "the answer to a question may come to another server, after a crash",
    "replaced": "what was streamed before a crash is replaced, not doubled",
    "durable": "a crash repeats no call of the model that had ended",
    "foreign": "the reference SDK's client calls it",
}
"""The features, in the order of the table."""
FAILED = "**failed**"
ABSENT = "cannot be installed"
"""Is in the reason why nothing of a framework was tried."""
F = TypeVar("F", bound=Callable[..., Any])


def feature(key: str) -> Callable[[F], F]:
    """Mark a test that shows a feature."""
    assert key in FEATURES

    def mark(test: F) -> F:
        marked: F = pytest.mark.feature(key)(test)
        return marked

    return mark


class Table:
    """What was shown for which framework."""

    def __init__(self, page: Path = PAGE) -> None:
        self._page = page
        self.cells: dict[str, dict[str, str]] = defaultdict(dict)
        """`yes`, or why not, by framework and feature."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the result of one test, or of a part of it."""
        held = dict(report.user_properties)
        if "feature" not in held or (report.passed and report.when != "call"):
            return
        framework, key = str(held["framework"]), str(held["feature"])
        known = self.cells[framework].get(key, "yes")
        if report.failed:
            self.cells[framework][key] = FAILED
        elif report.skipped and isinstance(report.longrepr, tuple):
            if known != FAILED:
                self.cells[framework][key] = report.longrepr[2].removeprefix("Skipped: ")
        else:
            self.cells[framework][key] = known

    @property
    def missing(self) -> list[str]:
        """What was not tried: a part of the suite was left out."""
        return [
            f"{framework}: {key}"
            for framework in FRAMEWORKS
            for key in FEATURES
            if key not in self.cells[framework]
        ]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the table into the page if all has been tried."""
        if not self.cells:
            return
        if missing := self.missing:
            some = f"{len(missing)} cells are missing, such as {missing[0]}"
            terminalreporter.write_line(f"{self._page.name} keeps its table: {some}")
            return
        table = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
        self._page.write_text(table.sub(lambda _: self.text(), self._page.read_text()))

    def text(self) -> str:
        """The table, with the reasons below it."""
        frameworks = sorted(self.cells)
        reasons: list[str] = []
        rows = ["", f"| | {' | '.join(frameworks)} |", f"|---|{'---|' * len(frameworks)}"]
        for key, sentence in FEATURES.items():
            cells = []
            for framework in frameworks:
                cell = self.cells[framework].get(key, "-")
                if cell not in ("yes", "-", FAILED):
                    if cell not in reasons:
                        reasons.append(cell)
                    word = "not run" if ABSENT in cell else "no"
                    cell = f"{word} ({reasons.index(cell) + 1})"
                cells.append(cell)
            rows.append(f"| {sentence} | {' | '.join(cells)} |")
        notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
        return "\n".join((BEGIN, *rows, "", *notes, "", END))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have the report of a test say which feature of which framework it shows."""
    mark = item.get_closest_marker("feature")
    if mark is not None and isinstance(item, pytest.Function):
        framework = item.callspec.params["name"]
        item.user_properties.extend((("framework", framework), ("feature", mark.args[0])))


def pytest_configure(config: pytest.Config) -> None:
    """Collect in the process that writes; the others send their reports to it."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table())
