"""The page in a real browser: one pass over all screens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from tests.products.console.browser import Watched, needs_browser, watched
from tests.products.console.parts import TOKENS, Running, booking, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

CHANGED_EARLY = """(() => {
  const wait = setTimeout;
  window.requestAnimationFrame = (run) => wait(run, 500);
  window.setTimeout = (run, milliseconds) => wait(run, Math.max(milliseconds || 0, 500));
  const look = new MutationObserver(() => {
    if (!document.querySelector("nav")) return;
    look.disconnect();
    location.hash = "#/chat/booking";
  });
  look.observe(document, { childList: true, subtree: true });
})()"""
"""Changes the address when the page has been drawn and does not listen yet."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with consoled(App(booking(), store=stored(path), poll=0.2)) as found:
        yield found


FETCHED = """() => performance.getEntriesByType('resource')
  .filter((each) => each.name.includes('/static/'))
  .map((each) => [each.name, each.transferSize])"""
"""The files of the page, and the bytes that were sent for each."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(chromium: Browser, running: Running) -> AsyncIterator[Watched]:
    """A page that has opened the address of the terminal. A new one for each test costs more."""
    async with watched(chromium) as found:
        await found.page.goto(running.fresh())
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def seen(tab: Watched, running: Running) -> AsyncIterator[Watched]:
    await tab.page.goto(f"{running.url}/console/#/agents")  # what a test has left is gone
    await tab.page.goto(f"{running.url}/console/#/tasks")
    yield tab
    assert tab.forgotten() == []
    assert tab.foreign(running.url) == []


async def test_the_table_shows_tasks_as_they_come(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    task = await running.send("Rome")
    await page.wait_for_selector(f'.row[href="#/task/{task["id"]}"] .state.completed')
    await page.keyboard.press("/")
    assert await page.evaluate("document.activeElement.matches('input')")
    await page.keyboard.press("Escape")
    assert await page.evaluate("document.activeElement === document.body")
    for key in ("j", "j", "k", "k"):  # there is one row, or a few
        await page.keyboard.press(key)
    await page.keyboard.press("Enter")
    await page.wait_for_selector("text=Booked: Rome")
    assert page.url.endswith(f"#/task/{task['id']}")
    await page.wait_for_selector(".entry >> nth=3")


async def test_a_reload_fetches_no_script_again(seen: Watched) -> None:
    """The browser asks for each whether it has changed, and gets headers only."""
    page: Any = seen.page
    await page.reload()
    await page.wait_for_selector("nav")
    found = await page.evaluate(FETCHED)
    assert len(found) > 20
    assert [each for each in found if not 0 < each[1] < 500] == []


async def test_one_task_is_followed(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    task = await running.send("ask")
    await page.goto(f"{running.url}/console/#/task/{task['id']}")
    await page.wait_for_selector(".task-head .state.input-required")
    await page.wait_for_selector('.entry:has-text("Which dates?")')


async def test_the_chat_asks_answers_and_survives_a_reload(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/chat/booking")
    await page.fill(".composer textarea", "ask")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".task-line .state.input-required")
    await page.fill(".composer textarea", "Monday")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".bubble.artifact:has-text('Booked: Monday')")
    assert "context=" in page.url
    await page.reload()
    await page.wait_for_selector(".bubble.artifact:has-text('Booked: Monday')")
    assert await page.locator(".bubble.mine").count() == 2


async def test_files_go_with_a_message_and_the_wire_shows_it(
    seen: Watched, running: Running
) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/chat/booking")
    await page.wait_for_selector(".welcome")
    file = {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"Rome"}
    await page.set_input_files(".attach input", file)
    await page.fill(".composer textarea", "Rome")
    await page.click(".composer .line button")
    await page.wait_for_selector(".bubble.mine:has-text('plan.txt')")
    await page.wait_for_selector(".task-line .state.completed")
    await page.click(".talk-head >> text=Wire")
    await page.click(".wire .fold.line:has-text('SendStreamingMessage')")
    await page.wait_for_selector(".exchange:has-text('A2A-Extensions') , .exchange pre")
    await page.click("text=The same call in other versions and bindings")
    await page.wait_for_selector(".exchange h3:has-text('HTTP+JSON 0.3')")


async def test_an_address_that_changes_while_the_page_begins_is_followed(
    chromium: Browser, running: Running
) -> None:
    running.fresh()
    async with watched(chromium) as seen:
        page: Any = seen.page
        await page.add_init_script(CHANGED_EARLY)
        await page.goto(running.address)
        await page.wait_for_selector(".composer textarea")


async def test_time_travel_shows_the_task_as_it_was(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    task = await running.send("Cairo")
    await page.goto(f"{running.url}/console/#/task/{task['id']}")
    await page.wait_for_selector(".result:has-text('Booked: Cairo')")
    await page.click(".entry .place >> nth=1")
    await page.wait_for_selector(".past:has-text('after entry 2')")
    await page.wait_for_selector(".task-head .state.working")
    assert await page.locator(".result:has-text('Booked: Cairo')").count() == 0
    await page.click(".slider button")
    await page.wait_for_selector(".result:has-text('Booked: Cairo')")


async def test_filters_are_in_the_address(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    found = await running.send("fail")
    await page.wait_for_selector(".counts button:has-text('failed')")
    await page.click(".counts button:has-text('failed')")
    await page.wait_for_selector(f'.row[href="#/task/{found["id"]}"]')
    assert "state=failed" in page.url
    await page.wait_for_selector(".row .state:not(.failed)", state="detached")
    await page.reload()
    await page.wait_for_selector(f'.row[href="#/task/{found["id"]}"]')
    await page.keyboard.press("/")
    await page.keyboard.type("no such words anywhere")
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".empty")


async def test_the_page_goes_on_where_it_was_when_the_server_is_back(
    chromium: Browser, tmp_path: Path
) -> None:
    store = stored(tmp_path)
    async with watched(chromium) as seen:
        page: Any = seen.page
        async with consoled(App(booking(), store=store, poll=0.2)) as first:
            port = int(first.url.rpartition(":")[2])
            task = await first.send("ask")
            await page.goto(first.address)
            await page.goto(f"{first.url}/console/#/task/{task['id']}")
            await page.wait_for_selector(".entry:has-text('Which dates?')")
        await page.wait_for_selector(".offline")
        async with consoled(App(booking(), store=store, poll=0.2), port=port) as second:
            await page.wait_for_selector(".offline", state="detached")
            async with second.operator() as http:
                message = {"messageId": "2", "role": "ROLE_USER", "taskId": task["id"]}
                body = {"message": {**message, "parts": [{"text": "Monday"}]}}
                headers = {"a2a-version": "1.0"}
                answer = await http.post("/message:send", json=body, headers=headers)
                assert answer.status_code == 200
            await page.wait_for_selector(".entry:has-text('Booked: Monday')")
            places = await page.locator(".entry .place").all_inner_texts()
            assert places == [str(number) for number in range(1, len(places) + 1)]


async def test_an_operator_answers_and_sends_again_from_the_page(
    seen: Watched, running: Running
) -> None:
    page: Any = seen.page
    task = await running.send("ask")
    await page.goto(f"{running.url}/console/#/task/{task['id']}")
    await page.wait_for_selector(".why:has-text('waits for the owner')")
    await page.fill("#answer", "Monday")
    await page.click(".ask button")
    await page.wait_for_selector(".result:has-text('Booked: Monday')")
    await page.wait_for_selector(".entry:has-text('from terminal/operator')")
    await page.click("text=Send again")
    await page.wait_for_selector("text=A new task that refers to")
    assert await page.input_value(".composer textarea") == "ask"
    await page.fill(".composer textarea", "Tuesday")
    await page.click(".composer .line button")
    await page.wait_for_selector(".bubble.artifact:has-text('Booked: Tuesday')")
    assert await page.locator(".bubble.mine:has-text('Tuesday')").count() == 1


async def test_a_running_stream_is_interrupted_and_resumed(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/chat/booking")
    await page.fill(".composer textarea", "wait")
    await page.keyboard.press("Enter")
    await page.click("text=Interrupt the stream")
    await page.wait_for_selector("text=The stream was interrupted")
    await page.click(".task-line >> text=Resume")
    await page.click("text=Interrupt the stream")
    await page.click(".task-line >> text=Cancel")
    await page.wait_for_selector(".task-line .state.canceled")
    await page.click(".talk-head >> text=Wire")
    await page.wait_for_selector(".wire .fold.line:has-text('SubscribeToTask')")


async def test_a_caller_logs_in_for_the_chat(chromium: Browser, tmp_path: Path) -> None:
    app = App(booking(), store=stored(tmp_path), auth=TOKENS)
    async with consoled(app) as found, watched(chromium) as seen:
        page: Any = seen.page
        await page.goto(found.fresh())
        await page.click("nav >> text=Chat")
        await page.fill("input[name=secret]", "tom")
        await page.click("form.schema button")
        await page.fill(".composer textarea", "Rome")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".bubble.artifact:has-text('Booked: Rome')")
        await page.click("nav >> text=Tasks")
        await page.wait_for_selector(".row:has-text('tom')")


async def test_a_saved_log_opens_in_another_console(
    seen: Watched, running: Running, tmp_path: Path
) -> None:
    page: Any = seen.page
    task = await running.send("Lima")
    await page.goto(f"{running.url}/console/#/task/{task['id']}")
    async with page.expect_download() as download:
        await page.click("text=Save the log")
    file = tmp_path / "log.jsonl"
    await (await download.value).save_as(file)
    await page.click("nav >> text=Open a log")
    await page.set_input_files("input[type=file]", file)
    await page.wait_for_selector(".result:has-text('Booked: Lima')")
    await page.click(".entry .place >> nth=0")
    await page.wait_for_selector(".task-head .state.submitted")
