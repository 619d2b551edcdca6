"""The page in a real browser: one pass over all screens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from tests.products.console.browser import Watched, browser, needs_browser, watched
from tests.products.console.parts import Running, booking, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with consoled(App(booking(), store=stored(path), poll=0.2)) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def seen(chromium: Browser, running: Running) -> AsyncIterator[Watched]:
    """A page that has opened the address of the terminal."""
    running.app._first[-1].token.print()  # type: ignore[attr-defined]
    async with watched(chromium) as found:
        await found.page.goto(running.address)
        yield found
        assert found.errors == []
        assert found.foreign(running.url) == []


async def test_the_table_shows_tasks_as_they_come(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    task = await running.send("Rome")
    await page.wait_for_selector(f'.row[href="#/task/{task["id"]}"] .state.completed')
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=Booked: Rome")
    assert page.url.endswith(f"#/task/{task['id']}")
    await page.wait_for_selector(".entry >> nth=3")


async def test_one_task_is_followed(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    task = await running.send("ask")
    await page.goto(f"{running.url}/console/#/task/{task['id']}")
    await page.wait_for_selector(".task-head .state.input-required")
    await page.wait_for_selector('.entry:has-text("Which dates?")')
