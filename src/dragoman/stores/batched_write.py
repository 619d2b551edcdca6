"""One change that shares a write with others: a group commit writes many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.model.conversation import ContextChanged
from dragoman.model.errors import A2AError
from dragoman.model.lifecycle import IllegalEvent
from dragoman.stores.store import Conflict, Stale, Unreadable

REFUSALS = (A2AError, Conflict, ContextChanged, IllegalEvent, Stale, Unreadable)
"""What is a result: nothing was written of it, and the others are none the worse."""


class Job:
    """Work on a transaction, and the future that waits for it. The result is what the work returns,
    or what that returns when it is written."""

    __slots__ = ("error", "future", "result", "work")

    def __init__(self, work: Callable[[Any], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None

    def attempt(self, transaction: Any) -> None:
        """Do it; a refusal is a result."""
        self.error = None
        try:
            self.result = self.work(transaction)
        except REFUSALS as error:
            self.error = error

    def deliver(self) -> None:
        """Tell, unless nobody waits any more."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            result = self.result
            self.future.set_result(result() if callable(result) else result)

    def fail(self, error: BaseException) -> None:
        """It could not be done."""
        self.error = error
        self.deliver()
