"""The clause table: which tests show which clauses of the A2A specification.

`python -m tests.spec.table` writes the page; with `--check` it only says whether the page is as
clauses and tests are, and whether each clause has a test. `make check` does that.
"""

import ast
import gc
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = HERE / "clauses.toml"
TARGET = HERE / "CLAUSES.md"
LEVELS = ("MUST", "SHOULD", "MAY")

INTRO = """\
# Clauses of the A2A specification

What version 1.0.0 of the specification asks of a server, of the wire and of the agent card, in our
own words, and the tests that show it. The clauses stand in `clauses.toml`; a test names those it
shows with `@pytest.mark.clause("id", ...)`. This page is written by `python -m tests.spec.table`.
The build fails when it is stale, or when a clause has no test.

Left out is what the specification asks of clients, of custom bindings, of those who write an agent
or run one, and of its own editors.
"""

Shown = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Clause:
    """One normative requirement."""

    id: str
    section: str
    level: str
    text: str


def load(source: Path = SOURCE) -> tuple[dict[str, str], list[Clause]]:
    """The titles of the sections, and the clauses in order."""
    raw = tomllib.loads(source.read_text("utf-8"))
    return raw["sections"], [Clause(**entry) for entry in raw["clause"]]


def _parsed(path: Path) -> ast.Module:
    # Python 3.11 loses count of its depth when a collection in between runs code of its own
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"), str(path))
    finally:
        gc.enable()


def scan(tests: Path = ROOT / "tests", root: Path = ROOT) -> dict[str, list[str]]:
    """For every clause id that a test names: the tests that name it, as `path::name`."""
    shown: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        tree = _parsed(path)
        for id_, test in _named(tree, path.relative_to(root).as_posix()):
            tests_of = shown.setdefault(id_, [])
            if test not in tests_of:
                tests_of.append(test)
    return shown


def _named(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    """Pairs of clause id and test: of a module or class as a whole, then of what is in it."""
    for item in node.body:
        match item:
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                yield from ((id_, name) for id_ in _ids(value))
            case ast.AnnAssign(target=ast.Name(id="pytestmark"), value=ast.expr() as value):
                yield from ((id_, name) for id_ in _ids(value))
            case ast.ClassDef() if item.name.startswith("Test"):
                inner = f"{name}::{item.name}"
                yield from ((id_, inner) for id_ in _ids(*item.decorator_list))
                yield from _named(item, inner)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if item.name.startswith("test"):
                if not _disabled(item.decorator_list):
                    inner = f"{name}::{item.name}"
                    yield from ((id_, inner) for id_ in _ids(*item.decorator_list))


def _ids(*expressions: ast.expr) -> Iterator[str]:
    """The ids given to `pytest.mark.clause` anywhere in the expressions, parameters included."""
    for expression in expressions:
        for call in ast.walk(expression):
            if isinstance(call, ast.Call) and _mark(call) == "clause":
                for argument in call.args:
                    if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                        raise ValueError(f"line {call.lineno}: a clause id must be a plain string")
                    yield argument.value


def _disabled(decorators: Sequence[ast.expr]) -> bool:
    """Whether a test is skipped or expected to fail, and so shows nothing."""
    return any(_mark(decorator) in {"skip", "xfail"} for decorator in decorators)


def _mark(node: ast.expr) -> str | None:
    """The name of a pytest mark, called or bare; None for any other expression."""
    match node.func if isinstance(node, ast.Call) else node:
        case ast.Attribute(attr=name, value=ast.Attribute(attr="mark") | ast.Name(id="mark")):
            return name
    return None


def render(titles: Mapping[str, str], clauses: Sequence[Clause], shown: Shown) -> str:
    """The whole page."""
    pages = [INTRO, _summary(clauses, shown)]
    for section, group in groupby(clauses, key=lambda clause: clause.section):
        rows = [_row(clause, shown) for clause in group]
        head = ["| id | level | what it asks | tests |", "|---|---|---|---|"]
        pages.append("\n".join([f"## {section} {titles[section]}", "", *head, *rows, ""]))
    return "\n".join(pages)


def _summary(clauses: Sequence[Clause], shown: Shown) -> str:
    """How many clauses there are, and how many of them are shown and open."""
    head = "| | clauses | shown by a test | open |\n|---|---|---|---|"
    rows = [
        _counts(level, [clause for clause in clauses if clause.level == level], shown)
        for level in LEVELS
    ]
    return "\n".join([head, *rows, _counts("all", clauses, shown), ""])


def _counts(label: str, clauses: Sequence[Clause], shown: Shown) -> str:
    """One row of the summary."""
    with_tests = sum(clause.id in shown for clause in clauses)
    return f"| {label} | {len(clauses)} | {with_tests} | {len(clauses) - with_tests} |"


def _row(clause: Clause, shown: Shown) -> str:
    """One clause."""
    tests = "<br>".join(f"`{test}`" for test in shown.get(clause.id, ())) or "**none yet**"
    return f"| `{clause.id}` | {clause.level} | {clause.text} | {tests} |"


def page() -> str:
    """The page as clauses and tests are now."""
    return render(*load(), scan())


def problems(target: Path = TARGET) -> list[str]:
    """Why the page must not stay as it is."""
    titles, clauses = load()
    shown = scan()
    found = [
        f"clause {clause.id}: no test names it" for clause in clauses if clause.id not in shown
    ]
    known = {clause.id for clause in clauses}
    for id_ in sorted(shown.keys() - known):
        found.append(f"clause {id_}: is not in {SOURCE.name}, but {shown[id_][0]} names it")
    written = target.read_text("utf-8") if target.exists() else ""
    if written != render(titles, clauses, shown):
        found.append(f"{target.name} is stale: run python -m tests.spec.table")
    return found


def main(arguments: Sequence[str]) -> str:
    """Write the page, or with `--check` say what is wrong with it."""
    if list(arguments) == ["--check"]:
        return "\n".join(problems())
    if arguments:
        return "usage: python -m tests.spec.table [--check]"
    TARGET.write_text(page(), "utf-8")
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) or 0)
