"""Signs agent cards, and publishes the public keys that verify them."""

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
"""The value of `card_jku` that means the agent's own key set."""
PAUSE = 5.0
"""Seconds to wait after a failed signature before the next attempt."""
KEPT = 64
EXAMPLE = "https://localhost"
"""The URL in the card that the start-up check signs."""


class CardSigner:
    """Signs cards with all of its keys, or fails. A remote signer may be slow and may fail, so it
    runs in a thread, for one request at a time."""

    def __init__(self, keys: Sequence[CardKey], settings: Settings) -> None:
        self.keys = tuple(keys)
        self._settings = settings
        self._one = asyncio.Lock()
        self._failed = 0.0
        self._known: dict[bytes, AgentCard] = {}
        shown = [key.jwk() for key in self.keys if key.made is not None]
        self.set = encode({"keys": shown}) if shown else b""
        """The public keys as a JWK set; empty if there are none."""
        self.tag = b'"%b"' % hashlib.sha256(self.set).hexdigest()[:32].encode()

    async def check(self, card: AgentCard) -> None:
        """Sign this card once, to check the keys. Raises ValueError if the keys or the card are
        not usable."""
        if not self.keys:
            return
        jku = self._settings.card_jku
        if jku not in ("", OWN) and not jku.startswith(("https://", "http://")):
            raise SettingsError(f"card_jku: must be own or a URL, not {jku!r}")
        names = [key.kid for key in self.keys]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two keys have the kid {twice[0]!r}; give each key its own kid")
        if jku == OWN and (hidden := [k for k in self.keys if k.made is None]):
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
        except Exception as error:  # a user's signing function can raise anything
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
        """Return the URL of the key set, as signatures of a card with this URL name it."""
        jku = self._settings.card_jku
        return f"{url}{JWKS}" if jku == OWN else jku

    async def signed(self, card: AgentCard, url: str) -> AgentCard:
        """Return the card with its signatures. Signatures of equal cards are cached."""
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
        """Run a function that signs a card. Raises Unavailable if it fails, because an unsigned
        card is not served."""
        if not self.keys:
            return work()
        async with self._one:
            if time.monotonic() < self._failed:
                raise _unsigned()
            try:
                return await asyncio.to_thread(work)
            except Exception as error:
                logger.exception("the card cannot be signed, so it is not served")
                if not isinstance(error, ValueError):  # a ValueError concerns only this card
                    self._failed = time.monotonic() + PAUSE
                raise _unsigned() from None


def _unsigned() -> Unavailable:
    return Unavailable(
        "The card cannot be signed at the moment", headers={"retry-after": f"{PAUSE:.0f}"}
    )
