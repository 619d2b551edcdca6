"""Answers to pauses: what a client may do by itself when a task asks for something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.model.types import AgentCard, Message, Task

MOST = 16
"""The most answers to the pauses of one send. After that the pause is left to the caller."""


class PausedTask(Struct, frozen=True):
    """A task that waits for its client."""

    task: Task
    """The task, with what it asks for in its status."""
    card: AgentCard
    """The card of the agent."""
    url: str
    """The URL of the interface at which the client reached the agent."""
    verified: bool = False
    """Whether the client has verified a signature of the card."""
    on_behalf_of: str = ""
    """The id of the task on whose behalf the client works; empty if it is not the client of a
    turn."""


class AnswerRefused(Exception):
    """An answerer does not answer. The text says what the task asks for, and why."""


class Answerer(Protocol):
    """Answers pauses of tasks: `Client.connect(…, answer=…)`."""

    @property
    def extensions(self) -> Sequence[str]:
        """The extensions that the client activates for this, if the agent offers them."""

    async def answer(self, paused: PausedTask) -> Message | None:
        """Return the message that answers or declines, or None to leave the pause to the caller.
        The id of the message is its idempotency key, too: an answerer that gives the same answer
        again after a crash gives it the same id. Raises AnswerRefused; the send raises it,
        too."""
