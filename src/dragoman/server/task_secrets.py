"""Checks the secrets that a task gave to others, and wakes the handlers that wait for them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence

import msgspec

from dragoman.bells.bell import Bell
from dragoman.model.errors import TaskNotFound
from dragoman.model.events import Entry, Private
from dragoman.model.task_secret import WAITING, digest
from dragoman.stores.store import Head, Store

LONGEST = 256
"""The most characters of a secret."""


async def opened(
    store: Store, agent: str, task: str, secret: str, kind: str
) -> tuple[Head, Sequence[Entry], int]:
    """The head and the private entries of a task that has given this secret in an entry of this
    kind, and the turn of that entry; TaskNotFound, which says no more of a wrong secret than of a
    task that does not exist."""
    head = await store.find(agent, task)
    if head is None or not head.private or not 0 < len(secret) <= LONGEST:
        raise TaskNotFound
    entries = await store.private(head.scope, head.id)
    given = digest(secret)
    known = _digests(entries, kind)
    turns = [turn for turn, digest in known if hmac.compare_digest(given, digest)]
    if not turns:
        raise TaskNotFound
    return head, entries, turns[-1]


def _digests(entries: Iterable[Entry], kind: str) -> Iterable[tuple[int, str]]:
    for entry in entries:
        event = entry.event
        if isinstance(event, Private) and event.kind == kind:
            found = msgspec.json.decode(event.value)
            if isinstance(found, str):
                yield entry.turn, found


async def notify(store: Store, bell: Bell, agent: str, task: str, secret: str) -> None:
    """Have a handler look again that waits for another agent's task; TaskNotFound."""
    await opened(store, agent, task, secret, WAITING)
    for woken in await store.wake_now([task]):
        bell.ring(f"work:{woken}")
