"""dragoman's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.clients import driver
from dragoman.client import Client
from dragoman.model.types import TaskArtifactUpdateEvent, TaskState


class Dragoman:
    """See `driver.Client`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def send(self, text: str) -> str:
        """See `driver.Client`."""
        result = await self._client.send(text)
        assert result.state is TaskState.COMPLETED
        return result.text

    async def stream(self, text: str) -> list[str]:
        """See `driver.Client`."""
        found = []
        async with self._client.stream(text) as stream:
            async for event in stream:
                if isinstance(event, TaskArtifactUpdateEvent):
                    found.append(event.artifact.parts[0].text)
        assert stream.result.state is TaskState.COMPLETED
        return found


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Dragoman]:
    """As it comes, held to JSON-RPC."""
    async with Client.connect(url, bindings=["JSONRPC"]) as client:
        yield Dragoman(client)


if __name__ == "__main__":
    driver.run(connect)
