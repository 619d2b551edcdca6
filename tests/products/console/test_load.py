"""The console under load: fast streams, long logs, very many tasks. The long forms run with
`make console-test`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from dragoman import Agent, App, Turn
from tests.harness.scale import say
from tests.products.console.browser import FULL, long_form, needs_browser, watched
from tests.products.console.parts import Running, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SECONDS = 60 if FULL else 3
"""How long events come."""
RATE = 500
"""Events per second."""
LOG = 100_000 if FULL else 3000
"""The entries of a long log."""
FRAMES = """() => {
  window.frames_ = [];
  let last = performance.now();
  const next = (now) => {
    window.frames_.push(now - last);
    last = now;
    window.more_ = requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
}"""


def streams() -> Agent:
    """An agent that writes as many chunks as the message says: at once, or at a rate."""
    agent = Agent("Streams", description="Writes chunks.", version="1")

    @agent.handler
    async def handle(turn: Turn) -> AsyncIterator[Any]:
        how, _, number = turn.text.partition(" ")
        began = time.monotonic()
        for index in range(int(number)):
            if how == "rate":
                rate = RATE if int(number) < 50_000 else 150
                await asyncio.sleep(max(0.0, began + index / rate - time.monotonic()))
            yield turn.write(f"word {index} ", name="story")

    return agent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with consoled(App(streams(), store=stored(path))) as found:
        yield found


async def begun(running: Running, text: str) -> str:
    """Start a task, and return its id."""
    message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"message": message, "configuration": {"returnImmediately": True}}
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{running.url}/message:send", json=body, headers={"a2a-version": "1.0"}
        )
        task: str = answer.json()["task"]["id"]
        return task


async def test_a_fast_stream_leaves_the_page_smooth(chromium: Browser, running: Running) -> None:
    async with watched(chromium) as seen:
        page: Any = seen.page
        await page.goto(running.fresh())
        task = await begun(running, f"rate {RATE * SECONDS}")
        await page.goto(f"{running.url}/console/#/task/{task}")
        await page.wait_for_selector(".entry.artifact")
        await page.evaluate(FRAMES)
        await page.wait_for_selector(
            ".task-head .state.completed", timeout=(SECONDS * 2 + 20) * 1000
        )
        frames = sorted(await page.evaluate("window.frames_"))
        assert len(frames) > 20
        slow = frames[int(len(frames) * 0.95)]
        say(f"{len(frames)} frames: 95 % under {slow:.0f} ms, the longest {frames[-1]:.0f} ms")
        if FULL:
            assert slow < 50
            assert frames[-1] < 500
        async with running.operator() as http:
            row = (await http.get(f"/console/api/tasks/{task}")).json()["row"]
        last = f"{row['last']:,} of {row['last']:,}"
        assert row["last"] > RATE * SECONDS
        await page.wait_for_selector(f".slider output:has-text('{last}')")


@long_form
async def test_the_heap_does_not_grow(chromium: Browser, running: Running) -> None:
    seconds = int(os.environ.get("CONSOLE_HEAP") or (600 if FULL else 4))
    async with watched(chromium) as seen:
        page: Any = seen.page
        await page.goto(running.fresh())
        task = await begun(running, f"rate {150 * seconds}" if FULL else "rate 1500")
        await page.goto(f"{running.url}/console/#/task/{task}")
        await page.wait_for_selector(".entry.artifact")
        tools = await page.context.new_cdp_session(page)

        async def heap() -> float:
            await tools.send("HeapProfiler.collectGarbage")
            return float((await tools.send("Runtime.getHeapUsage"))["usedSize"])

        await asyncio.sleep(seconds / 10 if FULL else 1)
        early = await heap()
        await asyncio.sleep(seconds * 0.85 if FULL else 1.5)
        late = await heap()
        say(f"heap: {early / 1e6:.1f} MB, later {late / 1e6:.1f} MB")
        assert late < early * (1.2 if FULL else 2)


async def test_the_slider_is_quick_in_a_long_log(chromium: Browser, running: Running) -> None:
    task = await begun(running, f"at-once {LOG}")
    async with running.operator() as http:
        until = time.monotonic() + 300
        while time.monotonic() < until:
            row = (await http.get(f"/console/api/tasks/{task}")).json()["row"]
            if row.get("over"):
                break
            await asyncio.sleep(0.2)
        await http.get(f"/console/api/tasks/{task}/at/{LOG}")  # folds the log once
        for place in (LOG // 2, LOG // 3, LOG - 7, 12, LOG // 2 + 1):
            began = time.monotonic()
            answer = await http.get(f"/console/api/tasks/{task}/at/{place}")
            took = time.monotonic() - began
            say(f"entry {place}: {took * 1000:.0f} ms, {len(answer.content)} bytes")
            assert answer.json()["number"] == place
            assert len(answer.content) < 1_000_000
            if FULL:
                assert took < 0.3
