"""A browser for the tests of a file, and the script that checks pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.interop.peers import environments
from tests.products.console.browser import browser

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with browser() as found:
        yield found


@pytest.fixture(scope="session")
def axe() -> str:
    """The script that checks whether everybody can use a page."""
    try:
        folder = environments.node("axe")
    except environments.Absent as why:
        pytest.skip(str(why))
    return (folder / "node_modules/axe-core/axe.min.js").read_text()
