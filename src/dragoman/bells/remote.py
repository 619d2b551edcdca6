"""A bell between processes: it sends topics over a connection to all replicas.

It wakes the listeners of this process at once. For other processes, it collects topics and sends
them in batches. It reconnects when the connection is lost, and then wakes all listeners, because
rings may have been missed. Without a connection nothing fails: replicas find changes by polling.
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
"""The most bytes of one message; PostgreSQL allows less than 8,000."""
KEPT = 10_000
"""The most topics that wait to be sent; further ones are lost."""
PAUSE = 0.002
"""The least seconds between two batches."""
BEAT = 15.0
"""How many seconds may pass until a connection must have returned one of our messages."""
PATIENCE = 5.0
"""Seconds that connecting or sending may take."""
PARTING = 1.0
"""Seconds that the last batch may take."""
AGAIN = (0.1, 5.0)
"""The first and the longest pause before a reconnect."""

Heard = Callable[[str | bytes], None]
Stir = Callable[[], None]


class Connection(Protocol):
    """A connection that also receives everything that it sends."""

    @property
    def lost(self) -> bool:
        """Whether it cannot be used any more."""

    async def send(self, words: Sequence[str]) -> None:
        """Send messages to all subscribers."""

    async def close(self) -> None:
        """Close the connection."""


Connect = Callable[[Heard, Stir], Awaitable[Connection]]
"""Makes a connection that passes on each message, and calls `stir` when it is lost."""


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
        """Connect. If that fails, keep trying in the background."""
        self._stirred, self._tried, self._ending, self._echoed = (asyncio.Event() for _ in range(4))
        self._runner = asyncio.create_task(self._run(), name="bell")
        await self._tried.wait()

    async def close(self) -> None:
        """Send the last rings, and disconnect."""
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
        """Wake the listeners of this process now, and those of the other processes a little
        later."""
        self.listeners.wake(topic)
        self.carry(topic)

    def carry(self, topic: str) -> None:
        """Wake the listeners of other processes."""
        if self._runner is not None and len(self._pending) < KEPT:
            self._pending[topic] = None
            self._stirred.set()

    async def _run(self) -> None:
        """Keep a connection until the bell is closed."""
        loop = asyncio.get_running_loop()
        first, most = AGAIN
        pause = first
        while not self._ending.is_set():
            began = loop.time()
            try:
                await self._use_connection()
            except Exception as error:  # noqa: BLE001 - after any error, the poll still works
                self._log_lost(error)
            self._tried.set()
            pause = first if loop.time() - began > most else min(pause * 2, most)
            await _wait(pause * random.uniform(0.5, 1), self._ending.wait())

    async def _use_connection(self) -> None:
        """Use one connection, from its start to its end."""
        async with asyncio.timeout(PATIENCE):
            line = await self._connected()
        try:
            if self._down:
                self._down = False
                logger.info("the connection to the bell at %s is restored", self._place)
            self._tried.set()
            self.listeners.wake_all()
            await self._send_topics(line)
        finally:
            await _close_quietly(line)

    async def _connected(self) -> Connection:
        """Connect, and wait until the connection has returned a message of ours: from then on we
        receive the others' messages."""
        line = await self._connect(self._receive, self._stirred.set)
        try:
            self._echoed.clear()
            await line.send([self._id])
            await self._echoed.wait()
        except BaseException:
            await _close_quietly(line)
            raise
        return line

    async def _send_topics(self, line: Connection) -> None:
        """Send topics until the bell is closed. Raises an error if the connection is lost."""
        loop = asyncio.get_running_loop()
        due = loop.time() + BEAT
        while not line.lost:
            topics, self._pending = self._pending, {}
            words = packed(self._id, topics)
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
            await _wait(due - loop.time(), self._stirred.wait())
            self._stirred.clear()
        raise ConnectionError("the connection was lost")

    def _receive(self, word: str | bytes) -> None:
        """Wake the listeners of the topics in a message; those of our own messages are already
        awake. A message that is longer than any of ours is dropped before it is parsed."""
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
        """Count the messages that were too long, and log the first one."""
        self._oversized += 1
        if self._oversized == 1:
            logger.warning(
                "the bell at %s: another program published %d bytes on this channel; "
                "replicas send at most %d; this and further oversized messages are ignored",
                self._place,
                size,
                SIZE,
            )

    def _log_lost(self, error: Exception) -> None:
        """Log once that the connection is lost."""
        if not self._down:
            self._down = True
            logger.warning(
                "cannot connect to the bell at %s; until it is back, replicas check the "
                "store every `poll` seconds: %s",
                self._place,
                str(error) or type(error).__name__,
            )


async def _close_quietly(line: Connection) -> None:
    """Close the connection, in any state."""
    await asyncio.gather(_wait(PARTING, line.close()), return_exceptions=True)


async def _wait(seconds: float, waited: Awaitable[object]) -> None:
    """Wait, at most this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await waited
    except TimeoutError:
        return


def packed(name: str, topics: Iterable[str]) -> list[str]:
    """Pack the topics into as few messages as possible, each with the sender's name first."""
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
    """Return a URL without its `prefix`, the channel name, and the address for logs."""
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
    except ValueError:  # its text may contain the password
        raise ValueError("bell: is not a valid URL") from None
    place = f"{found.scheme}://{found.hostname or ''}"  # the rest may be secret
    return base + (rest and f"?{rest}"), NAME + (prefix and sign + prefix), place
