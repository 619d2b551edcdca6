"""Twenty tasks are paid at once: the books of the chain, the merchant and the client are equal. On
a real chain, and on the facilitator on loopback, which needs no npm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman.payments import Asset, Chain, Price, payments
from dragoman.payments.ledger_file import load
from tests.products.payments.chain_facilitator import chain_facilitator
from tests.products.payments.local_chain import TOKEN, LocalChain, Transfer
from tests.products.payments.loopback_facilitator import (
    PAYER,
    SHOP,
    LoopbackFacilitator,
    loopback_facilitator,
)
from tests.products.payments.loopback_facilitator import TOKEN as LOOPBACK_TOKEN
from tests.products.payments.parts import Shop, wallet

UNITS = 100_000


class Place(NamedTuple):
    """A chain, and a facilitator that settles on it."""

    chain: Any
    facilitator: Any
    token: Asset


@asynccontextmanager
async def anvil() -> AsyncIterator[Place]:
    """A chain of its own, and the reference package's facilitator."""
    with LocalChain() as chain:
        async with chain_facilitator(chain.url) as found:
            yield Place(chain, found, TOKEN)


class Remembered:
    """The chain of the facilitator on loopback."""

    def __init__(self, facilitator: LoopbackFacilitator) -> None:
        self._chain = facilitator.chain

    def balance(self, address: str) -> int:
        """How much of the token somebody has."""
        return self._chain.balances[address.lower()]

    def transfers(self) -> list[Transfer]:
        """All transfers."""
        return [
            Transfer(one["from"], one["to"], int(one["value"]), one["nonce"], transaction)
            for transaction, one in self._chain.mined.items()
        ]


@asynccontextmanager
async def loopback() -> AsyncIterator[Place]:
    """The facilitator that keeps a chain in memory."""
    async with loopback_facilitator() as found:
        yield Place(Remembered(found), found, LOOPBACK_TOKEN)


@pytest.mark.parametrize("where", [anvil, loopback])
async def test_twenty_tasks(where: Any, tmp_path: Path) -> None:
    async with where() as (chain, facilitator, token):
        before = chain.balance(PAYER)
        price = Price("0.10", token, to=SHOP)
        node = Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])
        shops = [
            Shop(facilitator, price, x402_version=version, chains={token.network: node})
            for version in (1, 2)
        ]
        limits = {"per_call": f"0.10 {token.symbol}", "per_day": f"2 {token.symbol}"}
        paying = wallet(tmp_path, assets=[token], **limits)
        async with shops[0].connect(paying) as first, shops[1].connect(paying) as second:
            sends = [(first, second)[n % 2].send(f"tides {n}") for n in range(20)]
            results = await asyncio.gather(*sends)
        assert [result.text for result in results] == [f"All about tides {n}" for n in range(20)]
        # the three books are equal
        found = {(one.nonce, one.transaction, one.value) for one in chain.transfers()}
        records = [record for shop in shops for record in shop.records]
        assert {record.kind for record in records} == {"settled"}
        assert {(one.nonce, one.transaction, one.amount) for one in records} == found
        assert len(found) == len(records) == len({record.task for record in records}) == 20
        signed = load(paying.file).payments
        assert {one.authorization.nonce for one in signed} == {nonce for nonce, _, _ in found}
        shown = {receipt.transaction for result in results for receipt in payments(result)}
        assert shown == {transaction for _, transaction, _ in found}
        assert chain.balance(PAYER) == before - 20 * UNITS
        assert chain.balance(SHOP) == 20 * UNITS
