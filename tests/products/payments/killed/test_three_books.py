"""The comparison of the three books finds each promise that is broken."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.payments import PaymentRecord
from dragoman.payments.ledger import Signed
from dragoman.payments.objects import Authorization
from tests.products.payments.killed.three_books import Books
from tests.products.payments.local_chain import Transfer

UNITS = 100_000


def transfer(name: str) -> Transfer:
    return Transfer("0x1", "0x2", UNITS, f"nonce {name}", f"transaction {name}")


def record(name: str, kind: Any = "settled", task: str = "") -> PaymentRecord:
    return PaymentRecord(
        kind=kind,
        task=task or f"task {name}",
        skill="",
        payer="0x1",
        to="0x2",
        network="",
        asset="",
        amount=UNITS,
        nonce=f"nonce {name}",
        transaction="" if kind == "unsettled" else f"transaction {name}",
    )


def signed(name: str, task: str = "") -> Signed:
    authorization = Authorization(
        payer="0x1", to="0x2", value=UNITS, valid_after=0, valid_before=1, nonce=f"nonce {name}"
    )
    return Signed(
        offer=name,
        origin="",
        task=task or f"task {name}",
        symbol="USDC",
        amount=UNITS,
        decimals=6,
        network="",
        to="0x2",
        at=0,
        authorization=authorization,
    )


def outcome(name: str, state: str = "COMPLETED", paid: bool = True) -> dict[str, Any]:
    transactions = [f"transaction {name}"] if paid else []
    state = f"TASK_STATE_{state}"
    return {"name": name, "task": f"task {name}", "state": state, "paid": transactions}


RECORDS = [record("a"), record("b"), record("b", "owed"), record("c", "unsettled")]
GOOD = Books(
    transfers=[transfer("a"), transfer("b"), transfer("c")],
    records=RECORDS,
    unsettled=["nonce c"],
    told=[*RECORDS, RECORDS[0]],
    signed=[signed("a"), signed("b"), signed("c"), signed("d")],
    outcomes=[
        outcome("a"),
        outcome("b", "FAILED"),
        outcome("c", "FAILED", paid=False),
        outcome("d", "FAILED", paid=False),
    ],
    work={"task a": 1, "task b": 2, "task d": 1},
    first={"task d"},
    sent=[["nonce a", "nonce b", "nonce b"], ["nonce c"]],
    retries=3,
    per_call=UNITS,
    per_day=10 * UNITS,
)


def test_equal_books() -> None:
    assert GOOD.breaches() == []
    # what maintenance has found later, and a cancel that came before the receipt
    late = [record("c"), record("c", "owed")]
    states = [*GOOD.outcomes[:2], outcome("c", "CANCELED", paid=False), GOOD.outcomes[3]]
    both = {"records": [*RECORDS, *late], "told": [*RECORDS, *late], "unsettled": []}
    assert replace(GOOD, **both).breaches() == []
    assert replace(GOOD, **both, outcomes=states).breaches() == []


@pytest.mark.parametrize(
    ("changes", "breach"),
    [
        ({"transfers": [*GOOD.transfers, transfer("x")]}, "not signed"),
        ({"transfers": [*GOOD.transfers, transfer("d")]}, "in no record"),
        ({"transfers": GOOD.transfers[1:]}, "settled, and not on the chain"),
        (
            {
                "transfers": [*GOOD.transfers, transfer("e")],
                "signed": [*GOOD.signed, signed("e", "task a")],
            },
            "task a: paid 2 times",
        ),
        ({"records": [*GOOD.records, record("c")]}, "settled and unsettled"),
        ({"records": [*GOOD.records, record("c", "unused")]}, "unused, and on the chain"),
        ({"records": GOOD.records[1:]}, "the books and the hook differ"),
        ({"told": GOOD.told[1:4]}, "the books and the hook differ"),
        ({"records": [*GOOD.records, record("d", "owed")]}, "owed and not settled"),
        ({"records": [*GOOD.records, record("d", task="task a")]}, "settled 2 times"),
        ({"work": {**GOOD.work, "task c": 1}}, "task c: worked unpaid"),
        ({"outcomes": [*GOOD.outcomes[:3], outcome("d", paid=False)]}, "task d: done unpaid"),
        ({"sent": [*GOOD.sent, ["nonce b"]]}, "nonce b: sent to both"),
        ({"sent": GOOD.sent[1:]}, "nonce a: no facilitator"),
        ({"work": {"task a": 5}}, "task a: worked 5 times"),
        ({"outcomes": [*GOOD.outcomes[1:]]}, "the client knows None"),
        (
            {"outcomes": [*GOOD.outcomes[:2], outcome("c", "REJECTED", paid=False)]},
            "only the merch",
        ),
        ({"outcomes": [outcome("a", "FAILED"), *GOOD.outcomes[1:]]}, "neither done nor owed"),
        ({"outcomes": [*GOOD.outcomes, outcome("a")]}, "a: ended 2 times"),
        ({"per_day": 3 * UNITS}, "and the limit is"),
        ({"per_day": 2 * UNITS}, "spent 300000"),
        ({"per_call": UNITS - 1}, "task a: counted"),
    ],
)
def test_a_broken_promise(changes: dict[str, Any], breach: str) -> None:
    found = replace(GOOD, **changes).breaches()
    assert any(breach in one for one in found), found
