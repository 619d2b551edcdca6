"""Finds text in the logs of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dragoman.model.events import Entry, Received, Reply
from dragoman.model.types import Part, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.stores.admin import Missing, StoreAdmin
from dragoman.stores.task_rows import Choice, TaskRow

LOOKED = 500
"""How many tasks are searched at most."""
READ = 32 * 1024 * 1024
"""How many bytes of logs are read at most."""
AROUND = 60
"""How many characters are shown on both sides of a hit."""


class Hit(Struct, frozen=True):
    """A task in which the text was found."""

    row: TaskRow
    number: int
    """The entry."""
    text: str
    """The text around it."""


class Found(Struct, frozen=True):
    """What a search has found, and how far it looked."""

    hits: Sequence[Hit]
    looked: int
    """The number of tasks that were searched, the latest first."""
    until: str
    """The status time of the last task that was searched; empty if none was."""
    cursor: tuple[str, str] | None
    """Continues the search as `Choice.cursor`; None if all tasks of the choice were searched."""


def search(admin: StoreAdmin, choice: Choice, text: str, *, looked: int = LOOKED) -> Found:
    """Find a text, in any case, in what the tasks of a choice have said and received: texts, not
    files and data. The latest task comes first. It ends after `choice.limit` hits or `looked`
    tasks."""
    wanted, hits, number, read = text.casefold(), [], 0, 0
    while True:
        page = admin.tasks(replace(choice, limit=min(50, looked - number)))
        for row in page.rows:
            number, read = number + 1, read + row.size
            choice = replace(choice, cursor=(row.changed, row.id))
            if (hit := _hit(admin, row, wanted)) is not None:
                hits.append(hit)
            if len(hits) >= choice.limit or number >= looked or read >= READ:
                more = row is not page.rows[-1] or page.cursor is not None
                return Found(hits, number, row.changed, choice.cursor if more else None)
        if page.cursor is None:
            last = choice.cursor[0] if number and choice.cursor else ""
            return Found(hits, number, last, None)
        choice = replace(choice, cursor=page.cursor)


def _hit(admin: StoreAdmin, row: TaskRow, wanted: str) -> Hit | None:
    try:
        for number, said in _texts(admin.read(row.id)):
            place = said.casefold().find(wanted)
            if place >= 0:
                begin = max(place - AROUND, 0)
                return Hit(row, number, said[begin : place + len(wanted) + AROUND])
    except Missing:  # it was deleted meanwhile
        pass
    return None


def _texts(entries: Iterable[Entry]) -> Iterator[tuple[int, str]]:
    """Yield the texts of a log, each with the number of its entry. Chunks of an artifact that
    follow each other are one text."""
    artifact, begin, chunks = "", 0, [""]
    for entry in entries:
        event = entry.event
        if isinstance(event, TaskArtifactUpdateEvent):
            key = event.artifact.artifact_id
            if not (event.append and key == artifact):
                yield begin, "".join(chunks)
                artifact, begin, chunks = key, entry.number, []
            chunks.append(_text(event.artifact.parts))
        elif isinstance(event, Received | Reply):
            yield entry.number, _text(event.message.parts)
        elif isinstance(event, TaskStatusUpdateEvent) and event.status.message is not None:
            yield entry.number, _text(event.status.message.parts)
    yield begin, "".join(chunks)


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if part.text)
