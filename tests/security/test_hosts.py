"""What a request says of where it was sent, and whom it makes the server look up."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.bindings.http_request import named
from dragoman.security import egress
from tests.harness import agents
from tests.harness.server import BINDINGS

HOSTS = {
    "[": "",
    "[::1": "",
    "[:::::]": "",
    "[1.2.3.4]": "",
    "a b": "",
    "a@b": "",
    "a/b": "",
    "a?b": "",
    "a#b": "",
    "a\\b": "",
    "a:b": "",
    "a:99999": "",
    "a:1:2": "",
    "\xe9.example": "",
    "": "",
    "a.example": "a.example",
    "A-b_c.example:8080": "A-b_c.example:8080",
    "127.0.0.1:80": "127.0.0.1:80",
    "[::1]:80": "[::1]:80",
}


@pytest.mark.parametrize("host", HOSTS, ids=ascii)
def test_what_is_a_host(host: str) -> None:
    assert named(host) == HOSTS[host]


async def card(headers: dict[str, str], **settings: Any) -> httpx.Response:
    """The card that is told to who sends these headers."""
    app = App(agents.make(), grpc_port=0, bindings=BINDINGS, drain_timeout=0.0, **settings)
    transport = httpx.ASGITransport(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        return await http.get("/.well-known/agent-card.json", headers=headers)


@pytest.mark.parametrize("host", ["[", "[::1", "a@evil.example", "a/b", "a:99999"])
async def test_a_card_never_names_what_is_no_host(host: str) -> None:
    for headers in ({"host": host}, {"host": "a.example", "x-forwarded-host": host}):
        answer = await card(headers, trust_forwarded=True)
        assert answer.status_code == 200
        urls = [each["url"] for each in answer.json()["supportedInterfaces"]]
        assert urls
        assert not any(host in url for url in urls)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-forwarded-prefix", "@evil.example"),
        ("x-forwarded-prefix", "//evil.example"),
        ("x-forwarded-prefix", "]"),
        ("x-forwarded-prefix", "/a?b"),
        ("x-forwarded-proto", "javascript"),
        ("x-forwarded-proto", "https://evil.example/?"),
    ],
)
async def test_a_proxy_that_passes_on_what_it_was_told(name: str, value: str) -> None:
    answer = await card({"host": "a.example", name: value}, trust_forwarded=True)
    assert answer.status_code == 200
    assert "evil" not in answer.text
    for each in answer.json()["supportedInterfaces"]:
        assert each["url"].startswith(("http://a.example", "a.example:"))


async def test_a_proxy_that_is_right() -> None:
    told = {"x-forwarded-proto": "https", "x-forwarded-prefix": "/agents", "x-forwarded-host": "b"}
    answer = await card({"host": "a.example", **told}, trust_forwarded=True)
    assert answer.json()["supportedInterfaces"][0]["url"].startswith("https://b/agents")


async def test_who_asks_for_a_name_and_goes_leaves_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller may hang up while the name of a webhook is looked up, and then it is not there."""
    asked, told = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def nowhere(host: str) -> list[str]:
        loop.call_soon_threadsafe(asked.set)
        asyncio.run_coroutine_threadsafe(told.wait(), loop).result(10)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(egress, "_lookup", nowhere)
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    lookup = egress.Lookup()
    one, two = (asyncio.ensure_future(lookup("h.example")) for _ in range(2))
    await asked.wait()
    one.cancel()
    await asyncio.sleep(0)
    told.set()
    with pytest.raises(OSError, match="not known"):
        await two
    del one, two
    await asyncio.sleep(0)
    gc.collect()
    lookup.close()
    assert faults == []
