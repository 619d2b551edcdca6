"""Signed cards: detached JWS (RFC 7515) over the canonical form (RFC 8785) of the card.

`verify` returns what a signature covers. Do not rely on anything else in the document.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.model.types import AgentCard, AgentCardSignature
from dragoman.security.address_policy import EgressRefused
from dragoman.security.canonical_card import Document, Form, canonical, covered, hollow, parse, read
from dragoman.security.card_keys import ALGORITHMS, CardKey, Source, key_set
from dragoman.security.egress import Egress, EgressUnreachable

Find: TypeAlias = Callable[[str, str], list[CardKey]]
Resolver: TypeAlias = "Callable[[str, str], Source | None]"
Keys: TypeAlias = "Source | Sequence[Source] | Mapping[str, Source] | Resolver"
"""The trusted keys: by `kid`, without a `kid`, a JWK set, or a function that finds the key for a
`kid` and a `jku`."""
Fetch: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Fetches a URL of the card's own origin, in the same way as the card."""

HEIRS = "urn:dragoman:heirs:v1"
"""A protected header: the thumbprints of the other keys that sign this card. A signature does not
cover the signatures beside it, so without this header anybody could add a signature."""
MOST = 16
"""The most signatures to check: each may cost a verification of the whole document."""
MOST_SETS = 4
"""The most key sets to fetch for one document."""
SET_SIZE = 256 * 1024
SET_AGE = 300.0
PATIENCE = 10.0
EMBEDDED = ("jwk", "x5c", "x5u", "x5t", "x5t#S256")
"""Headers that contain a key of the signer's choice."""
UNSIGNED = "the card is not signed"

_B64 = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_PLAIN = re.compile(r"[!-\"$-\[\]-~]*")  # without backslash and fragment
_DOTS = re.compile(r"(?i)(/|^)(\.|%2e){1,2}(/|$)|%2f|%5c")


class Unverified(Exception):
    """No trusted key has signed this card. The text is the reason."""

    @property
    def reason(self) -> str:
        """The reason, on one line."""
        return str(self)


class Verified(Struct, frozen=True):
    """A valid signature, and what it covers."""

    kid: str
    alg: str
    form: Form
    document: dict[str, Any]
    """What was signed; for a card in the 1.0 form, only its 1.0 fields."""
    signatures: list[Any]
    """All signatures of the card, valid or not."""
    thumbprint: str = ""
    """The thumbprint of the key, whatever `kid` the signature has."""
    heirs: tuple[str, ...] = ()
    """The thumbprints of the keys that this key vouches for."""


@runtime_checkable
class Verifier(Protocol):
    """Decides whether to accept a card."""

    async def verify(
        self, document: Document, *, url: str = "", fetch: Fetch | None = None
    ) -> Verified | None:
        """Return a valid signature of the card that was found at this URL; None if it need not have
        one. Raises Unverified if it has no valid one."""


# ---- signing -------------------------------------------------------------------------------


def sign(
    document: Document,
    key: Source | Callable[[bytes], bytes],
    *,
    kid: str = "",
    jku: str = "",
    alg: str = "",
    form: Form = "whole",
    heirs: Sequence[str] = (),
) -> AgentCardSignature:
    """Sign a card. Raises ValueError, which names an empty required field. A function signs
    elsewhere and needs `alg` and `kid`. `heirs` are the thumbprints of the keys that this key
    vouches for."""
    if callable(key) and not isinstance(key, CardKey):
        key = CardKey.remote(key, alg=alg, kid=kid)
    else:
        key = CardKey.load(key, kid=kid, alg=alg)
    said = parse(document)
    complete(said)
    header: dict[str, Any] = {"alg": key.algorithms[0], "kid": kid or key.kid, "typ": "JOSE"}
    if jku:
        header["jku"] = jku
    if heirs:
        header[HEIRS] = list(heirs)
    protected = base64url(json.dumps(header, separators=(",", ":")).encode())
    signature = key.sign(signing_input(protected, canonical(said, form)))
    return AgentCardSignature(protected=protected, signature=base64url(signature))


def signatures(
    document: Document, keys: Sequence[CardKey], jku: str = ""
) -> tuple[AgentCardSignature, ...]:
    """Sign with each of these keys; each vouches for the others."""
    prints = [found for key in keys if (found := key.thumbprint)]
    return tuple(
        sign(document, key, jku=jku, heirs=[each for each in prints if each != key.thumbprint])
        for key in keys
    )


def signed(card: AgentCard, keys: Sequence[CardKey], jku: str = "") -> AgentCard:
    """Add a signature of each of these keys to the card."""
    if not keys:
        return card
    return replace(card, signatures=(*card.signatures, *signatures(card, keys, jku)))


def complete(document: Mapping[str, Any]) -> None:
    """Raise ValueError, which names the first field of 1.0 that is missing, empty or of a wrong
    type. Empty fields are not allowed, because some implementations omit them and others keep them,
    so they would not agree on what was signed."""
    said = covered(document, "1.0")
    try:
        msgspec.convert(said, AgentCard)
        text = f"{where}: must not be empty" if (where := hollow(said)) else ""
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        what, where = (match[1], match[2] or "") if match else (str(error), "")
        if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
            where, what = f"{where}.{missing[1]}".lstrip("."), "is required"
        elif "length >= 1" in what:
            what = "must not be empty"
        text = f"{where}: {what[:1].lower()}{what[1:].replace('`', '')}"
    if text:
        raise ValueError(f"the card cannot be signed: {text}")


# ---- verifying -----------------------------------------------------------------------------


def verify(document: Document, keys: Keys) -> Verified:
    """Return a valid signature of a trusted key. Raises Unverified. One valid signature is enough:
    the others may be of unknown or retired keys."""
    return _verified(_parsed(document), key_finder(keys))


def witnesses(document: Document, keys: Keys) -> list[Verified]:
    """Return all valid signatures of trusted keys. Raises Unverified if there is none."""
    said = _parsed(document)
    return list(_each(said, key_finder(keys)))


def _verified(said: dict[str, Any], find: Find) -> Verified:
    return next(_each(said, find))


def _each(said: dict[str, Any], find: Find) -> Iterator[Verified]:
    payloads = _payloads(said)
    reasons, good = [], False
    for number, item in enumerate(_signatures(said), start=1):
        try:
            found = _good(item, find, payloads, said)
        except Unverified as error:
            reasons.append(f"signature {number}: {error}")
        else:
            good = True
            yield found
    if good:
        return
    raise Unverified(f"no signature of the card is accepted ({'; '.join(reasons)})")


class Trust:
    """Trusts some keys, and the keys at URLs that start with a trusted prefix. Key sets are cached
    for five minutes."""

    def __init__(
        self, keys: Keys = (), *, jku: Sequence[str] = (), egress: Egress | None = None
    ) -> None:
        if isinstance(jku, str):
            raise TypeError("jku: expected a list of URLs, not a string")
        for prefix in jku:
            if not re.match(r"https?://[^/?#@\\]+(/|$)", prefix):
                raise ValueError(f"jku: {prefix!r} must start with https:// and a host")
        self._find = key_finder(keys)
        self._prefixes = tuple(jku)
        self._egress = egress
        self._sets: dict[str, tuple[dict[str, CardKey], float]] = {}

    async def verify(
        self, document: Document, *, url: str = "", fetch: Fetch | None = None
    ) -> Verified:
        """`verify` with these keys, and with the keys at trusted URLs that the signatures name,
        wherever the card was found."""
        said = _parsed(document)
        known: dict[str, dict[str, CardKey]] = {}
        faults: dict[str, str] = {}
        for item in _signatures(said):
            try:
                header = protected_header(item)
            except Unverified:
                continue
            jku = str(header.get("jku", ""))
            if not jku or len(known) + len(faults) >= MOST_SETS or jku in known or jku in faults:
                continue
            if not self.admits(jku) or self._find(header["kid"], jku):
                continue
            try:
                known[jku] = await self._set(jku)
            except (EgressRefused, EgressUnreachable, ValueError, TimeoutError) as error:
                faults[jku] = str(error) or f"no response within {PATIENCE:g} s"

        def find(kid: str, jku: str) -> list[CardKey]:
            if found := self._find(kid, jku):
                return found
            if jku in faults:
                raise Unverified(f"cannot fetch its keys at {_quote(jku)}: {faults[jku]}")
            if jku and self._prefixes and not self.admits(jku):
                raise Unverified(f"keys at {_quote(jku)} are not trusted")
            return [key] if (key := known.get(jku, {}).get(kid)) is not None else []

        return _verified(said, find)

    def admits(self, url: str) -> bool:
        """Whether keys at this URL are trusted."""
        return any(below(prefix, url) for prefix in self._prefixes)

    async def _set(self, url: str) -> dict[str, CardKey]:
        found, until = self._sets.get(url, ({}, 0.0))
        if time.monotonic() < until:
            return found
        egress = self._egress or Egress(timeout=PATIENCE)
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE):
                chunks = egress.fetch(url)
                try:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > SET_SIZE:
                            raise ValueError(f"the key set is larger than {SET_SIZE} bytes")
                finally:
                    await chunks.aclose()  # type: ignore[attr-defined]
        finally:
            if self._egress is None:
                await egress.close()
        found = published(bytes(body))
        if len(self._sets) >= MOST_SETS * MOST:  # the signer chooses the URL
            self._sets.clear()
        self._sets[url] = found, time.monotonic() + SET_AGE
        return found


def below(prefix: str, url: str) -> bool:
    """Whether a URL is this one or below it, for every reader."""
    if not _PLAIN.fullmatch(url) or _DOTS.search(url):
        return False  # servers resolve these differently
    return url == prefix or url.startswith(prefix if prefix.endswith("/") else f"{prefix}/")


def published(body: bytes) -> dict[str, CardKey]:
    """The keys of a published set, by their `kid`. Raises ValueError if it is not a key set."""
    document = read(body, SET_SIZE)
    if not isinstance(document, dict):
        raise ValueError("the key set is not a JSON object")
    return key_set(document)


def places(document: Document, prefix: str) -> list[str]:
    """The key URLs in the signatures of a card that are below this URL."""
    found: dict[str, None] = {}
    for item in _signatures(_parsed(document)):
        try:
            jku = protected_header(item).get("jku", "")
        except Unverified:
            continue
        if isinstance(jku, str) and below(prefix, jku):
            found[jku] = None
    return list(found)[:MOST_SETS]


def key_finder(keys: Any) -> Find:
    """Make the function that finds the keys for a signature."""
    if isinstance(keys, Mapping) and isinstance(keys.get("keys"), list):
        keys = key_set(keys)
    if isinstance(keys, CardKey | str | bytes) or hasattr(keys, "read_bytes") or _is_jwk(keys):
        keys = [keys]
    if isinstance(keys, Mapping):
        named = {kid: _public(source, kid) for kid, source in keys.items()}
        return lambda kid, _: [named[kid]] if kid in named else []
    if isinstance(keys, Sequence):
        every = [_public(source) for source in keys]
        return lambda *_: every
    if not callable(keys):
        raise TypeError("keys: expected a mapping by kid, a list, or a function of kid and jku")
    resolve = keys

    def find(kid: str, jku: str) -> list[CardKey]:
        source = resolve(kid, jku)
        return [] if source is None else [_public(source, kid)]

    return find


def _is_jwk(keys: Any) -> bool:
    return isinstance(keys, Mapping) and isinstance(keys.get("kty"), str)


def _public(source: Any, kid: str = "") -> CardKey:
    key = CardKey.load(source, kid=kid)
    if key.made is None:
        raise ValueError(f"key {key.kid!r} is remote: it can sign, but not verify")
    return key


def _parsed(document: Document) -> dict[str, Any]:
    try:
        return parse(document)
    except ValueError as error:
        raise Unverified(f"the card cannot be verified: {error}") from None


def _payloads(said: dict[str, Any]) -> list[tuple[Form, bytes]]:
    found: list[tuple[Form, bytes]] = []
    try:
        for form in ("whole", "1.0"):
            payload = canonical(said, form)
            if payload not in (known for _, known in found):
                found.append((form, payload))
    except (ValueError, RecursionError) as error:
        raise Unverified(f"the card has no canonical form: {error}") from None
    return found


def _signatures(said: dict[str, Any]) -> Iterator[Any]:
    given = said.get("signatures")
    if not isinstance(given, list | tuple) or not given:
        raise Unverified(UNSIGNED)
    yield from given[:MOST]


def protected_header(item: Any) -> dict[str, Any]:
    """The protected header of a signature. Raises Unverified if the signature must not be used."""
    if not isinstance(item, Mapping):
        raise Unverified("it is not an object")
    raw = from_base64url(item.get("protected"))
    try:
        header = read(raw or b"", 16 * 1024)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise Unverified("its protected header is not base64url of a JSON object")
    alg, kid = header.get("alg"), header.get("kid")
    if alg not in ALGORITHMS:
        raise Unverified(f"alg {_quote(alg)} is not accepted")
    if not isinstance(kid, str) or not kid:
        raise Unverified("it has no kid")
    if "crit" in header or "b64" in header:
        raise Unverified("it has unknown critical headers")
    if brought := [name for name in EMBEDDED if name in header]:
        raise Unverified(f"it contains its own key ({brought[0]})")
    loose = item.get("header")
    if loose is not None and not isinstance(loose, Mapping):
        raise Unverified("its header is not an object")
    for name in loose or {}:
        if name in header or name in ("alg", "crit", "b64", "jku", *EMBEDDED):
            raise Unverified(f"it has {_quote(name)} outside of the protected header")
    return header


def _good(
    item: Any,
    find: Find,
    payloads: list[tuple[Form, bytes]],
    said: dict[str, Any],
) -> Verified:
    header = protected_header(item)
    alg, kid = header["alg"], header["kid"]
    signature = from_base64url(item.get("signature"))
    if signature is None:
        raise Unverified("its signature is not base64url")
    try:
        keys = find(kid, str(header.get("jku", "")))
    except ValueError as error:
        raise Unverified(f"the key {_quote(kid)} cannot be read: {error}") from None
    if not keys:
        raise Unverified(f"the key {_quote(kid)} is not trusted")
    fitting = [key for key in keys if alg in key.algorithms]
    if not fitting:
        raise Unverified(f"the key {_quote(kid)} is not for {alg}")
    for form, payload in payloads:
        content = signing_input(item["protected"], payload)
        for key in fitting:
            if key.verifies(alg, content, signature):
                return Verified(
                    kid,
                    alg,
                    form,
                    covered(said, form),
                    list(said["signatures"]),
                    key.thumbprint,
                    _heirs(header),
                )
    raise Unverified(f"the key {_quote(kid)} did not make it, or the card was changed")


def _heirs(header: Mapping[str, Any]) -> tuple[str, ...]:
    given = header.get(HEIRS)
    return tuple(each for each in given if isinstance(each, str)) if isinstance(given, list) else ()


def signing_input(protected: str, payload: bytes) -> bytes:
    return f"{protected}.{base64url(payload)}".encode("ascii")


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_base64url(text: Any) -> bytes | None:
    if not isinstance(text, str) or not _B64.fullmatch(text):
        return None
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return None


def _quote(value: Any) -> str:
    return ascii(value if isinstance(value, str) and len(value) <= 100 else str(value)[:99])
