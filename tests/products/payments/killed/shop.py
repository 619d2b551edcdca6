"""An agent that sells, for processes that are killed: `dragoman serve …:agent`. It writes down what
it was paid and what it has done, each as one line of a file."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from dragoman import Agent, Turn
from dragoman.payments import Chain, Facilitator, Merchant, PaymentRecord, Price
from tests.products.payments.local_chain import NETWORK, TOKEN
from tests.products.payments.loopback_facilitator import SHOP

FACILITATOR, SECOND, NODE = "SHOP_FACILITATOR", "SHOP_SECOND_FACILITATOR", "SHOP_NODE"
RECORDS, WORK = "SHOP_RECORDS", "SHOP_WORK"
AFTER = "after"
"""The skill that works before it is paid."""
PRICE = Price("0.10", TOKEN, to=SHOP)
PAUSES = (1.0, 4.0, 4.0, 6.0)
RETRIES = 3
LOCAL = ["127.0.0.1"]


def make() -> Agent:
    """The agent. `checked` looks at the chain, `trusting` believes the facilitator, and `after`
    works first. Each has two facilitators."""
    agent = Agent("Shop", description="Sells.", retries=RETRIES)
    records, work = (
        os.open(os.environ[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for name in (RECORDS, WORK)
    )

    async def record(found: PaymentRecord) -> None:
        os.write(records, msgspec.json.encode(found) + b"\n")

    first, second = (
        Facilitator(os.environ[name], allow=LOCAL, timeout=10.0) for name in (FACILITATOR, SECOND)
    )
    options: dict[str, Any] = {"second": second, "record": record, "settle_pauses": PAUSES}
    chains = {NETWORK: Chain(os.environ[NODE], allow=LOCAL)}
    checking = Merchant(first, x402_version=2, chains=chains, **options)
    trusting = Merchant(first, **options)
    working = Merchant(first, settle="after", chains=chains, **options)

    async def sell(turn: Turn) -> str:
        os.write(work, f"{turn.task.id} {turn.skill}\n".encode())
        await asyncio.sleep(0.05)
        if turn.text.endswith("0"):
            raise ValueError("it cannot be done")
        return f"All about {turn.text}"

    agent.skill(id="checked", gate=checking.price(PRICE))(sell)
    agent.skill(id="trusting", gate=trusting.price(PRICE))(sell)
    agent.skill(id=AFTER, gate=working.price(PRICE))(sell)

    @agent.handler
    async def tell(turn: Turn) -> str:
        return "Name a skill."

    return agent


if FACILITATOR in os.environ:
    agent = make()
