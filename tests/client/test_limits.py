"""Agents that send without end: memory stays bounded, and an error says which limit it was."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.client import Client, Limits, TooLarge, Unverified
from dragoman.client.fold import Folding
from dragoman.model.types import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from dragoman.model.types import TaskArtifactUpdateEvent as Chunk
from dragoman.model.types import TaskStatusUpdateEvent as Status
from tests.client.scripted_agent import BINDINGS, begun, chunk, status, telling
from tests.client.transports import Answer, Script

MIB = 1 << 20


def endless() -> Iterator[Any]:
    """One chunk after the other."""
    yield begun()
    while True:
        yield chunk("x" * 10_000)


async def gather(client: Client, *, keep: bool = True) -> None:
    async with client.stream("x", keep=keep) as stream:
        async for _ in stream:
            pass


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_that_never_stops_growing(binding: str) -> None:
    limits = Limits(task=MIB)
    async with (
        telling(binding, endless) as stranger,
        Client.connect(stranger.card, attempts=1, limits=limits) as client,
    ):
        with pytest.raises(
            TooLarge, match=r"task t: .* 1048576 bytes; .*Limits\(task=.*keep=False"
        ):
            await gather(client)
        assert stranger.told < 2000  # it was hung up on


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_of_too_many_events(binding: str) -> None:
    def endless() -> Iterator[Any]:
        yield begun()
        while True:
            yield status(TaskState.WORKING)

    async with (
        telling(binding, endless) as stranger,
        Client.connect(stranger.card, attempts=1, limits=Limits(events=50)) as client,
    ):
        with pytest.raises(TooLarge, match=r"task t: .* more than 50 events") as caught:
            await gather(client)
        assert (caught.value.limit, caught.value.value, caught.value.task) == ("events", 50, "t")


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_event_that_is_too_long(binding: str) -> None:
    def events() -> Iterator[Any]:
        yield begun()
        yield chunk("x" * 200_000)

    async with (
        telling(binding, events) as stranger,
        Client.connect(stranger.card, attempts=1, limits=Limits(answer=100_000)) as client,
    ):
        for keep in (True, False):
            with pytest.raises(TooLarge, match=r"task t: .* longer than 100000 bytes") as caught:
                await gather(client, keep=keep)
            assert caught.value.limit == "answer"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_what_is_not_kept_has_no_limit(binding: str) -> None:
    def events() -> Iterator[Any]:
        yield from itertools.islice(endless(), 500)
        yield status(TaskState.COMPLETED)

    limits = Limits(task=MIB, events=50)
    async with (
        telling(binding, events) as stranger,
        Client.connect(stranger.card, attempts=1, limits=limits) as client,
    ):
        await gather(client, keep=False)
        assert stranger.told == 501


async def test_a_card_that_is_too_long() -> None:
    def transport() -> Script:
        return Script(lambda _: Answer(itertools.repeat(b" " * 65536)))

    with pytest.raises(
        TooLarge, match=r"the card at http://127.0.0.1/.* longer than 1048576 bytes"
    ):
        async with Client.connect("http://127.0.0.1", transport=transport()):
            pass
    with pytest.raises(Unverified, match="longer than 1048576 bytes"):
        async with Client.connect(
            "http://127.0.0.1", transport=transport(), signed_by=lambda kid, jku: None
        ):
            pass


@pytest.mark.parametrize("field", ["task", "events", "answer"])
def test_a_limit_is_greater_than_0(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a whole number greater than 0"):
        Limits(**{field: 0})


def said(text: str) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=(Part(text=text),))


GROWING: dict[str, Any] = {
    "small texts": lambda n: chunk(f"{n} x"),
    "texts and data": lambda n: Chunk(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id="a", parts=(Part(text=f"{n:500}"), Part(data=n))[n % 2 :]),
        append=True,
    ),
    "metadata of chunks": lambda n: Chunk(
        task_id="t",
        context_id="c",
        artifact=Artifact(
            artifact_id="a", parts=(Part(text=""),), metadata={f"key {n}": f"{n:100}"}
        ),
        append=True,
    ),
    "artifacts": lambda n: chunk("", artifact=f"a{n}"),
    "wide texts": lambda n: chunk(f"{n:500}\U0001f600"),
    "data": lambda n: Chunk(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id="a", parts=(Part(data=[[] for _ in range(50)]),)),
        append=True,
    ),
    "metadata of parts": lambda n: Chunk(
        task_id="t",
        context_id="c",
        artifact=Artifact(
            artifact_id="a", parts=(Part(text="x", metadata={"a": "x" * 500, "b": n}),)
        ),
        append=True,
    ),
    "messages": lambda n: Status(
        task_id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.WORKING, message=said("x" * 100)),
    ),
    "metadata": lambda n: status(TaskState.WORKING, metadata={f"key {n}": f"{n:100}"}),
}


@pytest.mark.parametrize("kind", GROWING)
def test_what_is_kept_is_counted(kind: str) -> None:
    """The count is neither much less than what it takes, nor many times as much."""
    folding = Folding()
    folding.take(begun())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for each in range(2000):
            folding.take(GROWING[kind](each))
        taken = tracemalloc.get_traced_memory()[0] - before
        assert taken * 0.6 < folding.weigh() < taken * 4
        assert folding.task is not None  # it is put together, and goes on
        for each in range(2000, 3000):
            folding.take(GROWING[kind](each))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken * 0.6 < folding.weigh() < taken * 4


def test_what_takes_the_place_of_something_is_not_added_to_it() -> None:
    folding = Folding()
    for _ in range(100):
        folding.take(chunk("x" * 1000, append=False))
        folding.take(status(TaskState.WORKING, metadata={"seen": "x" * 1000}))
    assert folding.weigh() < 4000
    for _ in range(100):
        folding.take(
            Task(
                id="t",
                context_id="c",
                status=TaskStatus(state=TaskState.WORKING, message=said("x" * 1000)),
                history=(said("x" * 1000),),
            )
        )
    assert folding.weigh() < 4000


def test_artifacts_that_are_not_kept_are_counted_as_such() -> None:
    folding = Folding(keep=False)
    for _ in range(100):
        folding.take(chunk("x" * 1000))
    assert folding.weigh() < 1000
    for number in range(1000):
        folding.take(chunk("", artifact=f"a{number}"))
    assert folding.weigh() > 100_000
