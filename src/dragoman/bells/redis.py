"""A bell over Redis: one channel that all replicas publish to and subscribe to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dragoman.bells.remote import Connection, Heard, RemoteBell, Stir, parted


class RedisConnection:
    """A connection that publishes, and another one that is subscribed."""

    def __init__(self, client: Redis, channel: str) -> None:
        self._client = client
        self._channel = channel
        self._subscribed: PubSub = client.pubsub()
        self._reading: asyncio.Task[None] | None = None

    async def open(self, heard: Heard, stir: Stir) -> None:
        """Subscribe, and pass on the received messages."""
        await self._subscribed.subscribe(self._channel)
        await self._subscribed.get_message(timeout=None)  # the confirmation
        self._reading = asyncio.create_task(self._read(heard), name="bell of redis")
        self._reading.add_done_callback(lambda _: stir())

    async def _read(self, heard: Heard) -> None:
        async for message in self._subscribed.listen():
            if message["type"] == "message":
                heard(message["data"])

    @property
    def lost(self) -> bool:
        """See `Connection.lost`."""
        return self._reading is None or self._reading.done()

    async def send(self, words: Sequence[str]) -> None:
        """See `Connection.send`."""
        for word in words:
            await self._client.publish(self._channel, word)

    async def close(self) -> None:
        """See `Connection.close`."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        try:
            await self._subscribed.aclose()  # type: ignore[no-untyped-call]
        finally:
            await self._client.aclose()


async def connect(url: str, channel: str, heard: Heard, stir: Stir) -> Connection:
    """Connect to the server."""
    # Without this it would reconnect by itself, and missed rings would go unnoticed.
    client: Redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
    wire = RedisConnection(client, f"{channel}@{database(client)}")
    try:
        await wire.open(heard, stir)
    except BaseException:
        await asyncio.shield(wire.close())
        raise
    return wire


def database(client: Redis) -> Any:
    """The number of the database, because Redis channels are not separated by database."""
    return client.connection_pool.connection_kwargs.get("db", 0)


def bell(url: str) -> RemoteBell:
    """Make the bell of a Redis database. Each number and each `prefix` is a separate bell."""
    url, channel, place = parted(url, ":")
    return RemoteBell(place, partial(connect, url, channel))
