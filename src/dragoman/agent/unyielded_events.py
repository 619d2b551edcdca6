"""Finds events that a handler made and forgot to yield.

Events are counted in every turn, which costs next to nothing. Where an event was made is recorded
only in the first turns of a handler, after it has forgotten one, and in tests, for the first events
of a turn.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, TypeAlias

from dragoman.model.events import Event
from dragoman.model.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

FIRST_TURNS = 100
"""The number of turns of a handler in which the origin of its events is recorded."""
MOST = 100
"""The most events of a turn to record: those of a long stream come from the same lines."""

Made: TypeAlias = dict[int, tuple[Event, CodeType, int]]
"""The events of a turn by identity, with the code and the offset where each was made. (A
dictionary, because a handler in a thread makes events while others are handed over.)"""


class EventNotYielded(Exception):
    """A handler made an event, and neither yielded nor emitted nor returned it."""


def note(made: Made, event: Event, depth: int) -> None:
    """Record an event and the code that called the function `depth` levels up."""
    frame = sys._getframe(depth + 1)
    made[id(event)] = (event, frame.f_code, frame.f_lasti)


def hand_over(made: Made, event: Event, *, noted: bool) -> None:
    """Remove an event. If all were recorded, an unknown event may be a changed copy of a recorded
    one."""
    if made.pop(id(event), None) is None and noted:
        for key, (earlier, _, _) in list(made.items()):
            if type(earlier) is type(event):
                made.pop(key, None)
                return


def forgotten_events(made: Made) -> Iterator[str]:
    """Describe the events that were not handed over, once for each line that made them."""
    seen = set()
    for event, code, place in list(made.values()):
        line = next((n for a, b, n in code.co_lines() if a <= place < b), None)
        where = f"{code.co_filename}:{line or code.co_firstlineno}"
        if where not in seen:
            seen.add(where)
            yield f"{_describe(event)} created in line {where} was not yielded"


def forgotten_count(number: int, call: Callable[..., Any]) -> str:
    """Describe them by their number and the handler, if they were not recorded."""
    code = getattr(inspect.unwrap(call), "__code__", None)
    where = f" of {code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{number} event{'s' if number > 1 else ''}{where} not yielded"


def _describe(event: Event) -> str:
    if isinstance(event, TaskStatusUpdateEvent):
        return f"the status {event.status.state.name.lower().replace('_', '-')}"
    return "the artifact" if isinstance(event, TaskArtifactUpdateEvent) else "the reply"
