"""Skills by name: the check before anything is sent, and results with types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest
from msgspec import Meta

from dragoman import Agent, App, Part, TaskState, Turn
from dragoman.client import Client, File, Result, SkillNotCompleted
from dragoman.client.sync import Client as SyncClient
from dragoman.model.errors import InvalidAgentResponse, InvalidParams
from dragoman.testing import Recorder, local_client
from tests.harness.server import serving


class Board(Enum):
    """What is eaten."""

    HALF = "half"


@dataclass
class Booking:
    """A booking."""

    city: str
    nights: int
    board: Board = Board.HALF


class Bill(pydantic.BaseModel):
    """The same for pydantic."""

    city: str
    nights: int


def hotels() -> Agent:
    """An agent with typed skills, and one without."""
    agent = Agent("Hotels", description="Books rooms.")

    @agent.handler
    async def anything(turn: Turn) -> str:
        return turn.text

    @agent.skill(tags=["travel"], examples=["Rome"])
    async def book_hotel(
        city: str,
        nights: Annotated[int, Meta(ge=1, description="How many nights")] = 2,
        board: Board = Board.HALF,
    ) -> Booking:
        """Books a room."""
        return Booking(city, nights, board)

    @agent.skill
    async def beds(city: str, minimum: int = 1) -> list[int]:
        """Lists beds."""
        return [minimum, minimum + 1]

    @agent.skill
    async def greet(name: str) -> str:
        """Greets."""
        return f"Hello, {name}!"

    @agent.skill
    async def copy(photo: bytes, mask: Part | None = None, suffix: str = "") -> bytes:
        """Copies a file."""
        return photo + (mask.raw or b"" if mask else b"") + suffix.encode()

    @agent.skill(ask=True)
    async def ask_hotel(city: str, nights: int) -> Booking:
        """Asks for what is missing."""
        return Booking(city, nights)

    @agent.skill
    async def free(turn: Turn) -> Any:
        """Takes anything."""
        return {"got": turn.data}

    @agent.skill
    async def fails(turn: Turn) -> Any:
        """Fails."""
        return turn.fail("No rooms")

    return agent


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of it."""
    async with local_client(hotels()) as found:
        yield found


async def test_a_typed_result(client: Client) -> None:
    booking = await client.call_skill("book_hotel", city="Rome", returns=Booking)
    assert booking == Booking("Rome", 2)
    bill = await client.call_skill("book_hotel", city="Rome", nights=3, returns=Bill)
    assert bill == Bill(city="Rome", nights=3)
    assert await client.call_skill("book_hotel", {"city": "Rome"}, board=Board.HALF) == {
        "city": "Rome",
        "nights": 2,
        "board": "half",
    }
    result = await client.call_skill("book_hotel", city="Rome", returns=Result)
    assert result.state is TaskState.COMPLETED


async def test_results_that_are_no_objects(client: Client) -> None:
    assert await client.call_skill("beds", city="Rome", minimum=3, returns=list[int]) == [3, 4]
    assert await client.call_skill("beds", city="Rome") == [1, 2]
    assert await client.call_skill("greet", name="Ann") == "Hello, Ann!"
    assert await client.call_skill("greet", name="Ann", returns=str) == "Hello, Ann!"
    assert await client.call_skill("free", anything=[1]) == {"got": {"anything": [1]}}


async def test_a_result_of_another_type_is_named(client: Client) -> None:
    with pytest.raises(InvalidAgentResponse, match="the result does not fit: nights: "):

        class Other(pydantic.BaseModel):
            nights: str

        await client.call_skill("book_hotel", city="Rome", returns=Other)
    with pytest.raises(InvalidAgentResponse, match="has no file"):
        await client.call_skill("book_hotel", city="Rome", returns=bytes)


async def test_files(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"file")
    assert await client.call_skill("copy", photo=b"raw", returns=bytes) == b"raw"
    assert await client.call_skill("copy", photo=File(path), returns=bytes) == b"file"
    both = {"photo": File(path), "mask": Part(raw=b"2"), "suffix": "3"}
    assert await client.call_skill("copy", both, returns=bytes) == b"file23"


@pytest.mark.parametrize(
    ("skill", "arguments", "expected"),
    [
        ("book_hotel", {}, [("city", "is required")]),
        (
            "book_hotel",
            {"city": 5, "nights": 0, "nigths": 2},
            [
                ("city", "expected a string, got integer"),
                ("nights", "must be at least 1"),
                ("nigths", "is unknown; the fields are: city, nights, board"),
            ],
        ),
        (
            "copy",
            {"suffix": 1},
            [("suffix", "expected a string, got integer"), ("photo", "is required")],
        ),
        ("copy", {"photo": "text"}, [("photo", "expected a File, a Part or bytes, got str")]),
        ("ask_hotel", {"nights": "x"}, [("nights", "expected an integer, got string")]),
        ("book_hotl", {}, None),
    ],
    ids=str,
)
async def test_what_does_not_fit_is_not_sent(
    skill: str, arguments: dict[str, Any], expected: Any
) -> None:
    recorders: list[Recorder] = []

    def record(inner: Any) -> Any:
        recorders.append(Recorder(inner))
        return recorders[0]

    async with local_client(hotels(), through=record) as client:
        before = len(recorders[0].exchanges)
        with pytest.raises(InvalidParams) as error:
            await client.call_skill(skill, arguments)
        assert len(recorders[0].exchanges) == before
    if expected is None:
        assert "unknown skill 'book_hotl'; the skills are: book_hotel, beds" in str(error.value)
    else:
        assert list(error.value.violations) == expected
        assert str(error.value).startswith(f"{skill}: {expected[0][0]}: ")


async def test_what_is_asked_and_what_fails_is_told_with_the_task(client: Client) -> None:
    with pytest.raises(SkillNotCompleted, match="the task is input-required: Please give") as error:
        await client.call_skill("ask_hotel", city="Rome")
    task = error.value.result.task
    assert task is not None
    done = await client.call_skill(
        "ask_hotel", nights=2, returns=Booking, options={"task": task.id}
    )
    assert done == Booking("Rome", 2)
    with pytest.raises(SkillNotCompleted, match="fails: the task is failed: No rooms"):
        await client.call_skill("fails")


async def test_the_skills_of_the_card(client: Client) -> None:
    skill = client.skills["book_hotel"]
    assert (skill.name, skill.description) == ("Book hotel", "Books a room.")
    assert (skill.tags, skill.examples) == (("travel",), ("Rome",))
    assert skill.input is not None
    assert skill.input["properties"]["nights"]["description"] == "How many nights"
    assert skill.output is not None
    assert skill.output["required"] == ["city", "nights"]
    assert client.skills["fails"].input is None
    assert client.skills["ask_hotel"].ask
    assert list(client.skills["copy"].files) == ["photo", "mask"]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_over_every_binding(binding: str, version: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"file")
    agent = hotels()
    app = App(agent, grpc_port=0)
    async with serving(app) as url:
        where = f"http://127.0.0.1:{app.ports[0].number}" if binding == "GRPC" else url
        card = agent.card(url, addresses={binding: where}, versions=[version])
        await call_all(Client.connect(card), path)


async def call_all(unopened: Client, path: Path) -> None:
    """Call some skills."""
    async with unopened as client:
        found = await client.call_skill("book_hotel", city="Rome", nights=3, returns=Booking)
        assert found == Booking("Rome", 3)
        assert await client.call_skill("beds", city="Rome") == [1, 2]
        assert await client.call_skill("copy", photo=File(path), returns=bytes) == b"file"
        with pytest.raises(InvalidParams) as error:
            await client.send({"city": 5, "nights": 0}, skill="book_hotel")
        assert "message.parts[0].data.nights: " in str(error.value)


async def test_in_synchronous_code() -> None:
    def call(url: str) -> Booking:
        with SyncClient.connect(url) as client:
            assert client.skills["book_hotel"].input is not None
            with pytest.raises(InvalidParams, match="city: is required"):
                client.call_skill("book_hotel")
            assert client.call_skill("greet", name="Ann") == "Hello, Ann!"
            return client.call_skill("book_hotel", city="Rome", returns=Booking)

    async with serving(App(hotels())) as url:
        assert await asyncio.to_thread(call, url) == Booking("Rome", 2)
