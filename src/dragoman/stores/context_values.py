"""The private values of contexts: what is the same in every store.

A value is stored as JSON, or encrypted. Stored with it are its version, which grows with every
save, and the key of the turn that saved it last: a turn that runs again may replace what it has
saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from dragoman.model.caller import Scope
from dragoman.model.conversation import ContextChanged
from dragoman.security.encryption import MARK, WHOLE, Encryption, Undecryptable
from dragoman.stores.store import UnknownEntry

_SAVER = re.compile(r".+:[1-9][0-9]*", re.DOTALL)
_json = msgspec.json.Decoder().decode


def next_version(found: tuple[int, str] | None, version: int, key: str) -> int:
    """Return the version of a new value, where the stored value has this version and saver. The
    turn with this key has read `version`. Raises ContextChanged."""
    current, saver = found or (0, "")
    if current != version and saver != key:
        raise ContextChanged
    return current + 1


def encrypt_value(value: bytes, scope: Scope, context: bytes, encryption: Encryption) -> bytes:
    """Return the stored form of a value, for the context with this digest."""
    return (
        encryption.encrypt(value.decode(), _about(scope, context)).encode()
        if encryption.active
        else value
    )


def decrypt_value(body: bytes, scope: Scope, context: bytes, encryption: Encryption) -> bytes:
    """Return the value with this stored form. Raises UnknownEntry if a key is missing."""
    if not encrypted(body):
        return body
    try:
        return encryption.decrypt(body.decode(), _about(scope, context)).encode()
    except (Undecryptable, UnicodeDecodeError) as error:
        raise UnknownEntry(f"the value of its context: {error}") from None


def encrypted(body: bytes) -> bool:
    """Whether a stored value is encrypted. No JSON begins like this."""
    return body.startswith(MARK.encode())


def faults(version: int, saver: object, body: bytes) -> Iterator[str]:
    """Describe what is wrong with a stored value."""
    if version < 1:
        yield f"its version is not valid: {version}"
    if not isinstance(saver, str) or not _SAVER.fullmatch(saver):
        yield "it does not say which turn saved it"
    try:
        if not encrypted(body):
            _json(body)
        elif not WHOLE.fullmatch(body.decode()):
            yield "it is encrypted, and damaged"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        yield f"it cannot be read: {error}"


def _about(scope: Scope, context: bytes) -> str:
    """The context that a value is bound to, so that it cannot be moved to another owner or
    context."""
    named = ["context", scope.agent, scope.tenant, scope.owner, context.hex()]
    return msgspec.json.encode(named).decode()
