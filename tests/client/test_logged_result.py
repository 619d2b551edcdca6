"""What a turn keeps of its sends comes back as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Message, Part, Role
from dragoman.client import Client, DeadlineExceeded, Result, Unreachable
from dragoman.client.logged_result import LoggedError, LoggedResult, known_card, once
from dragoman.model import errors
from dragoman.model.errors import A2AError
from dragoman.model.remote_task import BegunTask
from dragoman.model.types import AgentCard, Task


class Memory:
    """Steps that are kept in a dictionary. Nothing is inside of another step."""

    inside = False

    def __init__(self, largest: int = 10_000) -> None:
        self.largest = largest
        self.cards: dict[str, bytes] = {}
        self.log: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}

    def again(self) -> Memory:
        """What the next run has."""
        memory = Memory(self.largest)
        memory.log = self.log
        return memory

    def name(self, content: bytes) -> str:
        """The content itself."""
        return content.decode()

    def begun(self, name: str) -> BegunTask | None:
        """Nothing has begun."""
        return None

    def begin(self, name: str, task: BegunTask) -> None:
        """Forget it."""

    async def once(self, name: str, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Keep it."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = f"{name}:{count}"
        if key not in self.log:
            self.log[key] = await call()
        return self.log[key]


async def nothing() -> Result:
    raise AssertionError("it is sent again")


async def none(task: str) -> Task:
    raise AssertionError("it is fetched again")


KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if issubclass(kind, A2AError)])
async def test_an_error_of_the_agent(kind: type[A2AError]) -> None:
    error = kind("why", violations=[("field", "is wrong")], metadata={"a": "b"})

    async def send() -> Result:
        raise error

    memory = Memory()
    with pytest.raises(kind) as first:
        await once(memory, "send", "n", send, again=nothing, fetch=none)
    assert first.value is error
    with pytest.raises(A2AError) as second:
        await once(memory.again(), "send", "n", nothing, again=nothing, fetch=none)
    found = second.value
    assert (found.message, found.reason, found.http) == (error.message, error.reason, error.http)
    assert (found.violations, found.metadata) == (error.violations, error.metadata)


@pytest.mark.parametrize("error", [Unreachable("gone"), DeadlineExceeded("late", task="t")])
def test_an_error_of_the_client(error: Exception) -> None:
    found = LoggedError.of(error).error()
    assert (type(found), str(found)) == (type(error), str(error))
    assert getattr(found, "task", "") == getattr(error, "task", "")


async def test_another_error_is_not_kept() -> None:
    async def send() -> Result:
        raise ValueError("a mistake")

    memory = Memory()
    with pytest.raises(ValueError, match="a mistake"):
        await once(memory, "send", "n", send, again=nothing, fetch=none)
    assert memory.log == {}


async def test_progress_is_kept() -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="hello"),))
    result = Result(None, message, frozenset({"a", "b"}))

    async def send() -> Result:
        return result

    memory = Memory()
    for steps, call in ((memory, send), (memory.again(), nothing)):
        assert await once(steps, "send", "n", call, again=nothing, fetch=none) == result


def test_a_large_result_leaves_only_what_it_takes_to_get_it_again() -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="x" * 1000),))
    assert LoggedResult.of(Result(None, message), 500) == b'{"again":true}'


@pytest.fixture
async def card() -> AgentCard:
    """The card of an agent."""
    agent = Agent("Some", description="Agent.")

    @agent.skill
    async def work() -> str:
        """Work."""
        return "done"

    async with App(agent) as app, Client.connect(app=app) as client:
        return client.card


async def test_the_same_card_is_kept_once(card: AgentCard) -> None:
    other = replace(card, name="Other")
    shown = [card, card, other, card]

    async def fetch() -> AgentCard:
        return fetched.pop(0)

    memory = Memory()
    fetched = [*shown]
    assert [await known_card(memory, "where", fetch) for _ in shown] == [(c, False) for c in shown]
    sizes = [len(value) > 100 for value in memory.log.values()]
    assert sizes == [True, False, True, False]
    memory = memory.again()
    assert [await known_card(memory, "where", fetch) for _ in shown] == [(c, True) for c in shown]


@pytest.mark.parametrize("why", ["large", "incomplete"])
async def test_a_card_that_cannot_be_kept_is_fetched_again(card: AgentCard, why: str) -> None:
    shown = card if why == "large" else replace(card, name="")

    async def fetch() -> AgentCard:
        return shown

    memory = Memory(100 if why == "large" else 10_000)
    assert await known_card(memory, "where", fetch) == (shown, False)
    assert await known_card(memory.again(), "where", fetch) == (shown, False)
    assert [*memory.log.values()] == [b"{}"]


async def test_a_card_that_could_not_be_fetched() -> None:
    async def fetch() -> AgentCard:
        raise Unreachable("gone")

    async def other() -> AgentCard:
        raise AssertionError("it is fetched again")

    memory = Memory()
    with pytest.raises(Unreachable, match="gone"):
        await known_card(memory, "where", fetch)
    with pytest.raises(Unreachable, match="gone"):
        await known_card(memory.again(), "where", other)
