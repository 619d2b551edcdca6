"""Sends files without loading them into memory as a whole."""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import re
import secrets
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dragoman.client.transport import Body
from dragoman.model.skill_extension import PARAMETER
from dragoman.model.types import Part, SendMessageRequest, WireStruct

PIECE = 3 << 16  # a multiple of three, so that base64 needs no padding
MARK = b"\x00dragoman:file\x00"  # 15 bytes: its base64 does not depend on what follows


class File:
    """A file to send. The client reads it in pieces while it sends it, and again for a retry. A2A
    puts the content into the message, so agents limit its size."""

    def __init__(
        self, path: str | Path, *, name: str = "", media_type: str = "", parameter: str = ""
    ) -> None:
        self.path = Path(path)
        self.name = name or self.path.name
        self.media_type = (
            media_type or mimetypes.guess_type(self.name)[0] or "application/octet-stream"
        )
        self.parameter = parameter
        """The parameter of a skill that the file is for."""
        self._id = secrets.token_bytes(15)
        self.sign = base64.b64encode(MARK + self._id).decode()
        """The placeholder for the content until the file is sent."""

    def part(self) -> Part:
        """The part for this file, with a placeholder instead of the content."""
        metadata = {PARAMETER: self.parameter} if self.parameter else None
        return Part(
            raw=MARK + self._id,
            filename=self.name,
            media_type=self.media_type,
            metadata=metadata,
        )


def body(encoded: bytes, files: Mapping[str, File]) -> bytes | Body:
    """The body of an encoded request, with file contents instead of the placeholders."""
    return Spliced(encoded, files) if files else encoded


def filled(request: WireStruct, files: Mapping[str, File]) -> WireStruct:
    """The request with file contents in it, for bindings that send it as a whole."""
    if not files or not isinstance(request, SendMessageRequest):
        return request
    by_mark = {MARK + file._id: file for file in files.values()}
    parts = tuple(
        replace(part, raw=by_mark[part.raw].path.read_bytes()) if part.raw in by_mark else part
        for part in request.message.parts
    )
    return replace(request, message=replace(request.message, parts=parts))


class Spliced:
    """A body that inserts file contents while it is sent. See `Body`."""

    def __init__(self, encoded: bytes, files: Mapping[str, File]) -> None:
        text = re.split("(" + "|".join(map(re.escape, files)) + ")", encoded.decode())
        self._spans: Sequence[bytes | File] = [files.get(span) or span.encode() for span in text]
        self.size = 0
        self._sizes: dict[str, int] = {}
        for span in self._spans:
            if isinstance(span, File):
                found = self._sizes[span.sign] = _size(span.path)
                self.size += (found + 2) // 3 * 4
            else:
                self.size += len(span)

    async def pieces(self) -> AsyncIterator[bytes]:
        """See `Body.pieces`."""
        for span in self._spans:
            if isinstance(span, File):
                async for piece in _encoded(span.path, self._sizes[span.sign]):
                    yield piece
            elif span:
                yield span


def _size(path: Path) -> int:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not a regular file")
    path.open("rb").close()  # fail now; later it would look like a network error
    return found.st_size


async def _encoded(path: Path, size: int) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while size > 0:
            piece = await asyncio.to_thread(file.read, min(PIECE, size))
            if not piece or (len(piece) % 3 and len(piece) < size):
                raise OSError(f"{path} became shorter while it was being sent")
            size -= len(piece)
            yield base64.b64encode(piece)
