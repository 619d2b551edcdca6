"""A bell over NATS: one subject that all replicas publish to and subscribe to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from nats.aio.client import Client
from nats.aio.msg import Msg

from dragoman.bells.remote import Connection, Heard, RemoteBell, Stir, parted


class NatsConnection:
    """A connection that subscribes and publishes."""

    def __init__(self, client: Client, subject: str) -> None:
        self._client = client
        self._subject = subject

    @property
    def lost(self) -> bool:
        """See `Connection.lost`."""
        return self._client.is_closed

    async def send(self, words: Sequence[str]) -> None:
        """See `Connection.send`."""
        for word in words:
            await self._client.publish(self._subject, word.encode())

    async def close(self) -> None:
        """See `Connection.close`."""
        await self._client.close()


async def connect(urls: Sequence[str], subject: str, heard: Heard, stir: Stir) -> Connection:
    """Connect to one of the servers."""
    client = Client()
    wire = NatsConnection(client, subject)

    async def hear(message: Msg) -> None:
        heard(message.data)

    async def closed() -> None:
        stir()

    async def wrong(error: Exception) -> None:
        """Ignore the error: the state of the connection shows it."""

    try:
        await client.connect(
            list(urls),
            name="dragoman bell",
            error_cb=wrong,
            closed_cb=closed,
            # Without this it would reconnect by itself, and missed rings would go unnoticed.
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
        )
        await client.subscribe(subject, cb=hear)
    except BaseException:
        await asyncio.shield(wire.close())
        raise
    return wire


def bell(url: str) -> RemoteBell:
    """Make the bell of a NATS server, or of several, separated by commas. Each `prefix` in the URL
    is a separate bell."""
    url, subject, place = parted(url)
    return RemoteBell(place, partial(connect, url.split(","), subject))
