"""An agent that is paid: a translation costs 0.05 USDC, and an analysis 0.01 USDC for each word, on
the test network of Base. To try it without money, first, each in a terminal:

    python -m dragoman.demo.facilitator
    FACILITATOR=http://127.0.0.1:8402 dragoman serve examples.selling:agent

Then run `examples/buying.py`."""

import os
from decimal import Decimal

from dragoman import Agent, Turn
from dragoman.payments import Facilitator, Merchant, PaymentRecord, Price

ADDRESS = os.environ.get("SHOP_ADDRESS", "0x70997970C51812dc3A010C7d01b50e0d17dc79C8")
NETWORK = "base-sepolia"
agent = Agent("Linguist", description="Translates and analyzes.")


async def record(payment: PaymentRecord) -> None:
    """Is called for each payment; the task's id makes it easy to find what was done for it."""
    print(f"{payment.kind}: {payment.amount} units for task {payment.task}")


url = os.environ.get("FACILITATOR", "https://x402.org/facilitator")
facilitator = Facilitator(url, allow=["127.0.0.1"])
merchant = Merchant(facilitator, record=record)


def by_length(turn: Turn) -> Price | None:
    """An analysis of nothing is free."""
    words = len(turn.text.split())
    price = Decimal("0.01") * words
    return Price(price, "USDC", network=NETWORK, to=ADDRESS) if words else None


@agent.handler
async def greet(turn: Turn) -> str:
    """Answers messages that name no skill, for free."""
    return "Say whether to translate or to analyze"


@agent.skill(gate=merchant.price(Price("0.05", "USDC", network=NETWORK, to=ADDRESS)))
async def translate(turn: Turn) -> str:
    """Translates to Latin. Runs when the payment has been carried out."""
    return f"{turn.text}us"


@agent.skill(gate=merchant.price(by_length))
async def analyze(turn: Turn) -> str:
    """Counts words."""
    return f"{len(turn.text.split())} words"
