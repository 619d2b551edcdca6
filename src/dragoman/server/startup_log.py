"""What an application logs when it starts: who may call, and which callers miss something."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dragoman.bindings.authentication import Authentication
from dragoman.security.card_keys import CardKey
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger

DEEPEST = 10_000
"""The highest recursion limit that a thread's stack of 8 MiB certainly allows."""


def open_access(settings: Settings, access: Authentication) -> None:
    """Log that no authentication is needed, if that is so."""
    unguarded, authenticator = access.identify is None, access.authenticator
    if unguarded or (authenticator is not None and authenticator.open):
        why = "no auth is set" if unguarded else "Anonymous() is set"
        more = ", the secrets of every webhook," if settings.push else ""
        logger.info(
            "callers are anonymous (%s): each caller can read every task%s and what handlers "
            "save for contexts",
            *(why, more),
        )


def recursion_limit() -> None:
    """Log that deeply nested JSON of a caller can end the process, if that is so."""
    limit = sys.getrecursionlimit()
    if limit > DEEPEST:
        logger.warning(
            "the recursion limit of this process is %d: deeply nested JSON of a caller can crash "
            "it; call sys.setrecursionlimit(1000) after the imports (py_ecc, which eth-account and "
            "web3 load, sets it to 100000)",
            limit,
        )


def unnamed_hosts(
    settings: Settings, keys: Sequence[CardKey], access: Authentication, *, serves: bool
) -> None:
    """Log what works on this machine only, because no setting names the server's host."""
    if settings.url or settings.trusted_hosts:
        return
    if keys:
        logger.warning(
            "card_keys: the card is signed for callers on this machine only; set `url`, or "
            "`trusted_hosts`, for others"
        )
    authenticator = access.authenticator
    if serves and authenticator is not None and authenticator.issued:
        logger.info(
            "auth: the server sends token metadata only to callers on this machine; set `url`, "
            "or `trusted_hosts`, for others"
        )
