"""The deadline of a call: its error, and how far the call had come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol


class Owner(Protocol):
    """The part of a connection that this module needs."""

    @property
    def where(self) -> str:
        """The origin of the agent."""


class DeadlineExceeded(TimeoutError):
    """The deadline passed. The text gives the reason if it is known."""

    def __init__(self, message: str, *, task: str = "", last: BaseException | None = None) -> None:
        super().__init__(message)
        self.task = task
        """The id of the task, which continues; empty if the agent has not named one."""
        self.last = last
        """The error of the last attempt; None if there was no response at all."""


class Progress:
    """How far a client's call has come."""

    __slots__ = ("error", "owner", "task")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.task = ""
        """The id of the task that the call waits for; empty until the agent names it."""
        self.error: BaseException | None = None
        """The error of the last attempt; None if it has not failed."""

    @classmethod
    def of(cls, owner: Owner) -> Progress:
        """The progress of this client's current call, or a new one."""
        found = PROGRESS.get()
        return found if found is not None and found.owner is owner else cls(owner)

    def failed(self, error: BaseException) -> None:
        """Record that an attempt failed. (A timeout says nothing about the reason.)"""
        if not isinstance(error, TimeoutError):
            self.error = error

    def late(self, seconds: float, about: str = "") -> DeadlineExceeded:
        """The error to raise after this many seconds. `about` is the task of the request."""
        words = f"{self.owner.where}: no answer within {round(seconds, 3):g} s"
        if about and about != self.task:
            words += f" (task {about})"
        if self.error is not None:
            words += f"; the last error: {self.error}"
        if self.task:
            words += f"; task {self.task} continues"
        return DeadlineExceeded(words, task=self.task or about, last=self.error)


PROGRESS: ContextVar[Progress | None] = ContextVar("progress", default=None)
"""The progress of the current call."""


@contextmanager
def following(owner: Owner) -> Iterator[Progress]:
    """A block in which the calls of a client record their progress."""
    progress = Progress(owner)
    token = PROGRESS.set(progress)
    try:
        yield progress
    finally:
        PROGRESS.reset(token)


class Limit:
    """A block that raises DeadlineExceeded after this many seconds; None means no deadline. `whole`
    is the number of seconds to report, if these are only the rest of a longer time."""

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
            exceeded = self._progress.late(seconds, self._about)
            raise exceeded from (self._progress.error or late)
