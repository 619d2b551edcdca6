"""A process that pays for several tasks at once: `python -m …paying_process PLACE NAME TASKS`. It
prints which of them it has paid for."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.payments import PaymentRefused, Signer
from tests.products.payments.loopback_facilitator import PAYER
from tests.products.payments.parts import wallet
from tests.products.payments.test_wallet import paused

PER_DAY = "1.5 TEST"


async def sign(data: Mapping[str, Any]) -> str:
    """A signature that nobody checks."""
    return "0x" + "34" * 65


async def main(place: str, name: str, tasks: int) -> None:
    """Pay for as many as the limit allows."""
    where = {"file": None, "store": place} if "://" in place else {"file": place}
    paying = wallet(Path(), key=Signer(PAYER, sign), per_day=PER_DAY, **where)

    async def one(number: int) -> str:
        task = f"{name}-{number}"
        try:
            await paying.answer(paused(task=task))
        except PaymentRefused:
            return ""
        return task

    paid = await asyncio.gather(*map(one, range(tasks)))
    sys.stdout.write(json.dumps([task for task in paid if task]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
