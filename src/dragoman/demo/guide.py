"""An agent that costs something. It needs the extra `pay`."""

from __future__ import annotations

import os

from dragoman import Agent, Turn
from dragoman.payments import Facilitator, Merchant, Price

FACILITATOR = "DEMO_FACILITATOR"
SHOP = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
PRICE = Price("0.10", "USDC", network="base-sepolia", to=SHOP)

guide = Agent("City Guide", description="Knows cities. It costs 0.10 USDC.", key="guide")
merchant = Merchant(
    Facilitator(os.environ.get(FACILITATOR, "http://127.0.0.1:8402"), allow=["127.0.0.1"])
)


@guide.skill(gate=merchant.price(PRICE), tags=["paid"], examples=["Lisbon"])
async def recommend(turn: Turn) -> str:
    """Recommends what to see in a city. The client has paid before this runs."""
    return f"In {turn.text}: walk up to the castle, and take the tram down."
