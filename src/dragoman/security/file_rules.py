"""Which files a message may contain: by media type, and the result of a scan."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from dragoman.model.caller import Caller
from dragoman.model.errors import ContentTypeNotSupported, InvalidParams, Unavailable
from dragoman.model.types import Message, Part

Scan: TypeAlias = "Callable[[Part, Caller], str | Awaitable[str | None] | None]"
"""Checks a file before it is accepted. Returns the reason to refuse it, or None."""


logger = logging.getLogger("dragoman")


class Files:
    """The policy for files. It ignores parts that are not files."""

    def __init__(self, types: Sequence[str], scan: Scan | None = None) -> None:
        self._types = tuple(types)
        self._scan = scan
        self.lax = not types and scan is None
        """Whether there is nothing to check."""

    async def check(self, message: Message, caller: Caller) -> None:
        """Check all files. Raises ContentTypeNotSupported or InvalidParams, which names the part,
        or Unavailable if the scan fails, because an unchecked file is not accepted."""
        for index, part in enumerate(message.parts):
            if part.raw is None and part.url is None:
                continue
            field = f"message.parts[{index}]"
            self._check_type(part, field)
            if self._scan is not None and (reason := await self._scanned(self._scan, part, caller)):
                raise InvalidParams.at(field, reason)

    def _check_type(self, part: Part, field: str) -> None:
        given = part.media_type or ""
        if not self._types or any(given and admits(kind, given) for kind in self._types):
            return
        what = f"{given!r} is" if given else "a file without a type is"
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
    """Whether a media type matches this type or pattern."""
    mode, media_type = (text.partition(";")[0].strip().lower() for text in (mode, media_type))
    if mode in ("*", "*/*") or mode == media_type:
        return True
    return mode.endswith("/*") and media_type.startswith(mode[:-1])
