"""Delegation: a turn calls another agent for its own task."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from dragoman.model.lineage import LINEAGE, Ancestor
from dragoman.model.types import Message


class Delegation:
    """What a delegated message takes along, and when what was begun is to be ended."""

    def __init__(
        self,
        path: Sequence[Ancestor],
        *,
        key: str,
        until: float,
        deadline: str,
        trace: str,
        canceled: Callable[[], bool],
    ) -> None:
        self.path = tuple(path)
        self.until = until
        """When the turn must have ended, by the monotonic clock."""
        self.trace = trace
        """The trace that the turn's own message came with."""
        self.canceled = canceled
        """Whether nobody wants the result any more."""
        self._key = key
        self._deadline = deadline
        self._count = count(1)

    def told(self) -> dict[str, Any]:
        """What the metadata of a request says of all this."""
        told: dict[str, Any] = {"path": [msgspec.to_builtins(item) for item in self.path]}
        if self._deadline:
            told["deadline"] = self._deadline
        return {LINEAGE: told}

    def key(self, message: Message) -> str:
        """An idempotency key that is the same when the turn is run again and says the same at the
        same place, so that the work is not begun twice."""
        said = msgspec.json.encode(message)
        return hashlib.sha256(f"{self._key}:{next(self._count)}:".encode() + said).hexdigest()
