"""The screens as axe sees them, in each size and theme; and their pictures."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from tests.harness.scale import say
from tests.interop.peers import environments
from tests.products.console import screenshots
from tests.products.console.browser import FULL, needs_browser, watched
from tests.products.console.parts import Running, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SERIOUS = ("serious", "critical")
LARGEST = 150_000
"""The most bytes of a picture in the docs."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    app = App(*screenshots.agents(), store=stored(path))
    async with consoled(app) as found:
        yield found


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that checks a page."""
    try:
        folder = environments.node("axe")
    except environments.Absent as why:
        pytest.skip(str(why))
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


@pytest.mark.parametrize("theme", screenshots.THEMES)
async def test_no_screen_has_a_serious_finding(
    chromium: Browser, running: Running, axe: str, theme: str, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("CONSOLE_PICTURES") or tmp_path)
    found: list[str] = []

    async def check(page: Any, name: str) -> None:
        await page.evaluate(axe)
        result = await page.evaluate("axe.run()")
        found.extend(
            f"{name}: {each['id']}: {node['html'][:120]}: {node['failureSummary'][:200]}"
            for each in result["violations"]
            if each["impact"] in SERIOUS
            for node in each["nodes"][:3]
        )

    sizes = screenshots.SIZES
    if not FULL:  # one pass over each
        sizes = {name: sizes[name] for name in ("wide" if theme == "light" else "phone",)}
    for width, height in sizes.values():
        options = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
        async with watched(chromium, bypass_csp=True, **options) as seen:
            await seen.page.goto(running.fresh())
            for name, place in (await screenshots.screens(running)).items():
                await screenshots.open_screen(seen.page, running, name, place)
                await check(seen.page, f"{name} {width} {theme}")
                wide = await seen.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is wider than the window"
                if FULL:
                    picture = folder / f"{name}-{width}-{theme}.png"
                    await seen.page.screenshot(path=picture)
                    say(str(picture))
    assert found == []


async def test_the_pictures_of_the_docs_are_small() -> None:
    folder = Path(__file__).resolve().parents[3] / "docs/images"
    pictures = sorted(folder.glob("console-*.png"))
    assert len(pictures) >= 3
    assert [each.name for each in pictures if each.stat().st_size > LARGEST] == []
