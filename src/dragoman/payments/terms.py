"""The terms of a merchant: what it was made with, and how it records payments."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from msgspec import Struct

from dragoman import GateStore
from dragoman.payments.books import GateBooks, PaymentRecord, Refund, refunded
from dragoman.payments.chain import Chain
from dragoman.payments.facilitator import Facilitator

logger = logging.getLogger("dragoman.payments")

Record = Callable[[PaymentRecord], Awaitable[Refund | None]]


class Terms(Struct, frozen=True, kw_only=True):
    """What a merchant was made with. See `Merchant`."""

    facilitators: tuple[Facilitator, ...]
    uris: tuple[str, ...]
    """The versions of the extension that it offers."""
    x402_version: int
    settle_pauses: tuple[float, ...]
    chains: Mapping[str, Chain]
    retention: float | None
    settle: Literal["before", "after"]
    record: Record | None
    token: bytes
    """Names this merchant among those that look payments up."""

    def books(self, store: GateStore) -> GateBooks:
        """Return the books in the store of a gate."""
        return GateBooks(store, self.retention)

    async def note(self, store: GateStore, record: PaymentRecord) -> None:
        """Write a record into the books, log it, and pass it on. It may be called again."""
        await self.write(store, record)
        await self.tell(store, record)

    async def write(self, store: GateStore, record: PaymentRecord) -> None:
        """Write a record into the books and log it, unless it is there."""
        if await self.books(store).write(record):
            say = logger.warning if record.kind in ("owed", "unsettled") else logger.info
            say("payment of task %s is %s", record.task, record.kind)
            about = {"payer": record.payer, "network": record.network, "asset": record.asset}
            about |= {"amount": str(record.amount), "transaction": record.transaction}
            store.report(
                f"payment.{record.kind}",
                **{"task": record.task, "skill": record.skill, "nonce": record.nonce, **about},
            )

    async def tell(self, store: GateStore, record: PaymentRecord) -> None:
        """Pass a record on to the hook, unless it has had it."""
        books = self.books(store)
        if self.record is None or record.kind in ("offered", "refunded"):
            return
        if await books.is_told(record):
            return
        refund = await self.record(record)
        if refund is not None and record.kind == "owed":
            await self.write(store, refunded(record, refund, record.at))
        await books.tell(record)
