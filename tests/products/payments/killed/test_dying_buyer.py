"""A client is killed at each point of a payment: the same payment is sent, and never a second."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from dragoman.payments.ledger_file import load
from tests.harness.server import served
from tests.products.payments.killed import dying_buyer
from tests.products.payments.killed.dying_buyer import POINTS, WALLET
from tests.products.payments.loopback_facilitator import SHOP, LoopbackFacilitator
from tests.products.payments.parts import Shop
from tests.products.payments.paying_forks import forked


async def test_each_point_of_one_payment(facilitator: LoopbackFacilitator, tmp_path: Path) -> None:
    facilitator.trouble = ["silent"]  # until the client is killed
    shop = Shop(facilitator, facilitator=facilitator.client(timeout=60.0))
    nonces: list[str] = []
    said = tmp_path / "said"
    async with served(shop.app) as server:
        for point in (*POINTS, "none"):
            process = await forked(dying_buyer, server.url, str(tmp_path), point, stdout=said)
            if point == "sent":
                async with asyncio.timeout(30):
                    await facilitator.settling.wait()
                process.send_signal(signal.SIGKILL)
                await process.ended()
                facilitator.released.set()
            status = await asyncio.wait_for(process.ended(), 30)
            assert status == (0 if point == "none" else -signal.SIGKILL), point
            (signed,) = load(tmp_path / WALLET).payments
            nonces.append(signed.authorization.nonce)
            stored = POINTS.index("stored")
            assert bool(signed.signature) == (point == "none" or POINTS.index(point) >= stored)
            assert bool(facilitator.bodies) == (point in ("sent", "none")), point
    assert said.read_bytes() == b"All about tides"
    assert len(set(nonces)) == 1 and shop.worked == ["tides"]
    sent = [body["paymentPayload"] for body in facilitator.bodies]
    assert all(one == sent[0] for one in sent)
    assert sent[0]["payload"]["signature"] == signed.signature
    assert (len(facilitator.chain.used), facilitator.chain.balances[SHOP.lower()]) == (1, 100_000)
