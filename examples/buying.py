"""A client that pays, within limits: `WALLET_KEY=0x… python -m examples.buying "good day"`. The
agent is `examples/selling.py`; any key of 32 bytes will do for its facilitator without a chain."""

import asyncio
import sys

from dragoman.client import Client
from dragoman.payments import PaymentRefused, ProposedPayment, Wallet, payments


def approve(proposed: ProposedPayment) -> bool:
    """Is asked when an agent names its address for the first time, or another one later."""
    print(f"{proposed.agent} wants to be paid at {proposed.to} (before: {proposed.before or '-'})")
    return not proposed.before


async def buy(url: str, text: str, file: str | None = None) -> str:
    """Translate and analyze a text. What was paid is kept in a file, also for the limits."""
    wallet = Wallet(
        "env:WALLET_KEY", per_call="0.05 USDC", per_day="1 USDC", file=file, on_payment=approve
    )
    async with Client.connect(url, answer=wallet) as agent:
        translated = await agent.send(text, skill="translate")
        try:
            analyzed = await agent.send(translated.text, skill="analyze")
        except PaymentRefused as error:
            return f"{translated.text}; {error}"
    for receipt in (*payments(translated), *payments(analyzed)):
        print(f"paid on {receipt.network}: {receipt.transaction}")
    return f"{translated.text}; {analyzed.text}"


if __name__ == "__main__":
    print(asyncio.run(buy("http://127.0.0.1:8000", *sys.argv[1:2])))
