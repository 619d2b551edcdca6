"""`ampersend-a2a-x402`, which has version 0.1 of the extension on A2A 0.3: its client pays an agent
of dragoman, and a wallet of dragoman pays its merchant."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dragoman.client import Client
from dragoman.payments import Price, payments
from dragoman.payments.ledger_file import load
from dragoman.payments.networks import BASE_SEPOLIA_USDC
from tests.harness.server import served
from tests.interop.peers import FULL, environments
from tests.products.payments.foreign.golden import check, said
from tests.products.payments.loopback_facilitator import (
    SHOP,
    LoopbackFacilitator,
    loopback_facilitator,
)
from tests.products.payments.parts import Shop, wallet

HERE = Path(__file__).parent
UNITS = 100_000
pytestmark = pytest.mark.skipif(not FULL, reason="INTEROP=full, as in `make interop`")


@pytest.fixture
async def facilitator() -> AsyncIterator[LoopbackFacilitator]:
    """On Base Sepolia: the foreign ends know no chain for tests."""
    async with loopback_facilitator(BASE_SEPOLIA_USDC) as found:
        yield found


@pytest.fixture
async def python() -> str:
    """Its interpreter."""
    try:
        return str(await asyncio.to_thread(environments.python, "ampersend"))
    except environments.Absent as absent:
        pytest.skip(str(absent))


async def test_its_client_pays_us(facilitator: LoopbackFacilitator, python: str) -> None:
    price = Price("0.10", "USDC", network="base-sepolia", to=SHOP)
    shop = Shop(facilitator, price, versions=["0.1"])
    async with served(shop.app) as server:
        script = str(HERE / "ampersend_client.py")
        process = await asyncio.create_subprocess_exec(
            python, script, server.url, stdout=PIPE, stderr=PIPE, env=direct()
        )
        async with asyncio.timeout(60):
            said, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    told = json.loads(said)
    assert (told["task"]["status"]["state"], told["status"]) == ("completed", "payment-completed")
    assert [one.transaction for one in shop.records] == [told["receipt"]["transaction"]]
    check("ampersend-client", {"payment-submitted": told["submitted"]})
    assert (shop.worked, facilitator.chain.balances[SHOP.lower()]) == (["tides"], UNITS)


async def test_we_pay_its_merchant(
    facilitator: LoopbackFacilitator, python: str, tmp_path: Path
) -> None:
    async with merchant(python, facilitator.url) as url:
        limits = {"per_call": "0.10 USDC", "per_day": "0.10 USDC"}
        paying = wallet(tmp_path, assets=[BASE_SEPOLIA_USDC], receivers={url: SHOP}, **limits)
        async with Client.connect(url, answer=paying) as client:
            result = await client.send("tides")
    assert result.task is not None
    check("ampersend-merchant", said(result.task))
    assert result.text == "All about it"
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert [one.amount for one in load(paying.file).payments] == [UNITS]
    (receipt,) = payments(result)
    assert receipt.success


@asynccontextmanager
async def merchant(python: str, facilitator: str) -> AsyncIterator[str]:
    """The URL of its merchant."""
    script = str(HERE / "ampersend_merchant.py")
    process = await asyncio.create_subprocess_exec(
        *(python, script, facilitator, SHOP), stdin=PIPE, stdout=PIPE, env=direct()
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            url = (await process.stdout.readline()).decode().strip()
        assert url
        yield url
    finally:
        process.kill()
        await process.wait()


def direct() -> dict[str, str]:
    """The environment of a process that uses no proxy, and nothing of ours."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**found, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
