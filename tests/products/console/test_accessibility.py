"""The screens as axe sees them, in each size and theme; and their pictures."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from dragoman.security import AllOf, ApiKey, Basic
from tests.client.authorization_server import presiding
from tests.client.protected_agent import guarded, has, http, key
from tests.harness.scale import say
from tests.products.console import screenshots
from tests.products.console.browser import FULL, needs_browser, serious, watched
from tests.products.console.parts import Running, booking, consoled, stored
from tests.products.console.test_inspector_login import opened

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LARGEST = 150_000
"""The most bytes of a picture in the docs."""
SOME = ("tasks", "task", "chat")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    app = App(*screenshots.agents(), store=stored(path))
    async with consoled(app) as found:
        yield found


@pytest.mark.parametrize("theme", screenshots.THEMES)
async def test_no_screen_has_a_serious_finding(
    chromium: Browser, running: Running, axe: str, theme: str, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("CONSOLE_PICTURES") or tmp_path)
    found: list[str] = []

    async def check(page: Any, name: str) -> None:
        found.extend(f"{name}: {each}" for each in await serious(page, axe))

    sizes, names = screenshots.SIZES, None
    if not FULL:  # all screens in one size, and in the other theme and size those that matter most
        sizes = {name: sizes[name] for name in ("wide" if theme == "light" else "phone",)}
        names = None if theme == "light" else SOME
    for width, height in sizes.values():
        options = {"viewport": {"width": width, "height": height}, "color_scheme": theme}
        async with watched(chromium, bypass_csp=True, **options) as seen:
            await seen.page.goto(running.fresh())
            for name, place in (await screenshots.screens(running)).items():
                if names and name not in names:
                    continue
                await screenshots.open_screen(seen.page, running, name, place)
                await check(seen.page, f"{name} {width} {theme}")
                wide = await seen.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is wider than the window"
                if FULL:
                    picture = folder / f"{name}-{width}-{theme}.png"
                    await seen.page.screenshot(path=picture)
                    say(str(picture))
    assert found == []


async def test_no_form_to_log_in_has_a_serious_finding(
    chromium: Browser, axe: str, tmp_path: Path
) -> None:
    found: list[str] = []
    schemes = {"cookie": key("cookie", "door"), "user": http("basic"), "token": http("bearer")}
    async with presiding() as authority, guarded(has()) as agent:
        agent.demand({**schemes, "code": authority.scheme("code")})
        for width, theme in ((360, "dark"), (1280, "light"))[: 2 if FULL else 1]:
            options: Any = {"viewport": {"width": width, "height": 800}, "color_scheme": theme}
            async with opened(chromium, agent, bypass_csp=True, **options) as seen:
                await seen.page.wait_for_selector("form input[name=client]")
                await seen.page.click(".talk-head >> text=Wire")
                await seen.page.click(".wire .fold.line")
                await seen.page.wait_for_selector(".exchange")
                found += await serious(seen.page, axe)
                assert await seen.page.evaluate("document.documentElement.scrollWidth") <= width
    auth: Any = [
        Basic({"ann": "sesame"}, realm="one"),
        AllOf(
            ApiKey(keys=["sesame"], query="k", realm="two"),
            ApiKey(keys=["sesame"], header="X-K", name="second"),
        ),
    ]
    async with (
        consoled(App(booking(), auth=auth), open=True, terminal=False) as running,
        watched(chromium, bypass_csp=True) as seen,
    ):
        await seen.page.goto(f"{running.url}/console/")
        await seen.page.fill("input[name=user]", "ann")
        await seen.page.fill("form:has(input[name=user]) input[name=secret]", "sesame")
        await seen.page.click("form:has(input[name=user]) button")
        await seen.page.wait_for_selector("text=needs a caller with the scope operator")
        found += await serious(seen.page, axe)
    assert found == []


async def test_the_pictures_of_the_docs_are_small() -> None:
    folder = Path(__file__).resolve().parents[3] / "docs/images"
    pictures = sorted(folder.glob("console-*.png"))
    assert len(pictures) >= 3
    assert [each.name for each in pictures if each.stat().st_size > LARGEST] == []
