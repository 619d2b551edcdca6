"""Events of other tasks on a stream: they are neither told nor taken, and end nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dragoman.client import Client
from dragoman.model.errors import InvalidAgentResponse
from dragoman.model.types import TaskState
from tests.client.scripted_agent import BINDINGS, begun, chunk, status, telling
from tests.client.transports import Answer, Script, card, result, task

WORKING, COMPLETED, FAILED = TaskState.WORKING, TaskState.COMPLETED, TaskState.FAILED


def mixed() -> Iterator[Any]:
    """A stream of the task t, with those of the task u between."""
    yield begun()
    yield chunk("one ")
    yield status(FAILED, "u")
    yield chunk("not ours", "u")
    yield begun("u", FAILED)
    yield chunk("two")
    yield status(COMPLETED)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("keep", [True, False])
async def test_a_stream_goes_on_past_events_of_other_tasks(
    binding: str, keep: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dragoman")
    async with (
        telling(binding, mixed) as stranger,
        Client.connect(stranger.card, attempts=1) as client,
        client.stream("x", keep=keep) as stream,
    ):
        told = [event async for event in stream]
        assert len(told) == 4
        assert stream.result.state is COMPLETED
        assert stream.task is not None
        assert stream.task.id == "t"
        if keep:
            assert stream.result.text == "one two"
    (line,) = [found.getMessage() for found in caplog.records if "another task" in found.message]
    assert "task t" in line


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_subscription_and_a_reply_know_their_task_from_the_beginning(binding: str) -> None:
    def other_first() -> Iterator[Any]:
        yield status(COMPLETED, "u")
        yield begun()
        yield status(COMPLETED)

    async with (
        telling(binding, other_first) as stranger,
        Client.connect(stranger.card, attempts=1) as client,
    ):
        async with client.stream("more", task="t") as stream:
            assert len([event async for event in stream]) == 2
        assert stream.result.state is COMPLETED
        async with client.task("t").subscribe() as stream:
            first = await anext(aiter(stream))
        assert (getattr(first, "id", ""), stream.result.state) == ("t", WORKING)


async def test_a_message_may_be_answered_with_another_task() -> None:
    def another() -> Iterator[Any]:
        yield begun("new")
        yield status(COMPLETED, "new")

    async with (
        telling("JSONRPC", another) as stranger,
        Client.connect(stranger.card, attempts=1) as client,
        client.stream("more", task="t") as stream,
    ):
        assert len([event async for event in stream]) == 2
        assert stream.task is not None
        assert (stream.task.id, stream.result.state) == ("new", COMPLETED)


async def test_a_task_that_is_looked_at_is_the_one_that_was_asked_for() -> None:
    transport = Script(lambda _: Answer(result(task("COMPLETED", id="u"))))
    async with Client.connect(card(streaming=False), transport=transport, attempts=1) as client:
        with pytest.raises(
            InvalidAgentResponse, match="asked for task t, but the agent sent task u"
        ):
            async for _ in client.task("t").subscribe():
                pass


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_that_ends_with_the_end_of_another_task(binding: str) -> None:
    """As agents do that give the failure of a task another id."""

    def failing() -> Iterator[Any]:
        yield begun()
        yield status(WORKING)
        yield status(FAILED, "u")

    async with (
        telling(binding, failing) as stranger,
        Client.connect(stranger.card, attempts=1) as client,
        client.stream("x") as stream,
    ):
        told = [event async for event in stream]
        assert len(told) == 3
        assert stream.result.state is FAILED
        assert stream.task is not None
        assert stream.task.id == "t"
