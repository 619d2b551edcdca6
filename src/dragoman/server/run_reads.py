"""What a run reads for its turn: related tasks, the conversation, the value of the context."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec.structs import replace

from dragoman.agent.turn import Turn
from dragoman.model.caller import Scope
from dragoman.model.conversation import ContextValue, ConversationMessage, MessagePlace
from dragoman.model.errors import Unavailable
from dragoman.model.events import Received
from dragoman.model.types import Task
from dragoman.server.conversation import conversation
from dragoman.server.replay import message_at
from dragoman.server.worker_protocol import RunningWorker
from dragoman.stores.store import Claim, Query, Stale
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.server.run import Run

T = TypeVar("T")
RELATED = 100
"""The most tasks that a turn reads at once."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class RunReads:
    """The half of a run that reads."""

    worker: RunningWorker
    claim: Claim
    turn: Turn
    lost: bool
    ended: bool

    async def received(self, number: int) -> Received:
        """Return the message of this number."""
        return await self._read(lambda: message_at(self.worker.store, self.claim.head, number))

    async def _read(self, read: Callable[[], Awaitable[T]], what: str = "read") -> T:
        """Read from the store. It may come back; until then the handler waits."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await read()
            except Unavailable as error:
                if self.lost:
                    raise
                logger.warning("%s failed; retrying in %g s: %s", what, pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def related(self, ids: Sequence[str], limit: int = RELATED) -> list[Task]:
        """Tasks that the caller may see: those with these ids, or the others of the context."""
        store = self.worker.store
        # A caller with whom the task is shared does not see other tasks of its owner.
        scope = replace(self.claim.head.scope, owner=self.turn.caller.qualified)
        if not ids:
            return await self._others(scope, limit)
        records = [await store.load(scope, task) for task in list(dict.fromkeys(ids))[:RELATED]]
        return [record.task for record in records if record is not None]

    async def _others(self, scope: Scope, limit: int) -> list[Task]:
        """The other tasks of the context, newest first."""
        found: list[Task] = []
        cursor: tuple[str, str] | None = None
        while len(found) < limit:
            size = min(limit - len(found) + 1, RELATED)
            query = Query(context=self.claim.head.context, size=size, cursor=cursor)
            page = await self.worker.store.list(scope, query)
            found += [task for task in page.tasks if task.id != self.claim.head.id]
            cursor = page.cursor
            if cursor is None:
                break
        return found[:limit]

    async def conversation(
        self, before: MessagePlace, limit: int, characters: int
    ) -> list[ConversationMessage]:
        """See `Running.conversation`."""
        head = self.claim.head
        # A caller with whom the task is shared sees this task, and no other of its owner.
        shared = head.scope.owner != self.turn.caller.qualified
        return await conversation(
            *(self.worker.store, head.scope, head.context, before, limit, characters),
            task=head.id if shared else "",
        )

    async def context_value(self) -> ContextValue | None:
        """See `Running.context_value`."""
        self._own_context()
        return await self._read(lambda: self.worker.store.context_value(self.claim))

    async def save_context(self, value: bytes, version: int) -> int:
        """See `Running.save_context`."""
        self._own_context()
        if self.ended:
            raise RuntimeError("the task has ended: nothing can be saved any more")
        store, claim, key = self.worker.store, self.claim, self.turn._key
        try:
            # under the key of the turn: what an earlier attempt at it has saved is its own
            return await self._read(lambda: store.save_context(claim, value, version, key), "save")
        except Stale:
            self.worker.abandon(cast("Run", self))
            raise asyncio.CancelledError("the claim is lost") from None

    def _own_context(self) -> None:
        """Refuse a caller with whom the task is shared: the context is its owner's."""
        if self.claim.head.scope.owner != self.turn.caller.qualified:
            raise PermissionError(
                "the task is shared with this caller, and the value of its context belongs to the "
                "owner: a turn of this caller can neither read nor save it"
            )
