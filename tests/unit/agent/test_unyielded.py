"""An event that a handler makes and does not hand over is no secret."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, Turn
from dragoman.agent.unyielded_events import FIRST_TURNS
from dragoman.testing import EventNotYielded, local_client, run_handler
from tests.harness.workers import WorkerHarness


async def in_a_generator(turn: Turn) -> AsyncIterator[Any]:
    """The status is lost."""
    turn.working("Looking for seats")
    yield turn.artifact("a seat")


async def in_a_coroutine(turn: Turn) -> str:
    """The artifact is lost."""
    turn.artifact("a seat")
    return "done"


def in_a_thread(turn: Turn) -> str:
    """The question is lost."""
    turn.ask("Which dates?")
    return "done"


def in_a_plain_generator(turn: Turn) -> Iterator[Any]:
    """The failure is lost."""
    yield "one"
    turn.fail("no seats")
    yield "two"


async def before_a_text(turn: Turn) -> AsyncIterator[Any]:
    """The artifact is lost, although another is yielded."""
    turn.artifact("one")
    yield "two"


FORGETFUL: dict[Callable[..., Any], tuple[str, int]] = {
    in_a_generator: ("the status working", 2),
    in_a_coroutine: ("the artifact", 2),
    in_a_thread: ("the status input-required", 2),
    in_a_plain_generator: ("the status failed", 3),
    before_a_text: ("the artifact", 2),
}


def agent(handler: Callable[..., Any], **options: Any) -> Agent:
    """An agent of this handler."""
    made = Agent("Forgetful", description="Forgets a word.")
    made.skill(**options)(handler)
    return made


@pytest.mark.parametrize("handler", FORGETFUL)
async def test_it_is_told_with_handler_and_line(
    handler: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    what, after = FORGETFUL[handler]
    line = inspect.getsourcelines(handler)[1] + after
    told = f"handler {handler.__name__}: {what} created in line {__file__}:{line} was not yielded"
    with pytest.raises(EventNotYielded) as raised:
        await run_handler(agent(handler))
    assert str(raised.value).startswith(told)
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(told)


async def test_a_line_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def often(turn: Turn) -> str:
        for number in range(10_000):
            turn.write(str(number))
        return "done"

    with pytest.raises(EventNotYielded):
        await run_handler(agent(often))
    assert len(caplog.records) == 1


async def test_a_served_agent_fails_the_test_when_the_block_ends() -> None:
    with pytest.raises(EventNotYielded, match="handler in_a_coroutine"):
        async with local_client(agent(in_a_coroutine)) as client:
            assert (await client.send("x")).text == "done"
    assert isinstance(client.error, EventNotYielded)


async def test_what_was_handed_over_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def generator(turn: Turn) -> AsyncIterator[Any]:
        several = [turn.artifact(str(number)) for number in range(200)]
        await turn.emit(turn.working("emitted"))
        for event in reversed(several):
            yield event
        yield replace(turn.artifact("changed"), last_chunk=False)  # type: ignore[type-var]
        yield turn.complete()

    async def coroutine(turn: Turn) -> Any:
        return turn.reply("returned")

    def plain(turn: Turn) -> Iterator[Any]:
        yield turn.write("from a thread")
        yield turn.reply("replied")

    class Both:
        async def run(self, turn: Turn) -> AsyncIterator[Any]:
            yield "text"
            yield {"data": 1}
            yield turn.ask("Which?")

    for handler in (generator, coroutine, plain, Both):
        await run_handler(agent(handler))
        await run_handler(agent(handler, reply=True))
    assert caplog.records == []


async def test_a_handler_that_raised_is_told_for_that_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def raising(turn: Turn) -> Any:
        event = turn.artifact("x")
        if turn.text == "":
            raise ValueError("why")
        return event

    told = await run_handler(agent(raising))
    assert isinstance(told.error, ValueError)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_later_turns_are_counted_and_followed_again_when_one_is_forgotten(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = WorkerHarness(in_a_generator)
    handler = harness.agent.handler_of("in_a_generator")
    for _ in range(FIRST_TURNS):
        handler.followed -= 1
    first = inspect.getsourcelines(in_a_generator)[1]
    for told in (
        f"1 event of {__file__}:{first}",
        f"the status working created in line {__file__}",
    ):
        await harness.send()
        await harness.run()
        (record,) = caplog.records
        assert record.getMessage().startswith(f"handler in_a_generator: {told}")
        assert "not yielded, and so dropped" in record.getMessage()
        caplog.clear()
