"""What the documentation says is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

from dragoman.events import RESUME
from dragoman.settings import DESCRIPTIONS, Settings

ROOT = Path(__file__).resolve().parents[2]


def test_every_setting_is_documented_with_its_default() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `(.*?)` \|", page, re.MULTILINE))
    for item in msgspec.structs.fields(Settings):
        default = item.default
        shown = str(default).lower() if isinstance(default, bool) else default
        if default is None:
            shown = "none"
        elif isinstance(default, str):
            shown = f'"{default}"'
        elif isinstance(default, float):
            shown = f"{default:g}"
        elif isinstance(default, tuple):
            shown = json.dumps(default)
        assert rows[item.name] == str(shown), item.name
        assert DESCRIPTIONS[item.name] in page


def test_the_extension_is_documented() -> None:
    assert RESUME in (ROOT / "docs/resume.md").read_text()


def test_links_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
