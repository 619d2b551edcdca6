"""Compares the three books of payments: the chain's, the merchant's and the client's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.payments import PaymentRecord
from dragoman.payments.ledger import Signed
from tests.products.payments.local_chain import Transfer

COMPLETED = "TASK_STATE_COMPLETED"
UNPAID = ("TASK_STATE_FAILED", "TASK_STATE_CANCELED")
"""How a task ends for which its client may have paid, and has no receipt."""
KINDS: tuple[Any, ...] = ("settled", "owed", "unsettled", "unused")


class Books(Struct, frozen=True, kw_only=True):
    """What each side knows in the end."""

    transfers: Sequence[Transfer]
    """The chain: all transfers to the shop."""
    records: Sequence[PaymentRecord]
    """The merchant: the books in its store."""
    unsettled: Collection[str]
    """The merchant: the nonces of which it never knew what came of them."""
    told: Sequence[PaymentRecord]
    """The merchant: what its hook got."""
    signed: Sequence[Signed]
    """The client: what its wallet has signed."""
    outcomes: Sequence[Mapping[str, Any]]
    """The client: how its tasks have ended."""
    work: Mapping[str, int]
    """How often the handler ran for each task."""
    first: Collection[str] = ()
    """The tasks that are worked on before they are paid."""
    sent: Sequence[Collection[str]] = ()
    """The nonces that each facilitator was to settle."""
    retries: int
    per_call: int
    per_day: int

    def of(self, kind: str) -> dict[str, PaymentRecord]:
        """The merchant's payments of a kind, by nonce."""
        found = {one.nonce: one for one in self.records if one.kind == kind}
        assert len(found) == sum(one.kind == kind for one in self.records)
        return found

    def breaches(self) -> list[str]:
        """Each promise that is broken."""
        parts = (
            *(self._chain(), self._merchant(), self._facilitators(), self._hook()),
            *(self._client(), self._limits()),
        )
        return [breach for part in parts for breach in part]

    def _chain(self) -> list[str]:
        known = {one.authorization.nonce for one in self.signed}
        recorded = self.of("settled").keys() | self.of("unsettled").keys()
        found = [f"{one}: not signed" for one in self.transfers if one.nonce not in known]
        found += [f"{one}: in no record" for one in self.transfers if one.nonce not in recorded]
        tasks = {one.authorization.nonce: one.task for one in self.signed}
        often = Counter(tasks.get(one.nonce, "") for one in self.transfers)
        return found + [f"{task}: paid {n} times" for task, n in often.items() if n > 1]

    def _merchant(self) -> list[str]:
        chain = {one.nonce: one.transaction for one in self.transfers}
        settled, owed, open = self.of("settled"), self.of("owed"), set(self.unsettled)
        found = [
            f"{one.task}: settled, and not on the chain"
            for nonce, one in settled.items()
            if chain.get(nonce) != one.transaction
        ]
        found += [f"{nonce}: settled and unsettled" for nonce in settled.keys() & open]
        found += [
            f"{nonce}: unused, and on the chain" for nonce in self.of("unused") if nonce in chain
        ]
        found += [f"{nonce}: owed and not settled" for nonce in owed.keys() - settled.keys()]
        tasks = Counter(one.task for one in settled.values())
        found += [f"{task}: settled {n} times" for task, n in tasks.items() if n > 1]
        found += [
            f"{task}: worked unpaid"
            for task in self.work
            if task not in tasks and task not in self.first
        ]
        return found + [
            f"{task}: worked {n} times" for task, n in self.work.items() if n > self.retries + 1
        ]

    def _facilitators(self) -> list[str]:
        often = Counter(nonce for nonces in self.sent for nonce in set(nonces))
        found = [f"{nonce}: sent to both facilitators" for nonce, n in often.items() if n > 1]
        strange = {one.nonce for one in self.transfers} - often.keys() if self.sent else ()
        return found + [f"{nonce}: no facilitator has settled it" for nonce in strange]

    def _hook(self) -> list[str]:
        books, told = (
            {(one.kind, one.nonce, one.transaction) for one in side}
            for side in (self.records, self.told)
        )
        return [f"{one}: the books and the hook differ" for one in books ^ told]

    def _client(self) -> list[str]:
        settled, owed = self.of("settled"), self.of("owed")
        states = {one["task"]: one["state"] for one in self.outcomes if one["task"]}
        due = {one.task for one in owed.values() if states.get(one.task) in UNPAID}
        paid = {one["task"]: one["paid"] for one in self.outcomes if one["paid"]}
        ours = {one.task: [one.transaction] for one in settled.values()}
        found = [
            f"{task}: the client knows {paid.get(task)}, the merchant {ours.get(task)}"
            for task in paid.keys() | ours.keys()
            if paid.get(task) != ours.get(task) and not (task in due and task not in paid)
        ]
        lists = {
            one.authorization.nonce
            for one in self.signed
            if states.get(one.task) in UNPAID and one.task not in paid
        }
        found += [f"{nonce}: only the merchant lists it" for nonce in set(self.unsettled) - lists]
        done = {task for task, state in states.items() if state == COMPLETED}
        found += [f"{task}: done unpaid" for task in done - ours.keys()]
        gone = ours.keys() - done - {one.task for one in owed.values()}
        found += [f"{task}: neither done nor owed" for task in gone]
        names = Counter(one["name"] for one in self.outcomes)
        return found + [f"{name}: ended {n} times" for name, n in names.items() if n > 1]

    def _limits(self) -> list[str]:
        found = []
        tasks: Counter[str] = Counter()
        for one in self.signed:
            tasks[one.task] += one.amount
        if sum(tasks.values()) > self.per_day:
            found.append(f"counted {sum(tasks.values())}, and the limit is {self.per_day}")
        found += [f"{task}: counted {n}" for task, n in tasks.items() if n > self.per_call]
        spent = sum(one.value for one in self.transfers)
        return found + ([f"spent {spent}"] if spent > self.per_day else [])
