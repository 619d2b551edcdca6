"""The server is killed with SIGKILL while pages are open: they say so, and go on exactly where they
were when it is back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.products.console.browser import FULL, needs_browser, watched
from tests.products.console.killed_server import END, MIDDLE, WORDS, killed_server

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

KILLS = 5 if FULL else 1
STORY = "".join(f"word{index} " for index in range(WORDS)).strip()


def covered(places: list[str]) -> list[int]:
    """The numbers of the entries that a timeline shows: `7`, or two for folded chunks."""
    found: list[int] = []
    for place in places:
        first, _, last = place.replace(",", "").partition("\u2013")
        found += range(int(first), int(last or first) + 1)
    return found


async def test_chat_task_and_table_go_on_where_they_were(chromium: Browser, tmp_path: Path) -> None:
    size = {"width": 1280, "height": 3000}  # the lists draw everything
    async with killed_server(tmp_path) as server, watched(chromium, viewport=size) as seen:
        chat: Any = seen.page
        await chat.goto(server.address)
        table, other = [await chat.context.new_page() for _ in range(2)]
        page: Any = await chat.context.new_page()
        await table.goto(f"{server.url}/console/#/tasks")
        await other.goto(f"{server.url}/console/#/chat/story")
        await other.wait_for_selector(".welcome")
        await chat.goto(f"{server.url}/console/#/chat/story")
        await chat.fill(".composer textarea", "tell")
        await chat.keyboard.press("Enter")
        log = await chat.wait_for_selector(".task-line a")
        await page.goto(f"{server.url}/console/{await log.get_attribute('href')}")
        for kill in range(KILLS):
            await chat.wait_for_selector(f".bubble.artifact:has-text('word{MIDDLE} ')")
            told = page.locator(f".entry.artifact:has-text('word{MIDDLE} ')")
            await told.nth(kill).wait_for()  # it has begun again
            await server.kill()
            for each in (chat, page, table, other):
                await each.wait_for_selector(".offline:has-text('The server does not answer')")
            if kill == 0:  # a message that is sent meanwhile waits
                await other.fill(".composer textarea", "ask")
                await other.keyboard.press("Enter")
                await other.wait_for_selector(".bubble.mine:has-text('ask')")
            if kill == KILLS - 1:
                (tmp_path / END).touch()
            await server.start()
            for each in (chat, page, table, other):
                await each.wait_for_selector(".offline", state="detached")

        await other.wait_for_selector(".bubble.theirs:has-text('Which one?')")
        assert await other.locator(".bubble.mine").count() == 1

        await chat.wait_for_selector(".task-line .state.completed")
        assert (await chat.inner_text(".bubble.artifact .markdown")).strip() == STORY

        await page.wait_for_selector(".task-head .state.completed")
        last = int((await page.inner_text(".slider output")).rpartition(" ")[2])
        places = await page.locator(".entry .place").all_inner_texts()
        assert covered(places) == list(range(1, last + 1))
        assert (await page.inner_text(".result .box:has-text('story') .markdown")).strip() == STORY
        failed = await page.locator(".entry.attempt").all_inner_texts()
        assert len(failed) == KILLS
        assert all(re.search("lease|worker", each) for each in failed), failed

        await table.wait_for_selector(".row .state.completed")
        assert await table.locator(".row").count() == 2
