"""What a task waits for: an answer, a login, an approval, or something that words do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from msgspec import Struct

from dragoman.model.approvals import request_in
from dragoman.model.types import Message, Task, TaskState


class MarkedKind(Struct, frozen=True):
    """A kind of pause that no words answer. The metadata of the agent's message marks it."""

    name: str
    key: str
    """The key of the metadata."""
    module: str
    """Has `pause_text(metadata)`, which says for people what the agent asks for."""
    extensions: tuple[str, ...]


_X402 = (
    "https://github.com/google-agentic-commerce/a2a-x402/blob/main/spec/v0.2",
    "https://github.com/google-a2a/a2a-x402/v0.1",
)
MARKED = (MarkedKind("payment", "x402.payment.status", "dragoman.payments", _X402),)
PAUSE_EXTENSIONS = tuple(uri for marked in MARKED for uri in marked.extensions)
"""The extensions of these pauses. An agent tells a client that activates them what it asks for;
another client may only be told that it lacks an extension."""


class Pause(Struct, frozen=True):
    """What a task waits for."""

    kind: str
    """`question`, `login`, `approval`, or `payment`."""
    text: str
    """What the agent says. For a payment: what it costs, in words that are not the agent's."""

    @property
    def in_words(self) -> bool:
        """Whether a person or a model can answer in words. If not, the pause is no question: show
        `text` as an error."""
        return all(self.kind != marked.name for marked in MARKED)


def marks(message: Message) -> bool:
    """Whether a message is about a pause that no words answer: it asks for something, or says what
    came of it, such as a receipt."""
    return any(marked.key in (message.metadata or {}) for marked in MARKED)


def pause_of(task: Task) -> Pause | None:
    """Return what a task waits for; None if it does not wait for its client."""
    status = task.status
    if not status.state.interrupted:
        return None
    metadata = {**(task.metadata or {}), **((status.message and status.message.metadata) or {})}
    for marked in MARKED:
        if marked.key in metadata:
            return Pause(marked.name, _text(marked, metadata))
    if status.state is TaskState.INPUT_REQUIRED:
        return Pause("question", status.text)
    return Pause("login" if request_in(task.metadata) is None else "approval", status.text)


def _text(marked: MarkedKind, metadata: Mapping[str, Any]) -> str:
    try:
        module = import_module(marked.module)
    except ModuleNotFoundError as error:
        if error.name != marked.module:
            raise
        return f"the agent asks for a {marked.name}"
    return str(module.pause_text(metadata))
