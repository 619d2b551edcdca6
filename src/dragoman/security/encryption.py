"""Encryption of stored secrets, if a key is configured."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Any

MARK = "sealed:"
SEALED = MARK + "v1:"
PLAIN = MARK + "v0:"
"""The prefix of a text that was stored without a key and happens to look encrypted."""
NONCE = 12
WHOLE = re.compile(re.escape(SEALED) + r"[0-9a-f]{8}:[A-Za-z0-9+/]+={0,2}")
"""An encrypted text from which nothing is missing."""


class Undecryptable(Exception):
    """An encrypted text cannot be decrypted. The message gives the reason and nothing of the
    text."""


class Encryption:
    """AES-256-GCM with the first key; the other keys only decrypt older texts. Without keys, texts
    stay as they are."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        parsed = [_parse(number, text) for number, text in enumerate(keys, start=1)]
        self._ciphers = {_name(raw): _cipher(raw) for raw in parsed}

    def __repr__(self) -> str:
        return f"Encryption({', '.join(self._ciphers)})"

    @property
    def active(self) -> bool:
        """Whether there is a key."""
        return bool(self._ciphers)

    def encrypt(self, text: str, about: str) -> str:
        """Encrypt the text. Decryption needs a key and the same `about`."""
        if not self._ciphers:
            return PLAIN + text if text.startswith(MARK) else text
        name, cipher = next(iter(self._ciphers.items()))
        nonce = secrets.token_bytes(NONCE)
        hidden = cipher.encrypt(nonce, text.encode(), _bound(name, about))
        return f"{SEALED}{name}:{base64.b64encode(nonce + hidden).decode()}"

    def decrypt(self, text: str, about: str) -> str:
        """Decrypt a text. A text that was stored without a key is returned as it is. Raises
        Undecryptable."""
        if not text.startswith(MARK):
            return text
        if text.startswith(PLAIN):
            return text[len(PLAIN) :]
        if not text.startswith(SEALED):
            raise Undecryptable("a stored secret is encrypted in an unknown format")
        name, _, rest = text[len(SEALED) :].partition(":")
        cipher = self._ciphers.get(name)
        if cipher is None:
            have = (
                f"not among the {len(self._ciphers)} configured keys"
                if self._ciphers
                else "missing"
            )
            raise Undecryptable(f"a stored secret is encrypted, but its key {name[:8]!r} is {have}")
        try:
            raw = base64.b64decode(rest, validate=True)
            plain: bytes = cipher.decrypt(raw[:NONCE], raw[NONCE:], _bound(name, about))
            return plain.decode()
        except (ValueError, _invalid_tag()):
            raise Undecryptable(
                "an encrypted secret was changed or moved from another place"
            ) from None


def key() -> str:
    """Make a new key."""
    return base64.b64encode(secrets.token_bytes(32)).decode()


def _parse(number: int, text: str) -> bytes:
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        raise ValueError(f"encryption key {number} must be base64") from None
    if len(raw) != 32:
        raise ValueError(f"encryption key {number} must have 32 bytes, not {len(raw)}")
    return raw


def _name(raw: bytes) -> str:
    # A hash of 256 random bits reveals nothing about them.
    return hashlib.sha256(b"dragoman seal key:" + raw).hexdigest()[:8]


def _bound(name: str, about: str) -> bytes:
    return f"{SEALED}{name}:{about}".encode()


def _cipher(raw: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ImportError(
            "encrypting secrets needs a library that is not installed; run `pip install "
            "'dragoman[crypto]'`"
        ) from None
    return AESGCM(raw)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag

    return InvalidTag
