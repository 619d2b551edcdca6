"""Metadata of messages that only gates may read.

A gate names the keys (`dragoman.PrivateMetadata`). Their values are never in a log. They are kept
as a reservation that expires, so that they are encrypted if the store has a key, and deleted in the
end.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from dragoman.model import clock
from dragoman.model.errors import InvalidParams
from dragoman.model.events import Received
from dragoman.model.types import Message, Metadata
from dragoman.stores.reservations import LARGEST, PRIVATE_METADATA, UnreadableReservation
from dragoman.stores.store import Store, UnknownEntry

KEPT = 7 * 24 * 3600.0
"""How many seconds the values are kept."""
_values = msgspec.json.Decoder(dict[str, object]).decode


async def put_aside(store: Store, message: Message, keys: Collection[str]) -> tuple[Message, str]:
    """Store the values of these keys, and return the message without them and where they are. The
    values are durable when this returns. Raises InvalidParams if they are too large."""
    given = message.metadata or {}
    found = {key: given[key] for key in keys if key in given}
    if not found:
        return message, ""
    value = msgspec.json.encode(found)
    if len(value) > LARGEST:
        names = ", ".join(sorted(found))
        raise InvalidParams.at(
            "message.metadata", f"{names}: has {len(value)} bytes; at most {LARGEST} are allowed"
        )
    place = clock.uuid7()
    await store.reserve(PRIVATE_METADATA, place, value, KEPT)
    rest = {key: value for key, value in given.items() if key not in found}
    return replace(message, metadata=rest or None), place


async def read(store: Store, received: Received) -> Metadata:
    """Return the values that were put aside of a message, while they are kept. Raises UnknownEntry
    if they are encrypted and the key is missing."""
    if not received.private:
        return {}
    try:
        value = await store.reserved(PRIVATE_METADATA, received.private)
    except UnreadableReservation as error:
        raise UnknownEntry(str(error)) from None
    return {} if value is None else _values(value)
