"""Delegation: a turn calls another agent on behalf of its own task."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, Protocol

import msgspec

from dragoman.model.lineage import LINEAGE, Ancestor
from dragoman.model.remote_task import BegunTask
from dragoman.model.types import Message, TaskState


class Steps(Protocol):
    """What a turn remembers of its sends, if it is run again from its beginning."""

    largest: int
    """The most bytes of a result that are kept."""
    cards: dict[str, bytes]
    """The cards that are kept, by their digest."""

    @property
    def inside(self) -> bool:
        """Whether a step of the handler is running. Then a send is a part of it, and no step."""

    def name(self, content: bytes) -> str:
        """A name for a send of this content. When the turn is run again, the same send has the
        same name."""

    def begun(self, name: str) -> BegunTask | None:
        """The task that this send has begun in an earlier run; None if it is not known."""

    def begin(self, name: str, task: BegunTask) -> None:
        """The agent has answered: this send has begun this task."""

    async def once(self, name: str, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the JSON that the call returns. It is kept: when the turn is run again, the call
        is not made."""


class Delegation:
    """What a delegated message carries along, and when to cancel the tasks that it started."""

    def __init__(
        self,
        path: Sequence[Ancestor],
        *,
        key: str,
        until: float,
        deadline: str,
        trace: str,
        canceled: Callable[[], bool],
        began: Callable[[str, str, str], None] | None = None,
        seen: Callable[[str, str, TaskState], None] | None = None,
        steps: Steps | None = None,
    ) -> None:
        self.path = tuple(path)
        self.until = until
        """The deadline of the turn, by the monotonic clock."""
        self.trace = trace
        """The trace context of the message that started the turn."""
        self.canceled = canceled
        """Whether the turn was canceled."""
        self.began = began
        """Called with the address and id of each started task, and the name of its agent."""
        self.seen = seen
        """Called with the address, the id and the state of a started task that was followed."""
        self.steps = steps
        """Stores the results of the turn's sends; None if it stores nothing."""
        self._key = key
        self._deadline = deadline
        self._count = count(1)

    def metadata(self) -> dict[str, Any]:
        """The request metadata that describes the delegation."""
        metadata: dict[str, Any] = {"path": [msgspec.to_builtins(item) for item in self.path]}
        if self._deadline:
            metadata["deadline"] = self._deadline
        return {LINEAGE: metadata}

    def key(self, message: Message) -> str:
        """An idempotency key that stays the same if the turn runs again and sends the same message
        at the same point, so that the other agent does not start the work twice."""
        said = msgspec.json.encode(message)
        return hashlib.sha256(f"{self._key}:{next(self._count)}:".encode() + said).hexdigest()


def current_steps(delegation: Delegation | None) -> Steps | None:
    """The steps of the turn, if what its client does now is a step; None otherwise."""
    steps = delegation.steps if delegation is not None else None
    return None if steps is None or steps.inside else steps
