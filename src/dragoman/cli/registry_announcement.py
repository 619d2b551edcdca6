"""`dragoman serve --announce`: announces the agents to registries. A failure never stops the
server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from dragoman.cli import UsageError
from dragoman.telemetry.logs import logger, secret

if TYPE_CHECKING:
    from dragoman.registry import Registry
    from dragoman.server.app import App

PAUSES = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds between attempts; the last one is repeated."""
EVERYWHERE = ("0.0.0.0", "::", "")
"""Addresses on which a server listens, but under which nobody reaches it."""


class Announced(Protocol):
    """Gets a call when the server listens, and one when it stops."""

    def begin(self, app: App, port: int) -> None:
        """The application listens on this port."""

    async def end(self) -> None:
        """The server stops."""


class Announcement:
    """Announces the agents to registries, to each until it has answered."""

    def __init__(self, registries: Sequence[Registry]) -> None:
        self._registries = registries
        self._running: list[asyncio.Task[None]] = []

    @classmethod
    def of(cls, urls: Sequence[str], token: str) -> Announcement:
        """Make it of the options. Raises UsageError."""
        from dragoman.cli.connect_options import secret_text
        from dragoman.client import CredentialsNotSent, StaticToken
        from dragoman.registry import Registry

        found = secret_text(token)
        secret(found)
        try:
            return cls([Registry(url, auth=StaticToken(found) if found else None) for url in urls])
        except (ValueError, CredentialsNotSent) as error:
            raise UsageError(f"--announce: {error}") from None

    def begin(self, app: App, port: int) -> None:
        """Announce the agents of an application that listens on this port."""
        from dragoman.cli.server import address

        if not app.settings.url and app.settings.host in EVERYWHERE:
            logger.error("--announce: set `url`; other machines do not know this one by its port")
            return
        base = address(app, port)
        for endpoint in app.endpoints.values():
            for registry in self._registries:
                url, name = base + endpoint.prefix, endpoint.service.agent.name
                self._running.append(asyncio.create_task(_announce(registry, url, name)))

    async def end(self) -> None:
        """Stop, and close the connections."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for registry in self._registries:
            await registry.close()


async def _announce(registry: Registry, url: str, name: str) -> None:
    """Announce an agent until the registry has answered. Each new reason of a failure is logged."""
    from dragoman.registry import RegistryError

    attempt, last = 0, ""
    while True:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(60):
                    urn, state = await registry.announce(url)
                    logger.info("announced %s to %s: %s is %s", name, registry.url, urn, state)
                    return
            why = "no answer within 60 s"
        except (RegistryError, OSError) as error:
            why = str(error)
        if why != last:
            logger.warning("cannot announce %s to %s: %s; trying again", name, registry.url, why)
        last = why
        await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        attempt += 1
