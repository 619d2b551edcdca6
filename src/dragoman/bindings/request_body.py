"""Request bodies: read within limits, and checked before they are decoded.

To decode or encode JSON is one call that nothing can interrupt. So the elements are counted first,
in a thread where a body is large, and one large body or answer is worked on at a time, with pauses
for the others.
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
"""The fewest bytes of a body that must arrive in so many seconds."""
SOON = 0.25
"""A body of which it is not told how much has arrived counts as the largest that may come, after so
many seconds."""
HEAVY = 4096
"""A body with more elements than this is decoded in turn with others of its kind."""
LARGE = 1 << 20
"""A body with more bytes than this, too."""
PIECE = 32 * 1024
"""What is scanned in one call."""
LATELY = 60.0
"""How long it is remembered who had a large answer."""

_encode = msgspec.json.Encoder().encode
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_REST = bytes(set(range(256)) - set(b"[]{},"))
_STEP = [{b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(bytes([n]), 0) for n in range(256)]


class RequestSource(Protocol):
    """What must be known of a request to count its bytes."""

    @property
    def peer(self) -> str:
        """The address that it came from, which may be a proxy's."""

    def every(self, name: bytes) -> str:
        """All lines of a list header, as one."""


class Arriving:
    """A body that has not arrived yet. (What most of them never need is the class's.)"""

    hidden: RequestSource | None = None
    """The request, if nobody is told how much of its body has arrived."""
    size = 0
    """The bytes that have arrived."""
    seen, marked = 0.0, 0
    """When it was last looked at, and how many bytes had arrived then."""
    address = ""
    """Whose budget it counts against, once it is large enough to be counted."""
    counted = 0
    """How many of its bytes are counted in the budget."""
    late = False
    fault: A2AError | None = None

    def __init__(self) -> None:
        self.since = time.monotonic()


class BodyReader:
    """The request bodies that have not arrived or are not decoded yet: one clock for all of them,
    one budget of bytes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.always: Headers = ((b"x-content-type-options", b"nosniff"),)
        """What goes with every answer, and what does over https."""
        age = b"max-age=%d" % settings.hsts
        strict = ((b"strict-transport-security", age),) if settings.hsts else ()
        self.secure: Headers = (*self.always, *strict)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.budget = ByteBudget(settings.max_in_flight)
        self.pace = Pace()
        self.large: dict[str, float] = {}
        """Who has had a large answer lately, and when: the next ones are encoded in turn."""
        self.whole = min(SMALL, settings.max_body)
        """A body that comes whole, and is no larger, is not counted."""
        self._light = HEAVY if settings.max_elements >= HEAVY else -1
        self._depth = settings.max_depth
        self.proxies = Proxies(settings.trusted_proxies)
        self._computing = asyncio.Lock()
        """One at a time: each thread that computes slows the event loop down."""
        self._arriving: dict[asyncio.Task[Any], Arriving] = {}

    def address(self, request: RequestSource) -> str:
        """The address whose budget a request counts against."""
        return client_network(self.proxies.origin(request.peer, request.every(b"x-forwarded-for")))

    async def wait(self, body: Awaitable[R], arriving: Arriving) -> R:
        """The body, or a part of it; TooSlow if it does not arrive in time."""
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
        """More of a body has arrived; errors if too much is under way."""
        arriving.size += size
        if arriving.size > SMALL:
            more = arriving.size - arriving.counted
            arriving.address = arriving.address or self.address(request)
            self.budget.take(arriving.address, more)
            arriving.counted += more

    def decoded(self, arriving: Arriving) -> None:
        """A body is no longer under way."""
        self.budget.give(arriving.address, arriving.counted)

    async def run(self) -> None:
        """Look after them until cancelled."""
        self.loop = asyncio.get_running_loop()
        self.pace, self._computing = Pace(), asyncio.Lock()  # those of this loop
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
        """Whether a body comes too slowly, or cannot be waited for."""
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
        """Whether a body may be decoded without more ado."""
        return len(body) <= self._light and body.count(b"[") + body.count(b"{") <= self._depth

    async def admit(self, body: bytes) -> None:
        """Wait until a body may be decoded, in the step that follows. InvalidRequest if it has too
        many elements or is nested too deeply."""
        depth, elements = self.settings.max_depth, self.settings.max_elements
        if len(body) <= SMALL:
            seen = check(body, depth, elements)
        else:
            seen = await self._count(body, depth, elements)
        if len(body) > LARGE:  # what follows costs as much again: it is stored, and read by a turn
            await self.pace.next(2 * SHARE)
        elif seen > HEAVY:
            await self.pace.next()

    def remember(self, who: str) -> None:
        """Somebody has a large answer."""
        self.large.pop(who, None)
        self.large[who] = time.monotonic()

    async def aside(self, work: Callable[..., R], *arguments: Any) -> R:
        """Have something done in a thread that takes long, but not in one call."""
        async with self._computing:
            return await asyncio.to_thread(work, *arguments)

    async def _count(self, body: bytes, depth: int, elements: int) -> int:
        """The same as `check`, but it lets others have their turn."""
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
    """About how many bytes an answer has: those of texts, files and data."""
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
    """How many elements JSON has, found without parsing it, or a few more. InvalidRequest if it has
    too many, or is nested too deeply."""
    opening = body.count(b"[") + body.count(b"{")
    elements = opening + body.count(b",")
    if opening <= max_depth and elements <= max_elements:
        return elements
    return scan(body, max_depth, max_elements)


def scan(body: bytes, max_depth: int, max_elements: int) -> int:
    """The same, without what is in strings, in many short steps."""
    depth = elements = 0
    for bones in _bones(body):
        elements += bones.count(b"[") + bones.count(b"{") + bones.count(b",")
        if elements > max_elements:
            raise InvalidRequest(
                f"JSON has more than {max_elements} elements; send large data as a file"
            )
        *_, depth = steps = list(accumulate(map(_STEP.__getitem__, bones), initial=depth))
        if max(steps) > max_depth:
            raise InvalidRequest(f"JSON is nested deeper than {max_depth} levels")
    return elements


def _bones(body: bytes) -> Iterator[bytes]:
    """The brackets and commas outside of strings, piece by piece."""
    place = 0
    while place < len(body):
        whole = _WHOLE.match(body, place, place + PIECE)
        end = whole.end() if whole else place
        cleared, strings = _STRING.subn(b"", body[place:end])
        bones = cleared.translate(None, _REST)
        yield bones
        if strings > 2 * len(bones) + 2:  # that is no JSON: the decoder ends here
            return
        place = end
        if body[place : place + 1] == b'"':  # one that goes on behind the piece
            place = _after(body, place + 1)


def _after(body: bytes, place: int) -> int:
    """Where a string ends that has begun before this place."""
    while place < len(body):
        match = _INSIDE.match(body, place, place + PIECE)
        place = match.end() if match else place
        if body[place : place + 1] == b'"':
            return place + 1
        if body[place : place + 1] == b"\\":  # the piece ends within an escape
            place += 2
    return place
