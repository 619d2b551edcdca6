"""The sends of a durable handler: each is a step, and each is found again in the log."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping

from dragoman.agent.durable import Journal
from dragoman.agent.running_step import running
from dragoman.agent.step_results import LARGEST
from dragoman.model.remote_task import BegunTask


class DurableSends:
    """What a durable handler remembers of its sends. See `dragoman.client.delegation.Steps`."""

    largest = LARGEST

    def __init__(
        self,
        journal: Journal,
        begun: Mapping[str, BegunTask],
        log: Callable[[str, BegunTask], None],
    ) -> None:
        self.cards: dict[str, bytes] = {}
        self._journal = journal
        self._begun = dict(begun)
        """The tasks that sends have begun, by the names of the sends."""
        self._log = log
        self._names: dict[str, list[str]] = {}
        """The sends outside of steps: the names of those of the same content."""

    @property
    def inside(self) -> bool:
        """See `Steps.inside`."""
        return running() is not None

    def name(self, content: bytes) -> str:
        """See `Steps.name`. Sends of the same content are known by their order, others may be sent
        in any order."""
        scope = running()
        digest = hashlib.sha256(content).hexdigest()
        within, names = (
            (self._journal.key, self._names) if scope is None else (scope.key, scope.sends)
        )
        same = names.setdefault(digest, [])
        name = hashlib.sha256(f"{within}:{len(same)}:{digest}".encode()).hexdigest()
        same.append(name)
        return name

    def begun(self, name: str) -> BegunTask | None:
        """See `Steps.begun`."""
        return self._begun.get(name)

    def begin(self, name: str, task: BegunTask) -> None:
        """See `Steps.begin`."""
        if (scope := running()) is not None:
            scope.answered.add(name)
        if name not in self._begun:
            self._begun[name] = task
            self._log(name, task)

    async def once(self, name: str, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """See `Steps.once`."""
        return await self._journal.keep(name, call)
