"""The reference packages' client pays an agent of dragoman, and a wallet of dragoman pays the
reference packages' merchant: both versions of x402, and of the extension."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.client import Client
from dragoman.payments import PaymentRefused, Price, payments
from dragoman.payments.extension import URIS
from dragoman.payments.ledger_file import load
from dragoman.payments.networks import BASE_SEPOLIA_USDC
from tests.harness.server import served, serving
from tests.products.payments.foreign import reference
from tests.products.payments.foreign.golden import check, said
from tests.products.payments.loopback_facilitator import (
    KEY,
    SHOP,
    LoopbackFacilitator,
    loopback_facilitator,
)
from tests.products.payments.parts import Shop, wallet

UNITS = 100_000
PRICE = Price("0.10", "USDC", network="base-sepolia", to=SHOP)


@pytest.fixture
async def facilitator() -> AsyncIterator[LoopbackFacilitator]:
    """On Base Sepolia: the foreign ends know no chain for tests."""
    async with loopback_facilitator(BASE_SEPOLIA_USDC) as found:
        yield found


@pytest.mark.parametrize("extension", ["0.2", "0.1"])
@pytest.mark.parametrize("version", [1, 2])
async def test_its_client_pays_us(
    facilitator: LoopbackFacilitator, version: int, extension: str
) -> None:
    shop = Shop(facilitator, PRICE, x402_version=version, versions=[extension])
    async with (
        served(shop.app) as server,
        reference.buyer(server.url, URIS[extension], KEY) as buyer,
    ):
        task = await buyer.buy("tides")
    check(f"reference-client-v{version}", {"payment-submitted": buyer.submitted})
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    said = task["status"]["message"]["metadata"]
    (receipt,) = said[reference.RECEIPTS]
    assert (said[reference.STATUS], receipt["success"]) == ("payment-completed", True)
    assert [one.transaction for one in shop.records] == [receipt["transaction"]]
    assert (shop.worked, facilitator.chain.balances[SHOP.lower()]) == (["tides"], UNITS)


@pytest.mark.parametrize("extra", [{}, {"paymentFlow": "authorization", "tier": {"name": "x"}}])
@pytest.mark.parametrize("extension", ["0.2", "0.1"])
@pytest.mark.parametrize("version", [1, 2])
async def test_we_pay_its_merchant(
    facilitator: LoopbackFacilitator,
    tmp_path: Path,
    version: int,
    extension: str,
    extra: dict[str, Any],
) -> None:
    app: Any = None

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)  # the card has the URL, which is known later

    async with (
        reference.Merchant(facilitator.url, version, SHOP, extra) as merchant,
        serving(later, lifespan="off") as url,
    ):
        app = reference.application(merchant, url, URIS[extension])
        limits = {"per_call": "0.10 USDC", "per_day": "0.10 USDC"}
        paying = wallet(tmp_path, assets=[BASE_SEPOLIA_USDC], receivers={url: SHOP}, **limits)
        async with Client.connect(url, answer=paying) as client:
            result = await client.send("tides")
            assert result.text == "All about tides"
            with pytest.raises(PaymentRefused, match="per_day"):
                await client.send("waves")
    assert result.task is not None
    if not extra:
        check(f"reference-merchant-v{version}", said(result.task))
    (receipt,) = payments(result)
    assert [one["transaction"] for one in merchant.receipts] == [receipt.transaction]
    assert [one.amount for one in load(paying.file).payments] == [UNITS]
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert (merchant.worked, merchant.requested) == (["tides"], {URIS[extension]})
