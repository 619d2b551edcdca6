"""On whose behalf a client works: a turn that hands part of its task to another agent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.types import Message

LINEAGE = "urn:dragoman:lineage:v1"
"""Our extension: a message tells which tasks it serves, and until when they can wait."""


class Ancestor(Struct, frozen=True):
    """A task that waits for this one."""

    agent: str
    task: str


def lineage(message: Message) -> tuple[Ancestor, ...]:
    """The tasks that a message serves, the first one first; nothing if it does not say."""
    told = (message.metadata or {}).get(LINEAGE)
    try:
        return msgspec.convert(told, _Told).path if told else ()
    except msgspec.ValidationError:
        return ()


class _Told(Struct, frozen=True):
    path: tuple[Ancestor, ...] = ()


class Behalf:
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

    def stamp(self, message: Message, own: bool) -> tuple[Message, str]:
        """The message with its lineage, and its idempotency key: the same when the turn is run
        again and says the same at the same place, so that the work is not begun twice. With `own`
        the message may have an id of our choice."""
        told: dict[str, Any] = {
            "path": [msgspec.to_builtins(item) for item in self.path],
            "deadline": self._deadline,
        }
        said = msgspec.json.encode((message.parts, message.task_id, message.context_id))
        known = hashlib.sha256(f"{self._key}:{next(self._count)}:".encode() + said).digest()
        message = replace(
            message,
            message_id=str(UUID(bytes=known[:16], version=4)) if own else message.message_id,
            metadata={**(message.metadata or {}), LINEAGE: told},
            extensions=(*message.extensions, LINEAGE),
        )
        return message, known.hex()
