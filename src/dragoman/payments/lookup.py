"""Looks after open payments: those whose settlement is not known, or whose task has ended without
its gate, for example because all its workers died."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman import GateStore, TaskState
from dragoman.payments.books import GateBooks, Kind, PaymentRecord
from dragoman.payments.facilitator import NoAnswer
from dragoman.payments.objects import Authorization, Receipt, Requirement

if TYPE_CHECKING:
    from dragoman.payments.terms import Terms

logger = logging.getLogger("dragoman.payments")

KINDS: tuple[Kind, ...] = ("unsettled", "unused", "settled", "owed")
TURN = 50.0
"""For how many seconds a process alone looks after the payments of a skill."""


async def look_up(terms: Terms, store: GateStore) -> None:
    """Complete the records of the payments whose tasks have ended."""
    books = terms.books(store)
    if not await books.first(terms.token, TURN):
        return
    async for record in books.all_open():
        try:
            await Open(terms, store, books, record).look()
        except Exception:
            logger.exception("a payment of task %s could not be looked up", record.task)


class Open:
    """An open payment."""

    def __init__(
        self, terms: Terms, store: GateStore, books: GateBooks, record: PaymentRecord
    ) -> None:
        self._terms, self._store, self._books, self.record = terms, store, books, record

    async def look(self) -> None:
        """Do what is left to do for it, if its task has ended."""
        state = await self._store.task_state(self.record.task)
        if state is not None and not state.terminal:
            return  # its own turn does that
        known = await self._complete(state)
        # also what was written before: the process may have ended before the hook had it
        if await self._tell() and known:
            await self._books.close(self.record)

    async def _complete(self, state: TaskState | None) -> bool:
        """Write the records that are missing. Returns whether all is known."""
        settled = await self._books.find("settled", self.record)
        if settled is None:
            await self._write("unsettled")
            receipt = await self._on_chain()
            if receipt is None:
                return False
            if not receipt.success:
                await self._write("unused")
            else:
                self.record = replace(self.record, transaction=receipt.transaction)
                await self._write("settled")
                await self._write("owed")  # no work was done for it
        elif state is None:
            logger.warning("how the task %s ended is not known: it is deleted", self.record.task)
        elif state is not TaskState.COMPLETED:
            self.record = settled
            await self._write("owed")
        return True

    async def _write(self, kind: Kind) -> None:
        if await self._books.find(kind, self.record) is None:
            found = replace(self.record, kind=kind, at=time.time())
            await self._terms.write(self._store, found)

    async def _tell(self) -> bool:
        """Pass on what the hook has not had. Returns whether it has had all."""
        told = True
        for kind in KINDS:
            record = await self._books.find(kind, self.record)
            try:
                if record is not None:
                    await self._terms.tell(self._store, record)
            except Exception:
                logger.exception("a payment of task %s could not be passed on", self.record.task)
                told = False
        return told

    async def _on_chain(self) -> Receipt | None:
        """How it was settled, by the chain; None if that is not known."""
        record = self.record
        chain = self._terms.chains.get(record.network)
        if chain is None:
            return None
        required = Requirement(
            network=record.network, asset=record.asset, amount=record.amount, pay_to=record.to
        )
        signed = Authorization(
            payer=record.payer,
            to=record.to,
            value=record.amount,
            valid_after=0,
            valid_before=record.expires,
            nonce=record.nonce,
        )
        try:
            return await chain._settled(required, signed)
        except NoAnswer as error:
            logger.warning("the settlement of a payment is not known: %s", error)
            return None
