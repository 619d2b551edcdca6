"""Server-sent events, read at the same cost a byte however they are cut into pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from dragoman.client.engine import Response, Unreachable

LONGEST = 64 * 1024 * 1024
"""The longest event that is read."""


class Event(Struct, gc=False):
    """One event."""

    data: bytes
    id: str = ""
    name: str = ""


async def events(response: Response) -> AsyncIterator[Event]:
    """The events of an answer. One that was cut off is not an event."""
    pieces: list[bytes] = []  # of a line that has not ended
    size = 0
    event = Event(b"")
    begun = False
    async for chunk in response.chunks():
        size += len(chunk)
        if size > LONGEST:
            raise Unreachable(f"an event is longer than {LONGEST} bytes")
        pieces.append(chunk)
        if b"\n" not in chunk:
            continue
        *lines, rest = (b"".join(pieces) if len(pieces) > 1 else chunk).split(b"\n")
        pieces = [rest] if rest else []
        for line in lines:
            if line[-1:] == b"\r":
                line = line[:-1]
            if line[:5] == b"data:":
                data = line[6:] if line[5:6] == b" " else line[5:]
                event.data = event.data + b"\n" + data if begun else data
                begun = True
            elif not line:
                if begun:
                    yield event
                    event, begun = Event(b""), False
                size = len(rest)
            elif line[:3] == b"id:":
                event.id = line[3:].decode("utf-8", "replace").strip()
            elif line[:6] == b"event:":
                event.name = line[6:].decode("utf-8", "replace").strip()
