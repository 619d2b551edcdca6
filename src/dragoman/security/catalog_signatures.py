"""Signed catalogs: detached JWS (RFC 7515) over the canonical form (RFC 8785), as AI Catalog 1.0
defines them.

The profile of a signature says how to find its key. `did-web-v1` is that of the specification: the
key is in the DID document of the host, and its algorithm is ES256. Where that is not possible, our
own profile applies: it is made with a key that also signs the cards of this server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.catalog import LARGEST, domain
from dragoman.security.canonical_card import jcs, read
from dragoman.security.card_keys import CardKey
from dragoman.security.card_signatures import (
    Keys,
    Unverified,
    base64url,
    from_base64url,
    key_finder,
    protected_header,
    signing_input,
)

DID_WEB = "did-web-v1"
CARD_KEYS = "urn:dragoman:card-keys:v1"
"""The profile of keys that also sign cards: `jku` names the key set of the signer."""
KIND = "ai-catalog+jws"
DID_PATH = "/.well-known/did.json"
SKEW = timedelta(minutes=5)
"""How far the clocks of signer and reader may differ."""


class Signer(Struct, frozen=True):
    """Who signs, with which key."""

    name: str
    """Its identity, a URI."""
    profile: str
    key: CardKey
    jku: str = ""


def signer(base: str, keys: Sequence[CardKey], jku: str = "") -> Signer | None:
    """Return who signs a catalog at this URL: the DID of its host if one of the keys can do that,
    else the URL itself with the first key; None without keys."""
    if not keys:
        return None
    if (did := web_did(base)) and (fitting := _did_keys(keys)):
        return Signer(did, DID_WEB, fitting[0])
    return Signer(base, CARD_KEYS, keys[0], jku)


def web_did(base: str) -> str:
    """Return the DID of a host; empty if the URL is not https at the root of a domain, because a
    DID document could not be there."""
    parts = urlsplit(base)
    root = parts.scheme == "https" and parts.port in (None, 443) and parts.path in ("", "/")
    found = domain(parts.hostname or "") if root else ""
    return f"did:web:{found}" if found else ""


def did_document(did: str, keys: Sequence[CardKey]) -> dict[str, Any]:
    """Return the DID document that has the public halves of the keys that can sign for it."""
    methods = [
        {
            "id": f"{did}#{key.thumbprint}",
            "type": "JsonWebKey",
            "controller": did,
            "publicKeyJwk": key.jwk() | {"alg": "ES256"},
        }
        for key in _did_keys(keys)
    ]
    return {
        "@context": ["https://www.w3.org/ns/did/v1", "https://w3id.org/security/jwk/v1"],
        "id": did,
        "verificationMethod": methods,
        "assertionMethod": [method["id"] for method in methods],
    }


def _did_keys(keys: Sequence[CardKey]) -> list[CardKey]:
    """Return the keys that the profile of the specification accepts."""
    return [key for key in keys if key.algorithms[0] == "ES256" and key.made is not None]


def sign(document: Mapping[str, Any], by: Signer) -> dict[str, Any]:
    """Return the catalog with a signature."""
    about = {"signer": by.name, "profile": by.profile, "issuedAt": _text(datetime.now(UTC))}
    # A kid can be any text, but in a DID it must be a fragment.
    kid = f"{by.name}#{by.key.thumbprint}" if by.profile == DID_WEB else by.key.kid
    header = {"alg": by.key.algorithms[0], "kid": kid, "typ": KIND}
    if by.jku:
        header["jku"] = by.jku
    protected = base64url(json.dumps(header, separators=(",", ":")).encode())
    payload = jcs({**document, "signature": about})
    made = base64url(by.key.sign(signing_input(protected, payload)))
    return {**document, "signature": about | {"jws": f"{protected}..{made}"}}


def verify(content: bytes, keys: Keys, *, now: datetime | None = None) -> str:
    """Return who has signed a catalog, if a key signed it that the reader trusts for that. Raises
    Unverified. The `kid` of a DID's key is the DID, `#` and a name."""
    try:
        said = read(content, LARGEST)
    except ValueError as error:
        raise Unverified(f"the catalog cannot be verified: {error}") from None
    about = said.get("signature") if isinstance(said, dict) else None
    if not isinstance(about, dict):
        raise Unverified("the catalog is not signed")
    name, profile = about.get("signer"), about.get("profile")
    if not isinstance(name, str) or profile not in (DID_WEB, CARD_KEYS):
        raise Unverified(f"the profile {str(profile)[:80]!r} is not supported")
    _check_time(about, now or datetime.now(UTC))
    protected, _, rest = str(about.get("jws", "")).partition(".")
    signature = from_base64url(rest[1:]) if rest.startswith(".") else None
    header = protected_header({"protected": protected})
    _check_header(header, name, profile)
    if signature is None:
        raise Unverified("its signature is not base64url")
    covered = {key: value for key, value in said.items() if key != "additionalSignatures"}
    covered["signature"] = {key: value for key, value in about.items() if key != "jws"}
    try:
        payload = signing_input(protected, jcs(covered))
        found = key_finder(keys)(header["kid"], str(header.get("jku", "")))
    except (ValueError, RecursionError) as error:
        raise Unverified(f"the catalog cannot be verified: {error}") from None
    if not any(key.verifies(header["alg"], payload, signature) for key in found):
        raise Unverified("no trusted key has signed the catalog, or it was changed")
    return name


def _check_header(header: Mapping[str, Any], name: str, profile: str) -> None:
    if header.get("typ") != KIND:
        raise Unverified("the signature is not that of a catalog")
    if profile != DID_WEB:
        return
    if header["alg"] != "ES256" or "jku" in header:
        raise Unverified(f"the profile {DID_WEB} permits only ES256, and no jku")
    if not header["kid"].startswith(f"{name}#") or not name.startswith("did:web:"):
        raise Unverified("the key does not belong to the signer")


def _check_time(about: Mapping[str, Any], now: datetime) -> None:
    try:
        issued = _time(about.get("issuedAt"))
        expires = _time(about["expiresAt"]) if "expiresAt" in about else None
    except ValueError:
        raise Unverified("the time of the signature is not valid") from None
    if issued > now + SKEW:
        raise Unverified("the signature is from the future")
    if expires is not None and now >= expires:
        raise Unverified("the signature has expired")


def _time(value: Any) -> datetime:
    found = datetime.fromisoformat(value) if isinstance(value, str) else None
    if found is None or found.tzinfo is None:
        raise ValueError("not a time")
    return found


def _text(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")
