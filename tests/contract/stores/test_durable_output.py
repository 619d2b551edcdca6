"""What a durable handler says inside of its steps is neither doubled nor lost when it runs again,
nor is what it says after them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from dragoman import Task, TaskState, Turn
from dragoman.agent import durable
from dragoman.stores.store import Store
from tests.harness.lives import Lives

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeps of tests are short, and a handler that died runs again soon."""
    monkeypatch.setattr(durable, "SHORT", 0.01)
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


def texts(task: Task) -> dict[str, str]:
    """The text of each artifact, by its id."""
    return {found.artifact_id: found.text for found in task.artifacts}


def said(task: Task) -> Counter[tuple[str, str]]:
    """The agent's messages, with their ids, as far as these do not depend on the task."""
    messages = [message for message in task.history if message.role.name == "AGENT"]
    return Counter((m.message_id.removeprefix(task.id), m.text) for m in messages)


class Speaker:
    """A handler that speaks in its steps, and may die at each point of its way."""

    def __init__(self, store: Store) -> None:
        self.lives = Lives(self.handle, store)

    async def handle(self, turn: Turn) -> AsyncIterator[Any]:
        """See the subclasses."""
        raise NotImplementedError
        yield

    async def live(self, *deaths: int) -> tuple[Task, int]:
        """The task at its end, and how many of these deaths it died. It has its answer before it
        asks."""
        lives, died = self.lives, 0
        task = (await lives.send("first")).head.id
        await lives.send("answer", task)
        for die_at in deaths:
            if (await lives.life(die_at)).lost:
                died += 1
                await lives.recover()
            else:
                break
        async with asyncio.timeout(10):
            while not (await lives.head(task)).state.terminal:
                await lives.life()
        found = await lives.task(task)
        assert found.status.state is TaskState.COMPLETED, found.status
        return found, died


class OneAfterTheOther(Speaker):
    """Steps one after the other. The first begins the artifact to which the others add."""

    async def handle(self, turn: Turn) -> AsyncIterator[Any]:
        await turn.step("first", self.speak, turn, "one ", "two ")
        yield turn.write("three ")
        yield turn.working("wrote three")
        await turn.step("whole", self.whole, turn)
        yield turn.artifact("a whole one")
        await self.lives.point()
        await turn.step("second", self.speak, turn, "four ")
        answer = await turn.ask_for("Go on?")
        yield turn.write(f"five {answer.text}")
        yield turn.working("nearly done")
        await self.lives.point()
        yield turn.artifact("another one")

    async def speak(self, turn: Turn, *words: str) -> None:
        """Say something, piece by piece."""
        for word in words:
            await turn.emit(turn.write(word))
            await turn.emit(turn.working(f"wrote {word}"))
            await self.lives.point()

    async def whole(self, turn: Turn) -> None:
        """Say something at once."""
        await turn.emit(turn.artifact("from a step"))
        await self.lives.point()


class SideBySide(Speaker):
    """Steps at the same time, each with an artifact of its own."""

    async def handle(self, turn: Turn) -> AsyncIterator[Any]:
        yield turn.write("before ")
        await asyncio.gather(
            turn.step("short", self.write, turn, "short", 2),
            turn.step("long", self.write, turn, "long", 5),
        )
        yield turn.write("after")
        yield turn.working("both are done")
        await turn.ask_for("Go on?")
        yield turn.artifact("the end")

    async def write(self, turn: Turn, name: str, pieces: int) -> None:
        """Write so many pieces, in turns with the other."""
        for number in range(pieces):
            await turn.emit(turn.write(f"{number} ", name=name))
            await turn.emit(turn.working(f"{name} {number}"))
            await self.lives.point()
            await asyncio.sleep(0.002)


class Nested(Speaker):
    """A step within a step: both write to the artifact that the inner one began."""

    async def handle(self, turn: Turn) -> AsyncIterator[Any]:
        await turn.step("outer", self.outer, turn)
        yield turn.write("three")
        await turn.ask_for("Go on?")
        yield turn.write(" four")

    async def outer(self, turn: Turn) -> None:
        """Write after the inner one."""
        await turn.step("inner", self.inner, turn)
        await turn.emit(turn.write("two "))
        await turn.emit(turn.working("outer"))
        await self.lives.point()

    async def inner(self, turn: Turn) -> None:
        """Write first."""
        await turn.emit(turn.write("one "))
        await turn.emit(turn.working("inner"))
        await self.lives.point()


class Failing(Speaker):
    """A step whose first call fails after it has written."""

    async def handle(self, turn: Turn) -> AsyncIterator[Any]:
        self.calls = 0
        await turn.step("flaky", self.flaky, turn, retries=1)
        yield turn.write("three")
        await turn.ask_for("Go on?")
        yield turn.write(" four")

    async def flaky(self, turn: Turn) -> None:
        """Fail once in a run."""
        self.calls += 1
        await turn.emit(turn.write("one "))
        await turn.emit(turn.artifact("beside it"))
        await self.lives.point()
        if self.calls == 1:
            raise OSError("not yet")
        await turn.emit(turn.write("two "))


EXPECTED = {
    OneAfterTheOther: ["one two three four five answer", "from a step", "a whole one"],
    SideBySide: ["before after", "0 1 ", "0 1 2 3 4 ", "the end"],
    Nested: ["one two three four"],
    Failing: ["one two three four", "beside it"],
}


@pytest.mark.parametrize("kind", EXPECTED)
async def test_output_of_a_turn_that_runs_again(
    store: Store, kind: type[Speaker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "FIRST_PAUSE", 0.001)
    expected, _ = await kind(store).live()
    assert [*texts(expected).values()][: len(EXPECTED[kind])] == EXPECTED[kind]
    assert len({id for id, _ in said(expected)}) == said(expected).total()
    for first in count(1):
        for second in (0, 1, 3):
            found, died = await kind(store).live(first, second)
            where = f"dies at point {first}, then at {second}"
            assert texts(found) == texts(expected), where
            assert said(found) == said(expected), where
        if not died:
            break
    assert first > 2
