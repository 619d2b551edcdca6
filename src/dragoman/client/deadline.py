"""The end of the time that a call has: what is told then, and how far the call had come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol


class Owner(Protocol):
    """A client, as far as it is told of."""

    @property
    def _where(self) -> str:
        """The origin that it calls."""


class DeadlineExceeded(TimeoutError):
    """There was no answer in time. The text says why, as far as that is known."""

    def __init__(self, message: str, *, task: str = "", last: BaseException | None = None) -> None:
        super().__init__(message)
        self.task = task
        """The id of the task, which goes on; empty if the agent has not named one."""
        self.last = last
        """What the last attempt failed with; None if it was not answered at all."""


class Progress:
    """How far a call of a client has come."""

    __slots__ = ("error", "owner", "task")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.task = ""
        """The task that is waited for; empty until the agent has named it."""
        self.error: BaseException | None = None
        """What the last attempt failed with; None if it did not."""

    @classmethod
    def of(cls, owner: Owner) -> Progress:
        """That of the call of this client which is under way here, or a new one."""
        found = PROGRESS.get()
        return found if found is not None and found.owner is owner else cls(owner)

    def failed(self, error: BaseException) -> None:
        """An attempt has failed. (That time was over says nothing of the reason.)"""
        if not isinstance(error, TimeoutError):
            self.error = error

    def late(self, seconds: float, about: str = "") -> DeadlineExceeded:
        """What to raise after so many seconds. `about` is a task that was asked for."""
        words = f"{self.owner._where}: no answer within {round(seconds, 3):g} s"
        if about and about != self.task:
            words += f" (task {about})"
        if self.error is not None:
            words += f"; the last error: {self.error}"
        if self.task:
            words += f"; task {self.task} continues"
        return DeadlineExceeded(words, task=self.task or about, last=self.error)


PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)
"""The call that is under way."""


@contextmanager
def following(owner: Owner) -> Iterator[Progress]:
    """A block in which the calls of a client tell how far they come."""
    progress = Progress(owner)
    token = PROGRESS.set(progress)
    try:
        yield progress
    finally:
        PROGRESS.reset(token)


class Limit:
    """A block that ends with DeadlineExceeded after so many seconds; None is never. `whole` is what
    is told of, where these seconds are only the rest of a longer time."""

    def __init__(
        self,
        progress: Progress,
        seconds: float | None,
        about: str = "",
        whole: float | None = None,
    ) -> None:
        self._progress = progress
        self._seconds = seconds
        self._about = about
        self._whole = whole
        self._token: Token[Progress | None] | None = None

    async def __aenter__(self) -> Progress:
        self._token = PROGRESS.set(self._progress)
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        return self._progress

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._token is not None:
            PROGRESS.reset(self._token)
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as late:
            seconds = self._whole if self._whole is not None else self._seconds or 0.0
            told = self._progress.late(seconds, self._about)
            raise told from (self._progress.error or late)
