"""Extensions: where their data is, and which version of an extension is active."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import Agent, Artifact, Message, Part, Turn
from dragoman.model import clock
from dragoman.model.types import AgentExtension, Role
from tests.contract.bindings.conftest import user as message
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.protected_app import protected

ONE, TWO = "https://example.com/ext/price/v1", "https://example.com/ext/price/v2"
OTHER = "https://example.com/ext/other/v1"
DATA = {"amount": 5, "unit": "EUR"}
each = pytest.mark.parametrize("kind", [JsonRpc, HttpJson, Grpc], ids=lambda kind: kind.name)


def seller(*, required: bool = False) -> tuple[Agent, list[Turn]]:
    """An agent with an extension in its first version, and the turns that it has had."""
    extensions = [AgentExtension(uri=ONE, required=required), AgentExtension(uri=OTHER)]
    agent, turns = Agent("Seller", description="Sells.", extensions=extensions), list[Turn]()

    @agent.handler
    async def sell(turn: Turn) -> Any:
        """Say the price."""
        turns.append(turn)
        data = {ONE: DATA, "note": "x"}
        yield turn.artifact("by us", id="ours", metadata=data)
        parts = (Part(text="by the author"),)
        yield Artifact(artifact_id="theirs", parts=parts, metadata=data, extensions=(ONE,))
        said = Message(
            message_id="m", role=Role.AGENT, parts=parts, metadata=data, extensions=(ONE,)
        )
        yield turn.complete(said)

    @agent.skill(reply=True)
    async def quick(turn: Turn) -> Any:
        """Say it without a task."""
        return turn.reply("five", metadata={ONE: DATA})

    return agent, turns


def user(text: str, **fields: Any) -> dict[str, Any]:
    """A message that was not sent before."""
    return message(text, messageId=clock.uuid7(), **fields)


def caller(server: RunningApp, kind: type[Binding], *extensions: str) -> Binding:
    """A client that asks for these extensions."""
    asked = {"A2A-Extensions": ", ".join(extensions)} if extensions else {}
    return server.client(kind, "a-key", **asked)


@each
@pytest.mark.clause("extensions.data")
async def test_where_the_data_of_an_extension_stand(kind: type[Binding]) -> None:
    agent, turns = seller()
    async with protected(agent) as server:
        client = caller(server, kind, ONE)
        asked = user("x", metadata={ONE: DATA}, extensions=[ONE])
        task = (await client.call("SendMessage", message=asked))["task"]
        # what the caller said reaches the agent as it was
        assert turns[0].message.metadata == {ONE: DATA}
        assert turns[0].message.extensions == turns[0].extensions == (ONE,)
        assert task["history"][0]["metadata"] == {ONE: DATA}
        assert task["history"][0]["extensions"] == [ONE]
        # and what the agent said the caller, by whichever way it was said
        ours, theirs = task["artifacts"]
        for told in (ours, theirs, task["status"]["message"]):
            assert told["metadata"] == {ONE: DATA, "note": "x"}
            assert told["extensions"] == [ONE]
        events = await client.stream("SendStreamingMessage", message=user("y"))
        artifacts = [e.event["artifactUpdate"] for e in events if "artifactUpdate" in e.event]
        assert [found["artifact"]["extensions"] for found in artifacts] == [[ONE], [ONE]]
        direct = user("x", metadata={"skill": "quick"})
        reply = (await client.call("SendMessage", message=direct))["message"]
        assert (reply["metadata"], reply["extensions"]) == ({ONE: DATA}, [ONE])
        # one that is not in force is not listed for an author who has not looked
        plain = (await caller(server, kind).call("SendMessage", message=user("z")))["task"]
        assert "extensions" not in plain["artifacts"][0]


@each
@pytest.mark.clause("extensions.no-fallback", "extensions.unknown-ignored")
async def test_no_older_version_takes_the_place_of_a_newer(kind: type[Binding]) -> None:
    agent, turns = seller()
    async with protected(agent) as server:
        for asked, active in (
            ((TWO,), ()),
            ((TWO, OTHER), (OTHER,)),
            ((f"{ONE}.1",), ()),
            ((ONE.rpartition("/")[0],), ()),
            ((ONE, TWO), (ONE,)),
        ):
            client = caller(server, kind, *asked)
            await client.call("SendMessage", message=user("x"))
            assert turns[-1].extensions == active
            assert client.activated == ", ".join(active)
    agent, turns = seller(required=True)
    async with protected(agent) as server:
        with pytest.raises(Failed) as failed:
            await caller(server, kind, TWO).call("SendMessage", message=user("x"))
        assert failed.value.reason == "EXTENSION_SUPPORT_REQUIRED"
        assert failed.value.metadata == {"extension": ONE}
        assert not turns
