"""What the documentation says is so."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from dragoman.cli import _parser
from dragoman.client.bindings import BINDINGS
from dragoman.model.events import RESUME

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_extension_is_documented() -> None:
    assert RESUME in (ROOT / "docs/resume.md").read_text()


def test_the_figures_of_the_readme_are_those_that_were_measured() -> None:
    rows = re.findall(r"^\| \*\*.*?\| (.*?) \| `(make bench .*?)` \|$", README, re.MULTILINE)
    measured = (ROOT / "docs/deploy.md").read_text()
    assert len(rows) == 5
    for told, command in rows:
        (line,) = (one for one in measured.splitlines() if f"`{command}`" in one)
        figures = re.findall(r"\d[\d,.]*\d|\d", told)
        assert figures
        assert [one for one in figures if one not in re.findall(r"\d[\d,.]*\d|\d", line)] == []


def prose(page: Path) -> str:
    """The text of a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Where a link into a page may lead: its headings, as GitHub names them, and its marks."""
    text = prose(page)
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_links_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", prose(page)):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(there), f"{page.name}: {target}#{anchor}"


def commands(
    parser: ArgumentParser, *before: str
) -> Iterator[tuple[tuple[str, ...], ArgumentParser]]:
    """All commands below a parser, by their words."""
    inner = {**getattr(parser, "inner", {})}
    own = True
    for action in parser._actions:
        if isinstance(action.choices, dict):
            inner |= action.choices
            own = False
    if own and before:
        yield before, parser
    for name, one in inner.items():
        yield from commands(one, *before, name)


def test_every_command_is_on_its_page() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    told: set[tuple[str, ...]] = set()
    table = page.partition("| command | does |\n|---|---|\n")[2].partition("\n\n")[0]
    for row in table.splitlines():
        for words in re.findall(r"`(?:dragoman )?([^`]+)`", re.split(r"(?<!\\)\|", row)[1]):
            first, *rest = words.split()
            names = rest[0].split("\\|") if rest and rest[0].islower() else []
            if first == "completion":  # what follows are shells
                names = []
            told |= {(first, name) for name in names} or {(first,)}
    assert told == {words for words, _ in commands(_parser())}


def test_the_help_names_every_binding() -> None:
    asked = 0
    for words, parser in commands(_parser()):
        shown = " ".join(parser.format_help().split())
        if "--binding" in shown:
            asked += 1
            line = shown.partition("--binding NAME ")[2].partition(" --")[0]
            for name in BINDINGS:
                assert re.search(rf"(?<![\w+]){re.escape(name)}\b", line), words
    assert asked > 5
