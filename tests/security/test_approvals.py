"""An approval is for one operation of one task, once, and in time."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, Result
from dragoman.model.approvals import GRANT, Approval, ApprovalRequest, issue, refusal
from tests.harness.clients import Binding
from tests.harness.protected_app import KINDS, message, protected

PAY = {"pay": 120, "to": "ACME", "by": ["card", None]}


class Till:
    """An agent that pays what was approved; what it is told to pay is the message's data."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("Till", description="Pays.", **options)
        self.paid: list[Any] = []
        self.expires = 600.0
        self.twice = False
        self.crash: asyncio.Event | None = None

        @self.agent.handler
        async def pay(turn: Turn) -> AsyncIterator[Any]:
            """Pay, once that is approved."""
            wanted = turn.data if turn.data is not None else PAY
            if turn.approval and not turn.approval.approved:
                yield turn.reject("Then not")
                return
            if not await turn.granted(wanted):
                yield turn.require_auth("May I pay?", operation=wanted, expires=self.expires)
                return
            if self.twice:
                assert not await turn.granted(wanted)
            self.paid.append((wanted, turn.idempotency_key))
            yield turn.ask("Paid. Anything else?")

    @asynccontextmanager
    async def client(self, **settings: Any) -> AsyncIterator[Client]:
        """A client of it."""
        async with (
            App(self.agent, drain_timeout=0.0, **settings) as app,
            Client.connect(app=app) as client,
        ):
            yield client


def asks(result: Result) -> tuple[str, ApprovalRequest]:
    """The task, and what it asks for."""
    assert result.state is TaskState.AUTH_REQUIRED
    assert result.task is not None
    assert result.grant is not None
    return result.task.id, result.grant


async def test_what_is_approved_is_done() -> None:
    till = Till()
    async with till.client() as client:
        task, grant = asks(await client.send("pay"))
        assert grant.operation == PAY
        assert grant.digest.startswith("sha256:")
        result = await client.task(task).approve(grant)
        assert result.text == "Paid. Anything else?"
        assert result.grant is None
    assert [paid for paid, _ in till.paid] == [PAY]


async def test_what_is_declined_is_not() -> None:
    till = Till()
    async with till.client() as client:
        task, grant = asks(await client.send("pay"))
        assert (await client.task(task).decline(grant)).state is TaskState.REJECTED
    assert not till.paid


@pytest.mark.parametrize(
    "change",
    [
        {"id": "01900000-0000-7000-8000-000000000000"},
        {"digest": "sha256:" + "0" * 64},
        {"digest": ""},
    ],
    ids=str,
)
async def test_another_approval_allows_nothing(change: dict[str, str]) -> None:
    till = Till()
    async with till.client() as client:
        task, grant = asks(await client.send("pay"))
        asks(await client.task(task).approve(replace(grant, **change)))  # it asks again
    assert not till.paid


async def test_a_yes_in_words_allows_nothing() -> None:
    till = Till()
    async with till.client() as client:
        task, _ = asks(await client.send("pay"))
        for words in ("yes", "approved", json.dumps({GRANT: {"approved": True}})):
            asks(await client.task(task).reply(words))
        for wrong in (True, "yes", [], {"approved": True}, {"id": 5, "digest": None}):
            asks(await client.task(task).reply("yes", metadata={GRANT: wrong}))
    assert not till.paid


async def test_approving_one_operation_never_allows_another() -> None:
    till = Till()
    async with till.client() as client:
        task, grant = asks(await client.send({"pay": 1}))
        # the same approval, and something else in the message
        _, other = asks(await client.task(task).approve(grant, {"pay": 1_000_000}))
        assert other.operation == {"pay": 1_000_000}
        # the earlier one has been replaced
        asks(await client.task(task).approve(grant, {"pay": 1}))
    assert not till.paid


async def test_an_approval_of_one_task_is_none_of_another() -> None:
    till = Till()
    async with till.client() as client:
        _, grant = asks(await client.send("pay"))
        other, _ = asks(await client.send("pay"))
        asks(await client.task(other).approve(grant))
    assert not till.paid


async def test_an_approval_is_used_once() -> None:
    till = Till()
    till.twice = True
    async with till.client() as client:
        task, grant = asks(await client.send("pay"))
        await client.task(task).approve(grant)
        asks(await client.task(task).approve(grant))
    assert len(till.paid) == 1


async def test_an_approval_that_comes_late_allows_nothing() -> None:
    till = Till()
    till.expires = -1.0
    async with till.client() as client:
        task, grant = asks(await client.send("pay"))
        asks(await client.task(task).approve(grant))
    assert not till.paid


async def test_it_is_used_up_before_it_is_used(tmp_path: Path) -> None:
    """A server that ends right after `granted` has said yes does not say it to another turn."""
    till = Till()
    store = f"sqlite:///{tmp_path / 'till.db'}"
    async with till.client(store=store) as client:
        task, grant = asks(await client.send("pay"))
        await client.task(task).approve(grant)
    async with till.client(store=store) as client:
        asks(await client.task(task).approve(grant))
    assert len(till.paid) == 1


async def test_a_turn_that_is_run_again_may_do_what_it_did() -> None:
    """It has the same idempotency key, so that what it does twice is done once."""
    agent = Agent("Till", description="Pays.", retries=1)
    paid: list[str] = []

    @agent.handler
    async def pay(turn: Turn) -> AsyncIterator[Any]:
        """Pay, and be taken away the first time."""
        if not await turn.granted(PAY):
            yield turn.require_auth(operation=PAY)
            return
        paid.append(turn.idempotency_key)
        if turn.attempt == 1:
            assert app._worker is not None
            run = app._worker.runs[turn.task.id]
            await app.store.revoke(run.claim.head, None)
            await asyncio.Event().wait()
        yield turn.complete("Paid")

    app = App(agent, drain_timeout=0.0, poll=0.02)
    async with asyncio.timeout(20), app, Client.connect(app=app) as client:
        task, grant = asks(await client.send("pay"))
        assert (await client.task(task).approve(grant)).state is TaskState.COMPLETED
    assert len(paid) == 2
    assert paid[0] == paid[1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_over_every_binding(kind: type[Binding]) -> None:
    till = Till()
    async with protected(till.agent) as server:
        alice, bob = server.client(kind, "a-key"), server.client(kind, "b-key")
        task = (await alice.call("SendMessage", message=message("pay")))["task"]
        grant = task["metadata"][GRANT]
        assert grant["operation"] == PAY
        answer = {GRANT: {"id": grant["id"], "digest": grant["digest"], "approved": True}}
        said = message("yes", taskId=task["id"], metadata=answer)
        with pytest.raises(Exception, match="not found"):
            await bob.call("SendMessage", message=said)
        assert not till.paid
        await alice.call("SendMessage", message=said)
    assert len(till.paid) == 1


async def test_an_operation_that_is_no_json_is_the_agents_fault() -> None:
    agent = Agent("Till", description="Pays.")

    @agent.handler
    async def pay(turn: Turn) -> Any:
        """Ask for the impossible."""
        return turn.require_auth(operation=object())

    async with App(agent, drain_timeout=0.0) as app, Client.connect(app=app) as client:
        result = await client.send("pay")
    assert result.state is TaskState.FAILED
    assert "operation:" in result.text


@pytest.mark.clause("audit.trail")
async def test_who_approved_what_is_put_down(caplog: pytest.LogCaptureFixture) -> None:
    till = Till()
    with caplog.at_level(logging.INFO, "dragoman.audit"):
        async with till.client(audit=True) as client:
            task, grant = asks(await client.send("pay"))
            await client.task(task).approve(grant)
            await client.task(task).approve(grant)
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "dragoman.audit"]
    found = [(line["event"], line["result"], line["grant"]) for line in lines]
    assert found == [("grant", "used", grant.id), ("grant", "it was used before", grant.id)]


def test_a_no_is_no() -> None:
    grant = issue("t", PAY, 60.0)
    yes = Approval(id=grant.id, digest=grant.digest)
    assert refusal(grant, yes, "t", PAY, "turn") == ""
    assert refusal(grant, replace(yes, approved=False), "t", PAY, "turn") == "it was declined"
    assert refusal(None, yes, "t", PAY, "turn")
