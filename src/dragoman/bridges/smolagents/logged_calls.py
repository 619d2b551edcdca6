"""The calls that an agent of smolagents makes in its thread: each is a step of the task."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from types import TracebackType
from typing import Any

from msgspec import UNSET

from dragoman.bridges.bridge import Question, Run
from dragoman.bridges.steps import Steps


class Stopped(BaseException):
    """Ends the agent's thread: nobody waits for it any more. (An agent catches an Exception.)"""


class QuestionAsked(BaseException):
    """Ends the agent's thread: the client is asked. It is run again with the answer."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.text)
        self.question = question


class Call:
    """A call that is about to be made, or whose result is known."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.known: Any = None
        self.earlier = False
        """A run before this one has made it."""
        self.result: Any = None
        """What is logged: JSON, or None if it was not successful."""
        self.begun: Future[bool] = Future()
        """Whether it is to be made."""
        self.returned: Future[Any] = Future()
        self.logged: Future[None] = Future()

    def __enter__(self) -> Call:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """The call has returned: wait until its result is logged."""
        try:
            self.returned.set_result(self.result)
            self.logged.result()
        except (CancelledError, InvalidStateError) as canceled:
            raise Stopped from canceled

    def stop(self) -> None:
        """Let the thread that waits for it end."""
        for future in (self.begun, self.returned, self.logged):
            future.cancel()


class Calls:
    """The calls of one run, and the questions that it has asked."""

    def __init__(
        self, run: Run, known: dict[str, Any], answers: dict[str, tuple[str, bool]]
    ) -> None:
        self.known = dict(known)
        """The results of calls, also of the runs before, by their keys."""
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._answers = answers
        self._steps = Steps(run)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[Call] = set()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._stopped = False

    # -- in the agent's thread, or in threads that it makes

    def report(self, event: Any) -> None:
        """Tell the loop something."""
        if self._stopped:
            raise Stopped
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def begin(self, kind: str, content: Any) -> Call:
        """A call, known by what it is given; several of the same are known by their order."""
        while not self._stopped:
            key = self._key(kind, content)
            call = Call(key)
            if key in self.known:
                call.known, call.earlier = self.known[key], True
            else:
                self.report(call)
                try:
                    if call.begun.result():
                        return call
                except CancelledError as canceled:
                    raise Stopped from canceled
            if call.known is not None:
                return call
            # an attempt that failed: the agent has made the next one
        raise Stopped

    def make(
        self,
        kind: str,
        content: Any,
        function: Callable[[], Any],
        dump: Callable[[Any], Any],
        load: Callable[[Any], Any],
        *,
        fails: bool = False,
        report: Callable[[Any], None] = lambda _: None,
    ) -> Any:
        """The result of a call, which is made once. If it `fails`, this is a result, too. What a
        run before this one got was reported by it."""
        call = self.begin(kind, content)
        if call.known is not None:
            value = load(call.known)
            if not call.earlier:
                report(value)
            return value
        with call:
            try:
                value = function()
            except Exception as error:
                if fails:
                    call.result = {"error": [type(error).__name__, str(error)]}
                raise
            call.result = dump(value)
        report(value)
        return value

    def ask(self, text: str, content: Any, operation: Any = None) -> tuple[str, bool]:
        """The client's answer to a question, and whether it approves."""
        key = self._key("ask", [text, content])
        if key not in self._answers:
            approval = operation is not None
            raise QuestionAsked(Question(key, text, approval=approval, operation=operation))
        said, approved = self._answers[key]
        return said, approved

    def _key(self, kind: str, content: Any) -> str:
        text = json.dumps(content, default=_shown, sort_keys=True)
        key = f"{kind}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        with self._lock:
            self._counts[key] += 1
            return f"{key}:{self._counts[key]}"

    # -- in the loop

    async def next_event(self) -> Any:
        """The next event of the thread. None if it was a call, which becomes a step."""
        event = await self._events.get()
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()  # what is wrong with a step ends the run
        if not isinstance(event, Call):
            return event
        task = asyncio.create_task(self._step(event))
        task.add_done_callback(lambda _: self._events.put_nowait(None))
        self._tasks.add(task)
        return None

    async def _step(self, call: Call) -> None:
        async def perform() -> Any:
            call.begun.set_result(True)  # the thread makes it
            return await asyncio.wrap_future(call.returned)

        self._open.add(call)
        try:
            call.known = self.known[call.key] = await self._steps.call(call.key, perform, _logged)
            if not call.begun.done():
                call.begun.set_result(False)
            call.logged.set_result(None)
        finally:
            call.stop()
            self._open.discard(call)

    async def stop(self) -> None:
        """End what the thread waits for."""
        self._stopped = True
        for call in list(self._open):
            call.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while not self._events.empty():
            if isinstance(call := self._events.get_nowait(), Call):
                call.stop()


def _logged(value: Any) -> Any:
    return UNSET if value is None else value


def _shown(value: Any) -> str:
    """What stands for a value that is no JSON, such as an image, in a digest."""
    data = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
    return hashlib.sha256(data).hexdigest()
