"""What a program of this folder is told, and how it answers. Imports nothing but Python's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

STEPS = 5


async def obey(work: Callable[[int], Awaitable[int]]) -> None:
    """Do what the input says until it ends."""
    print("ready", flush=True)
    while order := await asyncio.to_thread(sys.stdin.readline):
        count, abreast = map(int, order.split())
        print(await _done(work, count, abreast), flush=True)


async def _done(work: Callable[[int], Awaitable[int]], count: int, abreast: int) -> str:
    left = iter(range(count))

    async def lane() -> None:
        for number in left:
            found = await work(number)
            if found != number + STEPS:
                raise ValueError(f"{found} instead of {number + STEPS}")

    try:
        await asyncio.gather(*(lane() for _ in range(abreast)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the figures would be worthless
        return f"{type(error).__name__}: {error}".replace("\n", " ")
    return "done"
