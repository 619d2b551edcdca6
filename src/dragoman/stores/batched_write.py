"""One change in a shared write: a group commit writes many changes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.model.conversation import ContextChanged
from dragoman.model.errors import A2AError
from dragoman.model.lifecycle import IllegalEvent
from dragoman.stores.store import Conflict, Stale, Unreadable

REFUSALS = (A2AError, Conflict, ContextChanged, IllegalEvent, Stale, Unreadable)
"""Errors that are results: the change wrote nothing, and the other changes of the write are not
affected."""


class Job:
    """A function that works on a transaction, and the future that waits for it. The result is what
    the function returns or, if that is a function, what it returns after the write."""

    __slots__ = ("error", "future", "result", "work")

    def __init__(self, work: Callable[[Any], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None

    def attempt(self, transaction: Any) -> None:
        """Run the function. A refusal is a result."""
        self.error = None
        try:
            self.result = self.work(transaction)
        except REFUSALS as error:
            self.error = error

    def deliver(self) -> None:
        """Set the result of the future, unless nobody waits for it any more."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            result = self.result
            self.future.set_result(result() if callable(result) else result)

    def fail(self, error: BaseException) -> None:
        """Set an exception as the result."""
        self.error = error
        self.deliver()
