"""Durable handlers: steps that run once, sleeps and questions that outlive the process.

A durable handler is run again from its beginning after a crash, a sleep or a question. What it
has finished before is in the task's log as private entries: a step returns its logged result, a
sleep that is over does not sleep, and what the handler said before is not said again. So the
handler comes back to where it was, on any replica.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import time
import uuid
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from dragoman.agent.running_step import StepScope, Streams, enter, leave, running
from dragoman.agent.step_results import (
    Unusable,
    check_step,
    decoded_result,
    encoded_result,
    logged_error,
    logged_result,
    returned_type,
)
from dragoman.agent.user_error import UserError
from dragoman.model import clock
from dragoman.model.events import Event, Private, Received
from dragoman.model.task_secret import WAITING, digest, new_secret
from dragoman.model.types import TaskStatusUpdateEvent

MOST = 10_000
"""The most private entries of one turn."""
SHORT = 5.0
"""A sleep of fewer seconds keeps the worker: to give the task back costs more."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Between two attempts at one step, in seconds; each pause is twice the last."""
FIRST_LOOK, LAST_LOOK = 2.0, 300.0
"""The shortest and the longest pause between two polls of a remote task, in seconds."""
BESIDE = 16
"""How many results of one name a turn stores beside its log. Later ones are in the log, whose size
is limited."""
FORM = 1
"""How new turns are logged, see `Private.form`."""

_FINISHED = {
    "step": "step",
    "failed": "step",
    "uncertain": "step",
    "slept": "sleep",
    "answered": "ask",
    "heard": "receive",
    "waited": "wait",
    "now": "now",
}
"""The kinds of entries that finish an operation, and the operation."""
_BEGUN = {
    "begun": "step",
    "sleep": "sleep",
    "asked": "ask",
    "listening": "receive",
    WAITING: "wait",
    "subscribed": "subscription",
}
"""The kinds that begin one."""
TIME, MESSAGE, NOTIFICATION = "time", "message", "notification"
"""What a suspended handler waits for."""

WORK = "dragoman.work"
"""The step in which a handler that is not durable runs behind its gate."""

Key = tuple[str, str, int]
"""An operation, its name, and which one of this name it is."""


class Suspended(BaseException):
    """Ends a run of a handler that continues later. Handlers must not catch it."""

    def __init__(self, waits: str, seconds: float, asks: bool) -> None:
        super().__init__("the handler is suspended")
        self.asks = asks
        """Whether it has asked the client; otherwise the task stays `working`."""
        self.waits = waits
        """TIME, MESSAGE or NOTIFICATION. With the last two, the time may wake it as well."""
        self.seconds = seconds
        """It continues after this many seconds at the latest; 0 if only a message wakes it."""


class CodeChanged(BaseException):
    """The handler does not do what its log says that it did."""

    @classmethod
    def expected(cls, key: Key, found: str) -> CodeChanged:
        """Another operation comes next in the log."""
        return cls(f"the log has {_shown(key)} next, but the handler does {found}")


class Recorder(Protocol):
    """What a journal needs of the run that it belongs to."""

    def begin(self) -> None:
        """Raise if the claim has run out by the clock: nothing may begin then."""

    def record(self, event: Private) -> None:
        """Append a private entry, in order with everything else."""

    async def settled(self) -> None:
        """Wait until all of that is durable; raise if that cannot be."""

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        """Run a blocking call."""

    async def received(self, number: int) -> Received:
        """The message of this number."""


class Awaited(Protocol):
    """Work that ends elsewhere, and may notify the handler of its end."""

    name: str

    @property
    def subscribes(self) -> bool:
        """Whether it may be able to notify us."""

    async def look(self) -> bytes | None:
        """How it ended; None if it has not."""

    async def subscribe(self, secret: str) -> str:
        """Have it notify us, showing this secret: the id of the subscription; empty if it will
        not."""

    async def unsubscribe(self, id: str) -> None:
        """Have it notify us no more."""


class Journal:
    """The private entries of one handler: those to replay, and new ones."""

    def __init__(
        self,
        run: Recorder,
        entries: Sequence[Private],
        key: str,
        *,
        task: asyncio.Task[Any] | None = None,
        incoming: tuple[int, Received] | None = None,
        woken: bool = False,
        canceling: bool = False,
        repeated: frozenset[str] = frozenset(),
        known: frozenset[str] = frozenset(),
        streams: Streams | None = None,
        form: int = FORM,
    ) -> None:
        self.run = run
        self.key = key
        """Names the turn; the same whenever it runs."""
        self.said = 0
        """How many events the handler has said in this run."""
        self.replayed = max((entry.said for entry in entries), default=0)
        """How many of them were said before the last finished operation."""
        self.suspended: Suspended | None = None
        self._task = task
        self._incoming = incoming
        self._woken = woken
        self._canceling = canceling
        kinds = {*_FINISHED, *_BEGUN, "version"}  # others are not written here
        self.form = next((entry.form for entry in entries if entry.kind in kinds), form)
        """See `Private.form`."""
        self._repeated = repeated
        """The ids of status messages that were said after the last finished operation."""
        self._known = known
        """The ids of all messages of the task: steps that ran at the same time may have said some
        of theirs before it."""
        self._streams: Streams = {} if streams is None else streams
        """The artifacts that the handler streams."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._done: dict[Key, Private] = {}
        self._begun: dict[Key, Private] = {}
        self._next: deque[Key] = deque()
        """The finished operations of the handler's own task that were not replayed yet."""
        self.resumed = bool(entries)
        """Whether the handler has been here before."""
        self.live = not entries
        """Whether the replay has ended: what the handler does now is not in the log yet."""
        self._work_begun = sum(e.kind == "begun" and e.name == WORK for e in entries)
        self._running: set[asyncio.Future[Any]] = set()
        self._total = len(entries)
        self.version: str | None = None
        for entry in entries:
            if entry.kind == "version":
                self.version = msgspec.json.decode(entry.value, type=str)
            elif (operation := _FINISHED.get(entry.kind)) is not None:
                found = (operation, entry.name, entry.count)
                self._done[found] = entry
                if entry.ordered:
                    self._next.append(found)
            elif (operation := _BEGUN.get(entry.kind)) is not None:
                self._begun[operation, entry.name, entry.count] = entry

    # -- what the handler says

    def skip(self, event: Event) -> bool:
        """Whether an event of the handler was said before."""
        message = event.status.message if isinstance(event, TaskStatusUpdateEvent) else None
        if self.scope is not None:
            # A step that runs is not in the log. It may say something else than the attempt before,
            # so that its events cannot be counted; what it writes to an artifact replaces.
            return message is not None and message.message_id in self._known
        self.said += 1
        if self.said <= self.replayed:
            return True
        return message is not None and message.message_id in self._repeated

    @property
    def scope(self) -> StepScope | None:
        """The step that is running; None outside of one, and in turns that an older version
        began."""
        return running() if self.form else None

    def end(self) -> None:
        """The handler has ended; CodeChanged if the log has more."""
        if self._next and not self._canceling:
            raise CodeChanged.expected(self._next[0], "nothing more")

    def cancel(self) -> None:
        """Raise CancelledError in the handler when its replay has ended."""
        self._canceling = True

    def leave(self) -> None:
        """The author's `cancel` runs instead of the handler: it need not do what the log says."""
        self._next.clear()
        self.replayed = 0

    # -- operations

    async def step(
        self,
        name: str,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        returns: Any,
        retries: int,
        timeout: float | None,
        once: bool,
    ) -> Any:
        """The result of a call that is made once."""
        check_step(name, retries, timeout)
        kind = returns if returns is not None else returned_type(call)
        key = self._key("step", name)
        if (known := self._done.get(key)) is not None:
            self._reopen(known)
            return self._replayed(known, kind, name)
        self._live(key)
        if once and key in self._begun:
            raise logged_error(await self._settle("uncertain", key), name)
        if once:
            await self._settle("begun", key)
        self.run.begin()
        with self._under_way():
            work = _Work(self.run, call, args, kwargs, self._new_scope(key), timeout)
            return await self._attempts(work, key, kind, retries)

    def _replayed(self, entry: Private, kind: Any, name: str) -> Any:
        """The result of a step that is in the log; CodeChanged if it is not of this type."""
        try:
            return logged_result(entry, kind, name)
        except Unusable as error:
            raise CodeChanged(f"the log has another result: {error}") from error

    async def keep(
        self, name: str, call: Callable[[], Awaitable[bytes]], *, beside: bool = False
    ) -> bytes:
        """The JSON that a call of the turn itself returns, which is made once. What it raises is
        not logged. It is never null with `beside`: until the turn ends, it is stored beside the
        log, see `Private.beside`."""
        key = self._key("step", name)
        if (known := self._done.get(key)) is not None:
            self._reopen(known)
            if known.beside and bytes(known.value) == b"null":
                raise CodeChanged(f"the result of {_shown(key)}, which was beside the log, is gone")
            return bytes(known.value)
        self._live(key)
        self.run.begin()
        scope = self._new_scope(key)
        with self._under_way():
            token = enter(scope)
            try:
                value = await call()
            finally:
                leave(token)
            beside = beside and key[2] < BESIDE
            await self._settle("step", key, value, scope, beside=beside)
            return value

    async def work(self, call: Callable[[int], Awaitable[bytes]]) -> bytes:
        """The JSON that a call returns. It is made again if it was cut off; it gets the number of
        its attempt, which is durable before."""
        key = self._key("step", WORK)
        if (known := self._done.get(key)) is not None:
            return bytes(known.value)
        self._live(key)
        self._work_begun += 1
        await self._settle("begun", key)
        self.run.begin()
        return bytes((await self._settle("step", key, await call(self._work_begun))).value)

    def pass_on(self) -> None:
        """The gate has let the handler run: what is in the log from here on is the handler's."""
        self.resumed = bool(self._next)

    def _new_scope(self, key: Key) -> StepScope:
        _, name, count = key
        return StepScope(f"{self.key}:{name}:{count}", name, count)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """A block that must end before the handler may be suspended."""
        done = asyncio.get_running_loop().create_future()
        self._running.add(done)
        try:
            yield
        finally:
            self._running.discard(done)
            done.set_result(None)

    def _reopen(self, entry: Private) -> None:
        """The handler may continue the streams that a finished step began."""
        opened: Streams = {(how, name): id for how, name, id in entry.streams}
        self._streams.update(opened)
        if (outer := self.scope) is not None:
            outer.opened.update(opened)

    async def _attempts(self, work: _Work, key: Key, kind: Any, retries: int) -> Any:
        pause = FIRST_PAUSE
        for attempt in range(retries + 1):
            if self.form:
                work.scope.again(self._streams)
            try:
                value = encoded_result(await work.perform(), kind, key[1])
                result = decoded_result(value, kind, key[1])
            except Exception as error:
                if attempt == retries or isinstance(error, UserError | Unusable):
                    text = error.shown if isinstance(error, UserError) else str(error)
                    what = [type(error).__name__, text[:2000], isinstance(error, UserError)]
                    value = msgspec.json.encode(what)
                    failed = await self._settle("failed", key, value, work.scope)
                    raise logged_error(failed, key[1]) from error
            else:
                await self._settle("step", key, value, work.scope)
                return result
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self.run.begin()
        raise AssertionError("unreachable")

    async def sleep(self, seconds: float) -> None:
        """Until the time has come."""
        key = self._key("sleep", "")
        if key in self._done:
            return
        self._live(key)
        begun = self._begun.get(key)
        if begun is None:
            due = time.time() + seconds
            if seconds > SHORT:
                await self._others()
                seconds = due - time.time()
                self._record("sleep", key, msgspec.json.encode(due))
        else:
            due = msgspec.json.decode(begun.value, type=float)
            seconds = 0.0 if self._woken else due - time.time()
            self._woken = False
        if seconds > SHORT:
            await self._suspend(TIME, seconds=seconds)
        if seconds > 0:
            await asyncio.sleep(seconds)
        self._record("slept", key)

    async def ask(self, question: Callable[[], Awaitable[Any]]) -> Received:
        """The answer to a question."""
        key = self._key("ask", "")
        if key in self._done or key in self._begun:
            self.said += 1  # the question
        if (known := self._done.get(key)) is not None:
            number = msgspec.json.decode(known.value, type=int)
            return await self.run.received(number)
        self._live(key)
        if key not in self._begun:
            await question()
            self._record("asked", key)
        if self._incoming is None:
            await self._suspend(MESSAGE, asks=True)
        return self._take("answered", key)

    async def receive(self, timeout: float | None) -> Received | None:
        """The next message; None if none has come in time."""
        key = self._key("receive", "")
        if (known := self._done.get(key)) is not None:
            number = msgspec.json.decode(known.value, type=int | None)
            return None if number is None else await self.run.received(number)
        self._live(key)
        if self._incoming is not None:
            return self._take("heard", key)
        begun = self._begun.get(key)
        if begun is None:
            due = None if timeout is None else time.time() + timeout
            await self._others()
            self._record("listening", key, msgspec.json.encode(due))
        else:
            due = msgspec.json.decode(begun.value, type=float | None)
        if due is not None and ((begun is not None and self._woken) or due <= time.time()):
            self._woken = False
            self._record("heard", key)
            return None
        await self._suspend(MESSAGE, seconds=0.0 if due is None else due - time.time())
        return None

    async def wait(self, awaited: Awaited) -> bytes:
        """What a look finds in the end. A notification leads to the next look; without one, the
        pauses between two looks grow with the time that has passed."""
        key = self._key("wait", awaited.name)
        if (known := self._done.get(key)) is not None:
            return bytes(known.value)
        self._live(key)
        value = await awaited.look()
        begun, subscription = self._begun.get(key), self._subscription(key)
        if begun is None and value is None:
            begun, subscription = await self._subscribe(key, awaited)
            value = await awaited.look()  # it may have ended before it was asked to notify us
        while value is None:
            assert begun is not None
            passed = time.time() - clock.seconds(begun.at)
            pause = min(max(passed / 2, FIRST_LOOK), LAST_LOOK)
            if subscription:
                await self._suspend(NOTIFICATION, seconds=LAST_LOOK)
            elif pause > SHORT:
                await self._suspend(TIME, seconds=pause)
            await asyncio.sleep(pause)
            value = await awaited.look()
        if subscription:
            await awaited.unsubscribe(subscription)
        self._record("waited", key, value)
        return value

    async def _subscribe(self, key: Key, awaited: Awaited) -> tuple[Private, str]:
        """Log that the wait begins, and ask for a notification of its end."""
        if not awaited.subscribes:
            return self._record(WAITING, key), ""
        secret = new_secret()
        # durable before the secret is given away: a notification may come at once
        begun = await self._settle(WAITING, key, msgspec.json.encode(digest(secret)))
        if subscription := await awaited.subscribe(secret):
            self._record("subscribed", key, msgspec.json.encode(subscription))
        return begun, subscription

    def _subscription(self, key: Key) -> str:
        """The id of the subscription of a wait; empty if there is none."""
        found = self._begun.get(("subscription", *key[1:]))
        return "" if found is None else msgspec.json.decode(found.value, type=str)

    def _take(self, kind: str, key: Key) -> Received:
        """Read the message that has come."""
        assert self._incoming is not None
        (number, received), self._incoming = self._incoming, None
        self._record(kind, key, msgspec.json.encode(number))
        return received

    def now(self) -> datetime:
        """The time, the same on replay."""
        key = self._key("now", "")
        if (known := self._done.get(key)) is not None:
            return msgspec.json.decode(known.value, type=datetime)
        now = datetime.now(UTC)
        self._record("now", key, msgspec.json.encode(now))
        return now

    def digest(self, what: str) -> bytes:
        """32 bytes that are the same on replay, and others for each call."""
        number = self._counts["digest", what]
        self._counts["digest", what] += 1
        return hashlib.sha256(f"{self.key}:{what}:{number}".encode()).digest()

    def declare(self, version: str) -> str:
        """The version with which the turn began."""
        if self.version is None:
            self.version = version
            if version and not self._done:
                self._record("version", ("version", "", 0), msgspec.json.encode(version))
        return self.version

    # -- inside

    def _key(self, operation: str, name: str) -> Key:
        count = self._counts[operation, name]
        self._counts[operation, name] += 1
        key = (operation, name, count)
        if key in self._done and key in self._next:
            self._next.remove(key)
        return key

    def _live(self, key: Key) -> None:
        """An operation that is not in the log is about to begin."""
        if self.suspended is not None:
            raise self.suspended  # the handler caught it, and must not
        if self._canceling:
            self._canceling = False  # what the handler then does to undo its work is done
            raise asyncio.CancelledError("the task is canceled")
        if self._next and self._ordered():
            raise CodeChanged.expected(self._next[0], _shown(key))
        self.live = True
        if self._total >= MOST:
            raise RuntimeError(
                f"the turn has more than {MOST} steps; do several things in one step, or hand "
                "parts of the work to tasks of their own"
            )

    def _ordered(self) -> bool:
        """Whether the handler's own task asks, outside of a step: what that does has an order."""
        return asyncio.current_task() is self._task and running() is None

    def _record(
        self,
        kind: str,
        key: Key,
        value: bytes = b"null",
        scope: StepScope | None = None,
        *,
        beside: bool = False,
    ) -> Private:
        self._total += 1
        opened = scope.opened if scope is not None else {}
        if opened and (outer := self.scope) is not None:
            outer.opened.update(opened)
        entry = Private(
            kind=kind,
            name=key[1],
            count=key[2],
            said=self.said,
            value=Raw(value),
            at=clock.now(),
            ordered=kind in _FINISHED and self._ordered(),
            form=self.form,
            streams=tuple((how, name, id) for (how, name), id in opened.items()),
            beside=beside,
        )
        self.run.record(entry)
        return entry

    async def _settle(
        self,
        kind: str,
        key: Key,
        value: bytes = b"null",
        scope: StepScope | None = None,
        *,
        beside: bool = False,
    ) -> Private:
        entry = self._record(kind, key, value, scope, beside=beside)
        await self.run.settled()
        return entry

    async def _others(self) -> None:
        """Finish what other tasks of the handler have begun. After it nothing comes between the
        entry that a wait begins and the suspension."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def _suspend(self, waits: str, *, seconds: float = 0.0, asks: bool = False) -> None:
        """End this run."""
        await self._others()
        self.suspended = Suspended(waits, max(seconds, 0.001) if seconds else 0.0, asks)
        raise self.suspended


class _Work:
    """A call, and how it is made."""

    def __init__(
        self,
        run: Recorder,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        scope: StepScope,
        timeout: float | None,
    ) -> None:
        self._run, self._call, self._args, self._kwargs = run, call, args, kwargs
        self.scope, self._timeout = scope, timeout

    async def perform(self) -> Any:
        """Make the call, in a thread if it blocks."""
        token = enter(self.scope)
        try:
            async with asyncio.timeout(self._timeout):
                if inspect.iscoroutinefunction(self._call):
                    return await self._call(*self._args, **self._kwargs)
                value = await self._run.in_thread(self._block)
                return await value if inspect.isawaitable(value) else value
        finally:
            leave(token)

    def _block(self) -> Any:
        self._run.begin()  # it may have waited for a thread
        return self._call(*self._args, **self._kwargs)


def _shown(key: Key) -> str:
    operation, name, count = key
    return f"{operation} {name!r} ({count + 1})" if name else f"{operation} {count + 1}"


def uuid_of(digest: bytes) -> uuid.UUID:
    """A UUID of these bytes."""
    return uuid.UUID(bytes=digest[:16], version=4)
