"""A bell over PostgreSQL: LISTEN and NOTIFY on a separate connection.

The connection must be direct: a pooler with transaction pooling loses LISTEN.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

import asyncpg

from dragoman.bells.remote import Connection, Heard, RemoteBell, Stir, parted

NOTIFY = "SELECT pg_notify($1, word) FROM unnest($2::text[]) AS word"
# A notification is part of a commit, which need not wait for the disk.
OPTIONS = {"application_name": "dragoman bell", "synchronous_commit": "off"}


class PostgresConnection:
    """A connection that listens and notifies."""

    def __init__(self, connection: asyncpg.Connection, channel: str) -> None:
        self._connection = connection
        self._channel = channel

    @property
    def lost(self) -> bool:
        """See `Connection.lost`."""
        return bool(self._connection.is_closed())

    async def send(self, words: Sequence[str]) -> None:
        """See `Connection.send`."""
        await self._connection.fetch(NOTIFY, self._channel, words)

    async def close(self) -> None:
        """See `Connection.close`."""
        try:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await self._connection.close()
        finally:
            self._connection.terminate()


async def connect(url: str, channel: str, heard: Heard, stir: Stir) -> Connection:
    """Connect to the database."""
    connection = await asyncpg.connect(url, server_settings=OPTIONS)
    wire = PostgresConnection(connection, channel)
    try:
        connection.add_termination_listener(lambda _: stir())
        await connection.add_listener(channel, lambda _, pid, name, word: heard(word))
    except BaseException:
        await wire.close()
        raise
    return wire


def bell(url: str) -> RemoteBell:
    """Make the bell of a database. Each database and each `prefix` in the URL is a separate
    bell."""
    url, channel, place = parted(url, "_")
    return RemoteBell(place, partial(connect, url, channel))
