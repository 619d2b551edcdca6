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
        "later": lambda value: re.fullmatch(r"[^|\n]+", value),
    }
    missing = holds.keys() - {"later"} - entry.keys()
    faulty = {key for key, value in entry.items() if key not in holds or not holds[key](value)}
    return sorted(missing | faulty)


def test_clauses_stand_in_the_order_of_their_sections() -> None:
    seen = list(dict.fromkeys(entry["section"] for entry in RAW["clause"]))
    order = {section: place for place, section in enumerate(RAW["sections"])}
    places = [order[entry["section"]] for entry in RAW["clause"]]
    assert seen == list(RAW["sections"])
    assert places == sorted(places)


def test_every_id_that_a_test_names_is_in_the_table() -> None:
    known = {entry["id"] for entry in RAW["clause"]}
    unknown = {id_: tests for id_, tests in table.scan().items() if id_ not in known}
    assert unknown == {}


def test_page_is_up_to_date() -> None:
    written = table.TARGET.read_text("utf-8") if table.TARGET.exists() else ""
    if written != table.page():
        pytest.fail("run python -m tests.spec.table", pytrace=False)


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


def test_render_tells_shown_deferred_and_open_apart() -> None:
    clauses = [
        table.Clause("a", "1", "MUST", "Shown.", later="done since"),
        table.Clause("b", "1", "MUST", "Deferred.", later="gRPC"),
        table.Clause("c", "1", "MAY", "Open."),
    ]
    text = table.render({"1": "First"}, clauses, {"a": ["test_x.py::test_a", "test_x.py::test_b"]})
    assert "| all | 3 | 1 | 1 | 1 |" in text
    assert "| `a` | MUST | Shown. | `test_x.py::test_a`<br>`test_x.py::test_b` |" in text
    assert "| `b` | MUST | Deferred. | later: gRPC |" in text
    assert "| `c` | MAY | Open. | **none yet** |" in text
