"""A client that pays, and is killed at a point: `python -m …dying_buyer URL FOLDER POINT`. If it
lives, it prints the answer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dragoman import Message
from dragoman.client import Client, PausedTask
from dragoman.payments import Signer, Wallet
from dragoman.payments.signing import key_signer
from tests.products.payments.loopback_facilitator import SHOP, TOKEN

POINTS = ("counted", "signed", "stored", "sent")
"""After it is counted; after it is signed; after it is stored; after it has arrived."""
WALLET = "wallet.json"


def die() -> None:
    """End as the kernel ends it."""
    os.kill(os.getpid(), signal.SIGKILL)


class Dying:
    """A wallet whose process may die before the payment is sent."""

    def __init__(self, wallet: Wallet, point: str) -> None:
        self._wallet, self._point = wallet, point

    @property
    def extensions(self) -> Sequence[str]:
        """See `Answerer`."""
        return self._wallet.extensions

    async def answer(self, paused: PausedTask) -> Message | None:
        """See `Answerer`."""
        message = await self._wallet.answer(paused)
        if self._point == "stored":
            die()
        return message


def dying_signer(point: str) -> Signer:
    """A key whose process may die before it has signed, or after."""
    signer = key_signer("env:WALLET_KEY")

    async def sign(data: Mapping[str, Any]) -> str:
        if point == "counted":
            die()
        found = await signer._sign(data)
        if point == "signed":
            die()
        return found

    return Signer(signer.address, sign)


async def main(url: str, folder: Path, point: str) -> None:
    """Buy one thing, always with the same key."""
    wallet = Wallet(
        dying_signer(point),
        per_call="0.10 TEST",
        per_day="0.10 TEST",
        file=folder / WALLET,
        assets=[TOKEN],
        receivers={url: SHOP},
    )
    async with Client.connect(url, answer=Dying(wallet, point)) as client:
        result = await client.send("tides", key="the same")
    sys.stdout.write(result.text)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
