"""Signing of agent cards, and the public keys that verify them."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dragoman.dialects.v1_0 import encode
from dragoman.model.errors import Unavailable
from dragoman.model.types import AgentCard
from dragoman.security import card_signatures
from dragoman.security.card_keys import CardKey
from dragoman.server.settings import Settings, SettingsError
from dragoman.telemetry.logs import logger

T = TypeVar("T")

JWKS = "/.well-known/jwks.json"
OWN = "own"
"""As an address of keys: the agent's own set."""
PAUSE = 5.0
"""How long not to ask again what has just failed to sign."""
KEPT = 64
EXAMPLE = "https://localhost"
"""What a card names that is signed only to see whether it can be."""


class CardSigner:
    """Signs with all of its keys, or not at all. What signs elsewhere may take its time, and may
    fail: it is asked in a thread, by one request at a time."""

    def __init__(self, keys: Sequence[CardKey], settings: Settings) -> None:
        self.keys = tuple(keys)
        self._settings = settings
        self._one = asyncio.Lock()
        self._failed = 0.0
        self._known: dict[bytes, AgentCard] = {}
        shown = [key.jwk() for key in self.keys if key.made is not None]
        self.set = encode({"keys": shown}) if shown else b""
        """The public halves, as others may see them; empty if there are none."""
        self.tag = b'"%b"' % hashlib.sha256(self.set).hexdigest()[:32].encode()

    async def check(self, card: AgentCard) -> None:
        """ValueError says why this card cannot be signed, or these keys cannot sign."""
        if not self.keys:
            return
        told = self._settings.card_jku
        if told not in ("", OWN) and not told.startswith(("https://", "http://")):
            raise SettingsError(f"card_jku: must be own or a URL, not {told!r}")
        names = [key.kid for key in self.keys]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two keys have the kid {twice[0]!r}; give each key its own kid")
        if told == OWN and (hidden := [k for k in self.keys if k.made is None]):
            raise ValueError(
                f"clients cannot find the key {hidden[0].kid!r}; use CardKey.remote(…, "
                "public=…), or set card_jku to its URL"
            )
        try:
            made = await asyncio.to_thread(
                card_signatures.signed, card, self.keys, self.jku(EXAMPLE)
            )
        except ValueError:
            raise
        except Exception as error:  # whatever somebody's own function raises
            raise ValueError(f"the remote signer failed: {error!r}") from error
        for key in self.keys:
            if key.made is None:
                continue
            try:
                card_signatures.verify(made, {key.kid: key})
            except card_signatures.Unverified:
                text = f"the signature of the key {key.kid!r} does not match its public key"
                raise ValueError(text) from None

    def jku(self, url: str) -> str:
        """Where the keys are, in signatures of a card that names this URL."""
        told = self._settings.card_jku
        return f"{url}{JWKS}" if told == OWN else told

    async def signed(self, card: AgentCard, url: str) -> AgentCard:
        """The card with its signatures; the same one is signed once."""
        if not self.keys:
            return card
        name = hashlib.sha256(encode(card)).digest()
        if (known := self._known.get(name)) is not None:
            return known
        found = await self.make(lambda: card_signatures.signed(card, self.keys, self.jku(url)))
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[name] = found
        return found

    async def make(self, work: Callable[[], T]) -> T:
        """What this makes of a card. Unavailable if nobody signs: without its signatures the card
        is not shown."""
        if not self.keys:
            return work()
        async with self._one:
            if time.monotonic() < self._failed:
                raise _unsigned()
            try:
                return await asyncio.to_thread(work)
            except Exception as error:
                logger.exception("the card cannot be signed, so it is not served")
                if not isinstance(error, ValueError):  # that is of this card, and not of the key
                    self._failed = time.monotonic() + PAUSE
                raise _unsigned() from None


def _unsigned() -> Unavailable:
    return Unavailable(
        "The card cannot be signed at the moment", headers={"retry-after": f"{PAUSE:.0f}"}
    )
