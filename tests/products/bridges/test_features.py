"""The table of docs/bridges.md, as a run of the suite writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.products.bridges.desk import FRAMEWORKS
from tests.products.bridges.features import BEGIN, END, FEATURES, Table

OLD = f"before\n{BEGIN}\nold\n{END}\nafter\n"
ABSENT = "strands cannot be installed: pip cannot reach its registry"


class Lines:
    """The end of the output of pytest."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def report(framework: str, key: str, outcome: Any, why: str = "") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="test",
        location=("file", 1, "test"),
        keywords={},
        outcome=outcome,
        longrepr=("file", 1, f"Skipped: {why}") if why else None,
        when="call",
        user_properties=[("framework", framework), ("feature", key)],
    )


def shown(page: Path, leave_out: str = "") -> list[str]:
    """Run all but one feature of all frameworks; one framework is absent, one feature fails."""
    table, lines = Table(page), Lines()
    for framework in FRAMEWORKS:
        for key in FEATURES:
            if key == leave_out:
                continue
            if framework == "Strands":
                result = report(framework, key, "skipped", ABSENT)
            elif (framework, key) == ("Agno", "stream"):
                result = report(framework, key, "failed")
            elif (framework, key) == ("CrewAI", "made"):
                result = report(framework, key, "skipped", "It makes no files.")
            else:
                result = report(framework, key, "passed")
            table.pytest_runtest_logreport(result)
    table.pytest_terminal_summary(lines)
    return lines.lines


def test_a_whole_run_writes_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(OLD)
    assert shown(page) == []
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n")
    header, _, *rows = (line.split(" | ") for line in text.splitlines() if line[:1] == "|")
    columns = {name.strip(" |"): n for n, name in enumerate(header)}
    stream = rows[0]
    assert stream[columns["Agno"]] == "**failed**"
    assert all(row[columns["Strands"]].startswith("not run (") for row in rows)
    made = rows[list(FEATURES).index("made")]
    assert made[columns["CrewAI"]].startswith("no (")
    assert made[columns["LangGraph"]] == "yes"
    assert ABSENT in text


def test_a_run_of_a_part_leaves_the_table_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(OLD)
    (line,) = shown(page, leave_out="memory")
    assert page.read_text() == OLD
    assert line.startswith("page.md keeps its table: 10 cells are missing")
