"""A policy shares single tasks: what it allows, for whom it does, and nothing beside it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.model.caller import Access
from dragoman.model.operations import OPERATIONS
from tests.harness import agents
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.harness.protected_app import KINDS, asked, message, protected
from tests.security.test_ownership import CALLS, UNKNOWN

HOOK = {"id": "hook", "url": "https://h.example/x", "token": "t"}
SETTINGS: dict[str, Any] = {"push": True, "egress_allow": ["*.example"]}
NAMED = [operation.name for operation in OPERATIONS if CALLS[operation.name] is not None]
"""The operations on one task."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", NAMED)
async def test_one_operation_is_shared_and_no_other(name: str, kind: type[Binding]) -> None:
    if not kind.can(name):
        return
    seen: list[Access] = []

    def policy(access: Access) -> bool:
        seen.append(access)
        return access.operation == name and access.caller.identity == "bob"

    async with protected(agents.make(), policy=policy, **SETTINGS) as server:
        alice, bob = server.client(JsonRpc, "a-key"), server.client(kind, "b-key")
        task = (await alice.call("SendMessage", message=message("ask")))["task"]["id"]
        await alice.call("CreateTaskPushNotificationConfig", taskId=task, **HOOK)
        assert not seen  # nobody is asked about what is one's own
        for other in NAMED:
            if other == name or not kind.can(other):
                continue
            theirs = await asked(bob, other, CALLS[other](task))
            nobodys = await asked(bob, other, CALLS[other](UNKNOWN))
            assert vars(theirs) == vars(nobodys)
        if name == "SubscribeToTask":  # it does not end
            async with bob.open(name, id=task) as events:
                assert await anext(events)
        else:
            assert not isinstance(await asked(bob, name, CALLS[name](task)), Failed)
        assert {(access.caller.identity, access.owner, access.task) for access in seen} == {
            ("bob", "alice", task)
        }
        # it is the owner's still, and nobody else's
        assert [t["id"] for t in (await alice.call("ListTasks"))["tasks"]] == [task]
        assert not (await server.client(JsonRpc, "b-key").call("ListTasks"))["tasks"]


async def test_a_policy_that_fails_shares_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def policy(access: Access) -> bool:
        raise ValueError("oops")

    async with protected(agents.make(), policy=policy) as server:
        alice, bob = server.client(JsonRpc, "a-key"), server.client(JsonRpc, "b-key")
        task = (await alice.call("SendMessage", message=message("ask")))["task"]["id"]
        with caplog.at_level(logging.ERROR, "dragoman"):
            theirs = await asked(bob, "GetTask", {"id": task})
        assert "the sharing policy raised an error" in caplog.text
        assert vars(theirs) == vars(await asked(bob, "GetTask", {"id": UNKNOWN}))


@pytest.mark.parametrize("answer", [1, "yes", None, object()])
async def test_only_true_is_yes(answer: Any) -> None:
    async with protected(agents.make(), policy=lambda access: answer) as server:
        alice, bob = server.client(JsonRpc, "a-key"), server.client(JsonRpc, "b-key")
        task = (await alice.call("SendMessage", message=message("ask")))["task"]["id"]
        assert (await asked(bob, "GetTask", {"id": task})).reason == "TASK_NOT_FOUND"


async def test_a_guest_sees_nothing_else_of_the_owner() -> None:
    agent = Agent("Shared", description="Tells what it sees.")
    turns: list[tuple[str, int, int]] = []

    @agent.handler
    async def tell(turn: Turn) -> Any:
        """Tell what it sees."""
        context, referenced = await turn.context_tasks(), await turn.referenced_tasks()
        turns.append((turn.caller.identity, len(context), len(referenced)))
        return turn.ask("And?")

    async with protected(agent, policy=lambda access: True) as server:
        alice, bob = server.client(JsonRpc, "a-key"), server.client(JsonRpc, "b-key")
        first = (await alice.call("SendMessage", message=message("one")))["task"]
        said = message("two", contextId=first["contextId"], messageId="n")
        second = (await alice.call("SendMessage", message=said))["task"]
        for number, client in enumerate((alice, bob)):
            said = message(f"more {number}", taskId=second["id"], referenceTaskIds=[first["id"]])
            await client.call("SendMessage", message=said)
    assert turns[2:] == [("alice", 1, 1), ("bob", 0, 0)]


async def test_the_keys_of_a_guest_are_not_the_owners() -> None:
    async with protected(agents.make(), policy=lambda access: True) as server:
        alice = server.client(JsonRpc, "a-key", **{"Idempotency-Key": "k"})
        bob = server.client(JsonRpc, "b-key", **{"Idempotency-Key": "k"})
        task = (await alice.call("SendMessage", message=message("ask")))["task"]["id"]
        said = message("ask more", taskId=task)
        first = (await bob.call("SendMessage", message=said))["task"]
        assert (await bob.call("SendMessage", message=said))["task"] == first
        texts = [m["parts"][0]["text"] for m in first["history"] if m["role"] == "ROLE_USER"]
        assert texts == ["ask", "ask more"]
