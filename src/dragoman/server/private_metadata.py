"""Metadata and parts of messages that only gates may read.

A gate names the keys (`dragoman.PrivateMetadata`), or knows the parts (`dragoman.PrivateParts`).
They are never in a log. They are kept as a reservation that expires, so that they are encrypted if
the store has a key, and deleted in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import compress
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.model import clock
from dragoman.model.errors import InvalidParams
from dragoman.model.events import Received
from dragoman.model.types import Message, Part
from dragoman.stores.reservations import LARGEST, PRIVATE_METADATA, UnreadableReservation
from dragoman.stores.store import Store, UnknownEntry

KEPT = 7 * 24 * 3600.0
"""How many seconds the values are kept."""


class Aside(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a message for gates alone."""

    metadata: dict[str, Any] = {}
    parts: tuple[Part, ...] = ()


_aside = msgspec.json.Decoder(Aside).decode


async def put_aside(
    store: Store,
    message: Message,
    keys: Collection[str],
    tests: Sequence[Callable[[Part], bool]] = (),
) -> tuple[Message, str]:
    """Store the values of these keys in the metadata, and the parts that pass a test. Return the
    message without them and where they are. They are durable when this returns. Raises
    InvalidParams if they are too large."""
    given = message.metadata or {}
    found = {key: given[key] for key in keys if key in given}
    private = [any(test(part) for test in tests) for part in message.parts]
    parts = tuple(compress(message.parts, private))
    if not (found or parts):
        return message, ""
    value = msgspec.json.encode(Aside(found, parts))
    if len(value) > LARGEST:
        names = ", ".join(sorted(found)) or "the private parts"
        where = "message.metadata" if found else "message.parts"
        raise InvalidParams.at(
            where, f"{names}: has {len(value)} bytes; at most {LARGEST} are allowed"
        )
    place = clock.uuid7()
    await store.reserve(PRIVATE_METADATA, place, value, KEPT)
    rest = {key: value for key, value in given.items() if key not in found}
    both = zip(message.parts, private, strict=True)
    shown = tuple(Part(data={}) if hidden else part for part, hidden in both)
    return replace(message, metadata=rest or None, parts=shown), place


async def read(store: Store, received: Received) -> Aside:
    """Return what was put aside of a message, while it is kept. Raises UnknownEntry if it is
    encrypted and the key is missing."""
    if not received.private:
        return Aside()
    try:
        value = await store.reserved(PRIVATE_METADATA, received.private)
    except UnreadableReservation as error:
        raise UnknownEntry(str(error)) from None
    return Aside() if value is None else _aside(value)
