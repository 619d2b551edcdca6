"""The client of the reference package pays an agent of dragoman: versions 1 and 2 of x402."""

from __future__ import annotations

import pytest
from eth_account import Account
from x402.client import x402Client
from x402.mechanisms.evm.exact.register import register_exact_evm_client
from x402.mechanisms.evm.signers import EthAccountSigner
from x402.schemas import PaymentRequired
from x402.schemas.v1 import PaymentRequiredV1

from dragoman.payments import Price, payments
from dragoman.payments.networks import BASE_SEPOLIA_USDC
from tests.products.payments import loopback_facilitator as loopback
from tests.products.payments.loopback_facilitator import KEY, SHOP, LoopbackFacilitator
from tests.products.payments.parts import Shop, offer_of, submitted


@pytest.mark.parametrize("extension", ["0.2", "0.1"])
@pytest.mark.parametrize("version", [1, 2])
async def test_it_pays(
    facilitator: LoopbackFacilitator,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    extension: str,
) -> None:
    # its table of version 1 has no chain for tests
    monkeypatch.setattr(loopback, "TOKEN", BASE_SEPOLIA_USDC)
    monkeypatch.setattr(loopback, "CHAIN_ID", 84532)
    price = Price("0.10", "USDC", network="base-sepolia", to=SHOP)
    shop = Shop(facilitator, price, x402_version=version, versions=[extension])
    paying = x402Client()
    register_exact_evm_client(paying, EthAccountSigner(Account.from_key(KEY)))
    paying.set_spend_controls(False)
    async with shop.connect(version=extension) as client:
        result = await client.send("tides")
        assert result.task is not None
        offer = offer_of(result)
        if version == 1:
            made = await paying.create_payment_payload(PaymentRequiredV1.model_validate(offer))
        else:
            made = await paying.create_payment_payload(PaymentRequired.model_validate(offer))
        wire = made.model_dump(mode="json", by_alias=True, exclude_none=True)
        result = await client.task(result.task.id).reply(submitted(wire))
    assert result.ok, result
    assert [receipt.success for receipt in payments(result)] == [True]
    assert facilitator.chain.balances[SHOP.lower()] == 100_000
