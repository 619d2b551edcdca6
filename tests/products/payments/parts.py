"""Agents that sell, and wallets that buy, for tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dragoman import Agent, App, Message, Part, Role, Turn
from dragoman.client import Client
from dragoman.payments import Merchant, PaymentRecord, Price, Wallet
from dragoman.payments.extension import PAYLOAD, REQUIRED, STATUS, URIS
from dragoman.payments.objects import (
    Authorization,
    Payload,
    payload_object,
    read_offer,
)
from dragoman.payments.signing import key_signer, new_nonce, sign
from tests.products.payments.loopback_facilitator import PAYER, SHOP, TOKEN

PRICE = Price("0.10", TOKEN, to=SHOP)
URI = URIS["0.2"]


class Shop:
    """An agent that sells, and what it recorded."""

    def __init__(self, loopback: Any, price: Any = PRICE, **options: Any) -> None:
        self.records: list[PaymentRecord] = []
        self.worked: list[str] = []

        async def record(found: PaymentRecord) -> None:
            self.records.append(found)

        given = options.pop("facilitator", None) or loopback.client()
        options = {"settle_pauses": (0.01,), "record": record, **options}
        self.merchant = Merchant(given, **options)
        self.agent = Agent("Shop", description="Sells.")

        @self.agent.skill(gate=self.merchant.price(price))
        async def analyze(turn: Turn) -> str:
            self.worked.append(turn.text)
            if turn.text == "fail":
                raise ValueError("broken")
            return f"All about {turn.text}"

        self.app = App(self.agent)

    @property
    def kinds(self) -> list[str]:
        """What was recorded."""
        return [record.kind for record in self.records]

    def connect(
        self, wallet: Wallet | None = None, *, version: str = "0.2", **options: Any
    ) -> Client:
        """A client of the agent."""
        extensions = [URIS[version]] if wallet is None else []
        return Client.connect(app=self.app, answer=wallet, extensions=extensions, **options)


def wallet(path: Path, **options: Any) -> Wallet:
    """A wallet with the key of the tests."""
    usual = {
        "key": "env:WALLET_KEY",
        "per_call": "0.50 TEST",
        "per_day": "5 TEST",
        "file": path / "wallet.json",
        "assets": [TOKEN],
        "receivers": {"http://inside": SHOP},
    }
    return Wallet(**{**usual, **options})


async def payment(offer: Any, version: int = 0, **changes: Any) -> dict[str, Any]:
    """A signed payment for an offer; what changes is signed, too. `after` changes it after that."""
    found = read_offer(offer)
    required = found.accepts[0]
    after = changes.pop("after", {})
    domain = changes.pop("domain", {})
    signed = Authorization(
        payer=PAYER,
        to=required.pay_to,
        value=required.amount,
        valid_after=0,
        valid_before=int(time.time()) + 300,
        nonce=new_nonce(),
    )
    signed = replace(signed, **changes)
    signature = await sign(key_signer("env:WALLET_KEY"), replace(required, **domain), signed)
    signed = replace(signed, **after)
    return payload_object(
        Payload(
            version=version or found.version,
            network=replace(required, **domain).network,
            authorization=signed,
            signature=signature,
            accepted=replace(required, **domain),
        )
    )


def submitted(payload: Any, **said: Any) -> Message:
    """The message that submits a payment."""
    return Message(
        message_id=f"m-{new_nonce()[:18]}",
        role=Role.USER,
        parts=(Part(text="Payment"),),
        metadata={STATUS: "payment-submitted", PAYLOAD: payload, **said},
    )


def offer_of(result: Any) -> Any:
    """The offer that a task makes."""
    return result.task.status.message.metadata[REQUIRED]
