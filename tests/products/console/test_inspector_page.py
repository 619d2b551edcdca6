"""The inspector in a real browser: chat, an interrupted stream, and the view of the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.cli.console_command import ConsoleServer
from tests.harness.server import serving
from tests.products.console.browser import FULL, Watched, needs_browser, watched
from tests.products.console.test_inspector import inspector

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


def counting(gate: asyncio.Event) -> Agent:
    """An agent that goes on after its first word when the gate is open."""
    agent = Agent("Counter", description="Counts.", version="1")

    @agent.handler
    async def count(turn: Turn) -> AsyncIterator[Any]:
        yield turn.write("one ", name="numbers")
        await gate.wait()
        yield turn.write("two", name="numbers")

    return agent


@asynccontextmanager
async def opened(browser: Browser, agent: App) -> AsyncIterator[Watched]:
    """The inspector of an agent, in a browser."""
    tokens: list[str] = []
    async with serving(agent) as address:
        console = inspector(address, tokens)
        app = App(mounts={"/": ConsoleServer()})
        app.answer_first(console, close=console.close)
        async with serving(app) as url, watched(browser) as seen:
            assert console.token is not None
            console.token.print()
            await seen.page.goto(f"{url}/console/?token={tokens[-1]}")
            yield seen
            assert seen.errors == []
            assert seen.foreign(url) == []


@pytest.mark.parametrize("binding", ["GRPC", "JSONRPC", "HTTP+JSON"] if FULL else ["GRPC"])
async def test_a_stream_is_interrupted_and_resumed(chromium: Browser, binding: str) -> None:
    gate = asyncio.Event()
    settings: dict[str, Any] = {"grpc_port": 0} if binding == "GRPC" else {}
    agent = App(counting(gate), bindings=(binding,), **settings)
    async with opened(chromium, agent) as seen:
        page: Any = seen.page
        await page.fill(".composer textarea", "count")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".bubble.artifact:has-text('one')")
        await page.click("text=Interrupt the stream")
        await page.wait_for_selector("text=The stream was interrupted.")
        gate.set()
        await page.click("button:has-text('Resume')")
        await page.wait_for_selector(".bubble.artifact:has-text('one two')")
        await page.wait_for_selector(".task-line .state.completed")
        await page.click(".talk-head >> text=Wire")
        await page.click(".wire .fold.line:has-text('SendStreamingMessage')")
        await page.wait_for_selector(".exchange:has-text('numbers')")
        await page.click("text=The same call in other versions and bindings")
        await page.wait_for_selector(".exchange h3:has-text('GRPC 1.0')")
        await page.wait_for_selector(".exchange h3:has-text('JSONRPC 0.1')")
        await page.wait_for_selector(".wire .fold.line:has-text('SubscribeToTask')")
        await page.reload()
        await page.wait_for_selector(".bubble.artifact:has-text('one two')")


async def test_headers_extensions_and_metadata_go_with_each_call(chromium: Browser) -> None:
    heard: list[Turn] = []
    sent: list[dict[str, str]] = []
    agent = Agent("Listener", description="Listens.", version="1")

    @agent.handler
    async def listen(turn: Turn) -> str:
        heard.append(turn)
        return "heard"

    async def record(scope: Any, receive: Any, send: Any) -> bool:
        if scope["method"] == "POST":
            sent.append({name.decode(): text.decode() for name, text in scope["headers"]})
        return False

    app = App(agent, bindings=("HTTP+JSON",))
    app.answer_first(record)
    async with opened(chromium, app) as seen:
        page: Any = seen.page
        await page.click("text=Headers, extensions, metadata")
        await page.fill("textarea[name=headers]", "X-Trip: 7")
        await page.fill("textarea[name=extensions]", "urn:trip")
        await page.fill("textarea[name=metadata]", '{"trip": 7}')
        await page.click("form > button:has-text('Use')")
        await page.wait_for_selector("textarea[name=headers]", state="detached")
        await page.fill(".composer textarea", "hello")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".task-line .state.completed")
        await page.click(".talk-head >> text=Wire")
        await page.click(".wire .fold.line:has-text('SendStreamingMessage')")
        await page.wait_for_selector(".exchange pre:has-text('x-trip: ***')")
        assert "7" in str(heard[0].metadata)
        # the form shows what is sent; the value of a header may be a secret
        await page.click("text=Headers, extensions, metadata")
        assert await page.input_value("textarea[name=headers]") == "x-trip: ***"
        assert await page.input_value("textarea[name=extensions]") == "urn:trip"
        assert json.loads(await page.input_value("textarea[name=metadata]")) == {"trip": 7}
        await page.fill("textarea[name=headers]", "x-trip: ***\nX-Other: 8")
        await page.click("form > button:has-text('Use')")
        await page.wait_for_selector("textarea[name=headers]", state="detached")
        await page.fill(".composer textarea", "again")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".task-line .state.completed >> nth=1")
        assert heard[1].metadata == heard[0].metadata
        assert [sent[-1]["x-trip"], sent[-1]["x-other"]] == ["7", "8"]
