"""Which keys must have signed a card, by its origin: named keys, or the keys seen first.

`TrustedKeys` is to cards what `known_hosts` is to ssh. The first signed card of an origin pins its
keys. After that the client refuses other keys and unsigned cards, unless a pinned key has signed
the new key.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.client.transport import origin
from dragoman.model import clock
from dragoman.model.errors import A2AError
from dragoman.security.canonical_card import Document
from dragoman.security.card_keys import CardKey
from dragoman.security.card_signatures import (
    UNSIGNED,
    Fetch,
    Keys,
    Trust,
    Unverified,
    Verified,
    Verifier,
    places,
    published,
    witnesses,
)
from dragoman.security.client_network import loopback
from dragoman.telemetry.logs import logger

T = TypeVar("T")


class Pin(Struct, frozen=True):
    """A public key of an origin, and when it was pinned."""

    jwk: dict[str, Any]
    since: str = ""


PinnedKeys = dict[str, dict[str, Pin]]
"""Pins by origin and thumbprint."""


class TrustedKeys:
    """Pins the keys of an origin's first signed card and later accepts no others. The pins are
    stored in a file that processes may share, or without a file in this object."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else None
        self._pins: PinnedKeys = {}

    async def verify(
        self, document: Document, *, url: str = "", fetch: Fetch | None = None
    ) -> Verified:
        """See `Verifier.verify`. ValueError if the file cannot be read."""
        where = origin(url)
        if not where or fetch is None:
            raise Unverified(
                "keys are pinned by the address of a card; connect to the card's address, "
                "or name the trusted keys"
            )
        pins = (await self._in_thread(self.known)).get(where, {})
        if not pins:
            pins = await self._first(document, where, fetch)
        keys = {name: CardKey.load(pin.jwk) for name, pin in pins.items()}
        try:
            good = witnesses(document, list(keys.values()))
        except Unverified as error:
            raise await self._unknown_key_error(document, where, fetch, list(pins), error) from None
        await self._inherit(document, where, fetch, pins, good)
        return good[0]

    def known(self) -> PinnedKeys:
        """Return all pins. Raises ValueError if the file is not valid."""
        if self.path is None:
            return {where: dict(pins) for where, pins in self._pins.items()}
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=PinnedKeys)
            for pins in found.values():
                for name, pin in pins.items():
                    if CardKey.load(pin.jwk).thumbprint != name:
                        raise ValueError(f"the thumbprint {name} belongs to another key")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ValueError(f"{self.path}: {error.strerror}") from None
        except ValueError as error:  # JSON errors, too
            raise ValueError(
                f"{self.path}: is not a valid file of pinned keys ({error}); correct it, or "
                "delete it to start again"
            ) from None
        return found

    def forget(self, where: str) -> bool:
        """Delete the pins of this origin, and return whether there were any."""
        where = origin(where) or where

        def drop(pinned: PinnedKeys) -> bool:
            return pinned.pop(where, None) is not None

        return self._change(drop)

    # -- pinning

    async def _first(self, document: Document, where: str, fetch: Fetch) -> dict[str, Pin]:
        """Pin the keys that have signed."""
        parts = urlsplit(where)
        if parts.scheme != "https" and not loopback(parts.hostname or ""):
            raise Unverified(
                f"the keys of {where} are not pinned: over plain http, anyone on the "
                "network path can replace them; use https, or name the trusted keys"
            )
        offered = await offered_keys(document, where, fetch)
        if not offered:
            raise Unverified(
                f"the keys of {where} cannot be pinned: the signatures of its card name no "
                "available key (jku); name the trusted keys"
            )
        signed = _signers(document, offered.values())
        return await self._in_thread(lambda: self._pin(where, [offered[name] for name in signed]))

    async def _inherit(
        self,
        document: Document,
        where: str,
        fetch: Fetch,
        pins: Mapping[str, Pin],
        good: list[Verified],
    ) -> None:
        """Pin further keys that have signed, if a pinned key vouches for them."""
        heirs = {name for found in good for name in found.heirs} - set(pins)
        if not heirs:
            return
        try:
            offered = await offered_keys(document, where, fetch)
            signed = _signers(document, (offered[name] for name in heirs if name in offered))
        except (Unverified, ConnectionError, TimeoutError) as error:
            logger.warning("%s has a new key, which cannot be fetched yet: %s", where, error)
            return
        new = [offered[name] for name in signed]
        await self._in_thread(lambda: self._pin(where, new, more=True))

    async def _unknown_key_error(
        self, document: Document, where: str, fetch: Fetch, old: list[str], why: Unverified
    ) -> Unverified:
        """The error for a card that no pinned key has signed."""
        new = "nobody" if why.reason == UNSIGNED else "keys that cannot be fetched"
        with suppress(Unverified, ConnectionError, TimeoutError):
            offered = await offered_keys(document, where, fetch)
            new = ", ".join(_signers(document, offered.values()))
        advice = f"`dragoman card trust --forget {where}` or edit {self.path}"
        return Unverified(
            (
                f"{where} was pinned to {', '.join(old)}, but this card is signed by {new}: "
                f"{why}. Either the agent changed its keys, or someone intercepts the "
                "connection. Ask the operator of the agent; then "
            )
            + (advice if self.path else f"pins.forget({where!r})")
        )

    def _pin(self, where: str, keys: list[CardKey], *, more: bool = False) -> dict[str, Pin]:
        """Pin keys of a new origin, or with `more` further keys of a known one. Return its pins."""

        def put(pinned: PinnedKeys) -> dict[str, Pin]:
            pins = pinned.get(where, {})
            if bool(pins) != more:  # another process pinned or deleted them
                return pins
            pinned[where] = pins
            for key in keys:
                if key.thumbprint in pins:
                    continue
                pins[key.thumbprint] = Pin(key.jwk(), clock.now())
                first = "a key that a pinned key signed" if more else "first contact"
                logger.warning("pinned %s to %s, %s", where, key.thumbprint, first)
            return pins

        return self._change(put)

    # -- the file

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run it in a thread, because another process may hold the file lock."""
        return work() if self.path is None else await asyncio.to_thread(work)

    def _change(self, work: Callable[[PinnedKeys], T]) -> T:
        """Read, change and write the file under its lock."""
        if self.path is None:
            return work(self._pins)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(self.path.with_name(f"{self.path.name}.lock")):
            before = self.known()
            pinned = {where: dict(pins) for where, pins in before.items()}
            result = work(pinned)
            if pinned != before:
                self._write(pinned)
            return result

    def _write(self, pinned: PinnedKeys) -> None:
        assert self.path is not None
        made = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        made.unlink(missing_ok=True)
        text = msgspec.json.format(msgspec.json.encode(pinned), indent=2)
        try:
            with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(text + b"\n")
                out.flush()
                os.fsync(out.fileno())
            made.replace(self.path)
        except OSError:
            made.unlink(missing_ok=True)
            raise


class Origins:
    """Keys for each origin: a card must be signed by a key of its own origin. `others` applies to
    all other origins: refuse them, accept them unsigned, or ask another verifier."""

    def __init__(
        self,
        keys: Mapping[str, Verifier | Keys],
        *,
        others: Verifier | Literal["refuse", "accept"] = "refuse",
    ) -> None:
        if isinstance(others, str) and others not in ("refuse", "accept"):
            raise ValueError(f"others: must be refuse or accept, not {others!r}")
        self._verifiers: dict[str, Verifier] = {}
        for name, given in keys.items():
            where = origin(name)
            if not where or urlsplit(name).path.strip("/"):
                raise ValueError(f"{name!r} is not an origin such as https://agent.example")
            self._verifiers[where] = to_verifier(given)
        self._others = others

    async def verify(
        self, document: Document, *, url: str = "", fetch: Fetch | None = None
    ) -> Verified | None:
        """See `Verifier.verify`."""
        found = self._verifiers.get(origin(url))
        if found is None:
            if self._others == "accept":
                return None
            if isinstance(self._others, str):
                raise Unverified(f"no pinned key for {origin(url) or 'a card without an address'}")
            found = self._others
        return await found.verify(document, url=url, fetch=fetch)


def to_verifier(given: Verifier | Keys) -> Verifier:
    """Return the verifier; keys alone are enough to make one."""
    return given if isinstance(given, Verifier) else Trust(given)


async def offered_keys(document: Document, where: str, fetch: Fetch) -> dict[str, CardKey]:
    """Fetch the keys that the signatures name, by thumbprint. Only URLs of the card's own origin
    are fetched. Raises Unverified if a URL has no valid keys."""
    found: dict[str, CardKey] = {}
    for url in places(document, where):
        try:
            for key in published(await fetch(url)).values():
                found[key.thumbprint] = key
        except (A2AError, ValueError) as error:
            raise Unverified(f"cannot fetch its keys at {url}: {error}") from None
    return found


def _signers(document: Document, keys: Iterable[CardKey]) -> list[str]:
    """Return the thumbprints of the keys that have signed. Raises Unverified if none has."""
    named = {key.kid: key for key in keys}
    return list(dict.fromkeys(found.thumbprint for found in witnesses(document, named)))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
