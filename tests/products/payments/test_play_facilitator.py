"""The facilitator without a chain, which the demo and the examples use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.demo.facilitator import FUNDS, LARGEST, PlayFacilitator
from tests.products.payments.loopback_facilitator import PAYER, SHOP, TOKEN
from tests.products.payments.parts import PRICE, Shop, payment, submitted
from tests.products.payments.test_attacks import paid, said

UNITS = 100_000


@pytest.fixture
def facilitator() -> Iterator[PlayFacilitator]:
    with PlayFacilitator() as found:
        yield found


def money(facilitator: PlayFacilitator, who: str) -> int:
    return facilitator.balances.get((who.lower(), TOKEN.address.lower()), FUNDS)


def shop(facilitator: PlayFacilitator, **options: Any) -> Shop:
    from dragoman.payments import Facilitator

    client = Facilitator(facilitator.url, allow=["127.0.0.1"])
    return Shop(None, PRICE, facilitator=client, **options)


@pytest.mark.parametrize("version", [1, 2])
async def test_it_settles_once(facilitator: PlayFacilitator, version: int) -> None:
    first = shop(facilitator, x402_version=version)
    async with first.connect() as client:
        result = await paid(client)
    assert result.ok
    assert (money(facilitator, SHOP), money(facilitator, PAYER)) == (FUNDS + UNITS, FUNDS - UNITS)


async def test_it_refuses(facilitator: PlayFacilitator) -> None:
    first, second = shop(facilitator, x402_version=2), shop(facilitator, x402_version=2)
    async with first.connect() as client, second.connect() as other:
        asked = await client.send("tides")
        assert asked.task is not None and asked.task.status.message is not None
        metadata = asked.task.status.message.metadata
        assert metadata is not None
        payload = await payment(metadata["x402.payment.required"])
        assert (await client.task(asked.task.id).reply(submitted(payload))).ok
        assert said(await paid(other, payload))["x402.payment.error"] == "DUPLICATE_NONCE"
        facilitator.balances[PAYER.lower(), TOKEN.address.lower()] = UNITS - 1
        assert said(await paid(other))["x402.payment.error"] == "INSUFFICIENT_FUNDS"
        # what a merchant of dragoman would not have asked it about
        signed = payload["payload"]["authorization"]
        required = metadata["x402.payment.required"]["accepts"][0]
        for name, value, reason in (
            ("value", "1", "signature"),
            ("nonce", "0x" + "12" * 32, "signature"),
            ("to", "x", "invalid_payload"),
        ):
            inner = {**payload["payload"], "authorization": {**signed, name: value}}
            body = {"paymentPayload": {**payload, "payload": inner}}
            async with httpx.AsyncClient(trust_env=False) as http:
                url = f"{facilitator.url}/settle"
                answer = await http.post(url, json={**body, "paymentRequirements": required})
            assert not answer.json()["success"] and reason in answer.json()["errorReason"]
    assert money(facilitator, SHOP) == FUNDS + UNITS


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"5", b"[" * LARGEST, b"x" * LARGEST * 2])
def test_what_is_no_payment(facilitator: PlayFacilitator, body: bytes) -> None:
    found = facilitator.answer("/verify", body)
    assert (found["isValid"], found["success"]) == (False, False)
    assert facilitator.answer("/elsewhere", body) == {}
