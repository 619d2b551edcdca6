"""Events that a handler made and did not yield: they were forgotten.

Events are counted in every turn, which costs next to nothing. Where each was made is noted in the
first turns of a handler, after one has been forgotten, and in tests, for the first events.
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
"""In how many turns of a handler it is noted where its events were made."""
MOST = 100
"""How many events of a turn are noted: those of a long stream come from the same lines."""

Made: TypeAlias = dict[int, tuple[Event, CodeType, int]]
"""The events of one turn by their identity, and where each was made: the code, and the place in it.
(A dictionary, since a handler in a thread makes events while others are handed over.)"""


class EventNotYielded(Exception):
    """A handler made an event, and neither yielded nor emitted nor returned it."""


def note(made: Made, event: Event, depth: int) -> None:
    """Note an event, and who called whoever is so many calls above this."""
    frame = sys._getframe(depth + 1)
    made[id(event)] = (event, frame.f_code, frame.f_lasti)


def hand_over(made: Made, event: Event, *, noted: bool) -> None:
    """Forget an event. If all were noted, one that is not known may be a changed copy of one that
    is."""
    if made.pop(id(event), None) is None and noted:
        for key, (known, _, _) in list(made.items()):
            if type(known) is type(event):
                made.pop(key, None)
                return


def told(made: Made) -> Iterator[str]:
    """What was not handed over, and where it was made; what one line made is told once."""
    seen = set()
    for event, code, place in list(made.values()):
        line = next((n for a, b, n in code.co_lines() if a <= place < b), None)
        where = f"{code.co_filename}:{line or code.co_firstlineno}"
        if where not in seen:
            seen.add(where)
            yield f"{_named(event)} created in line {where} was not yielded"


def counted(number: int, call: Callable[..., Any]) -> str:
    """The same where only their number is known, and the function that made them."""
    code = getattr(inspect.unwrap(call), "__code__", None)
    where = f" of {code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{number} event{'s' if number > 1 else ''}{where} not yielded"


def _named(event: Event) -> str:
    if isinstance(event, TaskStatusUpdateEvent):
        return f"the status {event.status.state.name.lower().replace('_', '-')}"
    return "the artifact" if isinstance(event, TaskArtifactUpdateEvent) else "the reply"
