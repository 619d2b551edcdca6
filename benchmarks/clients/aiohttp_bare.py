"""aiohttp without a client on top: sends a POST and reads the response as bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from benchmarks import wire
from benchmarks.clients import driver


class Bare:
    """See `driver.Client`. It only sends."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(self, text: str) -> str:
        """See `driver.Client`."""
        async with self._session.post(self._url, data=wire.send(text), headers=wire.HEADERS) as got:
            return wire.echoed(await got.read())


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Bare]:
    """As it comes."""
    async with aiohttp.ClientSession() as session:
        yield Bare(session, url)


if __name__ == "__main__":
    driver.run(connect)
