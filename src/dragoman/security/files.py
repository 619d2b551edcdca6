"""Which files a message may bring: by their type, their size, and what a scan says of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from dragoman.model.caller import Caller
from dragoman.model.errors import ContentTypeNotSupported, InvalidParams, Unavailable
from dragoman.model.types import Message, Part

Scan: TypeAlias = "Callable[[Part, Caller], str | Awaitable[str | None] | None]"
"""Looks at a file before it is taken: why it must not be, or nothing."""


logger = logging.getLogger("dragoman")


class Files:
    """The policy for files. A part that is no file is none of its business."""

    def __init__(self, types: Sequence[str], size: int, scan: Scan | None = None) -> None:
        self._types = tuple(types)
        self._size = size
        self._scan = scan
        self.lax = not types and not size and scan is None
        """There is nothing to look at."""

    async def check(self, message: Message, caller: Caller) -> None:
        """ContentTypeNotSupported, InvalidParams names the part; Unavailable if the scan fails,
        since what was not looked at is not taken."""
        for index, part in enumerate(message.parts):
            if part.raw is None and part.url is None:
                continue
            field = f"message.parts[{index}]"
            self._check_type(part, field)
            if self._size and part.raw is not None and len(part.raw) > self._size:
                raise InvalidParams.at(f"{field}.raw", f"is larger than {self._size} bytes")
            if self._scan is not None and (reason := await self._scanned(self._scan, part, caller)):
                raise InvalidParams.at(field, reason)

    def _check_type(self, part: Part, field: str) -> None:
        told = part.media_type or ""
        if not self._types or any(told and admits(kind, told) for kind in self._types):
            return
        what = f"{told!r} is" if told else "a file without a type is"
        raise ContentTypeNotSupported(
            f"{field}.mediaType: {what} not accepted; accepted types: {', '.join(self._types)}",
            metadata={"field": f"{field}.mediaType"},
        )

    @staticmethod
    async def _scanned(scan: Scan, part: Part, caller: Caller) -> str | None:
        try:
            found = scan(part, caller)
            return await found if inspect.isawaitable(found) else found
        except Exception:
            logger.exception("cannot scan a file")
            raise Unavailable(
                "The file cannot be scanned at the moment", headers={"retry-after": "30"}
            ) from None


def admits(mode: str, media_type: str) -> bool:
    """Whether a media type is this one, or one of these."""
    mode, media_type = (text.partition(";")[0].strip().lower() for text in (mode, media_type))
    if mode in ("*", "*/*") or mode == media_type:
        return True
    return mode.endswith("/*") and media_type.startswith(mode[:-1])
