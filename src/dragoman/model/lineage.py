"""Lineage: the tasks that a request serves, so that delegation cannot go on for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.model.errors import UnsupportedOperation

LINEAGE = "urn:dragoman:lineage:v1"
"""Our extension: the metadata of a request tells which tasks it serves, and until when they can
wait."""


class Ancestor(Struct, frozen=True, omit_defaults=True):
    """A task that waits for this one."""

    agent: str
    task: str
    origin: str = ""
    """Which agent that is, whatever it calls itself: the same on all of its replicas."""


class _Told(Struct, frozen=True):
    path: tuple[Ancestor, ...] = ()


def lineage(metadata: Mapping[str, Any]) -> tuple[Ancestor, ...]:
    """The tasks that a request serves, the first one first; nothing if it does not say."""
    told = metadata.get(LINEAGE)
    try:
        return msgspec.convert(told, _Told).path if told else ()
    except msgspec.ValidationError:
        return ()


def origin(store: str, agent: str) -> str:
    """Which agent it is that keeps its tasks in this store."""
    return hashlib.sha256(f"{store}:{agent}".encode()).hexdigest()[:16]


def admit(path: Sequence[Ancestor], name: str, origin: str, most: int) -> None:
    """UnsupportedOperation if the request has come round to an agent that waits for it, or has
    been handed on too often."""
    if any(ancestor.origin == origin for ancestor in path):
        what = "The request came back to an agent that waits for its result"
    elif len(path) > most:
        what = f"The request was forwarded more than {most} times"
    else:
        return
    shown = " > ".join([ancestor.agent[:64] for ancestor in path[-8:]] + [name])
    raise UnsupportedOperation(what, metadata={"lineage": shown})
