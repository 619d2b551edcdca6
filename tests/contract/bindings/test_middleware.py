"""Headers of every response, accepted hosts, and origins that may call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from dragoman import App
from tests.contract.bindings.test_card import CARD, small
from tests.harness.server import served

MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
PAGE = "https://page.example"
ASKING = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,a2a-version",
}


async def answers(scheme: str = "http", **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client in process, as if it had come so."""
    async with App(small(), drain_timeout=0.1, **settings) as app:
        transport = httpx.ASGITransport(app)
        url = f"{scheme}://agent.example"
        async with httpx.AsyncClient(transport=transport, base_url=url) as http:
            yield http


async def every(http: httpx.AsyncClient, **headers: str) -> list[httpx.Response]:
    """One answer of each sort."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": MESSAGE}
    found = [
        await http.post("/", json=rpc, headers=named),
        await http.post("/", json={k: v for k, v in rpc.items() if k != "id"}, headers=named),
        await http.post("/", content=b"{", headers=named),
        await http.post("/message:send", json=MESSAGE, headers=named),
        await http.post("/message:stream", json=MESSAGE, headers=named),
        await http.get("/tasks/none", headers=named),
        await http.get("/nothing/here", headers=named),
        await http.get("/healthz", headers=named),
    ]
    card = await http.get(CARD, headers=named)
    again = await http.get(CARD, headers={**named, "if-none-match": card.headers["etag"]})
    assert again.status_code == 304
    return [*found, card, again]


async def test_no_answer_is_guessed_at() -> None:
    async for http in answers():
        for response in await every(http):
            assert response.headers.get_list("x-content-type-options") == ["nosniff"]
            assert "strict-transport-security" not in response.headers


@pytest.mark.clause("tls.modern")
async def test_https_stays_https() -> None:
    name, age = "strict-transport-security", "max-age=60"
    async for http in answers("https", hsts=60):
        for response in await every(http):
            assert response.headers[name] == age
            assert response.headers["x-content-type-options"] == "nosniff"
    async for http in answers("http", hsts=60):
        for response in await every(http, x_forwarded_proto="https"):
            assert name not in response.headers, "anybody can say so"
    async for http in answers("http", hsts=60, trust_forwarded=True):
        assert (await http.get(CARD, headers={"x-forwarded-proto": "https"})).headers[name] == age
        assert name not in (await http.get(CARD)).headers
    async for http in answers("https"):
        assert name not in (await http.get(CARD)).headers, "only if it is wanted"


async def test_what_no_cache_may_keep() -> None:
    async for http in answers():
        task = (await http.post("/message:send", json=MESSAGE)).json()["task"]["id"]
        for path in (f"/tasks/{task}", "/tasks", "/tasks/none", "/nothing/here", "/", "/healthz"):
            response = await http.get(path)
            assert response.headers.get_list("cache-control") == ["no-store"], path
        stream = await http.post("/message:stream", json=MESSAGE)
        assert stream.headers.get_list("cache-control") == ["no-store"]
        card = await http.get(CARD)
        assert card.headers.get_list("cache-control") == ["public, max-age=300"]


async def test_no_answer_is_a_page() -> None:
    markup = "<script>alert(1)</script>"
    async for http in answers():
        for response in (
            await http.get(f"/{markup}"),
            await http.get(f"/tasks/{markup}"),
            await http.put(f"/tasks/{markup}"),
            await http.post("/message:send", content=markup),
            await http.post("/message:send", content="{}", headers={"content-type": markup}),
            await http.post("/", json={"jsonrpc": "2.0", "id": markup, "method": markup}),
            await http.get("/tasks/none", headers={"a2a-version": markup}),
        ):
            kind = response.headers["content-type"]
            assert kind in ("application/json", "application/a2a+json"), response.text
            assert response.headers["x-content-type-options"] == "nosniff"


async def test_nobody_says_what_serves() -> None:
    async with (
        served(App(small(), drain_timeout=0.1)) as server,
        httpx.AsyncClient(base_url=server.url) as http,
    ):
        for response in await every(http):
            assert "server" not in response.headers
            assert "x-powered-by" not in response.headers
            assert "uvicorn" not in response.text.lower()


# ---- pages ---------------------------------------------------------------------------------


def cors(response: httpx.Response) -> dict[str, str]:
    return {
        name.removeprefix("access-control-"): value
        for name, value in response.headers.items()
        if name.startswith("access-control-")
    }


async def test_no_page_by_default() -> None:
    async for http in answers():
        for response in await every(http, origin=PAGE):
            public = response.request.url.path == CARD
            assert cors(response) == ({"allow-origin": "*"} if public else {})
        refused = await http.options("/", headers=ASKING)
        assert refused.status_code >= 400
        assert not cors(refused)


async def test_pages_that_are_listed() -> None:
    async for http in answers(cors=(PAGE,)):
        for response in await every(http, origin=PAGE):
            public = response.request.url.path == CARD
            assert response.headers.get_list("access-control-allow-origin") == [
                "*" if public else PAGE
            ]
            assert "access-control-allow-credentials" not in response.headers
            assert public or "Origin" in response.headers["vary"]
        asked = await http.options("/message:send", headers=ASKING)
        assert asked.status_code == 204
        assert cors(asked) == {
            "allow-origin": PAGE,
            "allow-methods": "GET, POST, DELETE",
            "allow-headers": "authorization,content-type,a2a-version",
            "max-age": "600",
        }


@pytest.mark.parametrize(
    "page",
    ["https://evil.example", "null", "http://page.example", "https://page.example.evil.example"],
)
async def test_pages_that_are_not(page: str) -> None:
    async for http in answers(cors=(PAGE,)):
        for response in await every(http, origin=page):
            assert cors(response) in ({}, {"allow-origin": "*"})
            assert bool(cors(response)) is (response.request.url.path == CARD)
        refused = await http.options("/", headers={**ASKING, "origin": page})
        assert refused.status_code >= 400
        assert not cors(refused)


async def test_any_page() -> None:
    async for http in answers(cors=("*",)):
        assert cors(await http.get("/tasks/none", headers={"origin": PAGE}))["allow-origin"] == "*"


# ---- hosts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("agent.example", True),
        ("AGENT.example:8443", True),
        ("x.wide.example", True),
        ("[::1]:8000", True),
        ("wide.example", False),
        ("evil.example", False),
        ("agent.example.evil.example", False),
        ("evil.example:agent.example", False),
        ("xwide.example", False),
        ("", False),
    ],
)
async def test_hosts(host: str, served: bool) -> None:
    async for http in answers(trusted_hosts=("agent.example", "*.wide.example", "[::1]")):
        for path in (CARD, "/tasks/none"):
            response = await http.get(path, headers={"host": host})
            assert (response.status_code != 421) is served
            assert served or host not in response.text or not host
        assert (await http.get("/healthz", headers={"host": host})).status_code == 200


async def test_the_host_that_a_proxy_tells() -> None:
    told = {"host": "inside", "x-forwarded-host": "agent.example"}
    async for http in answers(trusted_hosts=("agent.example",), trust_forwarded=True):
        assert (await http.get(CARD, headers=told)).status_code == 200
        told["x-forwarded-host"] = "evil.example"
        assert (await http.get(CARD, headers=told)).status_code == 421
    async for http in answers(trusted_hosts=("agent.example",)):
        told["x-forwarded-host"] = "agent.example"
        assert (await http.get(CARD, headers=told)).status_code == 421
