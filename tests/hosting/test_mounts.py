"""ASGI applications that are mounted in an App: they get the caller, and requests within the limits
of the server."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from dragoman import Agent, AgentError, App, Caller, Turn
from dragoman.client import Client
from dragoman.security import Token
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


def greeter() -> Agent:
    agent = Agent("Greeter", description="Greets.", version="1")

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
        App(greeter(), mounts={"/greeter/x": Echo()})
