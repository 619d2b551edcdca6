"""Reads request bodies within limits, and checks them before they are decoded.

Decoding or encoding JSON is one call that blocks the event loop. So the reader counts the elements
first, in a thread if the body is large, and it admits one large body or response at a time, with
pauses in which other requests run.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from dragoman.model.errors import A2AError, InvalidRequest, TooSlow
from dragoman.model.types import ListTasksResponse, SendMessageResponse, Task
from dragoman.security.byte_budget import SMALL, ByteBudget
from dragoman.security.client_network import client_network
from dragoman.security.limits import Proxies
from dragoman.server.loop_pacing import SHARE, Pace
from dragoman.server.settings import Settings

R = TypeVar("R")
Headers = Iterable[tuple[bytes, bytes]]

SLOWEST, WINDOW = 4096, 5.0
"""A body must send at least SLOWEST bytes in each WINDOW of seconds."""
SOON = 0.25
"""After this many seconds, a gRPC body that is still arriving counts as one of the maximum size,
because gRPC does not say how much of it has arrived."""
HEAVY = 4096
"""Bodies with more elements than this are decoded one after another."""
LARGE = 1 << 20
"""Bodies with more bytes than this, too."""
PIECE = 32 * 1024
"""The bytes that one call of the scanner reads."""
LATELY = 60.0
"""Seconds for which a caller is remembered after a large response."""

_encode = msgspec.json.Encoder().encode
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_REST = bytes(set(range(256)) - set(b"[]{},"))
_STEP = [{b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(bytes([n]), 0) for n in range(256)]


class RequestSource(Protocol):
    """The parts of a request that name its client, whose byte budget the body uses."""

    @property
    def peer(self) -> str:
        """The address at the other end of the connection, which may be a proxy."""

    def every(self, name: bytes) -> str:
        """Return all values of a list header, joined by commas."""


class Arriving:
    """A body that has not fully arrived. Defaults are class attributes, because most bodies never
    change them."""

    hidden: RequestSource | None = None
    """The request, if the transport does not say how much of the body has arrived."""
    size = 0
    """The bytes that have arrived."""
    seen, marked = 0.0, 0
    """When the speed was last checked, and the size at that time."""
    address = ""
    """The address whose budget the body uses, once it is large enough to be counted."""
    counted = 0
    """The bytes that are counted in the budget."""
    late = False
    fault: A2AError | None = None

    def __init__(self) -> None:
        self.since = time.monotonic()


class BodyReader:
    """The request bodies of an application that are arriving or being decoded. One timer and one
    byte budget cover all of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.always: Headers = ((b"x-content-type-options", b"nosniff"),)
        """Headers of every response; `secure` are those of responses over https."""
        age = b"max-age=%d" % settings.hsts
        strict = ((b"strict-transport-security", age),) if settings.hsts else ()
        self.secure: Headers = (*self.always, *strict)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.budget = ByteBudget(settings.max_in_flight)
        self.pace = Pace()
        self.large: dict[str, float] = {}
        """The callers that recently got a large response, and when. Their next responses are
        encoded one after another."""
        self.uncounted = min(SMALL, settings.max_body)
        """The maximum size of a body that is not counted if it arrives in one message."""
        self._light = HEAVY if settings.max_elements >= HEAVY else -1
        self._depth = settings.max_depth
        self.proxies = Proxies(settings.trusted_proxies)
        self._computing = asyncio.Lock()
        """Allows one worker thread at a time, because each slows the event loop down."""
        self._arriving: dict[asyncio.Task[Any], Arriving] = {}

    def address(self, request: RequestSource) -> str:
        """Return the address whose budget a request uses."""
        return client_network(self.proxies.origin(request.peer, request.every(b"x-forwarded-for")))

    async def wait(self, body: Awaitable[R], arriving: Arriving) -> R:
        """Await a body or a part of it. Raises TooSlow if it does not arrive in time."""
        task = asyncio.current_task(self.loop)
        assert task is not None
        self._arriving[task] = arriving
        try:
            return await body
        except asyncio.CancelledError:
            if not arriving.late or task.uncancel():
                raise
            raise arriving.fault or TooSlow("The body did not arrive in time") from None
        finally:
            del self._arriving[task]

    def came(self, arriving: Arriving, size: int, request: RequestSource) -> None:
        """Count more bytes of a body. Raises A2AError if too many bytes are in flight."""
        arriving.size += size
        if arriving.size > SMALL:
            more = arriving.size - arriving.counted
            arriving.address = arriving.address or self.address(request)
            self.budget.take(arriving.address, more)
            arriving.counted += more

    def decoded(self, arriving: Arriving) -> None:
        """Stop counting the bytes of a body."""
        self.budget.give(arriving.address, arriving.counted)

    async def run(self) -> None:
        """Cancel bodies that arrive too slowly, until cancelled."""
        self.loop = asyncio.get_running_loop()
        self.pace, self._computing = Pace(), asyncio.Lock()  # they belong to one event loop
        limit = self.settings.request_timeout
        while True:
            await asyncio.sleep(min(SOON, limit / 2))
            now = time.monotonic()
            while self.large and now - next(iter(self.large.values())) > LATELY:
                del self.large[next(iter(self.large))]
            for task, body in list(self._arriving.items()):
                if not body.late and (now - body.since > limit or self._slow(body, now)):
                    body.late = True
                    task.cancel()

    def _slow(self, body: Arriving, now: float) -> bool:
        """Whether a body arrives too slowly, or exceeds the byte budget."""
        if body.hidden is not None:
            if not body.counted and now - body.since > SOON:
                try:
                    self.came(body, self.settings.max_body, body.hidden)
                except A2AError as error:
                    body.fault = error
            return body.fault is not None
        if now - (body.seen or body.since) <= WINDOW:
            return False
        slow = body.size - body.marked < SLOWEST
        body.seen, body.marked = now, body.size
        return slow

    def light(self, body: bytes) -> bool:
        """Whether a body is small enough to decode without further checks."""
        return len(body) <= self._light and body.count(b"[") + body.count(b"{") <= self._depth

    async def admit(self, body: bytes) -> None:
        """Wait until a body may be decoded; the caller must decode it before its next await. Raises
        InvalidRequest if the body has too many elements or is nested too deeply."""
        depth, elements = self.settings.max_depth, self.settings.max_elements
        if len(body) <= SMALL:
            seen = check(body, depth, elements)
        else:
            seen = await self._count(body, depth, elements)
        if len(body) > LARGE:  # storing it and reading it in a turn cost as much again
            await self.pace.next(2 * SHARE)
        elif seen > HEAVY:
            await self.pace.next()

    def remember(self, caller: str) -> None:
        """Record that a caller got a large response."""
        self.large.pop(caller, None)
        self.large[caller] = time.monotonic()

    async def aside(self, work: Callable[..., R], *arguments: Any) -> R:
        """Run a slow function in a thread. It must not hold the GIL in one long call."""
        async with self._computing:
            return await asyncio.to_thread(work, *arguments)

    async def _count(self, body: bytes, depth: int, elements: int) -> int:
        """Like `check`, but yields to the event loop between pieces."""
        opening = commas = 0
        for start in range(0, len(body), LARGE):
            end = start + LARGE
            opening += body.count(b"[", start, end) + body.count(b"{", start, end)
            commas += body.count(b",", start, end)
            if opening > depth or opening + commas > elements:
                return await self.aside(scan, body, depth, elements)
            await asyncio.sleep(0)
        return opening + commas


def bulk(answer: object) -> int:
    """Estimate the size of an answer: the bytes of its texts, files and data."""
    if type(answer) is SendMessageResponse:
        answer = answer.task
    if type(answer) is ListTasksResponse:
        return sum(map(bulk, answer.tasks))
    size = 0
    if type(answer) is Task:
        for holder in (*answer.history, *answer.artifacts):
            for part in holder.parts:  # type: ignore[attr-defined]
                data = b"" if part.data is UNSET else _encode(part.data)
                size += len(part.text or part.raw or data)
    return size


def check(body: bytes, max_depth: int, max_elements: int) -> int:
    """Return an upper bound for the number of elements of a JSON text, without parsing it. Raises
    InvalidRequest if it has too many, or is nested too deeply."""
    opening = body.count(b"[") + body.count(b"{")
    elements = opening + body.count(b",")
    if opening <= max_depth and elements <= max_elements:
        return elements
    return scan(body, max_depth, max_elements)


def scan(body: bytes, max_depth: int, max_elements: int) -> int:
    """Like `check`, but exact, because it skips strings. It runs in many short steps."""
    depth = elements = 0
    for structure in _structure(body):
        elements += structure.count(b"[") + structure.count(b"{") + structure.count(b",")
        if elements > max_elements:
            raise InvalidRequest(
                f"JSON has more than {max_elements} elements; send large data as a file"
            )
        *_, depth = steps = list(accumulate(map(_STEP.__getitem__, structure), initial=depth))
        if max(steps) > max_depth:
            raise InvalidRequest(f"JSON is nested deeper than {max_depth} levels")
    return elements


def _structure(body: bytes) -> Iterator[bytes]:
    """Yield the brackets and commas outside of strings, piece by piece."""
    place = 0
    while place < len(body):
        whole = _WHOLE.match(body, place, place + PIECE)
        end = whole.end() if whole else place
        cleared, strings = _STRING.subn(b"", body[place:end])
        structure = cleared.translate(None, _REST)
        yield structure
        if strings > 2 * len(structure) + 2:  # this is not JSON, so the decoder stops here
            return
        place = end
        if body[place : place + 1] == b'"':  # a string continues after the piece
            place = _string_end(body, place + 1)


def _string_end(body: bytes, place: int) -> int:
    """Return the position after a string that began before `place`."""
    while place < len(body):
        match = _INSIDE.match(body, place, place + PIECE)
        place = match.end() if match else place
        if body[place : place + 1] == b'"':
            return place + 1
        if body[place : place + 1] == b"\\":  # the piece ends within an escape
            place += 2
    return place
