"""The view of webhooks in a real browser: an operator delivers one that was given up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from dragoman import App
from tests.harness.server import serving
from tests.products.console.browser import needs_browser, watched
from tests.products.console.parts import booking, consoled, stored

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]


class Receiver:
    """Answers with a status, and counts the deliveries."""

    status = 503
    got = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for step in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{step}.complete"})
            return
        while (await receive()).get("more_body"):
            pass
        self.got += self.status == 200
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def test_a_webhook_that_was_given_up_is_delivered_again(
    chromium: Browser, tmp_path: Path
) -> None:
    receiver = Receiver()
    options: Any = {"push": True, "push_retries": (0.05,), "egress_allow": ["127.0.0.1"]}
    app = App(booking(), store=stored(tmp_path), poll=0.2, **options)
    async with (
        serving(receiver) as hook,
        consoled(app) as running,
        watched(chromium) as seen,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Rome"}]}
        config = {"taskPushNotificationConfig": {"url": f"{hook}/path-secret", "token": "word"}}
        body = {"message": message, "configuration": config}
        sent = await http.post("/message:send", json=body, headers={"a2a-version": "1.0"})
        task = sent.json()["task"]["id"]
        page: Any = seen.page
        await page.goto(running.fresh())
        await page.click("nav >> text=Webhooks")
        await page.wait_for_selector(f".box:has(a[href='#/task/{task}']) .state.failed")
        text = await page.inner_text(".box")
        assert hook in text and "503" in text
        assert "path-secret" not in await page.content()
        receiver.status = 200
        await page.click("text=Deliver again")
        await page.wait_for_selector("text=All webhooks have received everything.")
        assert receiver.got > 0
        assert seen.errors == []
