"""Agents to be called by foreign clients."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dragoman import Agent, Message, Turn


def agent(handler: Any, **options: Any) -> Agent:
    """An agent whose only skill is this handler, and which takes whatever it is sent."""
    name = options.pop("name", handler.__name__.capitalize())
    made = Agent(name, description="Says what it is told.", **{"input_modes": ["*/*"], **options})
    made.skill(handler)
    return made


def all_agents() -> list[Agent]:
    """The agents that most tests share, each under the name of its handler."""
    handlers: list[Callable[..., Any]] = [
        echo, talk, book, reply, fall, blunder, refuse, order, recall, modes, story, permit, linger
    ]  # fmt: skip
    return [
        *(agent(handler) for handler in handlers),
        agent(Careful),
        agent(echo, name="Picky", input_modes=["text/plain", "image/*"]),
    ]


# ---- agents that simply answer ---------------------------------------------------------------


async def echo(turn: Turn) -> AsyncIterator[Any]:
    """Gives back the parts of the message as they came."""
    yield turn.working("Listening")
    yield turn.artifact(
        list(turn.message.parts),
        name="echo",
        description="What was said",
        metadata=turn.message.metadata,
    )


async def talk(turn: Turn) -> AsyncIterator[Any]:
    """Streams the words of the message, one by one."""
    yield turn.working("Thinking")
    words = turn.text.split(" ")
    for index, word in enumerate(words, start=1):
        yield turn.write(word, name="words", last=index == len(words))
    yield turn.complete("Said")


async def book(turn: Turn) -> AsyncIterator[Any]:
    """Asks for what is missing, a question for each turn."""
    said = [message.text for message in turn.history if message.role.name == "USER"]
    if len(said) < 3:
        yield turn.ask(["Which dates?", "Which class?"][len(said) - 1])
    else:
        yield turn.artifact(", ".join(said), name="booking")


async def reply(turn: Turn) -> Message:
    """Answers without a task."""
    return turn.reply(f"You said {turn.text}").message


async def fall(turn: Turn) -> AsyncIterator[Any]:
    """Breaks down half way."""
    yield turn.working("So far so good")
    raise RuntimeError("the secret of the house")


async def blunder(turn: Turn) -> object:
    """Returns what cannot be sent."""
    return object()


async def refuse(turn: Turn) -> AsyncIterator[Any]:
    """Will not, or cannot."""
    yield turn.reject("Not my business") if turn.text == "reject" else turn.fail("Out of paper")


@dataclass
class Order:
    """What `order` wants to be told."""

    item: str
    price: float
    count: int = 1


async def order(wanted: Order) -> dict[str, Any]:
    """Takes structured data, gives structured data."""
    return {"items": [wanted.item] * wanted.count, "total": wanted.count * wanted.price}


async def recall(turn: Turn) -> dict[str, Any]:
    """Tells which other tasks it can see: those of the conversation, and those referred to."""
    return {
        "context": [task.id for task in await turn.context_tasks()],
        "references": [task.id for task in await turn.referenced_tasks()],
    }


async def modes(turn: Turn) -> dict[str, Any]:
    """Tells what it knows of the request."""
    return {
        "output": list(turn.accepted_output_modes),
        "extensions": list(turn.extensions),
        "metadata": turn.metadata,
    }


# ---- agents that wait ------------------------------------------------------------------------


class TaskGate:
    """Holds a handler in the middle of its work until the test lets it go on. The first message
    of the task is the gate's name."""

    known: ClassVar[dict[str, TaskGate]] = {}

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.reached = asyncio.Event()
        """The handler is waiting."""
        self.open = asyncio.Event()
        """Set it, and the handler goes on."""
        self.stopped = False
        """The handler was interrupted while it waited."""
        TaskGate.known[self.name] = self

    @classmethod
    async def hold(cls, turn: Turn) -> None:
        """Until the gate of this task is open."""
        gate = cls.known[turn.history[0].text]
        gate.reached.set()
        try:
            await gate.open.wait()
        except asyncio.CancelledError:
            gate.stopped = True
            raise


async def story(turn: Turn) -> AsyncIterator[Any]:
    """Tells one half before the gate and the other half after it."""
    yield turn.working("At the gate")
    yield turn.write("before", name="story")
    await TaskGate.hold(turn)
    yield turn.write("after", name="story", last=True)
    yield turn.complete("Through")


async def permit(turn: Turn) -> AsyncIterator[Any]:
    """Needs to be let in: by the gate while it waits, or by a further message."""
    if len(turn.history) == 1:
        yield turn.require_auth("Sign in at https://login.example/")
        if turn.text == "later":
            return
        await TaskGate.hold(turn)
        yield turn.working("Thank you")
    yield turn.artifact("let in", name="result")


async def linger(turn: Turn) -> AsyncIterator[Any]:
    """Finishes its work although it was asked to stop."""
    yield turn.working()
    try:
        await TaskGate.hold(turn)
    except asyncio.CancelledError:
        yield turn.complete("Too late to stop")


class Careful:
    """Saves what it has when it is told to stop."""

    async def run(self, turn: Turn) -> AsyncIterator[Any]:
        """Work."""
        yield turn.working()
        await TaskGate.hold(turn)

    async def cancel(self, turn: Turn) -> AsyncIterator[Any]:
        """Tidy up."""
        yield turn.artifact("half of it", name="rest")
