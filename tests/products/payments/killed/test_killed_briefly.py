"""A merchant that works before it is paid is killed (`kill -9`) during the work and during the
settlement, while its first facilitator is away: the books are equal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from dragoman.admin import open_store
from dragoman.client import Client
from dragoman.payments import Books as MerchantBooks
from dragoman.payments import PaymentRecord, Wallet, payments
from dragoman.payments.ledger_file import load
from tests.faults.crash.server_process import Served
from tests.products.payments.killed import shop
from tests.products.payments.killed.three_books import KINDS, Books
from tests.products.payments.local_chain import TOKEN, Transfer
from tests.products.payments.loopback_facilitator import (
    SHOP,
    LoopbackFacilitator,
    loopback_facilitator,
)

SETTINGS = ("lease=1", "poll=0.1")


async def until(what: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.02)


async def test_work_and_settlement_are_killed(tmp_path: Path) -> None:
    records, work = tmp_path / "records", tmp_path / "work"
    async with loopback_facilitator(TOKEN) as first, loopback_facilitator(TOKEN) as second:
        first.away, second.chain = 1000, first.chain
        second.trouble = ["silent"]
        environment = {
            shop.FACILITATOR: first.url,
            shop.SECOND: second.url,
            shop.NODE: f"{first.url}/rpc",
            shop.RECORDS: str(records),
            shop.WORK: str(work),
        }
        paying = Wallet(
            "env:WALLET_KEY",
            per_call="0.10 USDC",
            per_day="0.10 USDC",
            file=tmp_path / "wallet.json",
            assets=[TOKEN],
            receivers=SHOP,
        )
        served = Served(tmp_path, *SETTINGS, agent=f"{shop.__name__}:agent", **environment)
        async with served as server:
            await server.start()
            async with Client.connect(server.url, answer=paying, attempts=30) as client:
                sent = asyncio.create_task(client.send("tides", key="one", skill=shop.AFTER))
                await until(lambda: work.exists() and work.read_text() != "")
                await server.kill()
                await server.start()
                async with asyncio.timeout(30):
                    await second.settling.wait()
                await server.kill()
                second.released.set()  # the killed merchant does not get its answer
                await until(lambda: bool(first.chain.mined))
                await server.start()
                result = await asyncio.wait_for(sent, 30)
        books = read(tmp_path, first, second)
    assert result.text == "All about tides" and result.task is not None
    told = {
        "name": "tides",
        "task": result.task.id,
        "state": "TASK_STATE_COMPLETED",
        "paid": [receipt.transaction for receipt in payments(result)],
    }
    assert msgspec.structs.replace(books, outcomes=[told]).breaches() == []
    assert (len(books.transfers), dict(books.work)) == (1, {result.task.id: 2})
    assert [len(nonces) for nonces in books.sent] == [0, 2]


def read(folder: Path, first: LoopbackFacilitator, second: LoopbackFacilitator) -> Books:
    """What each side knows."""
    with open_store(f"sqlite:///{folder}/tasks.db") as admin:
        records = [one for kind in KINDS for one in MerchantBooks(admin).records(kind)]
    transfers = [
        Transfer(one["from"], one["to"], int(one["value"]), one["nonce"], transaction)
        for transaction, one in first.chain.mined.items()
    ]
    told = (folder / "records").read_bytes().splitlines()
    work = [line.split()[0] for line in (folder / "work").read_text().splitlines()]
    return Books(
        transfers=transfers,
        records=records,
        unsettled=(),
        told=[msgspec.json.decode(line, type=PaymentRecord) for line in told],
        signed=load(folder / "wallet.json").payments,
        outcomes=(),
        work=Counter(work),
        first=set(work),
        sent=[settled(one) for one in (first, second)],
        retries=shop.RETRIES,
        per_call=100_000,
        per_day=100_000,
    )


def settled(facilitator: LoopbackFacilitator) -> list[str]:
    """The nonces that a facilitator was to settle."""
    asked = facilitator.bodies[facilitator.asked["verify"] :]
    return [body["paymentPayload"]["payload"]["authorization"]["nonce"] for body in asked]
