"""The chat in a real browser: forms, questions, approvals, files, conversations, many tabs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import pytest_asyncio
from msgspec import Meta

from dragoman import Agent, App, Turn
from tests.products.console.browser import FULL, Watched, needs_browser, watched
from tests.products.console.parts import Running, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PAYMENT = {"to": "ACME", "amount": 120}
DROP = """(files) => {
  const found = new DataTransfer();
  for (const [name, text] of files) found.items.add(new File([text], name, {type: 'text/plain'}));
  return found;
}"""
AT_ONCE = """() => new MutationObserver(async (_, observer) => {
  const field = document.querySelector('.composer textarea');
  if (!field) return;
  observer.disconnect();
  field.value = 'hello';
  field.dispatchEvent(new Event('input', {bubbles: true}));
  for (let i = 0; i < 20; i++) await null;
  field.form.requestSubmit();
}).observe(document.body, {childList: true, subtree: true})"""
"""Sends a message as soon as there is a field for it, before the page is drawn."""
GATE = asyncio.Event()
"""Lets the tasks go on that wait."""
BEGUN = asyncio.Event()
"""A turn waits that will have no task."""


def desk() -> Agent:
    """An agent with typed skills, which asks, wants approvals, and reads files."""
    agent = Agent("Desk", description="Does what it is asked.", version="1", key="desk")

    @agent.handler
    async def talk(turn: Turn) -> AsyncIterator[Any]:
        """Talk."""
        if turn.text == "pay":
            yield turn.require_auth("May I pay?", operation=PAYMENT)
        elif turn.approval is not None:
            paid = await turn.granted(PAYMENT)
            yield turn.complete("It is paid." if paid else "Nothing was paid.")
        elif turn.text == "hold":
            yield turn.working("Waiting for the gate")
            await GATE.wait()
            yield turn.artifact("The gate is open.", name="gate")
        elif turn.files:
            sizes = [f"{file.filename}: {len(file.raw or b'')} bytes" for file in turn.files]
            yield turn.complete("; ".join(sizes))
        else:
            yield turn.complete(f"You said {turn.text}.")

    @agent.skill(ask=True)
    def find_room(
        city: Annotated[str, Meta(description="Where to stay", min_length=2)],
        nights: Annotated[int, Meta(ge=1, le=30)] = 2,
        board: Literal["none", "breakfast", "full"] = "breakfast",
        quiet: bool = False,
        guests: list[str] = [],  # noqa: B006
    ) -> str:
        """Find a room."""
        return f"{nights} nights in {city}, {board}, quiet={quiet}, for {', '.join(guests)}"

    return agent


def parrot() -> Agent:
    """An agent that answers without a task."""
    agent = Agent("Parrot", description="Repeats.", version="1", key="parrot")

    @agent.handler(reply=True)
    async def handle(turn: Turn) -> AsyncIterator[Any]:
        if turn.text == "hold":
            BEGUN.set()
            await GATE.wait()
        yield turn.reply(f"You said {turn.text}.")

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with consoled(App(desk(), parrot(), store=stored(path), poll=0.2)) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab(chromium: Browser, running: Running) -> AsyncIterator[Watched]:
    """A page that has opened the address of the terminal. A new one for each test costs more."""
    async with watched(chromium) as found:
        await found.page.goto(running.fresh())
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def seen(tab: Watched, running: Running) -> AsyncIterator[Watched]:
    await begin(tab.page, running, "parrot")
    await begin(tab.page, running)
    yield tab
    assert tab.forgotten() == []
    assert tab.foreign(running.url) == []


async def begin(page: Any, running: Running, agent: str = "desk") -> None:
    """Open a new conversation."""
    await page.goto(f"{running.url}/console/#/chat/{agent}")
    await page.wait_for_selector(f".welcome:has-text('{'Does' if agent == 'desk' else 'Rep'}')")


async def say(page: Any, text: str) -> None:
    await page.fill(".composer textarea", text)
    await page.keyboard.press("Enter")


async def test_a_form_is_made_of_the_schema_of_a_skill(seen: Watched) -> None:
    page: Any = seen.page
    await page.select_option(".skill select", "find_room")
    form = page.locator(".composer form.schema")
    await form.locator("input[type=number]").fill("31")
    await form.locator("label:has-text('city') input").fill("Rome")
    await form.locator("button").click()
    assert await page.locator(".bubble").count() == 0  # the browser has refused the number
    await form.locator("input[type=number]").fill("3")
    await form.locator("select").select_option(label="full")
    await form.locator("label:has-text('quiet') input").check()
    await form.locator("textarea").fill("no JSON")
    await form.locator("button").click()
    await page.wait_for_selector(".composer .bad:has-text('guests: this is not JSON')")
    await form.locator("textarea").fill('["Ann", "Bob"]')
    await form.locator("button").click()
    said = "3 nights in Rome, full, quiet=true, for Ann, Bob"
    await page.wait_for_selector(f".bubble.theirs:has-text('{said.replace('true', 'True')}')")


async def test_a_question_with_a_schema_is_a_form_in_place(seen: Watched) -> None:
    page: Any = seen.page
    await page.select_option(".skill select", "find_room")
    await page.locator(".composer form.schema label:has-text('city') input").fill("")
    await page.evaluate("document.querySelector('.composer form.schema').noValidate = true")
    await page.click(".composer form.schema button")
    form = page.locator(".task-talk form.schema")
    await form.locator("label:has-text('city') input").fill("Oslo")
    await form.locator("button").click()
    await page.wait_for_selector(".bubble.theirs:has-text('2 nights in Oslo')")
    assert await page.locator(".task-talk").count() == 1
    assert await page.locator(".task-talk form.schema").count() == 0


@pytest.mark.parametrize(("button", "said"), [("Approve", "is paid"), ("Decline", "Nothing was")])
async def test_an_approval_shows_what_it_is_for(seen: Watched, button: str, said: str) -> None:
    page: Any = seen.page
    await say(page, "pay")
    asked = page.locator(".bubble.approval")
    await asked.wait_for()
    assert "ACME" in await asked.inner_text() and "120" in await asked.inner_text()
    await page.reload()  # a question is as good tomorrow
    await asked.locator(f"button:has-text('{button}')").click()
    await page.wait_for_selector(f".bubble.theirs:has-text('{said}')")
    assert await asked.count() == 0
    await page.click(".task-line >> text=Log")
    word = {"Approve": "approves", "Decline": "declines"}[button]
    await page.wait_for_selector(f".entry.message:has-text('{word}'):has-text('from anonymous')")


async def test_files_are_dropped_removed_and_sent(seen: Watched) -> None:
    page: Any = seen.page
    files = await page.evaluate_handle(DROP, [["a.txt", "Rome"], ["b.txt", "no"], ["c.txt", "x"]])
    await page.dispatch_event(".messages", "dragover", {"dataTransfer": files})
    await page.wait_for_selector(".talk.over")
    await page.dispatch_event(".messages", "drop", {"dataTransfer": files})
    await page.wait_for_selector(".files li >> nth=2")
    assert await page.locator(".talk.over").count() == 0
    await page.click("[aria-label='Remove b.txt']")
    await say(page, "two files")
    await page.wait_for_selector(".bubble.theirs:has-text('a.txt: 4 bytes; c.txt: 1 bytes')")
    await page.reload()
    mine = page.locator(".bubble.mine")
    await mine.wait_for()
    async with page.expect_download() as download:
        await mine.locator("[aria-label='Save a.txt']").click()
    assert Path(await (await download.value).path()).read_text() == "Rome"
    await page.click(".task-line >> text=Log")  # a saved log has the files, too
    async with page.expect_download() as download:
        await page.click("text=Save the log")
    log = await (await download.value).path()
    await page.click("nav >> text=Open a log")
    await page.set_input_files("input[type=file]", log)
    async with page.expect_download() as download:
        await page.click(".result [aria-label='Save c.txt']")
    assert Path(await (await download.value).path()).read_text() == "x"


async def test_a_message_that_is_sent_at_once_is_sent(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/agents")
    await page.wait_for_selector(".skills")
    await page.evaluate(AT_ONCE)
    await page.goto(f"{running.url}/console/#/chat/desk")
    await page.wait_for_selector(".bubble.theirs:has-text('You said hello.')")


async def test_conversations_are_kept_apart(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await say(page, "hold")
    await page.wait_for_selector(".bubble.theirs:has-text('Waiting for the gate')")
    first = page.url
    await page.click("text=New conversation")
    await page.wait_for_selector(".welcome")
    await say(page, "hello")
    await page.wait_for_selector(".bubble.theirs:has-text('You said hello.')")
    await say(page, "again")
    await page.wait_for_selector(".bubble.theirs:has-text('You said again.')")
    assert "context=" in page.url and page.url != first
    GATE.set()  # the other one goes on, and does not come here
    await page.click(".contexts a:has-text('hold')")
    await page.wait_for_selector(".bubble.artifact:has-text('The gate is open.')")
    assert page.url == first
    assert await page.locator(".bubble.mine").count() == 1
    await page.click(".contexts a:has-text('hello')")
    await page.wait_for_selector(".bubble.theirs:has-text('You said again.')")
    assert await page.locator(".bubble.mine .text").all_inner_texts() == ["hello", "again"]
    GATE.clear()


async def test_a_question_that_is_answered_elsewhere_goes_on_here(
    seen: Watched, running: Running
) -> None:
    page: Any = seen.page
    await say(page, "pay")
    await page.wait_for_selector(".bubble.approval")
    other: Any = await page.context.new_page()
    await other.goto(page.url)
    await other.click(".bubble.approval button:has-text('Approve')")
    await page.wait_for_selector(".bubble.theirs:has-text('It is paid.')")


async def test_direct_replies_stay_after_a_reload(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await begin(page, running, "parrot")
    await say(page, "one")
    await page.wait_for_selector(".bubble.theirs:has-text('You said one.')")
    await say(page, "two")
    await page.wait_for_selector(".bubble.theirs:has-text('You said two.')")
    await page.reload()
    other: Any = await page.context.new_page()  # it shares no storage of the first tab
    await other.goto(page.url)
    for each in (page, other):
        await each.wait_for_selector(".bubble.theirs:has-text('You said two.')")
        texts = await each.locator(".bubble .text, .bubble .markdown").all_inner_texts()
        said = [text.strip() for text in texts]
        assert said == ["one", "You said one.", "two", "You said two."]
    await page.wait_for_selector(".contexts a:has-text('one')")
    await other.close()


async def test_a_direct_reply_that_comes_after_a_reload(seen: Watched, running: Running) -> None:
    GATE.clear()
    page: Any = seen.page
    await begin(page, running, "parrot")
    await say(page, "one")
    await page.wait_for_selector(".bubble.theirs:has-text('You said one.')")
    await say(page, "hold")
    await asyncio.wait_for(BEGUN.wait(), 20)
    await page.reload()
    await page.wait_for_selector(".bubble.mine:has-text('hold')")
    GATE.set()
    await page.wait_for_selector(".bubble.theirs:has-text('You said hold.')")
    assert await page.locator(".bubble.mine").count() == 2
    GATE.clear()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("<html>gone</html>", "It is not JSON"),
        ('{"jsonrpc": "2.0", "id": 1, "result": {"status": {}}}', "one of task, message"),
        ('{"jsonrpc": "2.0", "id": 1, "result": 7}', "result: it must be an object"),
    ][: 3 if FULL else 1],
)
async def test_the_wire_shows_an_answer_that_cannot_be_decoded(
    seen: Watched, body: str, why: str
) -> None:
    page: Any = seen.page

    async def answer(route: Any) -> None:
        headers = {"content-type": "application/json", "content-security-policy": "x"}
        await route.fulfill(status=200, headers=headers, body=body)

    await page.route("**/console/agents/desk/", answer)
    await say(page, "hello")
    await page.wait_for_selector(f".messages .bad:has-text('{why}')")
    await page.click(".talk-head >> text=Wire")
    await page.click(".wire .fold.line:has-text('SendStreamingMessage')")
    await page.wait_for_selector(f".exchange .bad:has-text('{why}')")
    if body.startswith("<"):
        await page.wait_for_selector(f".exchange pre:has-text('{body}')")
    await page.unroute("**/console/agents/desk/")


async def test_an_answer_that_is_refused_leaves_the_question(seen: Watched) -> None:
    page: Any = seen.page
    await page.select_option(".skill select", "find_room")
    await page.evaluate("document.querySelector('.composer form.schema').noValidate = true")
    await page.click(".composer form.schema button")
    form = page.locator(".task-talk form.schema")
    await form.locator("label:has-text('city') input").fill("R")
    await page.evaluate("document.querySelector('.task-talk form.schema').noValidate = true")
    await form.locator("button").click()
    await form.locator("label:has-text('city') input").fill("Rome")
    await form.locator("button").click()
    await page.wait_for_selector(".bubble.theirs:has-text('2 nights in Rome')")


async def test_many_tabs_with_streams_work(chromium: Browser, running: Running) -> None:
    """Ten; in short, one more than a browser has connections."""
    GATE.clear()
    async with watched(chromium) as seen:
        await seen.page.goto(running.fresh())
        pages: list[Any] = [await seen.page.context.new_page() for _ in range(10 if FULL else 7)]
        tables, tasks, chats = pages[:2], pages[2:4], pages[4:]
        for page in chats:
            await begin(page, running)
            await say(page, "hold")
            await page.wait_for_selector(".bubble.theirs:has-text('Waiting for the gate')")
        place = await chats[0].locator(".task-line a").get_attribute("href")
        for page in tasks:
            await page.goto(f"{running.url}/console/{place}")
            await page.wait_for_selector(".task-head .state.working")
        for page in tables:
            await page.goto(f"{running.url}/console/")
            await page.wait_for_selector(f'.row[href="{place}"] .state.working')
        GATE.set()
        for page in chats:
            await page.wait_for_selector(".bubble.artifact:has-text('The gate is open.')")
        for page in tasks:
            await page.wait_for_selector(".entry:has-text('The gate is open.')")
        for page in tables:
            await page.wait_for_selector(f'.row[href="{place}"] .state.completed')
