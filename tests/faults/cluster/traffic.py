"""Clients of the cluster: sends, streams, follow-ups, cancels and webhooks, over whichever replica
comes next. They do not give up, either."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from dragoman.model.events import RESUME
from tests.faults.crash.checker import ENDS, Ack, Frame, Send
from tests.faults.crash.load import LANES, Down, Load, Reach
from tests.faults.crash.server_process import GONE, frames
from tests.harness.webhooks import Inbox

AWAY = 0.05
"""How long to wait before another try."""
HOOK = "hook"


@dataclass
class Letter(Send):
    """A message of these tests."""

    verb: str = ""
    task: str = ""
    """The task that it follows up, if any."""
    cancel: bool = False
    """Its task is canceled some time after."""
    hooked: bool = False
    """A webhook follows its task."""
    follow: Letter | None = None
    """What is said when the agent asks, or, to a stream, while it still runs."""
    refused: bool = False
    """It came too late."""

    @property
    def text(self) -> str:
        """See `Send.text`."""
        return f"{self.key} {self.chunks} {self.pause} {self.verb}".strip()


class Traffic(Load):
    """Sends and streams of all kinds: so many, and more for as long as something goes on."""

    def __init__(
        self,
        chance: random.Random,
        *,
        sends: int,
        streams: int,
        abreast: int,
        pause: float = 0.0,
        name: str = "",
    ) -> None:
        super().__init__(chance, sends=0, streams=0)
        self._wanted = (sends, streams)
        self._lanes = (LANES if sends else 0, abreast)
        self._pause = pause
        self._name = name

    async def until(self, reach: Reach, over: asyncio.Future[Any], within: float) -> bool:
        """Until it is over, and all is answered; False if that took too long."""
        sends = self._more_of(self.sends, self._wanted[0], over, self._letter, f"{self._name}s")
        streams = self._more_of(self.streams, self._wanted[1], over, self._long, f"{self._name}t")
        with suppress(TimeoutError):
            async with asyncio.timeout(within), asyncio.TaskGroup() as group:
                for _ in range(self._lanes[0]):
                    group.create_task(self._lane(reach, sends))
                for _ in range(self._lanes[1]):
                    group.create_task(self._streams(reach, streams))
        return self.answered == len(self.all)

    def _more_of(
        self,
        known: list[Send],
        least: int,
        over: asyncio.Future[Any],
        make: Callable[[str], Letter],
        name: str,
    ) -> Iterator[Send]:
        while len(known) < least or not over.done():
            known.append(make(f"{name}{len(known)}"))
            yield known[-1]

    async def _streams(self, reach: Reach, streams: Iterator[Send]) -> None:
        for send in streams:
            await self._follow(reach, send)

    def _letter(self, key: str) -> Letter:
        chance = self.chance
        letter = Letter(key, chance.randint(1, 4), chance.choice((0, 0, 0.02, 0.1)))
        letter.blocking = chance.random() < 0.5
        letter.hooked = chance.random() < 0.2
        kind = chance.random()
        if kind < 0.15:
            letter.verb, letter.blocking = "ask", True
            letter.follow = Letter(f"{key}f", 2, 0.01)
        elif kind < 0.25:
            letter.cancel, letter.blocking = True, False
            letter.chunks, letter.pause = 40, 0.05
        return letter

    def _long(self, key: str) -> Letter:
        chance = self.chance
        letter = Letter(key, chance.randint(40, 80), chance.uniform(0.01, 0.05))
        letter.hooked = chance.random() < 0.3
        if chance.random() < 0.3:
            letter.follow = Letter(f"{key}f", 5, 0.01, blocking=False)
        return letter

    @property
    def letters(self) -> list[Letter]:
        """All that was said."""
        found: list[Letter] = [*self.sends, *self.streams]  # type: ignore[list-item]
        return [*found, *(letter.follow for letter in found if letter.follow is not None)]

    async def _insist(self, reach: Reach, send: Send) -> None:
        assert isinstance(send, Letter)
        await asyncio.sleep(self.chance.uniform(0, self._pause))
        await super()._insist(reach, send)
        if send.follow is not None and not send.follow.acks:
            send.follow.task = send.acks[0].task
            await super()._insist(reach, send.follow)
        if send.cancel:
            assert isinstance(reach, Front)
            await self._cancel(reach, send)

    async def _cancel(self, reach: Front, send: Send) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        while True:
            try:
                if (ack := await reach.cancel(send.acks[0].task)) is not None:
                    send.acks.append(ack)
                return
            except Down:
                await reach.up()

    async def _follow(self, reach: Reach, send: Send) -> None:
        assert isinstance(send, Letter)
        more = asyncio.create_task(self._more(reach, send))
        try:
            await super()._follow(reach, send)
            await more
        finally:
            more.cancel()

    async def _more(self, reach: Reach, send: Letter) -> None:
        if send.follow is None:
            return
        while not send.acks:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        send.follow.task = send.acks[0].task
        await super()._insist(reach, send.follow)


@dataclass
class Front:
    """The way in, as a client sees it."""

    url: str
    http: aiohttp.ClientSession
    chance: random.Random
    inbox: Inbox
    answers: list[float] = field(default_factory=list)
    """When each of the answers came."""
    open: int = 0
    """How many streams are open now, with something seen."""
    down: int = 0
    """How often it was of no use."""
    failed: list[str] = field(default_factory=list)
    """What became of the requests, but for streams, that were not answered."""

    async def up(self) -> None:
        """See `Reach.up`."""
        self.down += 1
        await asyncio.sleep(AWAY)

    async def send(self, send: Send) -> Ack:
        """See `Reach.send`. What comes too late is answered with the task that it was for."""
        assert isinstance(send, Letter)
        status, found = await self.post("/message:send", self._body(send), send.key)
        if send.task and 400 <= status < 500:
            send.refused = True
            return Ack(send.task, "")
        assert status == 200, found
        return Ack(found["task"]["id"], found["task"]["status"]["state"])

    async def cancel(self, task: str) -> Ack | None:
        """Cancel a task; None if it has ended otherwise."""
        status, found = await self.post(f"/tasks/{task}:cancel", {}, "")
        if 400 <= status < 500:
            return None
        assert status == 200, found
        return Ack(found["id"], found["status"]["state"])

    async def post(self, path: str, body: Any, key: str) -> tuple[int, Any]:
        """Ask, and read the answer: its status and content."""
        headers = {"Idempotency-Key": key} if key else {}
        try:
            async with self.http.post(self.url + path, json=body, headers=headers) as response:
                found = await response.json(content_type=None)
        except (*GONE, ValueError) as error:
            self.failed.append(repr(error))
            raise Down from error
        if response.status == 503:
            self.failed.append(str(found))
            raise Down
        self.answers.append(time.monotonic())
        return response.status, found

    async def stream(
        self, send: Send, task: str, after: int | None
    ) -> AsyncIterator[tuple[str, Frame]]:
        """See `Reach.stream`."""
        assert isinstance(send, Letter)
        headers = {"A2A-Extensions": RESUME}
        if after is not None:
            headers["Last-Event-ID"] = f"{task}:{after}"
        if after is not None and self.chance.random() < 0.5:
            asking = self.http.get(f"{self.url}/tasks/{task}:subscribe", headers=headers)
        else:
            headers["Idempotency-Key"] = send.key
            body = self._body(send)
            asking = self.http.post(f"{self.url}/message:stream", json=body, headers=headers)
        try:
            async with asking as response:
                if response.status == 503:
                    raise Down
                assert response.status == 200, await response.text()
                over = False
                with self._opened():
                    async for name, event in frames(response.content):
                        if "error" in event:  # it says so, where it can
                            assert event["error"]["code"] == 503, event
                            raise Down
                        over = _state(event) in ENDS
                        task, _, number = name.rpartition(":")
                        yield task, Frame(int(number), event)
                if not over:  # a replica that goes away in order ends its streams where they are
                    raise Down
        except (*GONE, asyncio.IncompleteReadError) as error:
            raise Down from error

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def _body(self, send: Letter) -> Any:
        message = {"messageId": send.key, "role": "ROLE_USER", "parts": [{"text": send.text}]}
        if send.task:
            message["taskId"] = send.task
        configuration: dict[str, Any] = {"returnImmediately": not send.blocking}
        if send.hooked:
            configuration["taskPushNotificationConfig"] = {"id": HOOK, "url": self.inbox.url}
        return {"message": message, "configuration": configuration}


def _state(event: Any) -> str:
    """The state that an event tells, if it does."""
    found = event.get("task") or event.get("statusUpdate") or {}
    state: str = found.get("status", {}).get("state", "")
    return state


class Moody(Inbox):
    """A receiver that now and then takes nothing."""

    chance = random.Random()
    fails = 0.1
    well: list[bool]
    """Whether each of the posts was taken."""

    def __init__(self) -> None:
        self.well = []
        super().__init__()

    @property  # type: ignore[override]
    def always(self) -> int:
        """How the post that has just come is answered."""
        self.well.append(self.chance.random() >= self.fails)
        return 200 if self.well[-1] else 500

    @always.setter
    def always(self, _: int | bytes) -> None:
        return
