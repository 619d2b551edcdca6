"""httpx without a client on top: sends a POST and reads the response as bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from benchmarks import wire
from benchmarks.clients import driver


class Bare:
    """See `driver.Client`. It only sends."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def send(self, text: str) -> str:
        """See `driver.Client`."""
        got = await self._client.post(self._url, content=wire.send(text), headers=wire.HEADERS)
        return wire.echoed(got.content)


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Bare]:
    """As it comes."""
    async with httpx.AsyncClient() as client:
        yield Bare(client, url)


if __name__ == "__main__":
    driver.run(connect)
