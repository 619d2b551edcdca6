"""A bell between processes: it sends topics over a connection to all replicas.

The listeners of this process are woken at once. For the others, topics are gathered and sent in
batches; a connection that is lost is made again, and then everybody is woken, since rings may have
been missed. Without a connection nothing fails: replicas then look at the pace of the poll.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from dragoman.bells.bell import Listeners
from dragoman.telemetry.logs import logger

NAME = "dragoman"
SIZE = 7_900
"""The most bytes of one word; PostgreSQL takes less than 8,000."""
KEPT = 10_000
"""The most topics that wait to be sent; those beyond are lost."""
PAUSE = 0.002
"""The least time between two batches, in seconds."""
BEAT = 15.0
"""How often a line must have carried a word of ours back to us."""
PATIENCE = 5.0
"""How long connecting may take, or sending."""
PARTING = 1.0
"""How long the last batch may take."""
AGAIN = (0.1, 5.0)
"""The first and the longest pause before connecting again."""

Heard = Callable[[str | bytes], None]
Stir = Callable[[], None]


class Connection(Protocol):
    """One connection, which everything that is sent comes back on, too."""

    @property
    def lost(self) -> bool:
        """Whether it is of no more use."""

    async def send(self, words: Sequence[str]) -> None:
        """Carry words to all who are connected."""

    async def close(self) -> None:
        """Hang up."""


Connect = Callable[[Heard, Stir], Awaitable[Connection]]
"""Makes a connection that hands over each word as it comes, and stirs when it is lost."""


class RemoteBell:
    """A bell over connections that a function makes. `place` is its name in logs."""

    shared = True

    def __init__(self, place: str, connect: Connect) -> None:
        self.listeners = Listeners()
        self._place = place
        self._connect = connect
        self._id = secrets.token_hex(6)
        self._pending: dict[str, None] = {}
        self._runner: asyncio.Task[None] | None = None
        self._stirred = asyncio.Event()
        self._tried = asyncio.Event()
        self._ending = asyncio.Event()
        self._echoed = asyncio.Event()
        self._down = False
        self._oversized = 0

    async def open(self) -> None:
        """Connect; if that fails, go on trying without delaying anybody."""
        self._stirred, self._tried, self._ending, self._echoed = (asyncio.Event() for _ in range(4))
        self._runner = asyncio.create_task(self._run(), name="bell")
        await self._tried.wait()

    async def close(self) -> None:
        """Send what was rung last, and hang up."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self._ending.set()
        self._stirred.set()
        try:
            await asyncio.wait({runner}, timeout=PARTING)
        finally:
            runner.cancel()
            await asyncio.wait({runner})
            self._pending.clear()

    def ring(self, topic: str) -> None:
        """Wake the listeners here, and those elsewhere a little later."""
        self.listeners.wake(topic)
        self.carry(topic)

    def carry(self, topic: str) -> None:
        """Wake the listeners elsewhere."""
        if self._runner is not None and len(self._pending) < KEPT:
            self._pending[topic] = None
            self._stirred.set()

    async def _run(self) -> None:
        """Keep a line until the bell is closed."""
        loop = asyncio.get_running_loop()
        first, most = AGAIN
        pause = first
        while not self._ending.is_set():
            began = loop.time()
            try:
                await self._hold()
            except Exception as error:  # noqa: BLE001 - whatever it is, the poll carries
                self._tell(error)
            self._tried.set()
            pause = first if loop.time() - began > most else min(pause * 2, most)
            await _within(pause * random.uniform(0.5, 1), self._ending.wait())

    async def _hold(self) -> None:
        """One line, from its beginning to its end."""
        async with asyncio.timeout(PATIENCE):
            line = await self._reach()
        try:
            if self._down:
                self._down = False
                logger.info("the connection to the bell at %s is restored", self._place)
            self._tried.set()
            self.listeners.wake_all()
            await self._pull(line)
        finally:
            await _hang_up(line)

    async def _reach(self) -> Connection:
        """A line that has carried a word of ours back to us: from here on we hear the others."""
        line = await self._connect(self._hear, self._stirred.set)
        try:
            self._echoed.clear()
            await line.send([self._id])
            await self._echoed.wait()
        except BaseException:
            await _hang_up(line)
            raise
        return line

    async def _pull(self, line: Connection) -> None:
        """Send what is rung until the bell is closed; an error if the line is lost."""
        loop = asyncio.get_running_loop()
        due = loop.time() + BEAT
        while not line.lost:
            topics, self._pending = self._pending, {}
            words = worded(self._id, topics)
            if loop.time() >= due:
                if not self._echoed.is_set():
                    break
                self._echoed.clear()
                due = loop.time() + BEAT
                words = words or [self._id]
            if words:
                async with asyncio.timeout(PATIENCE):
                    await line.send(words)
            if self._ending.is_set() and not self._pending:
                return
            await asyncio.sleep(PAUSE)
            await _within(due - loop.time(), self._stirred.wait())
            self._stirred.clear()
        raise ConnectionError("the connection was lost")

    def _hear(self, word: str | bytes) -> None:
        """Wake whoever waits on one of the topics; our own have been woken. A word that none of
        us sends is dropped by its length, before anything looks at it."""
        if len(word) > SIZE:
            self._drop(len(word))
            return
        text = word if isinstance(word, str) else word.decode(errors="replace")
        name, *topics = text.split("\n")
        if name == self._id:
            self._echoed.set()
            return
        wake = self.listeners.wake
        for topic in topics:
            wake(topic)

    def _drop(self, size: int) -> None:
        """Count what was too long, and say it the first time."""
        self._oversized += 1
        if self._oversized == 1:
            logger.warning(
                "the bell at %s: another program published %d bytes on this channel; "
                "replicas send at most %d; this and further oversized messages are ignored",
                self._place,
                size,
                SIZE,
            )

    def _tell(self, error: Exception) -> None:
        """Say once that it is gone."""
        if not self._down:
            self._down = True
            logger.warning(
                "cannot connect to the bell at %s; until it is back, replicas check the "
                "store every `poll` seconds: %s",
                self._place,
                str(error) or type(error).__name__,
            )


async def _hang_up(line: Connection) -> None:
    """Close it, whatever has become of it."""
    await asyncio.gather(_within(PARTING, line.close()), return_exceptions=True)


async def _within(seconds: float, waited: Awaitable[object]) -> None:
    """Until it is there, or the time is up."""
    try:
        async with asyncio.timeout(seconds):
            await waited
    except TimeoutError:
        return


def worded(name: str, topics: Iterable[str]) -> list[str]:
    """The topics in as few words as they fit in, each behind the name of who rings."""
    words: list[str] = []
    room = 0
    for topic in topics:
        size = len(topic.encode()) + 1
        if size > room:
            if size > SIZE - len(name):
                continue
            words.append(name)
            room = SIZE - len(name)
        words[-1] += "\n" + topic
        room -= size
    return words


def parted(url: str, sign: str = ".") -> tuple[str, str, str]:
    """A URL without its `prefix`, the channel that this names, and where it leads, for logs."""
    base, mark, query = url.partition("?")
    options = query.split("&") if mark else []
    prefix = "".join(option[7:] for option in options if option.startswith("prefix="))
    if not re.fullmatch(r"[\w-]{0,40}", prefix, re.ASCII):
        raise ValueError(
            f"bell: prefix={prefix!r}: may contain letters, digits, _ and -, at most 40 characters"
        )
    rest = "&".join(option for option in options if not option.startswith("prefix="))
    try:
        found = urlsplit(url)
    except ValueError:  # which may quote the password
        raise ValueError("bell: is not a valid URL") from None
    place = f"{found.scheme}://{found.hostname or ''}"  # nothing else of it is sure to be public
    return base + (rest and f"?{rest}"), NAME + (prefix and sign + prefix), place
