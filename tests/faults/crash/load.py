"""Clients that do not give up: every send is repeated until it is answered, every stream is taken
up again where it broke off. What they saw is what the checker reads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Protocol

from tests.faults.crash.checker import ENDS, Ack, Frame, Send, Sight

LANES = 16
"""How many sends are under way at once."""


class Down(Exception):
    """The server has gone away, or cannot serve now."""


class Reach(Protocol):
    """A way to a server that comes and goes."""

    async def send(self, send: Send) -> Ack:
        """Send, and wait for the answer."""

    def stream(self, send: Send, task: str, after: int | None) -> AsyncIterator[tuple[str, Frame]]:
        """The events of a task, and its id: send it, or with an `after` go on from there."""

    async def up(self) -> None:
        """Wait until it is worth another try."""


class Load:
    """So many sends and streams, and how far they have come."""

    def __init__(
        self,
        chance: random.Random,
        *,
        sends: int,
        streams: int,
        abreast: int = 20,
        chunks: int = 60,
        pause: float = 0.015,
    ) -> None:
        self.chance = chance
        self.sends = [
            Send(f"s{n}", chance.randint(1, 4), chance.choice((0, 0, 0.005)), chance.random() < 0.5)
            for n in range(sends)
        ]
        self.streams = [
            Send(f"t{n}", chance.randint(chunks // 2, chunks), chance.uniform(0, pause))
            for n in range(streams)
        ]
        self.answered = 0
        """How many have come to their end."""
        self._abreast = asyncio.Semaphore(abreast)
        self._moved = asyncio.Condition()

    @property
    def all(self) -> Sequence[Send]:
        """What was sent."""
        return [*self.sends, *self.streams]

    async def run(self, reach: Reach, within: float) -> bool:
        """Until all is answered; False if that took too long."""
        queue = iter(self.sends)
        with suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as group:
                for _ in range(LANES):
                    group.create_task(self._lane(reach, queue))
                for send in self.streams:
                    group.create_task(self._follow(reach, send))
        return self.answered == len(self.all)

    async def reached(self, answered: int) -> None:
        """Wait until so many are answered."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.answered >= answered)

    async def _lane(self, reach: Reach, queue: AsyncIterator[Send]) -> None:
        for send in queue:
            copies = 2 if self.chance.random() < 0.2 else 1
            await asyncio.gather(*(self._insist(reach, send) for _ in range(copies)))
            if self.chance.random() < 0.1:
                await self._insist(
                    reach, self.chance.choice(self.sends[: self.sends.index(send) + 1])
                )
            await self._tell()

    async def _insist(self, reach: Reach, send: Send) -> None:
        while True:
            try:
                send.acks.append(await reach.send(send))
                return
            except Down:
                await reach.up()

    async def _follow(self, reach: Reach, send: Send) -> None:
        async with self._abreast:
            task, after = "", None
            for _ in count():
                sight = Sight(after)
                send.sights.append(sight)
                try:
                    async for name, frame in reach.stream(send, task, after):
                        task = name
                        sight.frames.append(frame)
                        if after is None:
                            send.acks.append(Ack(task, ""))
                        after = frame.number
                    sight.whole = True
                    break
                except Down:
                    await reach.up()
            if sight.frames:
                state = sight.frames[-1].event.get("statusUpdate", {}).get("status", {})
                send.acks.append(Ack(task, state.get("state", "")))
        await self._tell()

    async def _tell(self) -> None:
        self.answered += 1
        async with self._moved:
            self._moved.notify_all()


def ended(sends: Sequence[Send]) -> int:
    """How many of them were told their end."""
    return sum(any(ack.state in ENDS for ack in send.acks) for send in sends)
