"""A browser for tests: Debian's chromium, driven by playwright. Without them, tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.harness.scale import SCALE, SOAK

CHROMIUM = os.environ.get("CONSOLE_CHROMIUM") or shutil.which("chromium") or ""
TIMEOUT = 30_000
"""Milliseconds that a page has for each step: a machine may be slow."""
FULL = os.environ.get("CONSOLE") == "full" or (SOAK and SCALE >= 1)
"""Whether the long forms of the tests run: `make console-test`, and `make soak`."""
try:
    from playwright.async_api import Browser, Page, async_playwright
except ImportError:  # pragma: no cover
    CHROMIUM = ""

needs_browser = pytest.mark.skipif(
    not CHROMIUM, reason="there is no chromium with playwright: run `make console-test`"
)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Start the browser."""
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--renderer-process-limit=1",
            ],
        )
        try:
            yield found
        finally:
            await found.close()


class Watched:
    """A page, with everything that it did and that it should not have done."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        """Errors of scripts, and violations of the content security policy."""
        self.requests: list[str] = []
        """The URLs of all requests."""
        self.dialogs: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._said)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", self._dialog)

    def forgotten(self) -> list[str]:
        """The errors so far, which are then forgotten."""
        found, self.errors = self.errors, []
        return found

    def _said(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    async def _dialog(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        await dialog.dismiss()

    def foreign(self, url: str) -> list[str]:
        """The requests that did not go to this server."""
        inner = (url, "data:", "blob:")
        return [each for each in self.requests if not each.startswith(inner)]


async def serious(page: Any, axe: str) -> list[str]:
    """What the script axe finds in a page that is a serious hindrance for somebody."""
    await page.evaluate(axe)
    result = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{each['id']}: {node['html'][:120]}: {node['failureSummary'][:200]}"
        for each in result["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]


@asynccontextmanager
async def watched(browser: Browser, **options: Any) -> AsyncIterator[Watched]:
    """A new page with a profile of its own."""
    options.setdefault("viewport", {"width": 1280, "height": 800})
    context = await browser.new_context(**options)
    context.set_default_timeout(TIMEOUT)
    try:
        yield Watched(await context.new_page())
    finally:
        await context.close()


def _installed() -> str:
    """The path of the browser that playwright has installed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


if __name__ == "__main__":
    print(_installed())  # noqa: T201
