"""Server-sent events, read at the same cost a byte however they are cut into pieces."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from dragoman.client.engine import Response
from dragoman.client.limits import DEFAULT, Meter, TooLarge


class Event(Struct, frozen=True, gc=False):
    """One event. Its id is left out: what has a place tells it in the data, too."""

    data: bytes
    name: str = ""


async def events(
    response: Response, most: int = DEFAULT.answer, meter: Meter | None = None
) -> AsyncIterator[Event]:
    """The events of an answer, each of so many bytes at most (TooLarge). One that was cut off is
    not an event."""
    meter = meter or Meter()
    pieces: list[bytes] = []  # of a line that has not ended
    size = 0  # of the event that has not ended, up to what else its last piece holds
    data: list[bytes] = []
    name = ""
    async for chunk in response.chunks():
        pieces.append(chunk)
        size += len(chunk)
        meter.bytes += len(chunk)
        if b"\n" in chunk:
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
                        whole = data[0] if len(data) == 1 else b"\n".join(data)
                        if len(whole) > most:
                            break
                        yield Event(whole, name)
                        data = []
                    name = ""
                    size = len(rest)
                elif line[:6] == b"event:":
                    name = line[6:].decode("utf-8", "replace").strip()
        if size > most:
            raise TooLarge.of(f"an event is longer than {most} bytes", "answer", most)
