"""The page about an agent at `/`, and that all other requests get what they got before."""

from __future__ import annotations

import httpx
import pytest

from dragoman import App
from dragoman.cli.browser_pages import AgentPage
from tests.harness.server import serving
from tests.products.console import payloads
from tests.products.console.parts import TOKENS, booking

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def paged(app: App) -> App:
    """The application with the page."""
    app.answer_first(AgentPage())
    return app


async def test_a_browser_sees_the_card_as_a_page() -> None:
    async with serving(paged(App(booking(), auth=TOKENS))) as url, httpx.AsyncClient() as http:
        found = await http.get(url, headers=HTML)
        assert found.status_code == 200
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        assert found.headers["vary"] == "Accept"
        text = found.text
        for word in (
            "Booking",
            "Book a flight to Rome",
            f"curl {url}",
            "Client.connect",
            "dragoman send",
        ):
            assert word in text
        assert "Authorization: Bearer" in text
        assert "<script" not in text
        assert "script-src" not in found.headers["content-security-policy"]
        head = await http.head(url, headers=HTML)
        assert (head.status_code, head.content) == (200, b"")


async def test_several_agents_are_listed() -> None:
    app = paged(App(booking(key="one"), booking(key="two")))
    async with serving(app) as url, httpx.AsyncClient() as http:
        assert f'href="{url}/two/"' in (await http.get(url, headers=HTML)).text
        assert f"{url}/two/message:send" in (await http.get(f"{url}/two/", headers=HTML)).text
        assert (await http.get(f"{url}/three/", headers=HTML)).status_code == 404


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/plain", "text/*"])
async def test_other_requests_get_the_same_bytes(accept: str) -> None:
    headers = {"accept": accept} if accept else {}
    agents = [booking(key="one"), booking(key="two")]
    async with (
        serving(paged(App(*agents))) as url,
        serving(App(*agents)) as plain,
        httpx.AsyncClient() as http,
    ):
        host = {"host": url.removeprefix("http://")}
        for method in ("GET", "HEAD", "POST"):
            for path in ("/", "/one/", "/one", "/three/", "/one/tasks"):
                got = await http.request(method, url + path, headers=headers)
                want = await http.request(method, plain + path, headers={**headers, **host})
                assert (got.status_code, got.content) == (want.status_code, want.content)
                varies = method != "POST" and path in ("/", "/one/", "/one")
                assert got.headers.get("vary", "") == ("Accept" if varies else "")


async def test_a_hostile_card_stays_text() -> None:
    async with serving(paged(App(payloads.hostile()))) as url, httpx.AsyncClient() as http:
        text = (await http.get(url, headers=HTML)).text
        for word in ("<script", "<img", "<svg", "<iframe", 'href="javascript'):
            assert word not in text.lower()
