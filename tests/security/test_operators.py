"""Operators see and act on the tasks of other owners, as far as their scopes allow it, and every
request of theirs is in the audit log."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Caller, TaskState, Turn
from dragoman.admin import AdminThread, CancelRequested, Received
from dragoman.client import Client, Result
from dragoman.model.caller import Access
from dragoman.model.errors import Forbidden, TaskNotFound
from dragoman.telemetry import logs

Lines = list[dict[str, Any]]
OWNER = Caller(identity="ann", tenant="acme")
SEE = Caller(identity="olga", realm="staff", tenant="acme", scopes=frozenset({"operator"}))
ACT = Caller(identity="olga", realm="staff", tenant="acme", scopes=frozenset({"operator:act"}))
ALL = Caller(identity="root", scopes=frozenset({"operator:act", "operator:all"}))
NOBODY = Caller(identity="bob", tenant="acme")
ONLY_ALL = Caller(identity="bob", tenant="acme", scopes=frozenset({"operator:all"}))
ELSEWHERE = Caller(identity="eve", tenant="zeta", scopes=frozenset({"operator:act"}))
UNKNOWN = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The audit log."""
    found: Lines = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    handler = Keep()
    logs.auditor.addHandler(handler)
    yield found
    logs.auditor.removeHandler(handler)


class Desk:
    """An agent that asks, and pays if that is approved."""

    def __init__(self) -> None:
        self.agent = Agent("Desk", description="Asks.")
        self.callers: list[str] = []

        @self.agent.handler
        async def handle(turn: Turn) -> AsyncIterator[Any]:
            self.callers.append(turn.caller.qualified)
            if turn.text == "pay":
                yield turn.require_auth("May I pay?", operation={"pay": 3})
            elif turn.approval is not None:
                granted = await turn.granted({"pay": 3})
                yield turn.complete("paid" if granted else "not paid")
            elif turn.text == "ask":
                yield turn.ask("Which?")
            else:
                yield turn.complete(f"got {turn.text}")


@asynccontextmanager
async def desk(text: str = "ask", **options: Any) -> AsyncIterator[tuple[App, Desk, str]]:
    """A server, its agent, and a task of the owner."""
    made = Desk()
    async with App(made.agent, identify=lambda _: None, **options) as app:
        async with Client.connect(app=app.for_caller(OWNER)) as client:
            result = await client.send(text)
        assert result.task is not None
        yield app, made, result.task.id


@asynccontextmanager
async def operator(app: App, caller: Caller) -> AsyncIterator[Client]:
    """A client of an operator."""
    async with Client.connect(app=app.for_operator(caller)) as client:
        yield client


async def test_an_operator_answers(lines: Lines) -> None:
    async with desk() as (app, made, task), operator(app, ACT) as client:
        assert (await client.task(task).get()).status.state is TaskState.INPUT_REQUIRED
        result = await client.send("this one", task=task)
        assert result.text == "got this one"
        assert made.callers == ["ann", ACT.qualified]
        async with AdminThread(app.admin) as admin:
            entries = await admin.call(lambda store: list(store.read(task)))
            row = await admin.call(lambda store: store.row(task))
    said = [entry.event.caller for entry in entries if isinstance(entry.event, Received)]
    assert [caller.identity for caller in said] == ["ann", "olga"]
    assert row.identity == "ann"  # it is the owner's still
    events = [(line["event"], line["result"], line["who"], line["owner"]) for line in lines]
    assert ("operator.get", "ok", "olga", "ann") in events
    assert {event for event, *_ in events} & {"operator.send", "operator.stream"}
    assert all(line["task"] == task and line["realm"] == "staff" for line in lines)


async def test_an_operator_cancels(lines: Lines) -> None:
    async with desk() as (app, _, task), operator(app, ACT) as client:
        assert (await client.task(task).cancel()).status.state is TaskState.CANCELED
        async with AdminThread(app.admin) as admin:
            entries = await admin.call(lambda store: list(store.read(task)))
    (asked,) = [entry.event for entry in entries if isinstance(entry.event, CancelRequested)]
    assert asked.caller.identity == "olga" and asked.caller.tenant == "acme"
    assert ("operator.cancel", "ok") in [(line["event"], line["result"]) for line in lines]


@pytest.mark.parametrize("allowed", [True, False, None])
async def test_an_approval_needs_the_policy(allowed: bool | None, lines: Lines) -> None:
    seen: list[Access] = []

    def policy(access: Access) -> bool:
        seen.append(access)
        return bool(allowed)

    options = {} if allowed is None else {"policy": policy}
    async with desk("pay", **options) as (app, _, task), operator(app, ACT) as client:
        grant = Result(await client.task(task).get(), None).grant
        assert grant is not None
        if allowed:
            assert (await client.task(task).approve(grant)).text == "paid"
            assert {(one.caller.identity, one.owner, one.task) for one in seen} == {
                ("olga", "ann", task)
            }
        else:
            with pytest.raises(Forbidden, match="policy"):
                await client.task(task).approve(grant)
            assert (await client.task(task).decline(grant)).text == "not paid"
    decisions = [(line.get("decision"), line["result"]) for line in lines if "decision" in line]
    expected = (
        [("approved", "ok")] if allowed else [("approved", "PERMISSION_DENIED"), ("declined", "ok")]
    )
    assert decisions == expected


async def test_who_may_only_see(lines: Lines) -> None:
    async with desk() as (app, _, task), operator(app, SEE) as client:
        assert (await client.task(task).get()).id == task
        for act in (client.task(task).cancel(), client.send("x", task=task)):
            with pytest.raises(Forbidden, match="operator:act"):
                await act
        assert (await client.task(task).get()).status.state is TaskState.INPUT_REQUIRED
    assert [line["result"] for line in lines].count("PERMISSION_DENIED") == 2
    assert {line["owner"] for line in lines} == {"ann"}


async def test_tenants() -> None:
    async with desk() as (app, _, task):
        async with operator(app, ELSEWHERE) as client:
            with pytest.raises(TaskNotFound):
                await client.task(task).get()
        async with operator(app, ALL) as client:
            assert (await client.task(task).get()).id == task
            assert (await client.send("x", task=task)).text == "got x"


def requests(task: str) -> list[tuple[str, str, dict[str, Any] | None]]:
    """Every operation on a task, over HTTP+JSON and JSON-RPC."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "taskId": task}
    hook = {"id": "h", "url": "https://x.example/"}
    rpc = {
        "GetTask": {"id": task},
        "CancelTask": {"id": task},
        "SubscribeToTask": {"id": task},
        "SendMessage": {"message": message},
        "SendStreamingMessage": {"message": message},
        "CreateTaskPushNotificationConfig": {"taskId": task, **hook},
        "ListTaskPushNotificationConfigs": {"taskId": task},
    }
    found: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", "/", {"jsonrpc": "2.0", "id": 1, "method": name, "params": params})
        for name, params in rpc.items()
    ]
    return [
        *found,
        ("GET", f"/tasks/{task}", None),
        ("POST", f"/tasks/{task}:cancel", {}),
        ("GET", f"/tasks/{task}:subscribe", None),
        ("POST", "/message:send", {"message": message}),
        ("POST", "/message:stream", {"message": message}),
        ("GET", f"/tasks/{task}/pushNotificationConfigs", None),
    ]


async def answers(app: Any, task: str) -> list[tuple[int, str, dict[str, str]]]:
    """The status, the body and the headers of each answer."""
    found = []
    headers = {"a2a-version": "1.0"}
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as http:
        for method, path, body in requests(task):
            answer = await http.request(method, path, json=body)
            about = {name: value for name, value in answer.headers.items() if name != "date"}
            found.append((answer.status_code, answer.text.replace(task, "TASK"), about))
    return found


@pytest.mark.parametrize("caller", [NOBODY, ONLY_ALL, ELSEWHERE], ids=lambda c: c.identity)
async def test_without_the_scope_there_is_nothing_to_the_byte(caller: Caller) -> None:
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"]}
    async with desk(**settings) as (app, _, task):
        theirs = await answers(app.for_operator(caller), task)
        assert theirs == await answers(app.for_operator(caller), UNKNOWN)
        assert theirs == await answers(app.for_caller(caller), task)
        assert all(status >= 400 or "error" in body for status, body, _ in theirs)


async def test_webhooks_stay_the_owner_s() -> None:
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"]}
    async with desk(**settings) as (app, _, task), operator(app, ACT) as client:
        with pytest.raises(TaskNotFound):
            await client.task(task).add_webhook("https://x.example/")
        with pytest.raises(TaskNotFound):
            [one async for one in client.task(task).webhooks()]
        transport = httpx.ASGITransport(app=app.for_operator(ACT))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            body = requests(task)[3][2]
            assert body is not None
            hook = {"taskPushNotificationConfig": {"url": "https://x.example/"}}
            body["params"]["configuration"] = hook
            answer = await http.post("/", json=body, headers={"a2a-version": "1.0"})
            assert "may not add a webhook" in answer.text


async def test_redriving_webhooks(lines: Lines) -> None:
    async with desk() as (app, _, task):
        for caller in (NOBODY, SEE, ELSEWHERE, ONLY_ALL):
            with pytest.raises(PermissionError) as refused:
                await app.redrive(caller, task)
            with pytest.raises(PermissionError) as unknown:
                await app.redrive(caller, UNKNOWN)
            assert str(refused.value).replace(task, "") == str(unknown.value).replace(UNKNOWN, "")
        assert await app.redrive(ACT, task) == 0
        assert await app.redrive(ALL, task, "h") == 0
    found = [(line["event"], line["result"]) for line in lines]
    assert found.count(("operator.redrive", "refused")) == 8
    assert found[-2:] == [("operator.redrive", "ok")] * 2 and lines[-1]["owner"] == "ann"


async def test_an_operator_s_own_tasks_are_its_own() -> None:
    async with desk() as (app, _, task), operator(app, ACT) as client:
        result = await client.send("mine")
        assert result.task is not None and result.text == "got mine"
        assert [one.id async for one in client.list()] == [result.task.id]
        async with AdminThread(app.admin) as admin:
            row = await admin.call(lambda store: store.row(result.task.id))
        assert (row.realm, row.identity, row.tenant) == ("staff", "olga", "acme")
        assert row.id != task


async def test_looks_are_in_the_audit_log_always(lines: Lines) -> None:
    async with desk() as (app, _, task):
        assert not app.settings.audit
        app.audit(SEE, "show", agent="desk", task=task, owner="ann")
    (line,) = lines
    assert {**line, "time": ""} == {
        "time": "",
        "event": "operator.show",
        "result": "ok",
        "agent": "desk",
        "task": task,
        "owner": "ann",
        "who": "olga",
        "realm": "staff",
        "tenant": "acme",
    }


def test_a_wrong_caller() -> None:
    app = App(Desk().agent)
    with pytest.raises(TypeError, match="for_operator"):
        app.for_operator("ann")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for_operator"):
        app.for_operator(Caller(identity="\n"))
