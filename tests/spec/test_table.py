"""The clause table is well formed, up to date, and knows every clause that a test names."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.spec import table

RAW = tomllib.loads(table.SOURCE.read_text("utf-8"))


def test_ids_are_unique() -> None:
    counts = Counter(entry["id"] for entry in RAW["clause"])
    assert [id_ for id_, count in counts.items() if count > 1] == []


def test_clauses_are_well_formed() -> None:
    wrong = {entry.get("id", str(entry)): _faults(entry) for entry in RAW["clause"]}
    assert {id_: faults for id_, faults in wrong.items() if faults} == {}


def _faults(entry: dict[str, str]) -> list[str]:
    """The keys of a clause that are missing, unknown or hold something they may not."""
    holds = {
        "id": lambda value: re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*", value),
        "section": lambda value: value in RAW["sections"],
        "level": lambda value: value in table.LEVELS,
        "text": lambda value: re.fullmatch(r"[^|\n]+\.", value),
    }
    missing = holds.keys() - entry.keys()
    faulty = {key for key, value in entry.items() if key not in holds or not holds[key](value)}
    return sorted(missing | faulty)


def test_clauses_stand_in_the_order_of_their_sections() -> None:
    seen = list(dict.fromkeys(entry["section"] for entry in RAW["clause"]))
    order = {section: place for place, section in enumerate(RAW["sections"])}
    places = [order[entry["section"]] for entry in RAW["clause"]]
    assert seen == list(RAW["sections"])
    assert places == sorted(places)


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """What the tests name, read once."""
    return table.scan()


@pytest.fixture
def shown(found: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A copy of it that the table takes for what it would read."""
    copy = dict(found)
    monkeypatch.setattr(table, "scan", lambda: copy)
    return copy


@pytest.mark.usefixtures("shown")
def test_every_clause_has_a_test_and_the_page_is_up_to_date() -> None:
    if problems := table.main(["--check"]):
        pytest.fail(problems, pytrace=False)


def test_what_is_wrong_is_named(tmp_path: Path, shown: dict[str, list[str]]) -> None:
    stale = tmp_path / "CLAUSES.md"
    assert table.problems(stale) == ["CLAUSES.md is stale: run python -m tests.spec.table"]
    stale.write_text(table.page(), "utf-8")
    assert table.problems(stale) == []
    first = RAW["clause"][0]["id"]
    shown["made.up"] = shown.pop(first)
    assert table.problems(stale) == [
        f"clause {first}: no test names it",
        f"clause made.up: is not in clauses.toml, but {shown['made.up'][0]} names it",
        "CLAUSES.md is stale: run python -m tests.spec.table",
    ]


def test_the_build_checks_the_page() -> None:
    rules = (table.ROOT / "Makefile").read_text("utf-8").split("\n\n")
    (check,) = [rule for rule in rules if rule.startswith("check:")]
    assert "-m tests.spec.table --check" in check


MARKED = """
import pytest
from pytest import mark

pytestmark = [pytest.mark.asyncio, pytest.mark.clause("module")]

@pytest.mark.clause("one", "two")
async def test_function(): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=mark.clause("param"))])
def test_parameters(x): ...

@pytest.mark.clause("class")
class TestGroup:
    pytestmark = pytest.mark.clause("body")

    @mark.clause("one")
    def test_method(self): ...

@pytest.mark.skip
@pytest.mark.clause("skipped")
def test_skipped(): ...

@pytest.mark.clause("helper")
def helper(): ...
"""


def test_scan_finds_marks_wherever_pytest_does(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "test_marks.py").write_text(MARKED)
    path = "deep/test_marks.py"
    assert table.scan(tmp_path, tmp_path) == {
        "module": [path],
        "one": [f"{path}::test_function", f"{path}::TestGroup::test_method"],
        "two": [f"{path}::test_function"],
        "param": [f"{path}::test_parameters"],
        "class": [f"{path}::TestGroup"],
        "body": [f"{path}::TestGroup"],
    }


def test_scan_refuses_an_id_it_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "test_marks.py").write_text("@pytest.mark.clause(ID)\ndef test_it(): ...\n")
    with pytest.raises(ValueError, match="plain string"):
        table.scan(tmp_path, tmp_path)


def test_render_tells_shown_and_open_apart() -> None:
    clauses = [
        table.Clause("a", "1", "MUST", "Shown."),
        table.Clause("c", "1", "MAY", "Open."),
    ]
    text = table.render({"1": "First"}, clauses, {"a": ["test_x.py::test_a", "test_x.py::test_b"]})
    assert "| all | 2 | 1 | 1 |" in text
    assert "| `a` | MUST | Shown. | `test_x.py::test_a`<br>`test_x.py::test_b` |" in text
    assert "| `c` | MAY | Open. | **none yet** |" in text
