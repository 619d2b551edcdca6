"""The connection pool of PostgreSQL, the clock of the database, and the meaning of its errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import asyncpg

from dragoman.model.errors import A2AError, Unavailable
from dragoman.stores import url_options
from dragoman.stores.postgres.transaction import NOW
from dragoman.telemetry.logs import logger

CONNECT = 5.0
"""The time limit for a connection."""
STATEMENT = 15.0
"""The time limit for a statement."""
IDLE = 60.0
"""How long an unused connection is kept: a firewall or proxy may have dropped it after that."""
TICK = 1.0
"""How long the known difference to the database's clock is used."""
HELD = 2
"""How many connections may be held: one to write, one to renew claims."""
AGAIN = {"retry-after": "1"}


class Source(Protocol):
    """A connection, or an object that lends one."""

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a statement."""
        ...


class Pool:
    """A pool of connections. While the database is away, all calls fail at once; they work again
    when it is back."""

    def __init__(self, url: str, *, size: int, prepared: bool = True) -> None:
        self.url = url
        self.size = size
        self.prepared = prepared
        """Whether statements may be prepared."""
        self._named = "application_name" in dict(parse_qsl(urlsplit(url).query))
        self._pool: Any = None
        self._offset, self._synced = 0.0, -TICK

    async def open(self) -> None:
        """Connect. Raises Unavailable with the reason."""
        try:
            self._pool = await asyncpg.create_pool(
                self.url,
                min_size=0,  # otherwise it tries to reconnect by itself, and logs much
                max_size=self.size,
                timeout=CONNECT,
                command_timeout=STATEMENT + CONNECT,
                reset=_as_it_is,
                # behind a pooler of transactions, the next one does not find prepared statements
                statement_cache_size=1000 if self.prepared else 0,
                server_settings={
                    **({} if self._named else {"application_name": "dragoman"}),
                    "statement_timeout": str(int(STATEMENT * 1000)),
                    "lock_timeout": str(int(STATEMENT * 500)),
                    "jit": "off",
                    # a plan that was made for a small table stays in use when the table has grown
                    "enable_seqscan": "off",
                },
            )
            async with self.connection():
                pass
        except Exception as error:
            await self.close()
            if not (gone(error) or isinstance(error, asyncpg.PostgresError | ValueError)):
                raise
            raise Unavailable(f"store: cannot connect to PostgreSQL: {reason(error)}") from error

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                async with asyncio.timeout(CONNECT):
                    await pool.close()
            except Exception as error:
                pool.terminate()
                if not gone(error):
                    raise

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """Lend a connection for a while."""
        if self._pool is None:
            raise Unavailable("The store is closed")
        async with self._pool.acquire(timeout=CONNECT) as db:
            try:
                yield db
            except (asyncio.CancelledError, TimeoutError):
                db.terminate()  # giving it back would mean waiting for a server that may hang
                raise

    def hold(self) -> Hold:
        """Return a holder of one connection."""
        return Hold(self)

    async def lend(self) -> Any:
        """Lend a connection until it is given back."""
        if self._pool is None:
            raise Unavailable("The store is closed")
        return await self._pool.acquire(timeout=CONNECT)

    async def give_back(self, db: Any) -> None:
        """Take back a lent connection."""
        if self._pool is not None:
            await self._pool.release(db)

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a statement. Raises Unavailable."""
        try:
            async with self.connection() as db:
                rows: list[Any] = await db.fetch(sql, *values)
                return rows
        except A2AError:
            raise
        except Exception as error:
            raise self.unavailable(error) from error

    async def now(self, db: Any) -> float:
        """Return the time of the database's clock. Between two queries of it, this process
        measures the elapsed time. An error makes leases shorter, never longer."""
        ticks = time.monotonic()
        if not 0 <= ticks - self._synced < TICK:
            self._offset = await db.fetchval(f"SELECT {NOW}") - time.monotonic()
            self._synced = ticks
        return time.monotonic() + self._offset

    def unavailable(self, error: BaseException | None = None) -> Unavailable:
        """Return the error for callers. The cause is in the log."""
        if error is not None and not gone(error):
            logger.error("PostgreSQL: %s", error, exc_info=error)
            return Unavailable(f"The store is not available ({type(error).__name__})")
        return Unavailable("The store is not available", headers=AGAIN)


class Hold:
    """Keeps a connection between uses, and replaces it when it is broken, because borrowing one
    takes longer than some statements."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._db: Any = None
        self._used = 0.0
        self._lock = asyncio.Lock()

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        """Return the rows of a statement; one statement at a time. Raises Unavailable."""
        try:
            async with self._lock, self as db:
                rows: list[Any] = await db.fetch(sql, *values)
                return rows
        except A2AError:
            raise
        except Exception as error:
            raise self._pool.unavailable(error) from error

    async def __aenter__(self) -> Any:
        if self._db is not None and (self._lost or time.monotonic() - self._used > IDLE):
            await self.end()
        if self._db is None:
            self._db = await self._pool.lend()
        return self._db

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._used = time.monotonic()
        sound = kind is None or issubclass(kind, asyncpg.PostgresError)
        if not sound or issubclass(kind or Exception, asyncpg.ReadOnlySQLTransactionError):
            await self.end()
        elif self._pool.size <= HELD:  # others also need one
            await self._give_back()

    @property
    def _lost(self) -> bool:
        try:
            return bool(self._db.is_closed())
        except asyncpg.InterfaceError:  # the pool has noticed it, and taken the connection back
            return True

    async def end(self) -> None:
        """Close the connection, without waiting for a server that may hang."""
        if self._db is not None and not self._lost:
            self._db.terminate()
        await self._give_back()

    async def _give_back(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await self._pool.give_back(db)


async def _as_it_is(connection: Any) -> None:
    """Reset nothing: our statements change nothing on a connection."""


def gone(error: BaseException) -> bool:
    """Whether the connection or the server is away."""
    return isinstance(
        error,
        OSError
        | TimeoutError
        | asyncpg.PostgresConnectionError
        | asyncpg.InterfaceError
        | asyncpg.InternalClientError  # of a connection that is closing
        | asyncpg.AdminShutdownError
        | asyncpg.CrashShutdownError
        | asyncpg.CannotConnectNowError
        | asyncpg.TooManyConnectionsError,
    )


def refused(error: BaseException) -> bool:
    """Whether another process was faster, so that a second attempt may succeed."""
    return isinstance(
        error,
        asyncpg.UniqueViolationError
        | asyncpg.DeadlockDetectedError
        | asyncpg.SerializationError
        | asyncpg.LockNotAvailableError,
    )


def reason(error: BaseException) -> str:
    """Why a connection failed. The database refuses the options that it does not know; then the
    text also names those of the store."""
    text = str(error) or type(error).__name__
    if isinstance(error, asyncpg.UndefinedObjectError):
        text += f"; options of the store are {url_options.names('postgresql')}"
    return text


def place(url: str) -> str:
    """Return the address in a URL for people. Other parts of it may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
