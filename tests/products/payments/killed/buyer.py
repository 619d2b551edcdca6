"""A client that buys, as a process that is killed: `python -m …buyer URL FOLDER TASKS LIMIT`. When
it is started again it goes on: each task has a key of its own, and a line in a file once it has
ended. Some are sent twice at once, some are canceled."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dragoman.client import Client, Unreachable
from dragoman.model.errors import (
    A2AError,
    LimitExceeded,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.payments import PaymentRefused, Wallet, payments
from tests.products.payments.killed.shop import AFTER
from tests.products.payments.local_chain import TOKEN
from tests.products.payments.loopback_facilitator import SHOP

LANES = 4
OUTCOMES, WALLET = "outcomes", "wallet.json"
SKILLS = ("checked", "trusting", AFTER)
PER_CALL = "0.30 USDC"


async def bought(client: Client, name: str, skill: str) -> dict[str, Any]:
    """Buy one thing, however long it takes, and say what came of it."""
    while True:
        try:
            result = await client.send(name, key=name, skill=skill)
        except PaymentRefused as error:
            return {"name": name, "task": "", "state": "refused", "paid": [], "why": str(error)}
        except (Unreachable, TimeoutError, Unavailable, LimitExceeded):
            continue
        except UnsupportedOperation:
            continue  # the task was canceled before the payment arrived
        assert result.task is not None
        if not result.state.terminal:
            continue
        paid = [receipt.transaction for receipt in payments(result) if receipt.success]
        return {
            "name": name,
            "task": result.task.id,
            "state": result.state.value,
            "paid": paid,
            "why": result.text[:200],
        }


async def regretted(client: Client, name: str, skill: str, seconds: float) -> dict[str, Any]:
    """Buy one thing, and cancel it some time after it has begun."""
    while True:
        try:
            begun = await client.send(name, key=name, skill=skill, wait=False)
            break
        except (Unreachable, TimeoutError, Unavailable, LimitExceeded):
            continue
    assert begun.task is not None

    async def cancel() -> None:
        await asyncio.sleep(seconds)
        # it may have ended, or nobody may answer
        with suppress(A2AError, Unreachable, TimeoutError):
            await client.task(begun.task.id).cancel()  # type: ignore[union-attr]

    told, _ = await asyncio.gather(bought(client, name, skill), cancel())
    return told


async def lane(client: Client, names: Iterator[str], file: int) -> None:
    """Buy one thing after the other."""
    for name in names:
        chance = random.Random(name)
        (skill,) = chance.choices(SKILLS, (5, 2, 3))
        copies = 2 if chance.random() < 0.3 else 1
        buying = [bought(client, name, skill) for _ in range(copies)]
        if chance.random() < 0.1:
            buying.append(regretted(client, name, skill, chance.uniform(0, 4)))
        found = await asyncio.gather(*buying)
        told = next((one for one in found if one["state"] != "refused"), found[0])
        os.write(file, json.dumps({**told, "copies": copies}).encode() + b"\n")


def outcomes(folder: Path) -> list[dict[str, Any]]:
    """What has ended so far."""
    file = folder / OUTCOMES
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


async def main(url: str, folder: Path, tasks: int, limit: str) -> None:
    """Buy everything."""
    wallet = Wallet(
        "env:WALLET_KEY",
        per_call=PER_CALL,
        per_day=limit,
        file=folder / WALLET,
        assets=[TOKEN],
        receivers={url: SHOP},
    )
    ended = {one["name"] for one in outcomes(folder)}
    names = iter([name for n in range(tasks) if (name := f"thing {n}") not in ended])
    file = os.open(folder / OUTCOMES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stderr.write("ready\n")
    sys.stderr.flush()
    async with Client.connect(url, answer=wallet, attempts=30) as client:
        await asyncio.gather(*(lane(client, names, file) for _ in range(LANES)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
