"""Webhooks: each is a reader of one log with a durable cursor, in a line of its own.

A line is taken from the store for a while, its next entries are posted one after the other, and
after each the cursor moves on. What fails is tried again later, by a plan that spans days; what
has failed too often is parked until somebody redrives it. None of it is in the task's own path.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial

from msgspec import Struct

from dragoman._version import __version__
from dragoman.bell import Bell
from dragoman.dialects import v1_0
from dragoman.errors import Unavailable
from dragoman.security import signature
from dragoman.security.egress import Answer, Busy, Egress, Refused, Unreachable
from dragoman.settings import Settings
from dragoman.store import Line, Store
from dragoman.telemetry import logger

BATCH = 64
LONGEST = 24 * 3600.0
"""The longest that a receiver can ask us to wait."""
TOPIC = "push:"


class Failure(Struct, frozen=True):
    """Why a delivery was not taken."""

    reason: str
    final: bool = False
    """There is no use in trying again."""
    after: float = 0.0
    """The receiver's own wish when to come again."""
    counts: bool = True
    """It was tried, and the next pause is longer."""


class Courier:
    """Delivers what waits in the lines of some agents. `run` it until cancelled."""

    def __init__(
        self,
        agents: Collection[str],
        store: Store,
        bell: Bell,
        settings: Settings,
        egress: Egress,
    ) -> None:
        self.agents = agents
        self.store = store
        self.bell = bell
        self.settings = settings
        self.egress = egress
        self.keys = [signature.Key.parse(text) for text in settings.push_keys]
        # longer than a delivery can take, so that a line is never taken twice
        self.lease = 2 * settings.push_timeout + 30
        self._hosts: Counter[str] = Counter()
        self._running = 0

    async def run(self) -> None:
        """Deliver for ever; a failing store is asked again later."""
        with self.bell.ears.listen(*(f"{TOPIC}{key}" for key in self.agents)) as ear:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        more = await self._look(group, ear.wake)
                    except Unavailable as error:
                        more = False
                        logger.error("webhooks could not be looked after: %s", error)
                    if not more:
                        await ear.wait(min(self.settings.poll, 4.0))

    async def _look(self, group: asyncio.TaskGroup, freed: Callable[[], None]) -> bool:
        """Take what is due, as far as there is room; whether there may be more."""
        room = self.settings.push_running - self._running
        if room <= 0:
            return False
        lines = await self.store.dispatch(self.agents, room, self.lease)
        for line in lines:
            host = self._host(line)
            if self._hosts[host] >= self.settings.push_per_host:
                # its host is busy: others must not wait for it
                await self.store.dispatched(line, line.cursor, wait=self.settings.poll)
                continue
            self._hosts[host] += 1
            self._running += 1
            task = group.create_task(self._deliver(line))
            task.add_done_callback(partial(self._left, host, freed))
        return len(lines) == room

    def _host(self, line: Line) -> str:
        try:
            return self.egress.admit(line.webhook.config.url).host
        except Refused:
            return ""

    def _left(self, host: str, freed: Callable[[], None], _: asyncio.Task[None]) -> None:
        self._running -= 1
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]
        freed()

    # -- one line

    async def _deliver(self, line: Line) -> None:
        """Post what the line has waiting, until it is empty or something fails."""
        cursor = line.cursor
        try:
            while True:
                entries = await self.store.read(line.scope, line.task, cursor, BATCH)
                for entry in entries or ():
                    body = v1_0.streamed(entry)
                    if body and (failure := await self._post(line, entry.number, body)):
                        await self._failed(line, cursor, failure)
                        return
                    cursor = entry.number
                    if body and not await self.store.dispatched(line, cursor, wait=self.lease):
                        return  # deleted, or taken over
                if not entries:
                    await self.store.dispatched(line, cursor)
                    return
        except asyncio.CancelledError:
            await asyncio.shield(self.store.dispatched(line, cursor))
            raise
        except Unavailable as error:
            logger.error("webhook %s: %s", line.webhook.config.id, error)  # its lease runs out
        except Exception:
            logger.exception("webhook %s", line.webhook.config.id, extra={"task": line.task})
            failure = Failure("internal error")
            await self._failed(line, cursor, failure)

    async def _post(self, line: Line, number: int, body: bytes) -> Failure | None:
        try:
            answer = await self.egress.post(
                line.webhook.config.url, body, headers=self._headers(line, number, body)
            )
        except Refused as error:
            return Failure(f"refused: {error}", final=True)
        except Busy as error:
            return Failure(str(error), counts=False)
        except Unreachable as error:
            return Failure(str(error))
        return _verdict(answer)

    async def _failed(self, line: Line, cursor: int, failure: Failure) -> None:
        if not failure.counts:
            await self.store.dispatched(line, cursor, wait=self.settings.poll)
            return
        # what came before it was taken, so this one fails for the first time
        attempts = line.attempts if cursor == line.cursor else 0
        plan = self.settings.push_retries
        parked = failure.final or attempts >= len(plan)
        wait = 0.0
        if not parked:
            wait = max(plan[attempts] * random.uniform(0.9, 1.1), failure.after)
        level = logger.warning if parked else logger.info
        level(
            "webhook %s: entry after %d not delivered (%s); %s",
            line.webhook.config.id,
            cursor,
            failure.reason,
            "parked" if parked else f"again in {wait:.0f} s",
            extra={"task": line.task},
        )
        await self.store.dispatched(line, cursor, wait=wait, failed=failure.reason, parked=parked)

    def _headers(self, line: Line, number: int, body: bytes) -> dict[str, str]:
        config = line.webhook.config
        id = delivery(line.task, config.id, number)
        now = int(time.time())
        headers = {
            "content-type": "application/a2a+json",
            "user-agent": f"dragoman/{__version__}",
            signature.ID: id,
            signature.TIMESTAMP: str(now),
        }
        if self.keys:
            headers[signature.SIGNATURE] = signature.sign(self.keys, id, now, body)
        if config.token:
            headers["x-a2a-notification-token"] = config.token
        if config.authentication is not None:
            scheme, credentials = config.authentication.scheme, config.authentication.credentials
            headers["authorization"] = f"{scheme} {credentials}".strip()
        return headers


def delivery(task: str, webhook: str, number: int) -> str:
    """The id of a delivery, the same whenever it is tried."""
    name = f"{task}:{webhook}:{number}".encode()
    return f"msg_{hashlib.sha256(name).hexdigest()[:32]}"


def _verdict(answer: Answer) -> Failure | None:
    """What the receiver's answer means."""
    if 200 <= answer.status < 300:
        return None
    after = 0.0
    wish = answer.headers.get("retry-after", "")
    if wish.isascii() and wish.isdigit():
        after = min(float(wish[:8]), LONGEST)
    return Failure(f"answered {answer.status}", final=answer.status == 410, after=after)
