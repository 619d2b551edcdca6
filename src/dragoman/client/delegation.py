"""Delegation: a turn calls another agent on behalf of its own task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from dragoman.model.lineage import LINEAGE, Ancestor
from dragoman.model.types import Message


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
        began: Callable[[str, str], None] | None = None,
    ) -> None:
        self.path = tuple(path)
        self.until = until
        """The deadline of the turn, by the monotonic clock."""
        self.trace = trace
        """The trace context of the message that started the turn."""
        self.canceled = canceled
        """Whether the turn was canceled."""
        self.began = began
        """Is told the address and id of each task that a message started."""
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
