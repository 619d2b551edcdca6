"""An agent of ours behind a faulty network, and what must be true of each stream in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec.structs import replace

from dragoman import Agent, App, Message, Task, Turn
from dragoman.client import Client, Stream
from dragoman.model.caller import Scope
from dragoman.model.events import Received
from dragoman.model.lifecycle import fold
from dragoman.model.types import AgentCard, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from tests.harness.app import RunningApp, running
from tests.harness.faulty_proxy import Plan, Proxy, proxying

T = TypeVar("T")

BINDINGS = ("JSONRPC", "HTTP+JSON")
HANGS = 45
"""What has not come to an end after so many seconds never will."""


def teller() -> Agent:
    """An agent that does what the first word says, and remembers for whom."""
    agent = Agent("Teller", description="Tells.")
    agent.runs = Counter()  # type: ignore[attr-defined]

    @agent.handler
    async def tell(turn: Turn) -> AsyncIterator[Any]:
        """Tell it."""
        agent.runs[turn.message.message_id] += 1  # type: ignore[attr-defined]
        verb, _, rest = turn.text.partition(" ")
        yield turn.working("on it")
        if verb == "count":  # as fast as it goes
            for number in range(int(rest)):
                yield turn.write(f"{number},")
        elif verb == "pace":  # slowly enough to be cut, and resumed, in between
            for number in range(int(rest)):
                yield turn.write(f"{number},")
                await asyncio.sleep(0.002)
        elif verb == "rest":
            await asyncio.sleep(float(rest))
        elif verb == "ask":
            yield turn.write("so far", name="half")
            yield turn.ask("What?")
        elif verb == "permit":  # the handler waits to be let in, and goes on
            yield turn.require_auth("Sign in")
            await asyncio.sleep(0.05)
            yield turn.artifact("let in")
        elif verb == "later":  # it ends, and a further message lets it in
            yield turn.require_auth("Sign in")
        else:
            yield turn.artifact(turn.text)

    @agent.skill(reply=True)
    async def talk(turn: Turn) -> Message | str:
        """Answer without a task."""
        agent.runs[turn.message.message_id] += 1  # type: ignore[attr-defined]
        return f"you said {turn.text}"

    return agent


class ProxiedApp(RunningApp):
    """The agent's server, and clients that reach it through a proxy of their own."""

    def __init__(self, server: RunningApp, card: AgentCard) -> None:
        super().__init__(server.app, server.url, server.http)
        self.card = card
        self.struck = 0
        """How many faults took effect."""

    def check_runs(self, messages: int) -> None:
        """So many messages came, and the agent ran once for each."""
        runs: Counter[str] = self.app.agents["teller"].runs  # type: ignore[attr-defined]
        again = sum(number > 1 for number in runs.values())
        assert not again, f"the agent ran more than once for {again} messages"
        assert len(runs) == messages

    def behind(
        self, plan: Plan, binding: str, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[tuple[Client, Proxy]]:
        """A client and its proxy; see `behind`."""
        return behind(self.url, self.card, plan, binding, **options)

    async def log(self, task: str) -> list[Any]:
        """The events of a task's log, the message that it began with among them."""
        entries = await self.app.store.read(Scope("teller"), task, 0, 10_000)
        assert entries is not None
        return [entry.event for entry in entries]

    async def check(self, stream: Stream, told: list[Any], *, fresh: bool) -> None:
        """Each event of the log since the message was told once and in order, behind the task as it
        was then. A stream that lost its very beginning (not `fresh`) may begin later."""
        assert stream.task is not None
        log = await self.log(stream.task.id)
        sent = max(n for n, event in enumerate(log, 1) if isinstance(event, Received))
        if sent > 1 and fold(None, log[: sent - 1]).status.state.interrupted:
            sent += 1  # an answer makes the task `working` in its own transaction
        begin = next((n for n in range(sent, len(log) + 1) if fold(None, log[:n]) == told[0]), 0)
        assert begin, f"it began with a state that the task never had: {told[0]}"
        assert begin == sent or not fresh, f"it began {begin - sent} events late"
        rest = [event for event in log[begin:] if isinstance(event, STREAMED)]
        assert told[1:] == rest, difference(told[1:], rest)
        assert stream.task == fold(None, log)
        assert stream.task == await self.get(stream.task.id)

    async def get(self, task: str) -> Task:
        """The task, over a network that works."""
        async with Client.connect(self.card) as client:
            return await client.task(task).get()


STREAMED = (TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


def difference(told: list[Any], log: list[Any]) -> str:
    """What was told otherwise, in short."""
    lost = [n for n, event in enumerate(log) if event not in told]
    doubled = [n for n, event in enumerate(log) if told.count(event) > 1]
    foreign = [event for event in told if event not in log]
    return f"of {len(log)} events {lost} are lost and {doubled} doubled; beside them {foreign}"


@contextlib.asynccontextmanager
async def proxied(**settings: Any) -> AsyncIterator[ProxiedApp]:
    """The agent, served until the block ends."""
    app = App(teller(), drain_timeout=0.0, **settings)
    async with running(app) as server:
        async with Client.connect(server.url) as client:
            card = client.card
        yield ProxiedApp(server, card)


@contextlib.asynccontextmanager
async def behind(
    url: str, card: AgentCard, plan: Plan, binding: str, **options: Any
) -> AsyncIterator[tuple[Client, Proxy]]:
    """A client that reaches the server at this URL only through a proxy, whatever its card says."""
    async with proxying(url, plan) as proxy:
        moved = tuple(
            replace(item, url=proxy.url + urlsplit(item.url).path)
            for item in card.supported_interfaces
        )
        card = replace(card, supported_interfaces=moved)
        async with Client.connect(card, bindings=[binding], **options) as client:
            yield client, proxy


async def abreast(
    work: Callable[[T], Awaitable[object]], items: Iterable[T], at_once: int = 48
) -> None:
    """Do it for all of them, so many at once; the first failure ends it, and names its item."""
    left = iter(items)

    async def some() -> None:
        for item in left:
            try:
                async with asyncio.timeout(HANGS):
                    await work(item)
            except Exception as error:
                error.add_note(f"at {item}")
                raise

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(some())
