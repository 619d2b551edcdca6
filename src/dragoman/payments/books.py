"""The books of a merchant: offers and payments in the store. They outlive tasks, and have no
signatures.

Each kind of record has a space of reservations, with the task and the nonce as key. A payment is
`open` from before it is sent until its task has ended and its records are complete.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from heapq import merge
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import GateStore
from dragoman.admin import StoreAdmin

Kind = Literal["offered", "settled", "owed", "unsettled", "unused", "refunded"]
DAY = 24 * 3600.0
RETENTION = 3653 * DAY
"""How many seconds records are kept."""
OFFERS = 90 * DAY
"""The same of offers, at most: anybody can cause one."""
NONCES = 30 * DAY
"""How long nonces and open payments are kept after the authorization has expired."""
OPEN = "x402.open"
"""The space of open payments."""
TOLD = "x402.told"
"""The space of the records that the hook has had."""


class PaymentRecord(Struct, frozen=True, kw_only=True):
    """What happened to a payment."""

    kind: Kind
    """`offered`: a task has asked for it. `settled`: it was carried out. `owed`: that, too, and the
    task did not complete. `unsettled`: it was sent to the facilitator, and whether it was carried
    out is not known. `unused`: it was unsettled, and by the chain it was never carried out.
    `refunded`: the merchant has paid it back."""
    agent: str = ""
    task: str
    skill: str
    payer: str = ""
    to: str
    network: str
    asset: str
    amount: int
    """In the smallest unit."""
    nonce: str = ""
    transaction: str = ""
    expires: int = 0
    """The Unix time at which the authorization ends."""
    at: float = 0.0


class Refund(Struct, frozen=True):
    """A payment was paid back, wholly or in part."""

    transaction: str
    amount: int | None = None
    """In the smallest unit; None is the whole payment."""


class BookedPayment(Struct, frozen=True):
    """A payment, and what became of it."""

    record: PaymentRecord
    """The `settled` record; the `unsettled` one if it was not settled."""
    state: Kind
    refund: PaymentRecord | None = None


_record = msgspec.json.Decoder(PaymentRecord).decode


def space(kind: Kind) -> str:
    """The space of a kind of records."""
    return f"x402.{kind}"


def key_of(record: PaymentRecord) -> str:
    """The key of a record in the books: the task, and the nonce of a payment."""
    return f"{record.task}/{record.nonce}" if record.nonce else record.task


# ---- the gate's side


class GateBooks:
    """The books, as a gate writes them."""

    def __init__(self, store: GateStore, retention: float | None) -> None:
        self._store, self._retention = store, retention
        named = f"{store.agent}\n{store.skill}".encode()
        self.place = hashlib.sha256(named).hexdigest()[:32]
        """The prefix of the open payments of the skill."""

    async def write(self, record: PaymentRecord) -> bool:
        """Store a record, if there is none of its kind for the payment. Returns whether this one is
        stored."""
        keep = self._retention
        if record.kind == "offered":
            keep = OFFERS if keep is None else min(OFFERS, keep)
        body = msgspec.json.encode(record)
        return (
            await self._store.reserve(space(record.kind), key_of(record), body, keep=keep) == body
        )

    async def find(self, kind: Kind, record: PaymentRecord) -> PaymentRecord | None:
        """Return the record of a kind for the same payment."""
        async for one in self._store.reservations(space(kind), key_of(record)):
            if one.key == key_of(record):
                return _record(one.value)
        return None

    async def is_told(self, record: PaymentRecord) -> bool:
        """Whether the merchant's hook has had a record of this kind for the payment."""
        key = f"{record.kind}/{key_of(record)}"
        return any([one.key == key async for one in self._store.reservations(TOLD, key)])

    async def tell(self, record: PaymentRecord) -> None:
        """Note that the hook has had it."""
        keep = max(record.expires - time.time(), 0.0) + NONCES
        await self._store.reserve(TOLD, f"{record.kind}/{key_of(record)}", b"", keep=keep)

    async def open(self, record: PaymentRecord) -> None:
        """Note that a payment is about to be sent."""
        keep = max(record.expires - time.time(), 0.0) + NONCES
        body = msgspec.json.encode(record)
        await self._store.reserve(OPEN, f"{self.place}/{key_of(record)}", body, keep=keep)

    async def close(self, record: PaymentRecord) -> None:
        """Note that nothing is left to do for a payment."""
        await self._store.release(OPEN, f"{self.place}/{key_of(record)}")

    async def all_open(self) -> AsyncIterator[PaymentRecord]:
        """Yield the open payments of the skill."""
        async for one in self._store.reservations(OPEN, f"{self.place}/"):
            yield _record(one.value)

    async def first(self, token: bytes, seconds: float) -> bool:
        """Whether no other process looks after the open payments of the skill; then none does for
        so many seconds."""
        return await self._store.reserve("x402.turns", self.place, token, keep=seconds) == token


# ---- the operator's side


class Books:
    """The books of all merchants whose agents use a store, for operators.

        with open_store("sqlite:///tasks.db") as admin:
            for record in Books(admin).owed(): ...

    Its methods block, and raise what those of the admin interface raise.
    """

    def __init__(self, admin: StoreAdmin) -> None:
        self._admin = admin

    def records(self, kind: Kind, task: str = "") -> Iterator[PaymentRecord]:
        """Yield the records of a kind, of all tasks or of one, by task."""
        prefix = f"{task}/" if task and kind != "offered" else task
        for one in self._admin.reservations(space(kind), prefix):
            yield _record(one.value)

    def owed(self) -> Iterator[PaymentRecord]:
        """Yield the payments whose task did not complete, and that were not refunded."""
        return (one for one in self.records("owed") if not self._has(one, "refunded"))

    def unsettled(self) -> Iterator[PaymentRecord]:
        """Yield the payments of which it is still not known whether they were carried out."""
        known: tuple[Kind, ...] = ("settled", "unused", "refunded")
        for one in self.records("unsettled"):
            if not any(self._has(one, kind) for kind in known):
                yield one

    def payments(self, task: str = "") -> Iterator[BookedPayment]:
        """Yield the payments that were sent, and what became of them, by task."""
        refunds = {key_of(one): one for one in self.records("refunded", task)}
        owed = {key_of(one) for one in self.records("owed", task)}
        both = (self.records("unsettled", task), self.records("settled", task))
        for one in merge(*both, key=key_of):
            state: Kind = one.kind
            if state == "settled":
                state = "owed" if key_of(one) in owed else state
            elif self._has(one, "settled"):
                continue
            elif self._has(one, "unused"):
                state = "unused"
            refund = refunds.get(key_of(one))
            yield BookedPayment(one, "refunded" if refund else state, refund)

    def refund(self, task: str, refund: Refund, *, nonce: str = "") -> PaymentRecord:
        """Record that the payment of a task was paid back, and return the record. If the task has
        several payments that count, `nonce` says which. Raises LookupError and ValueError."""
        record = refunded(self._one(task, nonce), refund, time.time())
        if not self._write(record):
            raise ValueError(f"the refund of the task {task} is already recorded")
        return record

    def resolve(self, task: str, transaction: str, *, nonce: str = "") -> PaymentRecord:
        """Record what came of an unsettled payment, as the operator has found out: the transaction
        that has carried it out, so that it is owed; or, if that is empty, that nothing ever can.
        Returns the record. Raises LookupError and ValueError."""
        found = self._one(task, nonce)
        if found.kind != "unsettled" or self._has(found, "refunded"):
            raise ValueError(f"the payment of the task {task} is not unsettled")
        if not transaction and found.expires > time.time():
            raise ValueError("the payment has not expired: it can still be carried out")
        record = replace(found, kind="unused", at=time.time())
        if transaction:
            settled = replace(record, kind="settled", transaction=transaction)
            record = replace(settled, kind="owed")
            self._write(settled)
        self._write(record)
        return record

    def _one(self, task: str, nonce: str) -> PaymentRecord:
        """The payment of a task that counts."""
        found = [
            one.record
            for one in self.payments(task)
            if one.state != "unused" and nonce in ("", one.record.nonce)
        ]
        if not found:
            raise LookupError(f"the books have no payment of the task {task}")
        if len(found) > 1:
            nonces = ", ".join(one.nonce for one in found)
            raise ValueError(f"the task {task} has several payments; name the nonce: {nonces}")
        return found[0]

    def _write(self, record: PaymentRecord) -> bool:
        body = msgspec.json.encode(record)
        place = space(record.kind)
        return self._admin.reserve(place, key_of(record), body, keep=RETENTION) == body

    def _has(self, record: PaymentRecord, kind: Kind) -> bool:
        found = self._admin.reservations(space(kind), key_of(record))
        return any(one.key == key_of(record) for one in found)


def refunded(paid: PaymentRecord, refund: Refund, at: float) -> PaymentRecord:
    """The record of a refund. Raises ValueError."""
    amount = paid.amount if refund.amount is None else refund.amount
    if not 0 < amount <= paid.amount:
        raise ValueError(f"the refund must be greater than 0, and at most {paid.amount}")
    return replace(paid, kind="refunded", amount=amount, transaction=refund.transaction, at=at)
