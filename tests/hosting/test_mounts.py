"""ASGI applications that are mounted in an App: they get the caller, and requests within the limits
of the server."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest

from dragoman import Agent, AgentError, App, Caller, Turn
from dragoman.client import Client
from dragoman.model.reserved_path_names import RESERVED
from dragoman.security import Anonymous, Token
from tests.harness.server import served, serving


class Echo:
    """Answers with what it was given; knows whether its lifespan runs."""

    def __init__(self) -> None:
        self.alive = False
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            self.alive = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.alive = False
            await send({"type": "lifespan.shutdown.complete"})
            return
        self.calls += 1
        if scope["path"].endswith("/fail"):
            raise ValueError("a secret of the application")
        message = await receive()
        caller = scope["dragoman.caller"]
        said = {
            "path": scope["path"],
            "root": scope["root_path"],
            "who": caller.identity,
            "scopes": sorted(caller.scopes),
            "url": scope["dragoman.url"],
            "local": scope["dragoman.local"],
            "body": message["body"].decode(),
            "more": message["more_body"],
        }
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(said).encode()})


def greeter(key: str = "greeter", tenant: str = "") -> Agent:
    agent = Agent("Greeter", description="Greets.", version="1", key=key, tenant=tenant)

    @agent.handler
    async def hello(turn: Turn) -> str:
        return f"hello {turn.text}"

    return agent


ANN = Token({"letmein": Caller(identity="ann", scopes=frozenset({"registry:write"}))})


async def test_beside_an_agent() -> None:
    echo = Echo()
    async with served(App(greeter(), mounts={"/tools/echo": echo})) as server:
        assert echo.alive
        async with httpx.AsyncClient(base_url=server.url) as http:
            said = (await http.post("/tools/echo/deep?x=1", content=b"x" * 100_000)).json()
            assert (said["path"], said["root"]) == ("/tools/echo/deep", "/tools/echo")
            assert said["url"] == f"{server.url}/tools/echo"
            assert len(said["body"]) == 100_000 and not said["more"]
            assert (await http.get("/tools/echo")).status_code == 200
            calls = echo.calls
            for path in ("/tools", "/tools/echoes", "/healthz"):  # these are not below it
                assert (await http.get(path)).status_code in (404, 200)
            assert echo.calls == calls
        async with Client.connect(server.url) as agent:
            assert (await agent.send("you")).text == "hello you"
    assert not echo.alive


async def test_a_mounted_application_learns_that_the_server_drains() -> None:
    told = asyncio.Event()

    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"open", "more_body": True})
        await scope["dragoman.app"].until_drain()
        told.set()
        await send({"type": "http.response.body", "body": b" closed"})

    async with (
        served(App(greeter(), mounts={"/stream": streaming})) as server,
        httpx.AsyncClient(base_url=server.url) as http,
        http.stream("GET", "/stream") as response,
    ):
        pieces = response.aiter_bytes()
        assert await anext(pieces) == b"open"
        assert not told.is_set()
        server.should_exit = True
        assert b"".join([piece async for piece in pieces]) == b" closed"


async def test_alone() -> None:
    echo = Echo()
    app = App(mounts={"/": echo})
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/any/path")).json()["path"] == "/any/path"
        assert (await http.post("/", content=b"{")).json()["body"] == "{"
        assert (await http.get("/")).headers["x-content-type-options"] == "nosniff"
        calls = echo.calls
        assert (await http.get("/readyz")).json() == {"status": "ok"}
        assert echo.calls == calls


async def test_callers_are_authenticated() -> None:
    echo = Echo()
    app = App(mounts={"/": echo}, auth=[ANN])
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            refused = await http.post("/", headers=headers, content=b"x")
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
        assert echo.calls == 0
        said = (await http.get("/", headers={"authorization": "Bearer letmein"})).json()
        assert (said["who"], said["scopes"], said["local"]) == ("ann", ["registry:write"], False)


async def test_hosts_bodies_and_origins_are_checked() -> None:
    echo = Echo()
    app = App(mounts={"/": echo}, max_body=1000)
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/", headers={"host": "evil.example"})).status_code == 421
        foreign = {"origin": "https://evil.example"}
        assert (await http.post("/", headers=foreign)).status_code == 403
        assert (await http.post("/", content=b"x" * 1001)).status_code == 413

        async def pieces() -> Any:
            for _ in range(11):
                yield b"x" * 100

        assert (await http.post("/", content=pieces())).status_code == 413
        assert echo.calls == 0


async def test_what_fails_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    app = App(mounts={"/": Echo()}, access_log=True)
    with caplog.at_level(logging.INFO):
        async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
            failed = await http.get("/fail")
    assert failed.status_code == 500 and "secret" not in failed.text
    assert "the application at / has failed" in caplog.text
    assert "GET /fail 500" in caplog.text


@pytest.mark.parametrize(
    ("options", "headers", "local"),
    [
        ({}, {}, True),
        ({}, {"x-forwarded-for": "203.0.113.7"}, False),
        ({"url": "http://127.0.0.1:1"}, {}, False),
        ({"trust_forwarded": True}, {}, False),
        ({"auth": [ANN]}, {"authorization": "Bearer letmein"}, False),
    ],
)
async def test_who_is_local(options: Any, headers: dict[str, str], local: bool) -> None:
    app = App(mounts={"/": Echo()}, **options)
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/", headers=headers)).json()["local"] is local


async def test_without_a_lifespan() -> None:
    async def plain(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with serving(App(mounts={"/": plain})) as url, httpx.AsyncClient() as http:
        assert (await http.get(url)).status_code == 204


async def test_one_that_cannot_start() -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    with pytest.raises(RuntimeError, match="no database"):
        await App(mounts={"/": broken}).start()


def test_paths() -> None:
    with pytest.raises(AgentError, match="at least one agent, or mounts"):
        App()
    for path in ("console", "/console/", "/a//b", ""):
        with pytest.raises(ValueError, match="is not a path"):
            App(mounts={path: Echo()})
    with pytest.raises(ValueError, match="another path"):
        App(greeter(), mounts={"/": Echo()})
    with pytest.raises(ValueError, match="path of the agent 'greeter'"):
        App(greeter(), mounts={"/greeter": Echo()})
    for name in ("tasks", "v1/x", "message", "agent", "handovers", "notifications", "readyz"):
        words = f"agent 'greeter' itself serves paths below '{name.partition('/')[0]}'"
        for path in (f"/greeter/{name}", f"/{name}"):
            with pytest.raises(ValueError, match=words):
                App(greeter(), mounts={path: Echo()})
        with pytest.raises(ValueError, match=words):
            App(greeter(), greeter("other"), mounts={f"/greeter/{name}": Echo()})
    with pytest.raises(
        ValueError, match="below the agent 'greeter', 'blue' is the path of its ten"
    ):
        App(greeter(tenant="blue"), mounts={"/blue": Echo()})
    with pytest.raises(ValueError, match="bindings: '/rpc' is the path of a mounted application"):
        App(greeter(), mounts={"/greeter/rpc": Echo()}, bindings=["JSONRPC:/rpc"])
    several = (greeter(tenant="blue"), greeter("other"))
    for path in ("/blue", "/tasks", "/other/blue", "/other/mcp", "/mcp", "/console/deep"):
        App(*several, mounts={path: Echo()})


ANYBODY = [Anonymous(tenants=["*"])]
ASKED = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "you"}]}}


async def sent(http: httpx.AsyncClient, path: str, tenant: str, *, named: bool = False) -> Any:
    """Send to the agent at a path in a tenant, which the path or the body names."""
    headers = {"a2a-version": "1.0", "idempotency-key": f"{path}{tenant}{named}"}
    if named:
        body = {**ASKED, "tenant": tenant}
        return await http.post(f"{path}/message:send", json=body, headers=headers)
    return await http.post(f"{path}/{tenant}/message:send", json=ASKED, headers=headers)


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
async def test_below_an_agent(several: bool) -> None:
    agents = [greeter(), greeter("other")] if several else [greeter()]
    where = "/greeter" if several else ""
    echo = Echo()
    app = App(*agents, mounts={f"{where}/tools": echo}, auth=ANYBODY)
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        said = (await http.post(f"{where}/tools/deep")).json()
        assert (said["path"], said["root"]) == (f"{where}/tools/deep", f"{where}/tools")
        assert said["url"] == f"{server.url}{where}/tools"
        async with Client.connect(f"{server.url}{where}") as agent:
            assert (await agent.send("you")).text == "hello you"
        # another tenant of the agent is found in both ways
        for named in (False, True):
            found = await sent(http, where, "blue", named=named)
            assert found.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        calls = echo.calls
        assert (await sent(http, where, "tools")).json()["path"].endswith("/tools/message:send")
        assert echo.calls == calls + 1
        refused = await sent(http, where, "tools", named=True)
        assert refused.status_code == 400
        assert "'tools' is the path of another application" in refused.text
        if several:  # it is a tenant of the other agent
            for named in (False, True):
                assert (await sent(http, "/other", "tools", named=named)).status_code == 200


async def test_a_credential_of_a_tenant_that_is_a_path() -> None:
    token = Token({"letmein": Caller(identity="ann", tenant="tools")})
    async with served(App(greeter(), mounts={"/tools": Echo()}, auth=[token])) as server:
        headers = {"authorization": "Bearer letmein"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
            refused = await http.get("/tasks/x", headers={"a2a-version": "1.0"})
            assert refused.status_code == 400 and "path of another application" in refused.text


@pytest.mark.parametrize("name", sorted(RESERVED))
async def test_reserved_names_are_no_tenants(name: str) -> None:
    app = App(greeter(), auth=ANYBODY)
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        words = f"'{name}' is reserved: {RESERVED[name]}"
        refused = await sent(http, "", name)
        if name in ("v1", "tasks"):  # these are paths of the agent without a tenant
            assert refused.status_code in (400, 405)
        else:
            assert refused.status_code == 404 and words in refused.text
        named = await sent(http, "", name, named=True)
        assert named.status_code == 400 and words in named.text
    with pytest.raises(ValueError, match=f"a tenant '{name}' is reserved"):
        App(greeter(), auth=Anonymous(tenants=[name]))
    token = Token({"letmein": Caller(identity="ann", tenant=name)})
    async with served(App(greeter(), auth=[token])) as server:
        headers = {"authorization": "Bearer letmein", "a2a-version": "1.0"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers) as http:
            assert (await http.get("/tasks/x")).status_code == 401
