"""A hostile agent in a real browser: no script of it runs, and no request leaves the server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from tests.harness.server import serving
from tests.products.console import payloads
from tests.products.console.browser import Watched, needs_browser, watched
from tests.products.console.parts import Running, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LINKS = """() => [...document.querySelectorAll('a[href], [src], form[action]')].map(
  (each) => each.href || each.src || each.action)"""
HANDLERS = """() => [...document.querySelectorAll('*')].flatMap((each) =>
  [...each.attributes].filter((one) => one.name.startsWith('on')).map((one) => one.name))"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with consoled(App(payloads.hostile(), store=stored(path), poll=0.2)) as found:
        await found.send("attack")
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def seen(chromium: Browser, running: Running) -> AsyncIterator[Watched]:
    running.fresh()
    async with watched(chromium) as found:
        await found.page.goto(running.address)
        await found.page.wait_for_selector(".row")
        yield found
        await unharmed(found, running)


async def unharmed(seen: Watched, running: Running) -> None:
    """Nothing of the agent ran, nothing was asked for elsewhere, and nothing leads astray."""
    page: Any = seen.page
    assert await page.evaluate("window.attacked") is None
    assert await page.evaluate("Object.prototype.attacked") is None
    assert seen.dialogs == []
    assert seen.errors == []
    assert seen.foreign(running.url) == []
    assert await page.evaluate(HANDLERS) == []
    for link in await page.evaluate(LINKS):
        assert link.startswith((running.url, "http://attack.example", "http://127.0.0.1")), link


async def test_one_task_with_all_payloads(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.click(".row")
    await page.wait_for_selector(".entry")
    assert payloads.COUNT >= 200
    await page.wait_for_selector(".result .box >> nth=200")
    for button in await page.query_selector_all(".result .fold[aria-expanded=false]"):
        await button.click()
    await unharmed(seen, running)
    place = page.locator(".log .virtual")
    for _ in range(40):  # the timeline draws what is visible
        await place.evaluate("each => { each.scrollTop += each.clientHeight }")
        await page.evaluate("() => new Promise(requestAnimationFrame)")
    await page.locator("#place").evaluate(
        "each => { each.value = 20; each.dispatchEvent(new Event('input', {bubbles: true})) }"
    )
    await page.wait_for_selector(".past")


async def test_the_chat_with_all_payloads(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/chat/evil")
    await page.wait_for_selector(".welcome")
    await unharmed(seen, running)
    await page.fill(".composer textarea", payloads.HTML[1])
    await page.keyboard.press("Enter")
    await page.wait_for_selector(".state.input-required")
    await page.click(".talk-head >> text=Wire")
    for fold in (await page.query_selector_all(".wire .fold.line"))[:3]:
        await fold.click()


async def test_the_card_in_the_console_and_as_a_page(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/agents")
    await page.click("text=The card as served")
    await unharmed(seen, running)
    await page.goto(f"{running.url}/")
    assert "Evil" in await page.inner_text("h1")
    assert await page.locator("script").count() == 0


async def test_files_are_downloads_and_images_are_checked(running: Running) -> None:
    async with running.operator() as http:
        (row,) = (await http.get("/console/api/tasks?size=1")).json()["rows"]
        path = f"/console/api/tasks/{row['id']}"
        entries = (await http.get(f"{path}/entries?limit=1000")).json()["entries"]
        found = [
            (entry, index, part)
            for entry in entries
            for index, part in enumerate(entry.get("parts", ()))
            if part["kind"] == "file"
        ]
        assert len(found) >= 20
        for entry, index, part in found:
            answer = await http.get(f"/console/api/{part['path']}")
            assert answer.status_code == 200
            headers = answer.headers
            assert headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
            assert "sandbox" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            image = part.get("image", False)
            assert image == answer.content.startswith(b"\x89PNG")
            assert headers["content-type"] == ("image/png" if image else "application/octet-stream")
            assert "set-cookie" not in headers, (entry, index)


EVIL_PAGE = """<!doctype html><title>evil</title><body>
<iframe id=frame src="%(url)s/console/"></iframe>
<script>
async function attack() {
  const found = [];
  const tries = [
    ['session', '%(url)s/console/api/session', {credentials: 'include'}],
    ['tasks', '%(url)s/console/api/tasks/events', {credentials: 'include'}],
    ['act', '%(url)s/console/api/webhooks/redrive', {method: 'POST', credentials: 'include',
      body: '{"task": "x"}'}],
    ['header', '%(url)s/console/api/logout', {method: 'POST', credentials: 'include',
      headers: {'x-dragoman-console': '1'}}],
    ['chat', '%(url)s/console/agents/evil/', {method: 'POST', mode: 'no-cors',
      credentials: 'include', body: '{}'}],
  ];
  for (const [name, url, options] of tries) {
    try {
      const answer = await fetch(url, options);
      found.push([name, answer.type, answer.status]);
    } catch (error) {
      found.push([name, 'refused', 0]);
    }
  }
  const stream = await new Promise((done) => {
    const source = new EventSource('%(url)s/console/api/tasks/events', {withCredentials: true});
    source.onmessage = source.onopen = () => done('open');
    source.onerror = () => done('refused');
  });
  found.push(['stream', stream, 0]);
  return found;
}
</script>"""


async def test_another_origin_can_neither_read_nor_act(chromium: Browser, running: Running) -> None:
    async def evil(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        head = [(b"content-type", b"text/html")]
        body = (EVIL_PAGE % {"url": running.url}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    running.fresh()
    async with serving(evil) as other, watched(chromium) as seen:
        page: Any = seen.page
        await page.goto(running.address)
        await page.wait_for_selector(".row")
        for origin in (other, other.replace("127.0.0.1", "localhost")):
            await page.goto(origin)
            for name, kind, status in await page.evaluate("attack()"):
                assert kind in ("refused", "opaque"), (origin, name, kind, status)
            frame = page.frames[-1]
            assert await frame.locator("nav").count() == 0  # frame-ancestors 'none'
        await page.goto(f"{running.url}/console/")  # nobody has logged it out
        await page.wait_for_selector(".row")


async def test_the_token_leaves_no_trace(
    chromium: Browser, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    running.fresh()
    token = running.tokens[-1]
    async with watched(chromium) as seen:
        page: Any = seen.page
        await page.goto(running.address)
        await page.wait_for_selector(".row")
        assert token not in page.url
        assert token not in await page.content()
        assert await page.evaluate("document.referrer") == ""
        assert await page.evaluate("document.cookie") == ""
        await page.go_back()
        assert token not in page.url
    assert token not in caplog.text
