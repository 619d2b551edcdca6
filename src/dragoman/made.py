"""The events that a handler has made and not handed over yet: one that stays here was forgotten."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType

from dragoman.events import Event
from dragoman.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

MOST = 100
"""How many are remembered at once: a handler that forgets all of them need not fill the memory."""


class EventNotYielded(Exception):
    """A handler made an event, and neither yielded nor emitted nor returned it."""


class Made:
    """The events that one turn's handler has made and not handed over, and where it made them."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: dict[int, tuple[Event, CodeType, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, event: Event) -> Event:
        """Remember an event, and where it was made: by who called the method that calls this."""
        if len(self._events) < MOST:
            frame = sys._getframe(2)
            # (the line itself costs more to find out, and is hardly ever asked for)
            self._events[id(event)] = (event, frame.f_code, frame.f_lasti)
        return event

    def remove(self, event: Event) -> None:
        """An event was handed over. One that is not known may be a changed copy of one that is."""
        if self._events and self._events.pop(id(event), None) is None:
            for key, (made, _, _) in list(self._events.items()):
                if type(made) is type(event):
                    self._events.pop(key, None)
                    return

    def told(self) -> Iterator[str]:
        """What each of them is and where it was made; what one line made is told once."""
        seen = set()
        for event, code, instruction in list(self._events.values()):
            line = next((n for a, b, n in code.co_lines() if a <= instruction < b), None)
            where = f"{code.co_filename}:{line or code.co_firstlineno}"
            if where not in seen:
                seen.add(where)
                yield f"{_named(event)} that line {where} made"


def _named(event: Event) -> str:
    if isinstance(event, TaskStatusUpdateEvent):
        return f"the status {event.status.state.name.lower().replace('_', '-')}"
    return "the artifact" if isinstance(event, TaskArtifactUpdateEvent) else "the reply"
