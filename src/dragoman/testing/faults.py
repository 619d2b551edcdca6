"""Faults for tests: a network that loses and duplicates requests, and a bell that never rings."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

from dragoman.bells.bell import Listeners
from dragoman.client.transport import Transport, TransportRequest, TransportResponse, Unreachable

HOLD = 0.05
"""The most seconds that a request is held back so that another can overtake it."""


class FaultyTransport:
    """A transport that fails like a network, at random from `seed`: `drop` loses a request before
    or after it has arrived, `delay` holds each back (at most this many seconds), `duplicate`
    delivers one twice, `reorder` lets the next one overtake, and `cut` breaks a response off.
    `done` counts the faults."""

    def __init__(
        self,
        transport: Transport,
        *,
        seed: int = 0,
        drop: float = 0.0,
        delay: float = 0.0,
        duplicate: float = 0.0,
        reorder: float = 0.0,
        cut: float = 0.0,
    ) -> None:
        self._transport = transport
        self._chance = random.Random(seed)
        self._drop, self._delay, self._duplicate = drop, delay, duplicate
        self._reorder, self._cut = reorder, cut
        self._overtaken: asyncio.Event | None = None
        self.done = {"drop": 0, "duplicate": 0, "reorder": 0, "cut": 0}

    async def send(self, request: TransportRequest) -> TransportResponse:
        """See `Transport.send`."""
        if self._delay:
            await asyncio.sleep(self._chance.uniform(0, self._delay))
        if self._happens("reorder", self._reorder):
            await self._hold()
        lost = self._happens("drop", self._drop)
        if lost and self._chance.random() < 0.5:
            raise Unreachable("the request was lost")
        if self._happens("duplicate", self._duplicate):
            await (await self._transport.send(request)).close()
        response = await self._transport.send(request)
        if self._overtaken is not None:
            self._overtaken.set()
        if lost:
            await response.close()
            raise Unreachable("the response was lost")
        if self._chance.random() < self._cut:
            return Cut(response, self._chance.randrange(1, 2000), self.done)
        return response

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._transport.close()

    def _happens(self, what: str, share: float) -> bool:
        happens = self._chance.random() < share
        self.done[what] += happens
        return happens

    async def _hold(self) -> None:
        self._overtaken = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD):
                await self._overtaken.wait()


class Cut:
    """A response that breaks off after this many bytes, if it is that long."""

    def __init__(self, response: TransportResponse, left: int, done: dict[str, int]) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._left = left
        self._done = done

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `TransportResponse.chunks`."""
        async for chunk in self._response.chunks():
            if len(chunk) > self._left:
                if self._left:
                    yield chunk[: self._left]
                self._done["cut"] += 1
                raise Unreachable("the response ended early")
            self._left -= len(chunk)
            yield chunk

    async def close(self) -> None:
        """See `TransportResponse.close`."""
        await self._response.close()


class Deaf(Listeners):
    """Listeners that receive the poll, which wakes the readers of a task, but no calls for
    workers."""

    def wake(self, topic: str) -> None:
        """See `Listeners.wake`."""
        if ":" not in topic:
            super().wake(topic)


class SilentBell:
    """A bell that never rings: everything must still work, at the pace of the poll."""

    shared = False

    def __init__(self) -> None:
        self.listeners = Deaf()

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def ring(self, topic: str) -> None:
        """Do nothing."""

    def carry(self, topic: str) -> None:
        """Do nothing."""
