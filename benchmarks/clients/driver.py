"""A client process: does what each line of its input says, and answers `done` or what is wrong.

500 send 16           500 blocking sends, 16 at once
5 stream 100 slow     5 answers to this text, one after the other
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from benchmarks import wire
from benchmarks.load import Broken
from benchmarks.servers import script


class Client(Protocol):
    """Each client in its own idiom. All of them give back what the agent said."""

    async def send(self, text: str) -> str:
        """The text of a completed task."""

    async def stream(self, text: str) -> list[str]:
        """The texts of the chunks of a stream that ended with a completed task."""


def run(connect: Callable[[str], AbstractAsyncContextManager[Client]]) -> None:
    """Connect to the address on the command line and obey until the input ends."""
    asyncio.run(_obey(connect, sys.argv[1]))


async def _obey(connect: Callable[[str], AbstractAsyncContextManager[Client]], url: str) -> None:
    async with connect(url) as client:
        # In a thread: what the server does to idle connections has to be seen.
        while order := await asyncio.to_thread(sys.stdin.readline):
            print(await _done(client, order.split()), flush=True)


async def _done(client: Client, order: list[str]) -> str:
    try:
        match order:
            case [count, "send", at_once]:
                await _send(client, int(count), int(at_once))
            case [count, *text]:
                await _stream(client, int(count), " ".join(text))
    except Exception as error:  # noqa: BLE001 - whatever it is, the figures would be worthless
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "done"


async def _send(client: Client, count: int, at_once: int) -> None:
    left = iter(range(count))

    async def one() -> None:
        for _ in left:
            _same(await client.send(wire.ECHO), wire.ECHO)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one())


async def _stream(client: Client, count: int, text: str) -> None:
    expected = list(script.chunks(script.read(text)))
    for _ in range(count):
        _same(await client.stream(text), expected)


def _same(found: object, expected: object) -> None:
    if found != expected:
        raise Broken(f"{str(found)[:200]} instead of {str(expected)[:200]}")
