"""A durable agent: a step runs once, a question and a sleep survive a restart."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from dragoman import Agent, Turn

agent = Agent("Buyer", description="Buys things, once you agree to the price.")


@dataclass
class Quote:
    """What a supplier asks for."""

    item: str
    price: int


async def quote(item: str) -> Quote:
    """Asks a supplier. Here: a price that follows from the name."""
    return Quote(item, 10 * len(item))


def buy(offer: Quote) -> str:
    """Buys. A blocking function runs in a thread."""
    return f"Bought {offer.item} for {offer.price}"


@agent.skill(durable=True, tags=["shopping"], examples=["a bicycle"])
async def order(turn: Turn, item: str) -> AsyncIterator[Any]:
    """Asks for the price, for your consent, sleeps on it, and buys."""
    offer = await turn.step("quote", quote, item)
    yield turn.working(f"A supplier asks for {offer.price}")
    answer = await turn.ask_for(f"Shall I buy {item} for {offer.price}?")
    if not answer.text.lower().startswith("y"):
        yield turn.reject("As you wish")
        return
    await turn.sleep(days=1)  # holds no worker and no memory
    receipt = await turn.step("buy", buy, offer, retries=3)
    yield turn.artifact(receipt, name="receipt")


if __name__ == "__main__":
    agent.serve()
