"""What the stores in databases have in common: a writer makes their changes, and secrets are
encrypted."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from dragoman.model.caller import Scope
from dragoman.model.events import CancelRequested, Entry
from dragoman.model.types import TaskStatusUpdateEvent
from dragoman.security.encryption import Encryption
from dragoman.stores import log_changes
from dragoman.stores.codec import secrets
from dragoman.stores.delivery_order import DeliveryOrder
from dragoman.stores.encrypted_values import encrypt_private
from dragoman.stores.process_rows import FLEET, LIVES, ProcessRow, row_body
from dragoman.stores.reservations import (
    PRUNE_AT_ONCE,
    PRUNE_EVERY,
    Reservation,
    decode_reservation,
    decode_value,
    encode_value,
)
from dragoman.stores.store import Head, Receipt, Unreadable, Webhook
from dragoman.stores.unreadable_rows import UnreadableRows

T = TypeVar("T")

SWEEP = 600.0
"""How often tasks that are old enough, but had to stay, are checked again."""
RECEIPTS = 24 * 3600.0
"""How long a repeated send is recognised, at least."""
UNREADABLE = "The log of this task cannot be read"


class Writer(Protocol):
    """Makes changes in transactions."""

    def submit(
        self,
        work: Callable[[Any], T],
        /,
        *tasks: str,
        receipt: tuple[Scope, str] | None = None,
        fresh: bool = False,
        owner: Scope | None = None,
    ) -> asyncio.Future[T]:
        """Submit a change. It reads the head rows of these tasks and this receipt; with `fresh`, it
        reads them from the database and not from a cache. `owner` is the caller, if there is
        one."""


class SqlStore:
    """The part of a store that is the same in every database."""

    _writer: Writer

    def __init__(
        self, *, retention: float, max_task_bytes: int, encryption: Encryption | None
    ) -> None:
        self.id = ""
        self.retention = retention
        """How long a task is kept after its end; 0 is for ever."""
        self.max_task_bytes = max_task_bytes
        self._encryption = encryption or Encryption(())
        self._damage = UnreadableRows()
        self.unreadable: Mapping[str, int] = self._damage.counts
        self._delivery_order = DeliveryOrder()
        self._floor = 0.0
        """Tasks that ended before this time need no check for deletion."""
        self._swept = self._reservations_swept = -math.inf
        self._claimed = 0

    def _in_turn(self, agents: Collection[str]) -> list[str]:
        """The agents, each time beginning with another one."""
        names = list(agents)
        self._claimed += 1
        first = self._claimed % len(names) if names else 0
        return names[first:] + names[:first]

    async def cancel(
        self,
        scope: Scope,
        task: str,
        request: CancelRequested,
        canceled: TaskStatusUpdateEvent,
        grace: float,
        receipt: Receipt | None = None,
        *,
        undo: bool = False,
    ) -> Head:
        """See `Store.cancel`."""
        work = partial(
            log_changes.cancel,
            scope=scope,
            task=task,
            request=request,
            canceled=canceled,
            grace=grace,
            receipt=receipt,
            undo=undo,
        )
        known = None if receipt is None else (scope, receipt.key)
        return await self._writer.submit(work, task, receipt=known, owner=scope)

    async def put_webhook(self, scope: Scope, webhook: Webhook) -> None:
        """See `Store.put_webhook`."""
        work = partial(log_changes.put_webhook, scope=scope, webhook=self._encrypted(webhook))
        await self._writer.submit(work, webhook.config.task_id, owner=scope)

    async def revoke(
        self,
        head: Head,
        event: TaskStatusUpdateEvent | None,
        *,
        expired: bool = False,
        begun: bool = True,
        delay: float = 0.0,
        note: Entry | None = None,
    ) -> Head | None:
        """See `Store.revoke`."""
        if note is not None:
            encrypt_private([note], head.id, self._encryption)
        work = partial(
            log_changes.revoke,
            head=head,
            event=event,
            expired=expired,
            begun=begun,
            delay=delay,
            note=note,
        )
        try:
            return await self._writer.submit(work, head.id, fresh=True)
        except Unreadable as error:
            await self._set_aside(head.id, error)
            return None

    async def wake_now(self, tasks: Collection[str]) -> Mapping[str, int]:
        """See `Store.wake_now`."""
        if not tasks:
            return {}
        work = partial(log_changes.wake_now, tasks=tasks)
        return await self._writer.submit(work, *tasks, fresh=True)

    async def reserve(self, space: str, key: str, value: bytes, keep: float | None) -> bytes:
        """See `Store.reserve`."""
        body = encode_value(value, space, key, self._encryption)
        found = await self._reserve_body(space, key, body, keep)
        if found is body:
            return value
        return decode_value(found, space, key, self._encryption)

    async def reserved(self, space: str, key: str) -> bytes | None:
        """See `Store.reserved`."""
        found = await self._reserved_body(space, key)
        return None if found is None else decode_value(found, space, key, self._encryption)

    async def reservations(
        self, space: str, prefix: str, after: str, limit: int
    ) -> Sequence[Reservation]:
        """See `Store.reservations`."""
        found = await self._listed(space, prefix, after, limit)
        return [decode_reservation(space, row, self._encryption) for row in found]

    async def report(self, row: ProcessRow) -> None:
        """See `Store.report`."""
        await self._reserve_body(FLEET, row.key, row_body(row), LIVES)

    async def _prune_reservations(self) -> int:
        if time.monotonic() - self._reservations_swept < PRUNE_EVERY:
            return 0
        count = await self._delete_reservations()
        if count < PRUNE_AT_ONCE:
            self._reservations_swept = time.monotonic()
        return count

    def _encrypted(self, webhook: Webhook) -> Webhook:
        return secrets(webhook, self._encryption.encrypt)

    def _decrypted(self, webhook: Webhook) -> Webhook:
        return secrets(webhook, self._encryption.decrypt)

    # -- what each database does in its own way

    async def _set_aside(self, task: str | int, error: Unreadable) -> None:
        """Set a task with an unreadable head aside, by its id or its key."""
        raise NotImplementedError

    async def _reserve_body(self, space: str, key: str, body: bytes, keep: float | None) -> bytes:
        """Return the stored form that is there, or else this one, which is there from now on."""
        raise NotImplementedError

    async def _reserved_body(self, space: str, key: str) -> bytes | None:
        """Return the stored form that is there and has not expired."""
        raise NotImplementedError

    async def _listed(
        self, space: str, prefix: str, after: str, limit: int
    ) -> Sequence[tuple[str, bytes, float | None]]:
        """Return the key, the stored form and the time of reservations."""
        raise NotImplementedError

    async def _delete_reservations(self) -> int:
        """Delete some expired reservations. Returns how many."""
        raise NotImplementedError
