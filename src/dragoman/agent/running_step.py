"""The running step. Events that are made inside of it have ids of the step.

A replay skips a finished step, and so makes none of its events. If these had ids of the turn, all
later ones would get other ids than in the first run.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from contextvars import ContextVar

from dragoman.model.types import Message

Streams = dict[tuple[str, str], str]
"""The artifacts that are being streamed: how the handler names each, and its id."""


class StepScope:
    """What one running step has said so far."""

    def __init__(self, key: str, name: str, count: int) -> None:
        self.key = key
        """Names the step; the same for every attempt at it."""
        self.digest = hashlib.sha256(f"{name}:{count}".encode()).hexdigest()[:12]
        """Stands for the step in ids: clients see them, but not its name."""
        self.artifacts = self.messages = 0
        """How many ids were made."""
        self._relayed: Counter[str] = Counter()
        """How often each message of another agent was relayed."""
        self.opened: Streams = {}
        """The artifacts that the step began to stream."""
        self.sends: dict[str, list[str]] = {}
        """The names of the sends of the same content, by its digest."""
        self.answered: set[str] = set()
        """The names of those that have begun a task."""

    def again(self, streams: Streams) -> None:
        """Begin another attempt: what it writes replaces what the last one wrote, and a send that
        was not answered is tried again. The messages of the last one stay."""
        for key in self.opened:
            streams.pop(key, None)
        self.opened.clear()
        self.artifacts = 0
        for digest, names in self.sends.items():
            self.sends[digest] = [name for name in names if name in self.answered]

    def relayed(self, message: Message) -> str:
        """An id for a message of another agent that is relayed, the same in each attempt; empty if
        the message was relayed before: an agent may send it again to a client that comes late."""
        said = f"{message.message_id}:{message.text}"
        digest = hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        self._relayed[digest] += 1
        count = self._relayed[digest]
        return "" if message.message_id and count > 1 else f"{digest}.{count}"


_STEP: ContextVar[StepScope | None] = ContextVar("dragoman_step", default=None)

enter = _STEP.set
leave = _STEP.reset
running = _STEP.get
"""The scope of the step that is running; None outside of one."""


def current_step() -> str:
    """The key of the step that is running; empty outside of one."""
    scope = _STEP.get()
    return "" if scope is None else scope.key
