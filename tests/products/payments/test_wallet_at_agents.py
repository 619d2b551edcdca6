"""A wallet pays agents over each binding, of each version, and those whose card is signed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman import App
from dragoman.client import Client, Unverified
from dragoman.payments import PaymentRefused, payments
from dragoman.payments.ledger_file import load
from dragoman.security.card_keys import CardKey
from tests.harness.server import BINDINGS, serving
from tests.products.payments.loopback_facilitator import SHOP, LoopbackFacilitator
from tests.products.payments.parts import Shop, wallet


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("streams", [True, False])
async def test_each_binding(
    facilitator: LoopbackFacilitator, tmp_path: Path, binding: str, streams: bool
) -> None:
    shop = Shop(facilitator)
    async with serving(App(shop.agent, bindings=BINDINGS, grpc_port=0)) as url:
        paying = wallet(tmp_path, receivers=SHOP)
        async with Client.connect(url, answer=paying, bindings=[binding]) as agent:
            assert agent.interface.protocol_binding == binding
            if streams:
                async with agent.stream("tides") as stream:
                    async for _ in stream:
                        pass
                result = stream.result
            else:
                result = await agent.send("tides")
    assert result.text == "All about tides"
    assert [receipt.success for receipt in payments(result)] == [True]
    assert len(load(tmp_path / "wallet.json").payments) == 1


async def test_a_signed_card_names_the_receiver(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    """Nobody is asked; a card that is not signed, or by somebody else, names nobody."""
    file = tmp_path / "key.pem"
    key = CardKey.generate()
    file.write_bytes(key.pem())
    shop = Shop(facilitator)
    async with serving(App(shop.agent, card_keys=(str(file),))) as url:

        async def bought(signed_by: Any) -> str:
            paying = wallet(tmp_path, receivers={})
            async with Client.connect(url, answer=paying, signed_by=signed_by) as agent:
                return (await agent.send("tides")).text

        with pytest.raises(PaymentRefused, match="the receiver is not known"):
            await bought(None)
        with pytest.raises(Unverified):
            await bought([CardKey.generate()])
        assert await bought([key]) == "All about tides"
        assert await bought(None) == "All about tides"  # it is pinned now
