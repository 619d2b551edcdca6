"""Signatures of webhooks by Standard Webhooks (https://www.standardwebhooks.com).

The signature covers `{id}.{timestamp}.{body}`. The header has one signature for each key, so that a
key can be replaced while both are in use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

SECRET, PRIVATE, PUBLIC = "whsec_", "whsk_", "whpk_"
SCHEMES = {SECRET: "v1", PRIVATE: "v1a", PUBLIC: "v1a"}
LENGTHS = {"v1": 32, "v1a": 64}
MOST = 8
"""The most signatures of a header to check: each may cost a hash of the whole body."""

_PLAIN = re.compile(r"[!-\-/-~]+")


class SigningKey(Struct, frozen=True):
    """A shared secret (`whsec_`), or half of an Ed25519 pair (`whsk_`, `whpk_`)."""

    prefix: str
    raw: bytes

    @classmethod
    def parse(cls, text: str) -> SigningKey:
        """Parse a key. The text of a ValueError does not contain the key."""
        name, mark, rest = text.strip().partition("_")
        prefix = name + mark
        if prefix not in SCHEMES:
            raise ValueError("a signing key must start with whsec_, whsk_ or whpk_")
        raw = _decode(rest + "=" * (-len(rest) % 4))
        if raw is None:
            raise ValueError(f"what follows {prefix} in a signing key must be base64")
        if prefix == SECRET:
            if not 24 <= len(raw) <= 64:
                raise ValueError(f"a whsec_ key must have 24 to 64 bytes, not {len(raw)}")
            return cls(prefix, raw)
        if prefix == PRIVATE and len(raw) == 64:  # others append the public half to the seed
            key = cls(prefix, raw[:32])
            if key.public().raw != raw[32:]:
                raise ValueError("the private and the public half of the whsk_ key do not match")
            return key
        if len(raw) != 32:
            raise ValueError(f"a {prefix} key must have 32 bytes, not {len(raw)}")
        _ed25519()  # fail here, not at the first webhook
        return cls(prefix, raw)

    @property
    def text(self) -> str:
        """The text form of the key, with the whole secret."""
        return self.prefix + base64.b64encode(self.raw).decode()

    @property
    def scheme(self) -> str:
        """The prefix of its signatures."""
        return SCHEMES[self.prefix]

    def public(self) -> SigningKey:
        """The public half of an Ed25519 key, for receivers."""
        if self.prefix == SECRET:
            raise ValueError("a whsec_ key has no public key")
        if self.prefix == PUBLIC:
            return self
        return SigningKey(PUBLIC, self._private().public_key().public_bytes_raw())

    def sign(self, content: bytes) -> bytes:
        """Sign; return the bare signature."""
        if self.prefix == PUBLIC:
            raise ValueError("a whpk_ key is public: it can verify, but not sign")
        if self.prefix == SECRET:
            return hmac.digest(self.raw, content, hashlib.sha256)
        return self._private().sign(content)

    def verifies(self, content: bytes, signatures: Iterable[bytes]) -> bool:
        """Whether one of these bare signatures was made with this key."""
        if self.prefix == SECRET:
            expected = self.sign(content)
            return any(hmac.compare_digest(expected, given) for given in signatures)
        public = _ed25519().Ed25519PublicKey.from_public_bytes(self.public().raw)
        return any(_valid(public, given, content) for given in signatures)

    def _private(self) -> Ed25519PrivateKey:
        found: Ed25519PrivateKey = _ed25519().Ed25519PrivateKey.from_private_bytes(self.raw)
        return found

    def __repr__(self) -> str:
        return f"SigningKey({self.text if self.prefix == PUBLIC else self.prefix + '***'})"


def secret() -> SigningKey:
    """Make a new shared key."""
    return SigningKey(SECRET, secrets.token_bytes(32))


def private() -> SigningKey:
    """Make a new private key for the sender; its receivers get `public()`."""
    _ed25519()
    return SigningKey(PRIVATE, secrets.token_bytes(32))


def sign(keys: Sequence[SigningKey], id: str, timestamp: int, body: bytes) -> str:
    """Make the `webhook-signature` header with a signature of each key."""
    if not keys:
        raise ValueError("no signing key was given")
    if not _PLAIN.fullmatch(id):
        # With a dot, the id and the timestamp would be ambiguous.
        raise ValueError("a webhook id must be printable ASCII without spaces and dots")
    content = _content(id, timestamp, body)
    return " ".join(f"{key.scheme},{base64.b64encode(key.sign(content)).decode()}" for key in keys)


def verify(keys: Sequence[SigningKey], id: str, timestamp: int, header: str, body: bytes) -> bool:
    """Whether the header has a signature of one of these keys. It does not check the time."""
    if not id.isascii():
        return False
    given = _read(header)
    content = _content(id, timestamp, body)
    return any(key.verifies(content, given[key.scheme]) for key in keys)


def _content(id: str, timestamp: int, body: bytes) -> bytes:
    return b"%b.%d.%b" % (id.encode("ascii"), timestamp, body)


def _read(header: str) -> Mapping[str, list[bytes]]:
    found: dict[str, list[bytes]] = {scheme: [] for scheme in LENGTHS}
    for item in header.split():
        scheme, _, text = item.partition(",")
        if scheme not in found or len(found[scheme]) == MOST:
            continue
        signature = _decode(text)
        if signature is not None and len(signature) == LENGTHS[scheme]:
            found[scheme].append(signature)
    return found


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _valid(public: Any, signature: bytes, content: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        public.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ImportError(
            "Ed25519 keys need a library that is not installed; run `pip install "
            "'dragoman[crypto]'`"
        ) from None
    return ed25519
