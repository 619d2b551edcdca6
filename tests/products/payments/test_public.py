"""What users of `dragoman.payments` see: public names and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman import payments
from dragoman.payments import (
    Books,
    Chain,
    Facilitator,
    Merchant,
    PaymentRecord,
    Price,
    Signer,
    Wallet,
)
from tests.products.payments.loopback_facilitator import PAYER, SHOP, TOKEN

ANSWERER = ("answer", "extensions")
GATE = ("enter", "extensions", "holds_output", "is_private", "maintain", "private_metadata")
RECORD = (
    *("agent", "amount", "asset", "at", "expires", "kind", "network", "nonce", "payer"),
    *("skill", "task", "to", "transaction"),
)


def refuse(data: Any) -> Any:
    """Signs nothing."""


def shown(value: object) -> set[str]:
    """The names of an object that are not private."""
    return {name for name in dir(value) if not name.startswith("_")}


def test_objects_show_only_public_names(tmp_path: Path) -> None:
    facilitator, signer = Facilitator("https://facilitator.example"), Signer(PAYER, refuse)
    price, merchant = Price("0.10", TOKEN, to=SHOP), Merchant(facilitator)
    limits = {"per_call": "1 TEST", "per_day": "1 TEST"}
    file = tmp_path / "wallet.json"
    wallet = Wallet(signer, file=file, assets=[TOKEN], **limits)
    record = PaymentRecord(kind="owed", task="", skill="", to="", network="", asset="", amount=1)
    assert shown(merchant) == {"price"}
    assert shown(merchant.price(price)) == {*GATE}
    assert shown(facilitator) == {"url"}
    assert shown(Chain("https://node.example")) == {"balance", "network"}
    assert shown(price) == {"asset", "timeout", "to", "units"}
    assert shown(signer) == {"address"}
    wanted = {"address", "file", "history", "limits", "part", "reclaim", *ANSWERER}
    assert shown(wallet) == wanted
    assert shown(Books) == {"owed", "payments", "records", "refund", "resolve", "unsettled"}
    assert shown(record) == {*RECORD}


@pytest.mark.parametrize("name", payments.__all__)
def test_a_public_name_is_there_and_has_a_docstring(name: str) -> None:
    assert getattr(payments, name).__doc__
