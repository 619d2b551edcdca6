"""Reservations in PostgreSQL."""

from __future__ import annotations

from dragoman.stores.postgres.pool import Source
from dragoman.stores.postgres.transaction import ASKED, NOW
from dragoman.stores.reservations import PRUNE_AT_ONCE, last_key

# Of several at once, the database lets one insert, and the others wait for it.
_RESERVE = f"""
INSERT INTO reservation AS known (space, key, body, expires)
VALUES ($1, $2, $3, {NOW} + $4::double precision)
ON CONFLICT (space, key) DO UPDATE SET body = excluded.body, expires = excluded.expires
WHERE known.expires <= {NOW} RETURNING 1
"""
_FIND = f"""
SELECT body FROM reservation
WHERE space = $1 AND key = $2 AND (expires IS NULL OR expires > {NOW})
"""
_RELEASE = f"""
DELETE FROM reservation WHERE space = $1 AND key = $2
RETURNING expires IS NULL OR expires > {NOW}
"""
_LIST = f"""
SELECT key, body, expires FROM reservation
WHERE space = $1 AND key >= $2 AND key > $3 AND key <= $4 AND (expires IS NULL OR expires > {NOW})
ORDER BY key LIMIT $5
"""
_PRUNE = f"""
DELETE FROM reservation WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM reservation WHERE expires <= {ASKED}
  ORDER BY expires LIMIT {PRUNE_AT_ONCE} FOR UPDATE SKIP LOCKED
)) RETURNING 1
"""


async def reserve(source: Source, space: str, key: str, body: bytes, keep: float | None) -> bytes:
    """Return the stored form that is there, or else this one, which is there from now on."""
    while True:
        if await source.fetch(_RESERVE, space, key, body, keep):
            return body
        if (found := await reserved(source, space, key)) is not None:
            return found
        # it has expired meanwhile


async def reserved(source: Source, space: str, key: str) -> bytes | None:
    """Return the stored form that is there and has not expired."""
    found = await source.fetch(_FIND, space, key)
    return bytes(found[0][0]) if found else None


async def release(source: Source, space: str, key: str) -> bool:
    """Delete a reservation. Returns whether there was one that had not expired."""
    found = await source.fetch(_RELEASE, space, key)
    return bool(found) and bool(found[0][0])


async def listed(
    source: Source, space: str, prefix: str, after: str, limit: int
) -> list[tuple[str, bytes, float | None]]:
    """Return the key, the stored form and the time of reservations; see `Store.reservations`."""
    found = await source.fetch(_LIST, space, prefix, after, last_key(prefix), limit)
    return [(key, bytes(body), expires) for key, body, expires in found]


async def prune(source: Source) -> int:
    """Delete some expired reservations. Returns how many."""
    return len(await source.fetch(_PRUNE))
