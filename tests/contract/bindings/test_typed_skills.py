"""Typed skills: the card, the check before a message is accepted, follow-ups, questions, results,
over every binding and in every dialect that can say it."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from dragoman import Agent, Part, Turn
from dragoman.model.skill_extension import SKILL_SCHEMA
from tests.contract.bindings.conftest import Start, user
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, Grpc

Nights = Annotated[int, Meta(ge=1, description="How many nights")]


class Booking(Struct):
    """A booking."""

    city: str
    nights: int


def make() -> Agent:
    """An agent with typed skills."""
    agent = Agent("Hotels", description="Books rooms.", extended=True)

    @agent.handler
    async def anything(turn: Turn) -> str:
        return turn.text

    @agent.skill
    async def book(turn: Turn, city: str, nights: Nights = 2) -> Any:
        """Books a room."""
        if turn.text == "wait":
            return turn.ask("Go on?")
        return turn.artifact(Booking(city, nights))

    @agent.skill(ask=True)
    async def ask(city: str, nights: Nights) -> Booking:
        """Books a room, and asks."""
        return Booking(city, nights)

    @agent.skill
    async def count(photo: bytes, mask: Part | None = None) -> int:
        """Counts bytes."""
        return len(photo) + (len(mask.raw or b"") if mask else 0)

    @agent.extended_card
    def everything(caller: Any, card: Any) -> Any:
        return card

    return agent


@pytest.fixture
async def server(start: Start) -> RunningApp:
    """Typed skills instead of the usual agent."""
    found: RunningApp = await start(agent=make())
    return found


def data(skill: str, value: Any, **fields: Any) -> dict[str, Any]:
    """A message with data for a skill."""
    parts = [{"data": value}] if value is not None else []
    parts += fields.pop("more", [])
    return user(parts=parts, metadata={"skill": skill}, **fields)


async def sent(client: Binding, message: dict[str, Any]) -> Any:
    """The task of a message."""
    return (await client.call("SendMessage", message=message))["task"]


@pytest.mark.first
async def test_fields_are_checked_and_given(client: Binding) -> None:
    task = await sent(client, data("book", {"city": "Rome", "nights": 3}))
    assert task["artifacts"][0]["parts"] == [{"data": {"city": "Rome", "nights": 3}}]
    with pytest.raises(Failed) as failed:
        await sent(client, data("book", {"nights": 0, "rooms": 1}, messageId="m-2"))
    assert failed.value.reason == "INVALID_PARAMS"
    wrong = [f"message.parts[0].data.{name}" for name in ("city", "nights", "rooms")]
    assert all(f"{field}: " in failed.value.message for field in wrong)
    if client.name != "http-0.3":  # which has nothing but the message
        assert failed.value.fields == wrong
    assert len(await client.tasks()) == 1


async def test_a_task_keeps_its_parameters(client: Binding) -> None:
    first = data("book", {"city": "Rome"}, more=[{"text": "wait"}])
    task = await sent(client, first)
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    again = data("book", {"nights": 5}, more=[{"text": "wait"}], messageId="m-2", taskId=task["id"])
    await sent(client, again)
    with pytest.raises(Failed) as failed:
        wrong = data("book", {"nights": "x"}, messageId="m-3", taskId=task["id"])
        await sent(client, wrong)
    assert failed.value.fields == ["message.parts[0].data.nights"]
    done = await sent(client, user("go", messageId="m-4", taskId=task["id"]))
    assert done["artifacts"][0]["parts"] == [{"data": {"city": "Rome", "nights": 5}}]


@pytest.mark.parametrize(
    "answer",
    [[{"data": {"city": "Rome", "nights": 2}}], [{"text": "city: Rome\nnights: 2"}]],
    ids=["data", "lines"],
)
async def test_what_is_missing_is_asked_for(client: Binding, answer: list[Any]) -> None:
    task = await sent(client, user("a room", metadata={"skill": "ask"}))
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    words, schema = task["status"]["message"]["parts"]
    assert "nights (whole number): How many nights" in words["text"]
    assert schema["data"]["required"] == ["city", "nights"]
    with pytest.raises(Failed) as failed:
        await sent(client, user("nights: many", messageId="m-2", taskId=task["id"]))
    assert failed.value.fields == ["message.parts[0].text"]
    done = await sent(client, user(parts=answer, messageId="m-3", taskId=task["id"]))
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["artifacts"][0]["parts"] == [{"data": {"city": "Rome", "nights": 2}}]


@pytest.mark.storeless
async def test_files_name_their_parameters(client: Binding) -> None:
    files = [
        {"raw": "AAEC", "metadata": {"parameter": "mask"}},
        {"raw": "AAE=", "metadata": {"parameter": "photo"}},
    ]
    task = await sent(client, user(parts=files, metadata={"skill": "count"}))
    assert task["artifacts"][0]["parts"] == [{"data": {"result": 5}}]
    with pytest.raises(Failed) as failed:
        del files[0]["metadata"]
        await sent(client, user(parts=files, metadata={"skill": "count"}, messageId="m-2"))
    assert failed.value.fields == ["message.parts[0].metadata.parameter"]


@pytest.mark.storeless
async def test_the_schemas_are_on_every_card(
    server: RunningApp, kind: type[Binding], client: Binding
) -> None:
    if issubclass(kind, Grpc):
        card = await server.client(kind, X_User="ann").call("GetExtendedAgentCard")
    else:
        headers = {"A2A-Version": kind.version}
        path = f"{server.url}/.well-known/agent-card.json"
        card = (await server.http.get(path, headers=headers)).json()
    own = {item["uri"]: item for item in card["capabilities"]["extensions"]}[SKILL_SCHEMA]
    assert set(own["params"]) == {"book", "ask", "count"}
    book = own["params"]["book"]["input"]
    assert book["properties"]["nights"] == {
        "type": "integer",
        "minimum": 1,
        "description": "How many nights",
        "default": 2,
    }
    assert book["required"] == ["city"]
    assert own["params"]["ask"]["ask"] is True
    assert own["params"]["ask"]["output"]["required"] == ["city", "nights"]
    assert own["params"]["count"] == {
        "files": {"photo": {}, "mask": {"required": False}},
        "wrapped": True,
        "output": own["params"]["count"]["output"],
    }
    skill = next(item for item in card["skills"] if item["id"] == "book")
    assert "application/json" in skill["inputModes"]
