"""A call of a tool while it runs: what it reports, what it asks, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import mcp.types as mcp
from mcp import MCPError
from msgspec import Struct

from dragoman.mcp.client.connection import Connection, Result
from dragoman.prompt_safety import clean

BURST, PER_SECOND = 20, 2.0
"""How many reports of progress are passed on at once, and then in a second. Of the others only the
latest counts."""
LONGEST_REPORT = 1000
QUESTIONS = 16
"""The most questions of a call that wait at the same time."""


class Progress(Struct, frozen=True):
    """How far a call is."""

    done: float
    total: float | None = None
    message: str = ""

    @property
    def text(self) -> str:
        """In words."""
        if self.message:
            return clean(self.message, LONGEST_REPORT)
        return f"{self.done:g}" if self.total is None else f"{self.done:g} of {self.total:g}"


class TimedOut(Exception):
    """The tool has given no sign for too long."""


Answer: TypeAlias = mcp.ElicitResult | mcp.ErrorData
Report: TypeAlias = Callable[[Progress], Awaitable[None]]


class RunningCall:
    """A call that runs in a connection. It continues while the client is asked."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self.connection = connection
        self._timeout = timeout
        """Seconds without a result, a question or a report of progress."""
        self._task: asyncio.Task[Result] | None = None
        self._questions: list[tuple[mcp.ElicitRequestParams, asyncio.Future[Answer]]] = []
        self._progress: Progress | None = None
        self._news = asyncio.Event()
        self._tokens, self._filled = float(BURST), time.monotonic()

    async def start(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        responses: mcp.InputResponses | None = None,
        state: str | None = None,
    ) -> None:
        """Begin to call. Waits until the connection may run it."""
        await self.connection.begin(self)
        self._task = asyncio.create_task(
            self.connection.call(
                tool, arguments, progress=self._report, responses=responses, state=state
            )
        )
        self._task.add_done_callback(self._done)

    async def follow(self, report: Report) -> Result | mcp.ElicitRequestParams:
        """Wait for the result or the next question; progress is reported. Raises TimedOut, and what
        `Connection.call` raises."""
        assert self._task is not None
        last = time.monotonic()
        while True:
            self._news.clear()
            if self._task.done():
                await self._pass_on(report, last=True)
                return self._task.result()
            if self._questions:
                await self._pass_on(report, last=True)
                self.connection.wait(self)
                return self._questions[0][0]
            if self._progress is not None:
                last = time.monotonic()
                await self._pass_on(report)
            left = last + self._timeout - time.monotonic()
            if left <= 0:
                raise TimedOut
            pause = min(left, 1 / PER_SECOND) if self._progress is not None else left
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def answer(self, answer: Answer) -> None:
        """Answer the question that `follow` returned."""
        await self.connection.begin(self)
        _, waiting = self._questions.pop(0)
        if not waiting.done():
            waiting.set_result(answer)

    async def cancel(self) -> None:
        """End the call, and notify the server."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))
        self.connection.end(self)

    async def ask(self, params: mcp.ElicitRequestParams) -> Answer:
        """The server asks: wait for the client's answer."""
        if len(self._questions) >= QUESTIONS:
            return mcp.ErrorData(code=mcp.INVALID_REQUEST, message="Too many questions")
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions.append((params, waiting))
        self._news.set()
        return await waiting

    # -- inside

    async def _report(self, progress: float, total: float | None, message: str | None) -> None:
        self._progress = Progress(progress, total, message or "")
        self._news.set()

    async def _pass_on(self, report: Report, last: bool = False) -> None:
        """Pass the latest progress on, if there is room."""
        now = time.monotonic()
        self._tokens = min(self._tokens + (now - self._filled) * PER_SECOND, float(BURST))
        self._filled = now
        if self._progress is None or (self._tokens < 1 and not last):
            return
        progress, self._progress = self._progress, None
        self._tokens = max(self._tokens - 1, 0.0)
        await report(progress)

    def _done(self, task: asyncio.Task[Result]) -> None:
        self.connection.end(self)
        ended = mcp.ErrorData(code=mcp.INVALID_REQUEST, message="The call has ended")
        for _, waiting in self._questions:
            if not waiting.done():  # not canceled: that would end the task of the SDK that waits
                waiting.set_result(ended)
        self._news.set()
        if not task.cancelled():
            task.exception()  # retrieved also if nobody follows it any more


def words(error: MCPError) -> str:
    """What a server says of an error."""
    return clean(error.error.message, LONGEST_REPORT)
