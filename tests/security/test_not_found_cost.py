"""What is not yours is like what is not there, also in what it costs: the same calls of the store,
the same statements, in the same order. What a watch could tell is shown by counting, and with
`make soak` by a watch, too."""

from __future__ import annotations

import re
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from dragoman import App
from dragoman.model.operations import OPERATIONS
from dragoman.security import ApiKey
from dragoman.security.egress import Egress
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.sqlite.driver import STANDARD, Driver
from tests.harness import agents
from tests.harness.app import RunningApp, running
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.harness.older_clients import Grpc03, JsonRpc01, JsonRpc03
from tests.harness.scale import SCALE, SOAK
from tests.security.test_ownership import CALLS, KINDS, UNKNOWN, asked, message

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = {"alice": "a-key", "bob": "b-key"}
NEVER = 600.0
"""Nothing is looked at by itself meanwhile."""
EVERY: tuple[type[Binding], ...] = (*KINDS, JsonRpc01)
CONTEXT = "01900000-0000-7000-8000-00000000000c"


class Spy:
    """A store that puts down what it is asked."""

    def __init__(self, inner: Any, seen: list[str]) -> None:
        self.inner = inner
        self.seen = seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name.startswith("_") or not callable(found):
            return found

        def noted(*arguments: Any, **named: Any) -> Any:
            self.seen.append(name)
            return found(*arguments, **named)

        return noted


def traced(seen: list[str]) -> Driver:
    """SQLite, with every statement put down as it was written."""

    def note(sql: str) -> None:
        if not sql.startswith("PRAGMA"):  # a reader that is opened has nothing to do with whose
            seen.append(re.sub(r"'[^']*'|\b\d+\b", "?", sql))

    def connect(path: Path) -> Any:
        db = STANDARD.connect(path)
        assert isinstance(db, sqlite3.Connection)
        db.set_trace_callback(note)
        return db

    return Driver(connect, sqlite3.Error)


def bare(answer: Any) -> Any:
    """An answer to the byte, but for the number of the question, and the time."""
    if not isinstance(answer, httpx.Response):
        return {name: value for name, value in answer.headers.items() if name != "date"}
    headers = [(k, v) for k, v in answer.headers.raw if k not in (b"date", b"content-length")]
    try:
        return headers, re.sub(rb'"id":\d+', b'"id":0', answer.content)
    except httpx.ResponseNotRead:  # read as events, which are compared as such
        return headers


class Watched(RunningApp):
    """A server, and what its store was asked for."""

    def __init__(self, server: RunningApp, seen: list[str]) -> None:
        super().__init__(server.app, server.url, server.http)
        self._channel = server.channel
        self.seen = seen

    async def done(self, client: Binding, name: str, params: dict[str, Any]) -> Any:
        """What is answered, and what was done for it."""
        self.seen.clear()
        answer = await asked(client, name, params)
        told = vars(answer) if isinstance(answer, Failed) else answer
        return told, list(self.seen), bare(client.last)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["memory", "sqlite"])
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Watched]:
    """A server whose store is watched."""
    seen: list[str] = []
    folder = tmp_path_factory.mktemp("order")
    inner: Any = MemoryStore()
    if request.param == "sqlite":
        inner = SqliteStore(folder / "x.db", driver=traced(seen))
    app = App(
        agents.make(extended=True),
        store=Spy(inner, seen),  # type: ignore[arg-type]
        auth=ApiKey(header="X-Key", keys=KEYS),
        push=True,
        egress_allow=["*.example"],
        grpc_port=0,
        drain_timeout=0.0,
        poll=NEVER,
        lease=NEVER,
        idempotency="off",
    )
    async with running(app) as found:
        yield Watched(found, seen)


async def large(server: RunningApp, key: str) -> dict[str, Any]:
    """A task of this caller that waits, with a webhook, too long to be folded at a glance."""
    client = server.client(JsonRpc, key)
    task = (await client.call("SendMessage", message=message("ask " + "x" * 100_000)))["task"]
    hook = {"taskId": task["id"], "id": "hook", "url": "https://h.example/x", "token": "t"}
    await client.call("CreateTaskPushNotificationConfig", **hook)
    found: dict[str, Any] = task
    return found


def expressible(kind: type[Binding], name: str) -> bool:
    """Whether this version has the operation over this binding."""
    if name == "ListTasks":
        return kind not in (JsonRpc03, Grpc03, JsonRpc01)
    if kind is JsonRpc01:
        return name not in (
            "ListTaskPushNotificationConfigs",
            "DeleteTaskPushNotificationConfig",
            "GetExtendedAgentCard",
        )
    return kind.can(name)


async def test_every_operation_has_an_entry() -> None:
    assert set(CALLS) == {operation.name for operation in OPERATIONS}


@pytest.mark.clause("access.before-queries")
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call is not None])
async def test_the_same_is_done(server: Watched, name: str, kind: type[Binding]) -> None:
    if not expressible(kind, name) or (kind is JsonRpc01 and name.startswith("Send")):
        return  # (in 0.1 a message begins the task that it names)
    task = await large(server, "a-key")
    bob = server.client(kind, "b-key")
    # each twice, in both orders: what is remembered of the first time must not show
    found = [
        await server.done(bob, name, CALLS[name](id))
        for id in (UNKNOWN, task["id"], task["id"], UNKNOWN)
    ]
    first = found[0]
    assert isinstance(first[0], dict), "it is refused"
    assert first[1], "the store is asked"
    assert found == [first] * 4


@pytest.mark.clause("access.before-queries")
async def test_nothing_is_looked_up_for_a_task_that_is_not_yours(
    server: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    check = Egress.check

    async def noted(self: Egress, url: str, **more: Any) -> Any:
        looked.append(url)
        return await check(self, url, **more)

    monkeypatch.setattr(Egress, "check", noted)
    task = await large(server, "a-key")
    assert looked, "it is for those who may"
    looked.clear()
    bob = server.client(JsonRpc, "b-key")
    for id in (task["id"], UNKNOWN):
        hook = {"taskId": id, "url": "https://canary.example/x"}
        with pytest.raises(Failed):
            await bob.call("CreateTaskPushNotificationConfig", **hook)
        configuration = {"taskPushNotificationConfig": {"url": "https://canary.example/x"}}
        with pytest.raises(Failed):
            await bob.call(
                "SendMessage", message=message("x", taskId=id), configuration=configuration
            )
    assert looked == []


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
async def test_another_s_context_is_an_empty_one(server: Watched, kind: type[Binding]) -> None:
    if not expressible(kind, "ListTasks"):
        return
    task = await large(server, "a-key")
    bob = server.client(kind, "b-key")
    await server.client(JsonRpc, "b-key").call("SendMessage", message=message("mine"))
    found = [
        await server.done(bob, "ListTasks", {"contextId": context})
        for context in (CONTEXT, task["contextId"], task["contextId"], CONTEXT)
    ]
    assert found == [found[0]] * 4
    assert found[0][0]["tasks"] == []
    assert found[0][0]["totalSize"] == 0


@pytest.mark.skipif(not SOAK, reason="a watch needs many samples; `make soak` takes them")
@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call is not None])
async def test_a_watch_tells_nothing(server: Watched, name: str) -> None:
    task = await large(server, "a-key")
    bob = server.client(JsonRpc, "b-key")

    async def taken(id: str) -> float:
        begun = time.perf_counter()
        await asked(bob, name, CALLS[name](id))
        return time.perf_counter() - begun

    ratio = 0.0
    for _ in range(5):  # the machine has other things to do
        theirs, nobodys = [], []
        for _ in range(int(400 * SCALE) + 50):
            theirs.append(await taken(task["id"]))
            nobodys.append(await taken(UNKNOWN))
        ratio = statistics.median(theirs) / statistics.median(nobodys)
        if 1 / 1.2 < ratio < 1.2:
            return
    pytest.fail(f"{name}: what is another's takes {ratio:.2f} times as long as what is not there")
