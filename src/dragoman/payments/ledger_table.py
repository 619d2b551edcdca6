"""The ledger of a wallet in a PostgreSQL database, which the processes of several machines share.

A ledger is one row: it is locked, read and written in one transaction. Needs the extra `postgres`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import msgspec

from dragoman.payments.ledger import Ledger, LedgerUnavailable

T = TypeVar("T")

SCHEMES = ("postgresql://", "postgres://")
PATIENCE = 10.0
"""Seconds to wait for the database, and for another process that has locked the row."""
CREATE = """
CREATE TABLE IF NOT EXISTS dragoman_wallets (address text PRIMARY KEY, ledger bytea NOT NULL)
"""
LOCK = 0x64726777
"""The advisory lock under which the table is created: two at once would fail."""


class LedgerTable:
    """A ledger in a row. See `LedgerPlace`."""

    def __init__(self, url: str, address: str) -> None:
        self._url, self._address = url, address.lower()

    async def read(self) -> Ledger:
        """See `LedgerPlace`."""
        async with self._connected() as connection:
            if not await connection.fetchval("SELECT to_regclass('dragoman_wallets')"):
                return Ledger()
            query = "SELECT ledger FROM dragoman_wallets WHERE address = $1"
            return _decoded(await connection.fetchval(query, self._address))

    async def change(self, work: Callable[[Ledger], T]) -> T:
        """See `LedgerPlace`."""
        async with self._connected() as connection, connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{PATIENCE:g}s'")
            await connection.execute("SET LOCAL synchronous_commit = on")
            if not await connection.fetchval("SELECT to_regclass('dragoman_wallets')"):
                await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
                await connection.execute(CREATE)
            empty = msgspec.json.encode(Ledger())
            insert = "INSERT INTO dragoman_wallets VALUES ($1, $2) ON CONFLICT DO NOTHING"
            await connection.execute(insert, self._address, empty)
            query = "SELECT ledger FROM dragoman_wallets WHERE address = $1 FOR UPDATE"
            found = _decoded(await connection.fetchval(query, self._address))
            before = msgspec.json.encode(found)
            result = work(found)
            after = msgspec.json.encode(found)
            if after != before:
                update = "UPDATE dragoman_wallets SET ledger = $2 WHERE address = $1"
                await connection.execute(update, self._address, after)
            return result

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        """A connection. Raises LedgerUnavailable for all that may go wrong with it."""
        try:
            connection = await asyncpg.connect(
                self._url, timeout=PATIENCE, command_timeout=2 * PATIENCE
            )
            try:
                yield connection
            finally:
                await connection.close(timeout=PATIENCE)
        except LedgerUnavailable:
            raise
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            # its text may have parts of the URL
            raise LedgerUnavailable(
                f"the wallet's database cannot be used: {type(error).__name__}"
            ) from None


def _decoded(found: bytes | None) -> Ledger:
    try:
        return msgspec.json.decode(found, type=Ledger) if found is not None else Ledger()
    except msgspec.DecodeError as error:
        raise LedgerUnavailable("the wallet's row in the database cannot be read") from error
