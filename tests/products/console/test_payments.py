"""Payments in the console: the price before a message is sent, what a task asks for, and what came
of it, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dragoman import App
from dragoman.client import PAUSE_EXTENSIONS, Client
from dragoman.payments import Price
from dragoman.payments.ledger_file import load
from dragoman.payments.networks import BASE_SEPOLIA_USDC as USDC
from tests.products.console.browser import Watched, needs_browser, watched
from tests.products.console.parts import ACT, Running, consoled, stored
from tests.products.payments.loopback_facilitator import KEY, SHOP, loopback_facilitator
from tests.products.payments.parts import Shop, wallet

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PRICE = f"0.1 USDC on base-sepolia to {SHOP}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    path = tmp_path_factory.mktemp("console")
    async with loopback_facilitator(USDC) as facilitator:
        shop = Shop(facilitator, Price("0.10", USDC, to=SHOP))
        async with consoled(App(shop.agent, store=stored(path), poll=0.2)) as found:
            yield found


@pytest_asyncio.fixture(loop_scope="module")
async def seen(chromium: Browser, running: Running) -> AsyncIterator[Watched]:
    running.fresh()
    async with watched(chromium) as found:
        await found.page.goto(running.address)
        yield found
        assert found.errors == []
        assert found.foreign(running.url) == []


async def test_the_price_is_shown_before_sending(seen: Watched, running: Running) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/chat/shop")
    price = page.locator(".composer .price")
    await price.wait_for()
    assert "nalyze costs 0.1 USDC on base-sepolia." in await price.inner_text()
    await page.goto(f"{running.url}/console/#/agents")
    await page.wait_for_selector(".skills li:has-text('costs 0.1 USDC on base-sepolia')")


async def test_a_task_that_asks_for_a_payment_asks_no_question(
    seen: Watched, running: Running
) -> None:
    page: Any = seen.page
    await page.goto(f"{running.url}/console/#/chat/shop")
    await page.fill(".composer textarea", "tides")
    await page.keyboard.press("Enter")
    note = page.locator(".note.payment")
    await note.wait_for()
    assert f"asks for a payment of {PRICE}. Nothing was paid" in await note.inner_text()
    assert "dragoman task pay URL" in await note.inner_text()
    operator: Any
    async with running.operator() as operator:
        (row,) = (await operator.get("/console/api/tasks")).json()["rows"]
        shown = (await operator.get(f"/console/api/tasks/{row['id']}")).json()
        assert (shown["asks"], PRICE in shown["why"]) == ("payment", True)
        path = f"/console/api/tasks/{row['id']}/answer"
        refused = await operator.post(path, json={"text": "here"}, headers=ACT)
        assert refused.status_code == 409 and PRICE in refused.text
    # the next line is another task, and no answer
    assert await page.locator(".composer button:has-text('Answer')").count() == 0
    await page.fill(".composer textarea", "waves")
    await page.keyboard.press("Enter")
    await note.nth(1).wait_for()
    assert await page.locator(".task-talk").count() == 2


async def test_the_timeline_has_the_payment(
    seen: Watched, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WALLET_KEY", KEY)
    amounts: Any = {"per_call": "1 USDC", "per_day": "1 USDC", "assets": [USDC], "receivers": SHOP}
    paying = wallet(tmp_path, **amounts)
    async with Client.connect(running.url, answer=paying, extensions=PAUSE_EXTENSIONS) as agent:
        result = await agent.send("tides")
    assert result.task is not None and result.ok
    page: Any = seen.page
    fetched: list[str] = []

    async def keep(response: Any) -> None:
        if "event-stream" not in response.headers.get("content-type", ""):
            fetched.append(await response.text())

    page.on("response", keep)
    await page.goto(f"{running.url}/console/#/task/{result.task.id}")
    asked = page.locator(f"article:has-text('payment-required'):has-text('{PRICE}')")
    await asked.first.wait_for()
    for status in ("payment-submitted", "payment-verified"):
        await page.wait_for_selector(f"article:has(span.state:text('{status}'))")
    end = "element => element.scrollTop = element.scrollHeight"
    await page.locator("[aria-label=Timeline]").evaluate(end)
    await page.wait_for_selector("article:has-text('payment-completed'):has-text('transaction 0x')")
    (signed,) = load(paying.file).payments
    assert signed.signature and signed.signature[2:] not in "".join(fetched)
    assert any("payment-submitted" in text for text in fetched)
