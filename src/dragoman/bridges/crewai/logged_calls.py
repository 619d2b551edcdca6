"""The calls of models and tools that CrewAI makes in its threads: each is a step of the task."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from msgspec import UNSET, Struct

from dragoman.bridges.bridge import Question, Run
from dragoman.bridges.steps import Steps

T = TypeVar("T")


class Stopped(BaseException):
    """Ends a thread for which nobody waits any more. (CrewAI catches every Exception.)"""


class QuestionAsked(BaseException):
    """Ends a thread: the client is asked. Everything is run again with the answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


class Ended(Struct):
    """An agent has ended, in its thread."""

    result: Any = None
    question: Question | None = None
    error: BaseException | None = None


class Made(Struct):
    """What a call has returned or raised in this process."""

    value: Any = None
    error: BaseException | None = None


class Calls:
    """The calls of one run, and the questions that it asks."""

    def __init__(
        self, run: Run, known: Mapping[str, Any], answers: Mapping[str, tuple[str, bool]]
    ) -> None:
        self.known = dict(known)
        """The results of calls, also of the runs before, by their keys."""
        self._steps = Steps(run)
        self._answers = answers
        self._counts: Counter[str] = Counter()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._cancels: list[Callable[[], object]] = []
        self._stopped = False

    # -- in threads

    def report(self, event: Any) -> None:
        """Tell the loop something."""
        if self._stopped:
            raise Stopped
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def make(
        self,
        name: str,
        content: Any,
        function: Callable[[], Any],
        dump: Callable[[Any], Any],
        load: Callable[[Any], Any],
        *,
        fails: bool = False,
    ) -> Any:
        """The result of a call, which is made once. It is known by its name and content; several
        of the same by their order. If it `fails`, its error is a result, too."""
        key = self._key(name, content)
        if (found := self.known.get(key)) is not None:
            return load(found)
        made: list[Made] = []
        context = contextvars.copy_context()

        async def perform() -> Any:
            logged: Future[Any] = Future()
            call = (_make, function, dump, fails, made, logged)
            # a thread of its own: calls inside of calls must not wait for those of a pool
            threading.Thread(target=context.run, args=call, daemon=True).start()
            return await asyncio.wrap_future(logged)

        found = self.wait(self._steps.call(key, perform, _logged))
        if found is not None:
            self.known[key] = found
        if not made:
            return load(found)
        if made[-1].error is not None:
            raise made[-1].error
        return made[-1].value

    def wait(self, call: Any) -> Any:
        """The result of a coroutine, which runs in the loop."""
        if self._stopped:
            call.close()
            raise Stopped
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        self._open.add(future)
        try:
            return future.result()
        except (CancelledError, asyncio.CancelledError) as canceled:
            raise Stopped from canceled
        finally:
            self._open.discard(future)

    def ask(self, text: str, content: Any, operation: Any = None) -> tuple[str, bool]:
        """The client's answer to a question, and whether it approves."""
        key = self._key("ask", [text, content])
        if key not in self._answers:
            approval = operation is not None
            raise QuestionAsked(Question(key, text, approval=approval, operation=operation))
        said, approved = self._answers[key]
        return said, approved

    def _key(self, name: str, content: Any) -> str:
        text = json.dumps(content, default=repr, sort_keys=True)
        key = f"{name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        with self._lock:
            self._counts[key] += 1
            return f"{key}:{self._counts[key]}"

    async def stoppable(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of a thread's own loop, which `stop` cancels."""
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(call)
        self._cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        if self._stopped:
            task.cancel()
        return await task

    def _end(self, function: Callable[[], Any]) -> None:
        """Call a function that runs the agent, and report how it ended."""
        with suppress(Stopped):
            try:
                CALLS.set(self)
                self.report(Ended(function()))
            except QuestionAsked as asked:
                self.report(Ended(question=asked.question))
            except BaseException as error:  # noqa: BLE001 - raised where the thread was begun
                self.report(Ended(error=error))

    # -- in the server's loop

    async def run(
        self, function: Callable[[], Any], report: Callable[[Any], Awaitable[None]]
    ) -> Ended:
        """Call a function that runs the agent, in a thread, and pass on its reports."""
        # a thread of its own: it waits for its steps, which may need the threads of a pool
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._end, function), daemon=True).start()
        try:
            while not isinstance(event := await self._events.get(), Ended):
                await report(event)
        finally:
            self._stop()
        if event.error is not None:
            raise event.error
        return event

    def _stop(self) -> None:
        """End what threads wait for. (What a thread does by itself cannot be ended.)"""
        self._stopped = True
        for future in list(self._open):
            future.cancel()
        for cancel in self._cancels:
            with suppress(RuntimeError):  # its loop has ended
                cancel()


def _make(
    function: Callable[[], Any],
    dump: Callable[[Any], Any],
    fails: bool,
    made: list[Made],
    logged: Future[Any],
) -> None:
    """Make a call, in its thread."""
    found: Any = None
    try:
        value = function()
        made.append(Made(value))
        found = _json(dump(value))
    except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
        made.append(Made(error=error))
        if fails and isinstance(error, Exception):
            found = {"error": [type(error).__name__, str(error)]}
    if logged.set_running_or_notify_cancel():
        logged.set_result(found)


def _json(value: Any) -> Any:
    """A value, if it can be logged."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return None
    return value


def _logged(value: Any) -> Any:
    return UNSET if value is None else value


CALLS: ContextVar[Calls] = ContextVar("calls")
"""The calls of the run that is in this thread."""
