"""Reservations: what is the same in every store.

The first value of a space and key stays, for everybody who shares the store. It is stored as
base64, or encrypted, with the Unix time until which it is kept.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from dragoman.model.caller import fault, long
from dragoman.model.errors import Unavailable
from dragoman.security.encryption import MARK, WHOLE, Encryption, Undecryptable

LARGEST = 64 * 1024
"""The most bytes of a value."""
OWN = "dragoman."
"""The spaces that begin with this are the runtime's own."""
SECRETS = "dragoman.secret"
"""The space of `App.secret`."""
PRUNE_EVERY = 60.0
"""How often a process deletes expired reservations, in seconds."""
PRUNE_AT_ONCE = 256
"""How many of them one transaction deletes."""
PAGE = 256
"""How many of them are read at once."""


PRIVATE_METADATA = "dragoman.private_metadata"
"""The space of what gates alone read of messages."""


class Reservation(Struct, frozen=True):
    """A value that is reserved in a space."""

    key: str
    value: bytes
    expires: float | None = None
    """The Unix time until which it is kept; None if it is kept for ever."""


class UnreadableReservation(Unavailable):
    """A stored reservation cannot be read, for example because a key is missing."""


def check_reservation(space: str, key: str, value: bytes, keep: float | None) -> None:
    """Raise TypeError or ValueError if this cannot be reserved."""
    for name, given in (("space", space), ("key", key)):
        if not isinstance(given, str):
            raise TypeError(f"reserve: {name} must be a str, not {type(given).__name__}")
        if why := wrong_name(given):
            raise ValueError(f"reserve: {name} {why}")
    if not isinstance(value, bytes):
        raise TypeError(f"reserve: value must be bytes, not {type(value).__name__}")
    if len(value) > LARGEST:
        raise ValueError(f"reserve: value has {len(value)} bytes; at most {LARGEST} are allowed")
    if keep is not None and not 0 < keep < math.inf:
        raise ValueError(f"reserve: keep must be greater than 0, or None for ever, not {keep}")


def wrong_name(name: str) -> str:
    """Why this cannot be a space or a key; empty if it can."""
    return fault(name) or long(name) if name else "must not be empty"


def check_space(space: str) -> None:
    """Raise ValueError if this is one of the runtime's own spaces."""
    if space.startswith(OWN):
        raise ValueError(f"reserve: space must not begin with {OWN!r}")


def last_key(prefix: str) -> str:
    """Return a text that is not less than any key that begins with `prefix`."""
    return prefix + "\U0010ffff" * 128  # as many as 512 bytes have room for


def encode_value(value: bytes, space: str, key: str, encryption: Encryption) -> bytes:
    """Return the stored form of a value."""
    text = base64.b64encode(value).decode()
    return encryption.encrypt(text, _about(space, key)).encode()


def decode_value(body: bytes, space: str, key: str, encryption: Encryption) -> bytes:
    """Return the value with this stored form. Raises UnreadableReservation."""
    try:
        return base64.b64decode(
            encryption.decrypt(body.decode(), _about(space, key)), validate=True
        )
    except (Undecryptable, ValueError) as error:
        raise UnreadableReservation(f"A reservation in {space!r} cannot be read: {error}") from None


def decode_reservation(
    space: str, row: tuple[str, bytes, float | None], encryption: Encryption
) -> Reservation:
    """Return the reservation of this key, stored form and time. Raises UnreadableReservation."""
    key, body, expires = row
    return Reservation(key, decode_value(body, space, key, encryption), expires)


def faults(space: object, key: object, body: bytes, expires: float | None) -> Iterator[str]:
    """Describe what is wrong with a stored reservation."""
    for name, given in (("space", space), ("key", key)):
        why = wrong_name(given) if isinstance(given, str) else "is not valid Unicode"
        if why:
            yield f"its {name} {why}"
    if expires is not None and not (math.isfinite(expires) and expires > 0):
        yield f"its time is not valid: {expires}"
    try:
        text = body.decode()
        if text.startswith(MARK):
            if not WHOLE.fullmatch(text):
                yield "its value is encrypted, and damaged"
        elif len(base64.b64decode(text, validate=True)) > LARGEST:
            yield f"its value has more than {LARGEST} bytes"
    except ValueError as error:
        yield f"its value cannot be read: {error}"


def named(space: object, key: object) -> str:
    """Return how a reservation is called in messages."""
    return f"the reservation {_shown(space)} {_shown(key)}"


def _shown(name: object) -> str:
    return name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else repr(name)


def _about(space: str, key: str) -> str:
    """What a value is bound to, so that it cannot be moved to another key."""
    return msgspec.json.encode(["reservation", space, key]).decode()
