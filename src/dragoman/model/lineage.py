"""Lineage: the tasks that a request serves, so that delegation cannot loop."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.model.errors import UnsupportedOperation

LINEAGE = "urn:dragoman:lineage:v1"
"""Our extension: the request metadata names the tasks that the request serves, and their
deadline."""


class Ancestor(Struct, frozen=True, omit_defaults=True):
    """A task that waits for this one."""

    agent: str
    task: str
    origin: str = ""
    """Identifies the agent independently of its name: the same on all of its replicas."""


class _Lineage(Struct, frozen=True):
    path: tuple[Ancestor, ...] = ()


def lineage(metadata: Mapping[str, Any]) -> tuple[Ancestor, ...]:
    """The tasks that a request serves, the first one first; empty if it names none."""
    found = metadata.get(LINEAGE)
    try:
        return msgspec.convert(found, _Lineage).path if found else ()
    except msgspec.ValidationError:
        return ()


def origin(store: str, agent: str) -> str:
    """Identify the agent that keeps its tasks in this store."""
    return hashlib.sha256(f"{store}:{agent}".encode()).hexdigest()[:16]


def admit(path: Sequence[Ancestor], name: str, origin: str, most: int) -> None:
    """Raise UnsupportedOperation if the request has returned to an agent that waits for it, or was
    delegated too often."""
    if any(ancestor.origin == origin for ancestor in path):
        what = "The request came back to an agent that waits for its result"
    elif len(path) > most:
        what = f"The request was forwarded more than {most} times"
    else:
        return
    shown = " > ".join([ancestor.agent[:64] for ancestor in path[-8:]] + [name])
    raise UnsupportedOperation(what, metadata={"lineage": shown})
