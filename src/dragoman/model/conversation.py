"""The conversation: what was said in a context before a message."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from dragoman.model.types import Metadata, Part, Role, TaskState


class MessagePlace(Struct, frozen=True, gc=False):
    """Where a message is: its task, its number there, and when it was accepted."""

    task: str
    number: int
    at: str


class ContextValue(Struct, frozen=True, gc=False):
    """The private value of a context, as it was when read."""

    value: bytes
    """It is JSON."""
    version: int
    """Grows with every save."""


class ContextChanged(Exception):
    """The value of the context was changed since the turn read it."""

    def __init__(self) -> None:
        super().__init__(
            "the value of the context was changed since it was read; read it again with "
            "turn.context_saved()"
        )


class ConversationMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation: the user's message, an artifact, or the agent's answer."""

    kind: str
    """`message` (of the user), `artifact`, `question` or `answer`."""
    role: Role
    """Who said it: the user or the agent."""
    parts: tuple[Part, ...] = ()
    task_id: str = ""
    """The task that it belongs to; empty if the agent replied without a task."""
    at: str = ""
    """When the user's message of this turn was accepted."""
    name: str = ""
    """The name of an artifact."""
    state: TaskState | None = None
    """The state of the task after a question or an answer; None for a direct reply."""
    cut: bool = False
    """The artifact was longer."""
    metadata: Metadata | None = None

    @property
    def text(self) -> str:
        """The text parts: those of an artifact as one text, those of a message one line each."""
        texts = [part.text for part in self.parts if part.text is not None]
        return ("" if self.kind == "artifact" else "\n").join(texts)


def latest(said: Sequence[ConversationMessage], size: int) -> list[ConversationMessage]:
    """The latest turns that fit into this many bytes of JSON."""
    start = place = len(said)
    for message in reversed(said):
        size -= len(msgspec.json.encode(message)) + 2
        if size < 0:
            break
        place -= 1
        if message.kind == "message":
            start = place
    return list(said[start:])
