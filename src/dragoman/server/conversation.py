"""Reads the conversation that a message belongs to: the turns of its context before it.

An index gives the places of the messages. Of each turn its message, the beginning of its artifacts
and its last status are read: neither the other tasks of the context nor the rest of a long turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.model.caller import Scope
from dragoman.model.conversation import ConversationMessage
from dragoman.model.events import Entry, Received, Reply
from dragoman.model.lifecycle import Growing
from dragoman.model.types import (
    Artifact,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from dragoman.stores.store import LARGE, Head, MessagePlace, Store, Unreadable

AT_ONCE = 32
"""How many turns are read at the same time."""
FEW, MANY = 8, 128
"""How many entries are read at once: at first, and at most."""


async def conversation(
    store: Store,
    scope: Scope,
    context: str,
    before: MessagePlace,
    limit: int,
    characters: int,
    task: str,
) -> list[ConversationMessage]:
    """What was said in a context before a message, oldest first: at most `limit` turns, with at
    most `characters` characters of the artifacts of each. With `task`, only in that one."""
    places = list(await store.messages(scope, context, before, limit, task))
    places.reverse()
    found: list[ConversationMessage] = []
    for start in range(0, len(places), AT_ONCE):
        some = places[start : start + AT_ONCE]
        for turn in await asyncio.gather(*(_Turn(store, scope, p).read(characters) for p in some)):
            found += turn
    return found


async def latest_turns(
    store: Store, scope: Scope, context: str, limit: int, characters: int
) -> list[ConversationMessage]:
    """What was said in a context until now: its last `limit` turns, oldest first."""
    return await conversation(store, scope, context, _END, limit, characters, task="")


_END = MessagePlace("", 0, "9999-12-31T23:59:59.999Z")
"""After every message."""


class _Turn:
    """One turn: a message, and what the agent said while it worked on it."""

    def __init__(self, store: Store, scope: Scope, place: MessagePlace) -> None:
        self._store, self._scope, self._place = store, scope, place
        self._status: TaskStatusUpdateEvent | None = None
        """The turn's last status, as far as was read."""
        self._reply: Reply | None = None
        self._current = False
        """No later turn has begun."""

    async def read(self, characters: int) -> list[ConversationMessage]:
        """What was said; nothing if it was deleted meanwhile, or cannot be read."""
        try:
            return await self._read(characters)
        except Unreadable:  # which has been logged
            return []

    async def _read(self, characters: int) -> list[ConversationMessage]:
        place = self._place
        head = await self._store.head(self._scope, place.task)
        entries = await self._entries(place.number - 1, FEW)
        received = entries[0].event if entries else None
        if head is None or not isinstance(received, Received):
            return []
        self._current = head.turn == place.number
        artifacts = _Artifacts(characters)
        if head.turn >= place.number:  # else it has not begun
            await self._walk(head, entries, artifacts)
        said = received.message
        found = [self._said("message", said.role, said.parts, metadata=said.metadata)]
        for artifact, cut in artifacts.all():
            about = {"name": artifact.name, "metadata": artifact.metadata, "cut": cut}
            found.append(self._said("artifact", Role.AGENT, artifact.parts, **about))
        return [*found, *self._answer(head)]

    def _said(
        self, kind: str, role: Role, parts: tuple[Part, ...], **about: Any
    ) -> ConversationMessage:
        task = "" if self._reply else self._place.task
        return ConversationMessage(
            kind=kind, role=role, parts=parts, task_id=task, at=self._place.at, **about
        )

    def _answer(self, head: Head) -> list[ConversationMessage]:
        """The message of the turn's last status, once the turn has ended or asked."""
        if self._reply is not None:
            said = self._reply.message
            return [self._said("answer", Role.AGENT, said.parts, metadata=said.metadata)]
        if self._status is None or self._status.status.message is None:
            return []
        state, message = self._status.status.state, self._status.status.message
        number = self._place.number
        if not (state.interrupted or head.answers(number) or head.turn > number):
            return []  # progress
        kind = "question" if state.interrupted else "answer"
        about = {"state": state, "metadata": message.metadata}
        return [self._said(kind, Role.AGENT, message.parts, **about)]

    async def _walk(self, head: Head, entries: Sequence[Entry], artifacts: _Artifacts) -> None:
        """Read the turn's entries until its end, or until there is no room for more artifacts."""
        size = FEW
        while entries:
            for entry in entries:
                if self._take(entry, artifacts):
                    return
            after = entries[-1].number
            if artifacts.full:
                await self._end(head, after)
                return
            if 0 < entries[-1].turn < self._place.number:  # the message had to wait
                after = await self._last_entry(after, head.last, self._place.number - 1)
            size = min(4 * size, MANY)
            entries = await self._entries(after, size)

    def _take(self, entry: Entry, artifacts: _Artifacts | None = None) -> bool:
        """Note what an entry says; True if it belongs to a later turn."""
        event, number = entry.event, self._place.number
        if entry.turn > number:
            return True
        if isinstance(event, TaskStatusUpdateEvent) and entry.turn in (0, number):
            # what ends a task without its handler belongs to the last turn
            if entry.turn or self._current:
                self._status = event
        elif isinstance(event, Reply):
            self._reply = event
        elif artifacts and isinstance(event, TaskArtifactUpdateEvent) and entry.turn == number:
            artifacts.add(event)
        return False

    async def _end(self, head: Head, after: int) -> None:
        """Find the turn's last status without reading all that is before it."""
        until = (
            head.last
            if self._current
            else await self._last_entry(after, head.last, self._place.number)
        )
        size = FEW
        while until > after:
            start = max(after, until - size)
            before = self._status, self._reply
            for entry in await self._range(start, until):
                self._take(entry)
            if (self._status, self._reply) != before:
                return
            until, size = start, min(4 * size, MANY)

    async def _last_entry(self, low: int, high: int, turn: int) -> int:
        """The number of a turn's last entry: those of the next turn follow it."""
        while low < high:
            middle = (low + high + 1) // 2
            if await self._is_later(middle, high, turn):
                high = middle - 1
            else:
                low = middle
        return low

    async def _is_later(self, number: int, high: int, turn: int) -> bool:
        """Whether the next entry that has a turn, from this number on, belongs to a later turn
        than this one."""
        after, size = number - 1, 1
        while after < high and (entries := await self._entries(after, size)):
            for entry in entries:
                if entry.turn:
                    return entry.turn > turn
            after, size = entries[-1].number, FEW
        return True

    async def _range(self, after: int, until: int) -> list[Entry]:
        found: list[Entry] = []
        while after < until and (some := await self._entries(after, until - after)):
            found += some
            after = some[-1].number
        return found

    async def _entries(self, after: int, limit: int) -> Sequence[Entry]:
        return await self._store.read(self._scope, self._place.task, after, limit) or ()


class _Artifacts:
    """The artifacts of a turn, as far as there is room for them."""

    def __init__(self, characters: int) -> None:
        self._room = characters
        self._held: dict[str, Growing] = {}
        self._sizes: dict[str, int] = {}
        self._cut: set[str] = set()
        self._skipped = 0
        self.full = False
        """There was no room for a text, or for much else."""

    def add(self, event: TaskArtifactUpdateEvent) -> None:
        """Take a chunk."""
        chunk = event.artifact
        key = chunk.artifact_id
        if not event.append:
            self._held.pop(key, None)
            self._room += self._sizes.pop(key, 0)
            self._cut.discard(key)
        if self.full and key not in self._held:
            return
        parts = self._fitting(key, chunk.parts)
        known = self._held.get(key)
        if known is None:
            self._held[key] = Growing(replace(chunk, parts=parts))
        elif parts or chunk.metadata:
            known.append(replace(chunk, parts=parts))

    def _fitting(self, key: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts that there is room for; the last text may be cut."""
        found: list[Part] = []
        for part in parts:
            size, room = _size(part), self._room
            if size > room:
                self._cut.add(key)
                if part.text is None:
                    self._skipped += size
                    self.full = self.full or self._skipped > LARGE
                    continue
                self.full = True
                part, size = replace(part, text=part.text[:room]), room
                if not room:
                    continue
            found.append(part)
            self._room -= size
            self._sizes[key] = self._sizes.get(key, 0) + size
        return tuple(found)

    def all(self) -> list[tuple[Artifact, bool]]:
        """The artifacts, and whether each was cut."""
        return [(growing.whole(), key in self._cut) for key, growing in self._held.items()]


def _size(part: Part) -> int:
    """The characters of a part."""
    if part.text is not None:
        return len(part.text)
    if part.data is not UNSET:
        return len(msgspec.json.encode(part.data))
    return len(part.raw or part.url or "")
