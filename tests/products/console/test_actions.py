"""What an operator does: cancel, answer, approve, deliver again; by name, and audited."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Caller, Turn
from dragoman.model.caller import Access
from dragoman.security import Token
from tests.products.console.parts import ACT, Running, bearer, consoled, stored

POLICY = Token(
    {
        "tom": Caller(identity="tom"),
        "olga": Caller(identity="olga", scopes=frozenset({"operator"})),
        "otto": Caller(identity="otto", scopes=frozenset({"operator:act"})),
    }
)


def desk(callers: list[str]) -> Agent:
    """An agent that asks, pays if that is approved, fails, or waits."""
    agent = Agent("Desk", description="Asks.", version="1")

    @agent.handler
    async def handle(turn: Turn) -> AsyncIterator[Any]:
        callers.append(turn.caller.identity)
        if turn.text == "pay":
            yield turn.require_auth("May I pay?", operation={"pay": 3})
        elif turn.approval is not None:
            granted = await turn.granted({"pay": 3})
            yield turn.complete("paid" if granted else "not paid")
        elif turn.text == "ask":
            yield turn.ask("Which?")
        elif turn.text == "fail":
            raise RuntimeError("no seats")
        else:
            yield turn.complete(f"got {turn.text}")

    return agent


@asynccontextmanager
async def running(path: Path, callers: list[str], **options: Any) -> AsyncIterator[Running]:
    app = App(desk(callers), store=stored(path), auth=POLICY, **options)
    async with consoled(app, open=True, terminal=False) as found:
        yield found


async def act(found: Running, who: str, path: str, body: Any = None) -> httpx.Response:
    """Do something as an operator."""
    async with httpx.AsyncClient(base_url=found.url, timeout=20) as http:
        headers = {**bearer(who), **ACT}
        return await http.post(f"/console/api/{path}", json=body or {}, headers=headers)


async def look(found: Running, who: str, task: str) -> dict[str, Any]:
    """What an operator sees of a task."""
    async with httpx.AsyncClient(base_url=found.url, timeout=20) as http:
        answer = await http.get(f"/console/api/tasks/{task}", headers=bearer(who))
        shown: dict[str, Any] = answer.json()
        return shown


async def ended(found: Running, task: str) -> dict[str, Any]:
    """The task once it has ended."""
    async with (
        httpx.AsyncClient(base_url=found.url, timeout=20) as http,
        http.stream("GET", f"/console/api/tasks/{task}/events", headers=bearer("olga")) as events,
    ):
        async for line in events.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:]).get("over"):
                break
    return await look(found, "olga", task)


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the audit log."""
    names = [each for each in caplog.records if each.name == "dragoman.audit"]
    return [json.loads(each.getMessage()) for each in names]


async def test_an_operator_answers_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dragoman.audit")
    callers: list[str] = []
    async with running(tmp_path, callers) as found:
        task = (await found.send("ask", **bearer("tom")))["id"]
        shown = await look(found, "olga", task)
        assert shown["asks"] == "answer"
        assert "waits for the owner's answer" in shown["why"]
        refused = await act(found, "olga", f"tasks/{task}/answer", {"text": "Rome"})
        assert refused.status_code == 403
        done = await act(found, "otto", f"tasks/{task}/answer", {"text": "Rome"})
        assert done.status_code == 200, done.text
        shown = await ended(found, task)
        assert shown["row"]["state"] == "completed"
        assert shown["row"]["owner"] == "tom"
    assert callers == ["tom", "otto"]
    events = [(line["event"], line["who"]) for line in audited(caplog)]
    assert ("operator.look", "olga") in events
    assert any(event.startswith("operator.") and who == "otto" for event, who in events)


async def test_an_operator_cancels(tmp_path: Path) -> None:
    async with running(tmp_path, []) as found:
        task = (await found.send("ask", **bearer("tom")))["id"]
        assert (await act(found, "olga", f"tasks/{task}/cancel")).status_code == 403
        done = await act(found, "otto", f"tasks/{task}/cancel")
        assert (done.status_code, done.json()) == (200, {"done": "It is canceled."})
        assert "otto asked for it" in (await look(found, "olga", task))["why"]
        again = await act(found, "otto", f"tasks/{task}/cancel")
        assert again.status_code == 409


@pytest.mark.parametrize("allowed", [True, False])
async def test_an_approval_also_needs_the_policy(tmp_path: Path, allowed: bool) -> None:
    def policy(access: Access) -> bool:
        return allowed

    async with running(tmp_path, [], policy=policy) as found:
        task = (await found.send("pay", **bearer("tom")))["id"]
        shown = await look(found, "olga", task)
        assert (shown["asks"], shown["operation"]) == ("approval", {"pay": 3})
        done = await act(found, "otto", f"tasks/{task}/approve", {"approved": True})
        if not allowed:
            assert done.status_code == 409
            assert (await look(found, "olga", task))["row"]["state"] == "auth-required"
            return
        assert done.status_code == 200
        shown = await ended(found, task)
        assert shown["task"]["status"]["parts"][0]["text"] == "paid"


async def test_a_failed_attempt_is_an_entry_for_operators_only(tmp_path: Path) -> None:
    async with running(tmp_path, []) as found:
        task = await found.send("fail", **bearer("tom"))
        async with httpx.AsyncClient(base_url=found.url) as http:
            path = f"/console/api/tasks/{task['id']}/entries"
            entries = (await http.get(path, headers=bearer("olga"))).json()["entries"]
        (failed,) = [each for each in entries if each["kind"] == "attempt"]
        assert failed["value"]["attempt"] == 1
        assert "no seats" in failed["value"]["traceback"]
        assert "no seats" not in json.dumps(task)
        assert (await look(found, "olga", task["id"]))["why"].startswith("It failed")
