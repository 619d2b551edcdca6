"""Reads server-sent events. The cost for each byte does not depend on how the network splits
them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from msgspec import Struct

from dragoman.client.limits import DEFAULT, Meter, TooLarge
from dragoman.client.transport import TransportResponse

BOM = b"\xef\xbb\xbf"


class Event(Struct, frozen=True, gc=False):
    """One event. Its id is ignored, because numbered events have their number in the data, too."""

    data: bytes
    name: str = ""


async def events(
    response: TransportResponse, most: int = DEFAULT.answer, meter: Meter | None = None
) -> AsyncIterator[Event]:
    """Yield the events of a response, each of at most `most` bytes (else TooLarge). Lines end with
    LF, CR LF or CR, and a byte order mark may come first. An incomplete last event is dropped."""
    meter = meter or Meter()
    start: bytes | None = b""  # the start, until a byte order mark is ruled out
    returned = False  # the last byte was CR; a following LF belongs to it
    pieces: list[bytes] = []  # of an incomplete line
    size = 0  # bytes of the incomplete event, and of the rest of its last piece
    data: list[bytes] = []
    name = ""
    async for chunk in response.chunks():
        if not chunk:
            continue
        meter.bytes += len(chunk)
        if start is not None:
            start += chunk
            if len(start) < len(BOM) and BOM.startswith(start):
                continue
            chunk, start = start.removeprefix(BOM), None
        if returned and chunk[:1] == b"\n":
            chunk = chunk[1:]
        returned = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pieces.append(chunk)
        size += len(chunk)
        if b"\n" in chunk:
            text = b"".join(pieces) if len(pieces) > 1 else chunk
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
