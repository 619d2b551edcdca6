"""Server-sent events, read at the same cost a byte however they are cut into pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from dragoman.client.engine import Response
from dragoman.errors import InvalidAgentResponse

LONGEST = 64 * 1024 * 1024
"""The longest event that is read."""


class Event(Struct, frozen=True, gc=False):
    """One event. Its id is left out: what has a place tells it in the data, too."""

    data: bytes
    name: str = ""


async def events(response: Response) -> AsyncIterator[Event]:
    """The events of an answer. One that was cut off is not an event."""
    pieces: list[bytes] = []  # of a line that has not ended
    size = 0
    data: list[bytes] = []
    name = ""
    async for chunk in response.chunks():
        size += len(chunk)
        if size > LONGEST:
            raise InvalidAgentResponse(f"an event is longer than {LONGEST} bytes")
        pieces.append(chunk)
        if b"\n" not in chunk:
            continue
        text = b"".join(pieces) if len(pieces) > 1 else chunk
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n")
        *lines, rest = text.split(b"\n")
        pieces = [rest] if rest else []
        for line in lines:
            if line[:5] == b"data:":
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line:
                if data:
                    yield Event(data[0] if len(data) == 1 else b"\n".join(data), name)
                    data = []
                name = ""
                size = len(rest)
            elif line[:6] == b"event:":
                name = line[6:].decode("utf-8", "replace").strip()
