"""Pages in a browser that call a server: another site's, the server's own, those that are listed,
and those that gave another name to its address. The requests are what Chromium sends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.bindings import header_checks
from tests.harness.server import served, serving
from tests.harness.trust import NOBODY

MESSAGE = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
BODY = json.dumps(MESSAGE).encode()
RPC = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": MESSAGE}).encode()
EVIL = "https://evil.example"
CROSS = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "empty"}
CARD = "/.well-known/agent-card.json"
JSON = "application/json"


class Local(App):
    """An application that counts the turns of its agent."""

    turns = 0


def local(**settings: Any) -> Local:
    """An agent on this machine."""
    agent = Agent("Local", description="Runs things.")
    app: Local

    @agent.handler
    async def run(turn: Turn) -> str:
        app.turns += 1
        return "done"

    app = Local(agent, drain_timeout=0.0, **settings)
    return app


@asynccontextmanager
async def reached(app: App, how: str = "serve") -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, under `dragoman serve` or another server."""
    if how == "serve":
        async with (
            served(app) as server,
            httpx.AsyncClient(base_url=server.url, verify=NOBODY) as http,
        ):
            yield http
    else:
        async with serving(app) as url, httpx.AsyncClient(base_url=url, verify=NOBODY) as http:
            yield http


async def post(
    http: httpx.AsyncClient, target: str = "/message:send", kind: str | None = JSON, **headers: str
) -> httpx.Response:
    """A message with exactly these headers."""
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    if kind is not None:
        told["content-type"] = kind
    return await http.post(target, content=RPC if target == "/" else BODY, headers=told)


# ---- pages of others -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["serve", "uvicorn"])
@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1", "http://localhost:1"])
async def test_a_page_of_another_site_runs_nothing(how: str, origin: str) -> None:
    app = local()
    async with reached(app, how) as http:
        for target in ("/message:send", "/message:stream", "/"):
            # an untyped body (fetch with an ArrayBuffer), a form's type, and what needs a preflight
            for kind in (None, "", ";", "text/plain;charset=UTF-8", JSON):
                answer = await post(http, target, kind, origin=origin, **CROSS)
                assert answer.status_code == 403, (target, kind)
                assert "`cors`" in answer.json()["error"]["message"]
                assert not any(name.startswith("access-control") for name in answer.headers)
            asked = {"origin": origin, "access-control-request-method": "POST"}
            assert (await http.options(target, headers=asked)).status_code == 403
        assert (await http.get("/tasks", headers={"origin": origin})).status_code == 403
        # what any page may read, and the health
        assert (await http.get(CARD, headers={"origin": origin})).status_code == 200
        assert (await http.get("/healthz", headers={"origin": origin})).status_code == 200
    assert app.turns == 0


@pytest.mark.parametrize("kind", [None, "", ";", ";charset=x"])
async def test_a_body_without_a_type(kind: str | None) -> None:
    """A browser sends none without asking first; other clients may leave it out."""
    app = local()
    async with reached(app) as http:
        own = str(http.base_url)
        assert (await post(http, "/", kind, **CROSS)).status_code == 415
        assert (await post(http, "/", kind, origin=own)).status_code == 415
        assert app.turns == 0
        fine = kind is None or not kind.strip()
        assert (await post(http, "/", kind)).status_code == (200 if fine else 415)
        assert (await post(http, "/", kind, sec_fetch_site="none")).status_code == (
            200 if fine else 415
        )
    assert app.turns == (2 if fine else 0)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1", "agents"])
@pytest.mark.parametrize("how", ["serve", "uvicorn"])
async def test_a_page_that_has_renamed_the_address(how: str, host: str) -> None:
    """DNS rebinding: the page and the server have one origin, as far as a browser knows."""
    app = local()
    async with reached(app, how) as http:
        port = http.base_url.port
        for named in (host, f"{host}:{port}"):
            answer = await post(http, host=named, origin=f"http://{named}")
            assert answer.status_code == 421
            assert "`trusted_hosts` and `url`" in answer.json()["error"]["message"]
            assert host not in answer.text
            assert (await http.get(CARD, headers={"host": named})).status_code == 421
            assert (await http.get("/healthz", headers={"host": named})).status_code == 200
    assert app.turns == 0


# ---- who may ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["serve", "uvicorn"])
async def test_names_of_this_machine(how: str) -> None:
    app = local()
    async with reached(app, how) as http:
        port = http.base_url.port
        names = ("127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "a.localhost", "[::1]")
        for name in names:
            for host in (name, f"{name}:{port}"):
                assert (await post(http, host=host)).status_code == 200
                page = await post(http, host=host, origin=f"http://{host.lower()}")
                assert page.status_code == 200
                assert "access-control-allow-origin" not in page.headers, "it needs none"
    assert app.turns == 4 * len(names)


async def test_an_address_that_is_configured() -> None:
    app = local(url="https://agents.example/travel")
    async with reached(app) as http:
        for host in ("agents.example", "agents.example:443", "127.0.0.1"):
            assert (await post(http, host=host)).status_code == 200
            page = await post(http, host=host, origin="https://agents.example")
            assert page.status_code == 200
        assert (await post(http, host="other.example")).status_code == 421
        assert (await post(http, host="agents.example", origin=EVIL)).status_code == 403


async def test_a_proxy_in_front() -> None:
    """It is on this machine, too, and hands the public name on."""
    told = {"x_forwarded_host": "agents.example", "x_forwarded_proto": "https"}
    async with reached(local(trust_forwarded=True)) as http:
        assert (await post(http, host="agents.example")).status_code == 200
        own = await post(http, host="inside", origin="https://agents.example", **told)
        assert own.status_code == 200
        assert (await post(http, host="inside", origin=EVIL, **told)).status_code == 403
    async with reached(local(trusted_hosts=["agents.example"])) as http:
        assert (await post(http, host="agents.example")).status_code == 200
        assert (await post(http)).status_code == 421, "only those that are listed"


async def test_pages_that_are_listed() -> None:
    app = local(cors=[EVIL])
    async with reached(app) as http:
        answer = await post(http, origin=EVIL)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, EVIL)
        assert (await post(http, kind=None, origin=EVIL)).status_code == 415
        assert (await post(http, origin="https://other.example")).status_code == 403
        assert (await post(http, origin=str(http.base_url))).status_code == 200


async def test_a_server_that_listens_elsewhere_takes_any_name() -> None:
    """So do applications that are called in the same process under a name."""
    app = local()
    async with app:
        for server, status in (("10.0.0.7", 200), ("testserver", 200), ("::1", 421), ("", 200)):
            transport = httpx.ASGITransport(_at(app, server))
            async with httpx.AsyncClient(transport=transport, base_url="http://a.example") as http:
                assert (await post(http)).status_code == status
                page = await post(http, origin="http://a.example")
                assert page.status_code == status
    wide = local()
    wide.hosts.address = "0.0.0.0"
    async with wide:
        transport = httpx.ASGITransport(_at(wide, "127.0.0.1"))
        async with httpx.AsyncClient(transport=transport, base_url="http://a.example") as http:
            assert (await post(http)).status_code == 200


def _at(app: App, server: str) -> Any:
    """The application as a server at this address calls it."""

    async def called(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "server": (server, 80) if server else None}, receive, send)

    return called


async def test_the_usual_request_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is good is remembered; a hostile host is not, and what is remembered is bounded."""
    monkeypatch.setattr(header_checks, "KNOWN", 4)
    app = local()
    async with reached(app) as http:
        await post(http)
        assert len(app._header_checks._good) == 1
        for number in range(10):
            await http.get("/nothing", headers={"host": f"a{number}.localhost"})
            await http.get("/nothing", headers={"host": f"a{number}.example"})
            assert 0 < len(app._header_checks._good) <= 4
            assert not any(host.endswith(b".example") for host in app._header_checks._good if host)
