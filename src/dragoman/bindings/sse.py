"""Sends the events of a task's log to a client as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from dragoman.bindings.http_request import HTTPRequest, extension_headers
from dragoman.bindings.request_body import Headers
from dragoman.dialects import Form, v1_0
from dragoman.model import clock
from dragoman.model.caller import Call
from dragoman.model.errors import A2AError, InternalError, LimitExceeded, Unauthenticated
from dragoman.model.events import RESUME, Entry, placed
from dragoman.model.types import TaskStatusUpdateEvent
from dragoman.security.byte_budget import SMALL
from dragoman.server.reader import LogStream
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger
from dragoman.telemetry.metrics import Metrics

EVENT_STREAM = b"text/event-stream"
HEADERS: Headers = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
ALIVE = b": alive\n\n"
QUIET = b": alive\n"
"""The keepalive for clients before 1.0, without the empty line: some of them take an empty line
after an `id` for the end of an event."""
EXPIRED = "The credential has expired: send a new one and resume the stream"
RUSH, FEW, PAUSE = 4, 16, 0.002
"""After RUSH quick writes of fewer than FEW events each, a stream waits PAUSE seconds before each
write. A fast agent then costs fewer writes, and the delay is too short to notice."""


class OpenStream(Protocol):
    """An open stream of any binding."""

    sending: float
    """When the pending write began, on the monotonic clock; 0 if no write is pending."""
    sent: float
    """When the last write began, on the monotonic clock."""
    owner: str
    """The identity that owns the stream; empty for an anonymous caller."""
    expires: float
    """When the caller's credential expires, as a Unix time; 0 is never."""

    def watch(self) -> None:
        """Start to watch for a disconnect of the client."""

    def cut(self) -> None:
        """End a stream whose client does not read."""

    def beat(self) -> None:
        """Send a keepalive."""

    def expire(self) -> None:
        """Wake the stream, so that it ends because the credential has expired."""


class Streams:
    """The open streams of an application. Limits their number, ends stalled ones and sends
    keepalives."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics: Metrics | None = None
        self.open: set[OpenStream] = set()
        self._owned: Counter[str] = Counter()

    def check(self, owner: str) -> None:
        """Raise LimitExceeded if the application or this owner has too many open streams."""
        if len(self.open) >= self.settings.max_streams:
            raise LimitExceeded(f"{self.settings.max_streams} streams are open")
        quota = self.settings.quota_streams
        if owner and quota and self._owned[owner] >= quota:
            raise LimitExceeded(f"{quota} of your streams are open; close some of them")

    def add(self, stream: OpenStream) -> None:
        """Add a stream that has opened."""
        self.open.add(stream)
        if stream.owner:
            self._owned[stream.owner] += 1

    def remove(self, stream: OpenStream) -> None:
        """Remove a stream that has ended."""
        self.open.discard(stream)
        if stream.owner:
            self._owned[stream.owner] -= 1
            if not self._owned[stream.owner]:
                del self._owned[stream.owner]

    async def run(self) -> None:
        """Check all streams periodically until cancelled."""
        pause = min(1.0, self.settings.keepalive / 2, self.settings.stall / 2)
        while True:
            await asyncio.sleep(max(pause, 0.01))
            now, clock_time = time.monotonic(), time.time()
            for stream in list(self.open):
                stream.watch()
                if stream.sending and now - stream.sending > self.settings.stall:
                    stream.cut()
                elif 0 < stream.expires <= clock_time:
                    stream.expire()
                elif not stream.sending and now - stream.sent > self.settings.keepalive:
                    stream.beat()


def current(expires: float) -> None:
    """Raise Unauthenticated if a credential has expired, because its stream must end."""
    if 0 < expires <= time.time():
        raise Unauthenticated(EXPIRED)


def wrote(metrics: Metrics, stream: LogStream, entries: Sequence[Entry]) -> None:
    """Record the delay of the last entry, if it is a status that the client waited for."""
    event = entries[-1].event if entries and stream.live else None
    if isinstance(event, TaskStatusUpdateEvent) and len(event.status.timestamp or "") == 24:
        assert event.status.timestamp is not None
        lag = time.time() - clock.seconds(event.status.timestamp)
        metrics.lag.at().observe(max(lag, 0.0))


def formed(dialect: Form, entry: Entry, last: bool, *, places: bool = False) -> bytes:
    """Return the entry as this dialect streams it, encoded once for all readers of that form.
    `places` adds its place in the log, for clients that activated the resume extension."""
    if places and dialect is v1_0 and (wire := v1_0.with_place(entry)) is not None:
        return wire
    if not dialect.FORM:
        return dialect.response(placed(entry) if places else entry.event, last)
    if entry.forms is None:
        entry.forms = {}
    form = f"{dialect.FORM} last" if last else dialect.FORM
    if places:
        form += " placed"
    wire = entry.forms.get(form)
    if wire is None:
        event = placed(entry) if places else entry.event
        wire = entry.forms[form] = dialect.response(event, last)
    return wire


def fresh_start(dialect: Form, entry: Entry, last: bool) -> bytes:
    """Return the first entry of a stream that could not resume at the place that the client named.
    It has the reset mark, so it is encoded for this client alone."""
    return dialect.response(placed(entry, reset=True), last)


def asking(entry: Entry, final: Entry | None) -> Entry | None:
    """Return the entry if the stream may still end after it. Before 1.0 the last event is marked
    as the last, so such an entry is sent again, with the mark, if the stream does end."""
    event = entry.event
    interrupted = isinstance(event, TaskStatusUpdateEvent) and event.status.state.interrupted
    return entry if interrupted and entry is not final else None


class SSEResponse:
    """Sends one stream to one client."""

    def __init__(
        self,
        incoming: HTTPRequest,
        stream: LogStream,
        call: Call,
        dialect: Form,
        before: bytes = b"",
        after: bytes = b"",
    ) -> None:
        self.incoming = incoming
        self.owner = call.caller.owner
        self.expires = call.caller.expires
        self.stream = stream
        self.sending = 0.0
        """See `OpenStream.sending`."""
        self.sent = time.monotonic()
        self._dialect = dialect
        self._alive = ALIVE if dialect is v1_0 else QUIET
        self._before = before
        self._after = after
        self._call = call
        self._places = RESUME in call.caller.extensions
        self._name = stream.task.encode()
        self._asked: Entry | None = None
        """Before 1.0: the entry to send again as the last one; see `asking`."""
        self._idle = False
        self._gone = False
        self._metrics: Metrics | None = None
        self._task: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """See `OpenStream.watch`. It is not started at once, because a short stream does not need
        it."""
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())

    def cut(self) -> None:
        """End a stream whose client does not read; the client can resume it."""
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    def beat(self) -> None:
        """Send a keepalive."""
        self._idle = True
        self.stream.nudge()

    def expire(self) -> None:
        """End the stream with the error as its last event."""
        self.stream.nudge()

    async def run(self, streams: Streams, error: Callable[[A2AError], bytes]) -> None:
        """Send the stream to its end. `error` encodes an error as the last event."""
        self._task = asyncio.current_task()
        self._metrics = streams.metrics
        streams.add(self)
        try:
            if self.incoming.bodies.large:
                await self.incoming.in_turn(self._call)
            await self.incoming.begin(EVENT_STREAM, (*HEADERS, *extension_headers(self._call)))
            try:
                await self._send_events()
            except A2AError as fault:
                self.incoming.failed(fault)
                await self._send(error(fault))
            except Exception as fault:
                logger.exception("internal error in a stream")
                wrong = InternalError.of(fault)
                self.incoming.failed(wrong)
                await self._send(error(wrong))
            if not self._gone:
                await self.incoming.send({"type": "http.response.body", "body": b""})
        except asyncio.CancelledError:
            if not self._gone:
                raise
        finally:
            if self._watcher is not None:
                self._watcher.cancel()
            streams.remove(self)
            self.stream.close()

    async def _send_events(self) -> None:
        limit = self.incoming.settings.stream_buffer
        rush = 0
        while True:
            if rush >= RUSH:
                await asyncio.sleep(PAUSE)
            entries = await self.stream.next()
            if not self._gone:
                current(self.expires)
            if entries is None or self._gone:
                if self._asked is not None and not self._gone:
                    await self._send(self._frame(self._asked, last=True) or b"")
                return
            frames: list[bytes] = []
            size = 0
            final = entries[-1] if self.stream.over and entries else None
            if self._dialect is not v1_0 and entries:
                self._asked = asking(entries[-1], final)
            for entry in entries:
                frame = self._frame(entry, entry is final)
                if frame is None:
                    continue
                frames.append(frame)
                size += len(frame)
                if size > limit:
                    await self._send(b"".join(frames))
                    frames, size = [], 0
            if frames:
                before = self.sent
                await self._send(frames[0] if len(frames) == 1 else b"".join(frames))
                soon = self.sent - before < 2 * PAUSE
                rush = rush + 1 if soon and len(frames) < FEW else 0
                if self._metrics is not None:
                    wrote(self._metrics, self.stream, entries)
            elif self._idle:
                await self._send(self._alive)

    def _frame(self, entry: Entry, last: bool) -> bytes | None:
        if self._places and self.stream.reset:
            self.stream.reset = False
            wire = fresh_start(self._dialect, entry, last)
        elif self._dialect is v1_0 and not self._places:
            wire = entry.wire if entry.wire is not None else v1_0.streamed(entry)
        else:
            wire = formed(self._dialect, entry, last, places=self._places)
        if not wire:
            return None
        return b"id: %b:%d\ndata: %b%b%b\n\n" % (
            self._name,
            entry.number,
            self._before,
            wire,
            self._after,
        )

    async def _send(self, body: bytes) -> None:
        limit = self.incoming.settings.stream_buffer
        if len(body) > SMALL:  # it stays in memory until a slow client has read it
            self.incoming.reserve(len(body))
        try:
            for start in range(0, len(body), limit):  # a client that reads slowly does not stall
                piece = body if len(body) <= limit else body[start : start + limit]
                self.sending = time.monotonic()
                message = {"type": "http.response.body", "body": piece, "more_body": True}
                await self.incoming.send(message)
        finally:
            self.incoming.release()
        self.sent = self.sending
        self.sending = 0.0
        self._idle = False

    async def _watch(self) -> None:
        while (await self.incoming.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self.stream.nudge()
