"""Requests that a mounted application makes in the name of its caller."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Caller, TaskState, Turn
from dragoman.client import Client
from dragoman.model.caller import Scope
from dragoman.model.errors import (
    A2AError,
    Forbidden,
    LimitExceeded,
    MethodNotFound,
    TaskNotFound,
    Unauthenticated,
)
from dragoman.security import Token
from dragoman.security.card_keys import CardKey
from tests.harness.server import served

CALLERS = {
    "ann-token": Caller(identity="ann", tenant="blue", tenants=frozenset({"green"})),
    "bob-token": Caller(identity="bob", scopes=frozenset({"rooms"})),
}
AUTH = Token(CALLERS)


def office(key: str = "office") -> Agent:
    agent = Agent("Office", description="Says who asks.", version="1", key=key, extended=True)

    @agent.handler
    async def other(turn: Turn) -> str:
        return "?"

    @agent.skill(description="Says who asks.", tags=["t"])
    async def who(turn: Turn) -> str:
        caller = turn.caller
        return f"{caller.identity}/{caller.tenant}/{caller.version}: {turn.text}"

    @agent.skill(description="Needs a scope.", tags=["t"], scopes=["rooms"])
    async def rooms(turn: Turn) -> str:
        return "a room"

    @agent.skill(description="Takes long.", tags=["t"])
    async def wait(turn: Turn) -> Any:
        yield turn.working("waiting")
        await asyncio.sleep(30)

    @agent.extended_card
    def more(caller: Caller, card: Any) -> Any:
        return replace(card, description=f"for {caller.identity}")

    return agent


class Desk:
    """A mounted application that passes a text on to the agent, as its own caller."""

    def __init__(self, key: str = "") -> None:
        self.key = key
        self.started: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self.started = scope["dragoman.app"]
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        text = (await receive())["body"].decode()
        app = scope["dragoman.app"].for_caller(scope["dragoman.caller"])
        async with Client.connect(f"http://inside{self.key}", app=app) as agent:
            said = (await agent.send(text, skill="who")).text
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": said.encode()})


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"url": "https://agents.example/travel"},
        {"trusted_hosts": ["agents.example", "127.0.0.1"]},
        {"trust_forwarded": True},
        {"cors": ["https://page.example"]},
        {"audit": True, "access_log": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
async def test_a_mount_calls_agents_as_its_caller(options: Any, several: bool) -> None:
    desk = Desk("/office" if several else "")
    agents = [office(), office("other")] if several else [office()]
    app = App(*agents, mounts={"/desk": desk}, auth=[AUTH], **options)
    async with served(app) as server, httpx.AsyncClient(base_url=server.url) as http:
        assert desk.started is app
        headers = {**bearer("ann-token"), "host": "agents.example"} if "url" in options else {}
        said = await http.post("/desk", headers=headers or bearer("ann-token"), content=b"hello")
        assert said.text == "ann/blue/1.0: hello"
        assert (await http.post("/desk", content=b"hello")).status_code == 401


async def test_what_holds_for_every_caller_holds_here() -> None:
    app = App(office(), auth=[AUTH])
    ann, bob = (app.for_caller(caller) for caller in CALLERS.values())
    async with app, Client.connect(app=ann) as one, Client.connect(app=bob) as other:
        sent = await one.send("x", skill="who")
        assert (await one.task(sent.task.id).get()).id == sent.task.id
        with pytest.raises(TaskNotFound):
            await other.task(sent.task.id).get()
        assert (await other.send("x", skill="rooms")).text == "a room"
        with pytest.raises(Forbidden):
            await one.send("x", skill="rooms")
        assert (await one.extended_card()).description == "for ann"
    async with app, inside(ann) as http:
        for tenant, status in (("", 200), ("/blue", 200), ("/green", 404), ("/red", 403)):
            path = f"{tenant}/tasks/{sent.task.id}"
            assert (await http.get(path, headers={"a2a-version": "1.0"})).status_code == status


async def test_an_expired_caller_is_refused_and_its_stream_ends() -> None:
    app = App(office(), auth=[AUTH], drain_timeout=0.1)
    soon = replace(CALLERS["ann-token"], expires=time.time() + 1.5)
    async with app, Client.connect(app=app.for_caller(soon), attempts=1) as client:
        with pytest.raises(Unauthenticated, match="expired"):
            async with asyncio.timeout(20):
                async for _ in client.stream("x", skill="wait"):
                    pass
        with pytest.raises(Unauthenticated):
            await client.send("x", skill="who")
    async with app, inside(app.for_caller(soon)) as http:
        refused = await http.get("/tasks/x", headers={"a2a-version": "1.0"})
        assert refused.status_code == 401 and "has expired" in refused.text


async def test_without_authentication_it_is_still_that_caller() -> None:
    app = App(office())
    # The version and extensions of another request are not those of this one.
    ann = Caller(identity="ann", extensions=("urn:x",))
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    sent = {"message": message, "metadata": {"skillId": "who"}}
    headers = {"a2a-version": "1.0"}
    async with app, inside(app.for_caller(ann)) as http, inside(app) as anybody:
        task = (await http.post("/message:send", json=sent, headers=headers)).json()["task"]
        path = f"/tasks/{task['id']}"
        assert (await http.get(path, headers=headers)).status_code == 200
        assert (await anybody.get(path, headers=headers)).status_code == 404
        record = await app.store.load(Scope("office", "", "ann"), task["id"])
        assert record is not None
        (entry, *_) = await app.store.read(Scope("office", "", "ann"), task["id"], 0, 1) or ()
        assert entry.event.caller == Caller(identity="ann")  # type: ignore[union-attr]


def inside(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")


async def test_each_caller_has_limits_of_its_own() -> None:
    app = App(office(), rate=0.001, rate_address=0.001)
    async with app:
        for name in ("ann", "bob"):
            own = app.for_caller(Caller(identity=name))
            async with Client.connect(app=own, attempts=1) as client:
                for _ in range(app.settings.rate_burst):
                    await client.send("x", skill="who")
                with pytest.raises(LimitExceeded):
                    await client.send("x", skill="who")
        # Their addresses were counted when they came in.
        async with Client.connect(app=app.for_caller(Caller()), attempts=1) as client:
            for _ in range(app.settings.rate_burst + 1):
                await client.send("x", skill="who")


async def test_it_is_in_the_logs(caplog: pytest.LogCaptureFixture) -> None:
    app = App(office(), auth=[AUTH], access_log=True, audit=True)
    with caplog.at_level(logging.INFO):
        async with app, Client.connect(app=app.for_caller(CALLERS["ann-token"])) as client:
            await client.extended_card()
    lines = [record for record in caplog.records if record.name == "dragoman.access"]
    (line,) = (record for record in lines if getattr(record, "operation", ""))
    assert (line.caller, line.tenant, line.outcome) == ("ann", "blue", "ok")  # type: ignore[attr-defined]
    assert not hasattr(line, "client")
    (noted,) = (json.loads(r.getMessage()) for r in caplog.records if r.name == "dragoman.audit")
    assert (noted["event"], noted["who"]) == ("extended_card", "ann") and "client" not in noted


async def test_nothing_that_a_client_sends_makes_it_a_caller() -> None:
    app = App(office(), auth=[AUTH], mounts={"/inner": App(office("inner"), auth=[AUTH])})
    forged = {
        "caller": CALLERS["ann-token"],
        "dragoman.caller": CALLERS["ann-token"],
        "dragoman.app": app,
        "state": {"caller": CALLERS["ann-token"]},
        "extensions": {"caller": CALLERS["ann-token"]},
    }

    async def forging(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, **forged}, receive, send)

    names = ("caller", "dragoman.caller", "dragoman-caller", "x-caller", "x-dragoman-caller")
    body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
    async with app:
        async with inside(forging) as http:
            for path in ("/", "/inner/", "/?caller=ann&dragoman.caller=ann"):
                for value in ("ann", '{"identity":"ann"}'):
                    headers = dict.fromkeys(names, value)
                    refused = await http.post(path, json=body, headers=headers)
                    assert refused.status_code == 401, (path, refused.text)
        # The mounted application authenticates its callers itself, whoever calls the outer one.
        async with inside(app.for_caller(CALLERS["ann-token"])) as http:
            assert (await http.post("/inner/", json=body)).status_code == 401
            assert (await http.post("/", json=body)).json()["error"]["code"] == -32001


async def test_signed_cards_reach_their_own_process() -> None:
    url = "https://agents.example/travel"
    app = App(office(), auth=[AUTH], sign=[CardKey.generate()], url=url)
    async with app, Client.connect(app=app.for_caller(CALLERS["ann-token"])) as client:
        assert client.card.signatures
        assert (await client.send("x", skill="who")).text == "ann/blue/1.0: x"


async def test_it_starts_the_application_and_refuses_after_its_end() -> None:
    app = App(office())
    async with Client.connect(app=app.for_caller(Caller()), attempts=1) as client:
        assert (await client.send("x", skill="who")).state is TaskState.COMPLETED
        await app.stop()
        with pytest.raises(A2AError):
            await client.send("x", skill="who")


async def test_what_cannot_be_a_caller() -> None:
    app = App(office())
    with pytest.raises(TypeError, match="expects a Caller, not 'ann'"):
        app.for_caller("ann")  # type: ignore[arg-type]
    for wrong in (Caller(identity="a\nb"), Caller(identity="a" * 2000), Caller(tenant="a" * 600)):
        with pytest.raises(ValueError, match=r"for_caller: The (identity|tenant) of the caller"):
            app.for_caller(wrong)
    one = app.for_caller(Caller())
    for kind in ("lifespan", "websocket"):
        with pytest.raises(RuntimeError, match="only HTTP"):
            await one({"type": kind}, None, None)  # type: ignore[arg-type]


async def test_unknown_paths() -> None:
    app = App(office(), office("other"))
    async with app:
        with pytest.raises((MethodNotFound, ValueError, OSError)):
            async with Client.connect("http://inside/none", app=app.for_caller(Caller())) as client:
                await client.send("x")
