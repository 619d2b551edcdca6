"""Receives webhooks, from this server or from any other A2A agent.

A2AError
├── Unauthenticated
│   ├── WrongToken
│   ├── MissingSignature
│   ├── BadSignature
│   ├── TooOld
│   └── TooNew
├── ParseError          the body is not JSON
├── InvalidParams       names the field
└── TaskNotFound        nobody expects this task
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from dragoman.dialects.versions import pushed
from dragoman.model.errors import (
    A2AError,
    BodyTooLarge,
    InternalError,
    InvalidParams,
    MethodNotAllowed,
    TaskNotFound,
    TooSlow,
    Unauthenticated,
    Unavailable,
)
from dragoman.model.types import (
    Message,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from dragoman.telemetry.logs import logger
from dragoman.webhooks import signature
from dragoman.webhooks.signature import SigningKey

if TYPE_CHECKING:
    from starlette.routing import Route

__all__ = [
    "BadSignature",
    "MissingSignature",
    "Notification",
    "Receiver",
    "ReceiverApp",
    "TooNew",
    "TooOld",
    "WrongToken",
]


Pushed: TypeAlias = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
Headers: TypeAlias = (
    Mapping[str, str]
    | Mapping[bytes, bytes]
    | Iterable[tuple[str, str]]
    | Iterable[tuple[bytes, bytes]]
)
Tasks: TypeAlias = Container[str] | Callable[[str], bool]
Handle: TypeAlias = Callable[["Notification"], Awaitable[None] | None]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TOKEN = "x-a2a-notification-token"
LONGEST_ID = 256
BODY_TIMEOUT = 30.0
BODIES = 4
"""At most this many bodies of the largest size are in memory at once. Others get a 503."""
SMALL = 64 * 1024
"""A body up to this size is read even then."""
AGE = 24 * 3600.0
"""Seconds for which a handled id is remembered: a sender that lost the response may retry late."""

_SECONDS = re.compile(r"[0-9]{1,12}")


class WrongToken(Unauthenticated):
    """The token is missing or wrong."""

    text = "The notification token is wrong"


class MissingSignature(Unauthenticated):
    """Keys are configured, but the signature, or the id or time that it covers, is missing."""

    text = "The signature is missing"


class BadSignature(Unauthenticated):
    """The signature does not match: a different key or a different content."""

    text = "The signature is wrong"


class TooOld(Unauthenticated):
    """The notification was sent too long ago; it may be a replay."""

    text = "The timestamp is too old"


class TooNew(Unauthenticated):
    """The notification was sent in the future: one of the clocks is wrong."""

    text = "The timestamp is in the future"


class Notification(Struct, frozen=True, kw_only=True):
    """A verified event that an agent pushed."""

    id: str
    """The same for each attempt to deliver it; empty if the sender gives none."""
    task_id: str
    event: Pushed
    timestamp: int | None
    """The Unix time of this attempt, if the sender gives it."""
    fresh: bool
    """False if it was handled before."""


class Envelope(Struct, frozen=True):
    """The relevant headers."""

    id: str
    timestamp: int | None
    signature: str


class Receiver:
    """Verifies notifications, and remembers which were handled. Make one for each agent, because
    agents may use the same ids."""

    def __init__(
        self,
        *,
        token: str | None = None,
        keys: Iterable[str] = (),
        tolerance: float = 300.0,
        tasks: Tasks | None = None,
        remember: int = 10_000,
        max_body: int = 16 * 1024 * 1024,
        insecure: bool = False,
    ) -> None:
        if isinstance(keys, str) or isinstance(tasks, str):
            raise ValueError("keys and tasks: expected lists, not strings")
        self._keys = [SigningKey.parse(text) for text in keys]
        if any(key.prefix == signature.PRIVATE for key in self._keys):
            raise ValueError("a whsk_ key is private to the sender; receivers use its whpk_ key")
        if token == "":
            raise ValueError("token: must not be empty; use None for no token")
        if token is None and not self._keys and not insecure:
            raise ValueError(
                "without a token or keys anyone can send notifications; give one, or set "
                "insecure=True to confirm that this is intended"
            )
        if not tolerance > 0 or remember < 1 or max_body < 1:
            raise ValueError("tolerance, remember and max_body must be greater than 0")
        self._token = None if token is None else token.encode()
        self._tolerance = tolerance
        self._tasks = tasks
        self._seen = Seen(remember, max(AGE, 2 * tolerance))
        self._running: dict[object, asyncio.Task[bool]] = {}
        self.max_body = max_body
        self._held = 0

    def verify(self, headers: Headers, body: bytes) -> Notification:
        """Verify a request and return its notification. Raises an A2AError that says why it is
        refused."""
        return self._read(self._admit(headers), body)

    async def read(self, scope: Scope, receive: Receive) -> tuple[Notification, bytes]:
        """Read a request to an ASGI application, and return the notification and the body. The
        headers are checked before the body is read, and the body has limits of size, time and
        memory. Raises an A2AError that says what is wrong, or Gone if the sender disconnected."""
        if scope["method"] != "POST":
            raise MethodNotAllowed("Webhooks require POST", headers={"allow": "POST"})
        envelope = self._admit(scope["headers"])
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                await self._collect(receive, chunks)
            body = b"".join(chunks)
            return self._read(envelope, body), body
        except TimeoutError:
            raise TooSlow("The body did not arrive in time") from None
        finally:
            self._held -= sum(map(len, chunks))

    async def _collect(self, receive: Receive, chunks: list[bytes]) -> None:
        """Read the chunks of a body. Raises BodyTooLarge, or Unavailable while other bodies use all
        of the memory."""
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size > self.max_body:
                raise BodyTooLarge(f"The body is larger than {self.max_body} bytes")
            if size > SMALL and self._held + len(chunk) > BODIES * self.max_body:
                raise Unavailable(
                    "Too many request bodies are in progress", headers={"retry-after": "1"}
                )
            self._held += len(chunk)
            chunks.append(chunk)

    def done(self, notification: Notification) -> None:
        """Record that it was handled, so that a repeated one is not fresh."""
        if notification.id:
            self._seen.add(notification.id)

    def app(self, handle: Handle) -> ReceiverApp:
        """Make an ASGI application that receives notifications at any path."""
        return ReceiverApp(self, handle)

    def route(self, path: str, handle: Handle) -> Route:
        """Make a route for Starlette and FastAPI."""
        from starlette.routing import Route

        return Route(path, self.app(handle), methods=["POST"])

    def _admit(self, headers: Headers) -> Envelope:
        """Check everything that can be checked before the body is read."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        found = {_text(name).lower(): _text(value) for name, value in pairs}
        if self._token is not None:
            # Frameworks represent bytes that are not text as surrogates.
            given = found.get(TOKEN, "").encode("utf-8", "surrogatepass")
            if not hmac.compare_digest(given, self._token):
                raise WrongToken
        id = found.get(signature.ID, "")
        if len(id) > LONGEST_ID or not id.isascii():
            raise InvalidParams.at(signature.ID, f"expected at most {LONGEST_ID} ASCII characters")
        seconds = found.get(signature.TIMESTAMP, "")
        signed = found.get(signature.SIGNATURE, "")
        if self._keys and not (id and seconds and signed):
            raise MissingSignature
        return Envelope(id, self._time(seconds), signed)

    def _time(self, seconds: str) -> int | None:
        if not seconds:
            return None
        if not _SECONDS.fullmatch(seconds):
            raise InvalidParams.at(signature.TIMESTAMP, "expected Unix seconds")
        late = time.time() - int(seconds)
        if late > self._tolerance:
            raise TooOld
        if late < -self._tolerance:
            raise TooNew
        return int(seconds)

    def _read(self, envelope: Envelope, body: bytes) -> Notification:
        id, timestamp = envelope.id, envelope.timestamp
        if self._keys:
            assert timestamp is not None
            if not signature.verify(self._keys, id, timestamp, envelope.signature, body):
                raise BadSignature
        event = _event(body)
        task = event.id if isinstance(event, Task) else event.task_id
        fresh = id not in self._seen
        # A handled notification is acknowledged, even if its task is no longer expected.
        if fresh and not self._expects(task):
            raise TaskNotFound("This receiver does not expect notifications of this task")
        return Notification(id=id, task_id=task, event=event, timestamp=timestamp, fresh=fresh)

    def _expects(self, task: str) -> bool:
        if self._tasks is None:
            return True
        return self._tasks(task) if callable(self._tasks) else task in self._tasks

    async def _handle(self, handle: Handle, notification: Notification) -> None:
        """Run the handler once. Raises Unavailable while it already runs, InternalError if it
        fails.

        A duplicate gets an error at once instead of waiting: its sender gave up on the first
        attempt and would give up on this one, and until then it would hold a connection. After a
        4xx, some senders would never retry.
        """
        if not notification.fresh:
            return
        key = notification.id or object()
        if key in self._running:
            raise Unavailable("This notification is being processed", headers={"retry-after": "1"})
        task = asyncio.create_task(self._perform(handle, notification))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key))
        # A sender that disconnects does not stop the handler: a slow handler would never finish.
        if not await asyncio.shield(task):
            raise InternalError("The handler failed")

    async def _perform(self, handle: Handle, notification: Notification) -> bool:
        try:
            if not inspect.iscoroutinefunction(handle):
                found = await asyncio.to_thread(_call, handle, notification)
            else:
                found = handle(notification)
            if inspect.isawaitable(found):
                await found
        except (Exception, asyncio.CancelledError) as error:
            me = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and me is not None and me.cancelling():
                raise
            logger.exception(
                "webhook %s: the handler failed; the sender will repeat the delivery",
                notification.id or "without id",
                extra={"task": notification.task_id},
            )
            return False
        self.done(notification)
        return True

    async def _stop(self) -> None:
        """Cancel the handlers whose senders have disconnected. Those senders will retry."""
        left = list(self._running.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


class Seen:
    """The latest handled ids, with a limit on their number and age."""

    def __init__(self, limit: int, age: float) -> None:
        self._limit = limit
        self._age = age
        self._since: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, id: str) -> bool:
        since = self._since.get(id)
        return since is not None and time.monotonic() - since < self._age

    def __len__(self) -> int:
        return len(self._since)

    def add(self, id: str) -> None:
        """Remember the id, and remove ids beyond the limits."""
        now = time.monotonic()
        with self._lock:
            self._since[id] = now
            self._since.move_to_end(id)
            while len(self._since) > self._limit or now - self._first() >= self._age:
                self._since.popitem(last=False)

    def _first(self) -> float:
        return next(iter(self._since.values()))


class ReceiverApp:
    """A receiver and a handler as an ASGI application."""

    def __init__(self, receiver: Receiver, handle: Handle) -> None:
        self.receiver = receiver
        self.handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            notification, _ = await self.receiver.read(scope, receive)
            await self.receiver._handle(self.handle, notification)
        except Gone:
            return
        except A2AError as error:
            if error.http < 500:
                logger.warning("webhook refused: %s", error)
            headers = [(k.encode(), v.encode()) for k, v in error.headers.items()]
            await _respond(send, error.http, msgspec.json.encode(error.to_http()), headers)
        else:
            await _respond(send, 200, b"{}")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.receiver._stop()
        await send({"type": "lifespan.shutdown.complete"})


class Gone(Exception):
    """The sender disconnected before its request was complete."""


async def _respond(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    kinds = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*kinds, *headers]},
    )
    await send({"type": "http.response.body", "body": body})


def _event(body: bytes) -> Pushed:
    try:
        response = pushed(body)
    except InvalidParams as error:
        ((field, what),) = error.violations
        raise InvalidParams.at("body" if field == "params" else field, what) from None
    held = [getattr(response, name) for name in StreamResponse.__struct_fields__]
    events = [event for event in held if event is not None]
    if len(events) != 1:
        names = ", ".join(StreamResponse.__struct_encode_fields__)
        raise InvalidParams.at("body", f"expected exactly one of {names}")
    return cast(Pushed, events[0])


def _call(handle: Handle, notification: Notification) -> Awaitable[None] | None:
    try:
        return handle(notification)
    except (StopIteration, SystemExit) as odd:  # a future cannot carry these
        raise RuntimeError(f"the handler raised {type(odd).__name__}") from odd


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
