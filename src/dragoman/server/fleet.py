"""Writes a row about this process at an interval, so that operators see all replicas."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Collection
from typing import TypeAlias

from dragoman._version import __version__
from dragoman.model import clock
from dragoman.model.errors import Unavailable
from dragoman.stores.process_rows import EVERY, ProcessRow
from dragoman.stores.store import Store
from dragoman.telemetry.logs import logger

Numbers: TypeAlias = "tuple[int, int, int, int, int, int]"
"""Running turns and open streams; then the accepted messages, the ended, failed and lost turns
since the start."""


class FleetReporter:
    """Writes the rows of one process until it is canceled."""

    def __init__(
        self, store: Store, role: str, agents: Collection[str], numbers: Callable[[], Numbers]
    ) -> None:
        self._store = store
        self._about = ProcessRow(
            id=clock.uuid7(),
            name=f"{socket.gethostname()}:{os.getpid()}",
            role=role,
            version=__version__,
            agents=tuple(sorted(agents)),
        )
        self._numbers = numbers
        self._before = (0, 0, 0, 0)

    async def run(self) -> None:
        """Write a row at once, and then every `EVERY` seconds. A row that cannot be written is left
        out; the next one has its numbers, too."""
        while True:
            try:
                await self.report()
            except Unavailable as error:  # others say so louder
                logger.debug("cannot write the row of this process: %s", error)
            await asyncio.sleep(EVERY)

    async def report(self) -> None:
        """Write a row now. Raises Unavailable."""
        running, streams, *counted = self._numbers()
        since = [now - before for now, before in zip(counted, self._before, strict=True)]
        messages, turns, failed, lost = since
        about = self._about
        await self._store.report(
            ProcessRow(
                id=about.id,
                name=about.name,
                role=about.role,
                version=about.version,
                agents=about.agents,
                running=running,
                streams=streams,
                messages=messages,
                turns=turns,
                failed=failed,
                lost=lost,
                key=f"{clock.now()} {about.id}",
            )
        )
        self._before = (counted[0], counted[1], counted[2], counted[3])
