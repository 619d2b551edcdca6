"""A skill that costs something, and clients that pay for it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Part, TaskState
from dragoman.admin import AdminThread
from dragoman.model.errors import ExtensionSupportRequired
from dragoman.payments import Facilitator, Price, payment_required, payments
from dragoman.payments.extension import ERROR, RECEIPTS, STATUS, URIS, embedded_payload
from tests.products.payments.loopback_facilitator import (
    KEY,
    NETWORK,
    PAYER,
    SHOP,
    TOKEN,
    LoopbackFacilitator,
    loopback_facilitator,
)
from tests.products.payments.parts import (
    PRICE,
    URI,
    Shop,
    offer_of,
    payment,
    submitted,
    wallet,
)

UNITS = 100_000


def said(result: Any) -> dict[str, Any]:
    found = result.task.status.message
    assert found is not None
    return dict(found.metadata or {})


@pytest.mark.parametrize("x402_version", [1, 2])
@pytest.mark.parametrize("extension", ["0.2", "0.1"])
async def test_a_payment(
    facilitator: LoopbackFacilitator,
    tmp_path: Path,
    x402_version: int,
    extension: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    shop = Shop(facilitator, x402_version=x402_version, versions=[extension])
    async with shop.connect(wallet(tmp_path)) as client:
        result = await client.send("tides")
    assert (result.state, result.text) == (TaskState.COMPLETED, "All about tides")
    (receipt,) = payments(result)
    assert (receipt.success, receipt.network, receipt.payer) == (True, NETWORK, PAYER)
    assert said(result)[STATUS] == "payment-completed"
    assert result.task is not None and result.task.status.message is not None
    assert result.task.status.message.extensions == (URIS[extension],)
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert facilitator.asked == {"verify": 1, "settle": 1}
    assert {body["x402Version"] for body in facilitator.bodies} == {x402_version}
    assert shop.kinds == ["settled"]
    assert (shop.records[0].amount, shop.records[0].transaction) == (UNITS, receipt.transaction)
    # neither the key nor a signature is in a log
    signature = facilitator.bodies[0]["paymentPayload"]["payload"]["signature"]
    assert KEY[2:] not in caplog.text and signature[2:] not in caplog.text
    # nor in the task, its log or what an operator reads of it
    async with AdminThread(shop.app.admin) as admin:
        id = result.task.id
        entries = await admin.call(lambda store: [*store.read(id), store.load(id)])
    assert "x402.payment.status" in repr(entries)
    assert signature[2:] not in repr(result.task) + repr(entries)


async def test_a_stream(facilitator: LoopbackFacilitator, tmp_path: Path) -> None:
    shop, states = Shop(facilitator), []
    async with shop.connect(wallet(tmp_path)) as client, client.stream("tides") as stream:
        async for event in stream:
            status = getattr(event, "status", None)
            if status is not None and status.message is not None:
                states.append((status.message.metadata or {}).get(STATUS))
    assert stream.result.ok
    assert [state for state in dict.fromkeys(states) if state] == [
        "payment-required",
        "payment-verified",
        "payment-completed",
    ]


async def test_without_a_wallet_the_price_is_seen(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        result = await client.send("tides")
        assert result.state is TaskState.INPUT_REQUIRED
        offer = payment_required(result)
        assert offer is not None
        (way,) = offer.accepts
        assert (way.amount, way.network, way.pay_to) == (UNITS, NETWORK, SHOP)
        assert payments(result) == ()
    assert shop.worked == []


async def test_a_client_that_declines(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        result = await client.send("tides")
        message = submitted(None, **{STATUS: "payment-rejected"})
        result = await client.task(result.task.id).reply(message)  # type: ignore[union-attr]
    assert result.state is TaskState.REJECTED
    assert said(result)[STATUS] == "payment-rejected"
    assert (shop.worked, facilitator.asked) == ([], {})


async def test_a_client_without_the_extension(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        client._connection.extensions = ()
        with pytest.raises(ExtensionSupportRequired, match="x402"):
            await client.send("tides")
    either = Shop(facilitator, versions=["0.1", "0.2"])
    async with either.connect() as client:
        client._connection.extensions = ()
        result = await client.send("tides")
        assert result.state is TaskState.REJECTED
        assert "Activate the extension" in result.text and URI in result.text


async def test_a_price_may_depend_on_the_request(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    async def price(turn: Any) -> Any:
        return None if turn.text == "free" else PRICE

    shop = Shop(facilitator, price)
    async with shop.connect(wallet(tmp_path)) as client:
        assert (await client.send("free")).text == "All about free"
        assert facilitator.asked == {}
        result = await client.send("tides")
        assert result.ok and len(payments(result)) == 1


async def test_a_price_that_rises_after_the_question(
    facilitator: LoopbackFacilitator,
) -> None:
    prices = [PRICE]
    shop = Shop(facilitator, lambda turn: prices[0])
    async with shop.connect() as client:
        result = await client.send("tides")
        prices[0] = Price("9", TOKEN, to=SHOP)
        paid = submitted(await payment(offer_of(result)))
        result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert result.ok
    assert facilitator.chain.balances[SHOP.lower()] == UNITS


async def test_a_task_that_fails_after_its_payment_is_owed(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    shop = Shop(facilitator)
    async with shop.connect(wallet(tmp_path)) as client:
        result = await client.send("fail")
    assert result.state is TaskState.FAILED
    assert len(payments(result)) == 1
    assert shop.kinds == ["settled", "owed"]


OTHER = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
ALTERED: dict[str, tuple[dict[str, Any], str]] = {
    "underpaid": ({"value": UNITS - 1}, "INVALID_AMOUNT"),
    "overpaid": ({"value": UNITS + 1}, "INVALID_AMOUNT"),
    "altered": ({"after": {"valid_before": 9_999_999_999}}, "INVALID_SIGNATURE"),
    "expired": ({"valid_before": 1}, "EXPIRED_PAYMENT"),
    "not yet valid": ({"valid_after": 9_999_999_000}, "EXPIRED_PAYMENT"),
    "another receiver": ({"to": OTHER}, "INVALID_SIGNATURE"),
    "another payer": ({"payer": OTHER}, "INVALID_SIGNATURE"),
    "another chain": ({"domain": {"network": "eip155:8453"}}, "NETWORK_MISMATCH"),
    "another contract": ({"domain": {"asset": OTHER}}, "NETWORK_MISMATCH"),
    "another accepted amount": ({"domain": {"amount": 5}}, "INVALID_AMOUNT"),
    "signed for another chain": ({"domain": {"name": "Other"}}, "INVALID_SIGNATURE"),
}


@pytest.mark.parametrize("case", ALTERED)
async def test_what_does_not_fit_the_offer(facilitator: LoopbackFacilitator, case: str) -> None:
    changes, error = ALTERED[case]
    shop = Shop(facilitator, x402_version=2)
    async with shop.connect() as client:
        result = await client.send("tides")
        for attempt in range(3):
            assert result.state is TaskState.INPUT_REQUIRED
            assert said(result).get(ERROR) == (error if attempt else None)
            paid = submitted(await payment(offer_of(result), **changes))
            result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert result.state is TaskState.FAILED
    assert (said(result)[STATUS], said(result)[ERROR]) == ("payment-failed", error)
    assert (shop.worked, facilitator.asked, shop.kinds) == ([], {}, [])


async def test_another_payment_after_one_that_failed(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    facilitator.trouble = ["refused"]
    async with shop.connect() as client:
        result = await client.send("tides")
        for _ in range(2):
            paid = submitted(await payment(offer_of(result)))
            result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert result.ok
    assert [one.success for one in payments(result)] == [False, True]
    assert facilitator.chain.balances[SHOP.lower()] == UNITS


@pytest.mark.parametrize(
    "reply", ["yes", {"x402.payment.status": "payment-submitted"}, {"x402.payment.payload": {}}]
)
async def test_a_reply_without_a_payment(facilitator: LoopbackFacilitator, reply: Any) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        result = await client.send("tides")
        message: Any = reply
        if isinstance(reply, dict):
            message = submitted(None)
            message = replace(message, metadata=reply, parts=(Part(text="Payment"),))
        result = await client.task(result.task.id).reply(message)  # type: ignore[union-attr]
        assert result.state is TaskState.INPUT_REQUIRED
    assert (shop.worked, facilitator.asked) == ([], {})


def mandate(payload: Any) -> dict[str, Any]:
    """An object of AP2 with a payment inside, as the extension shows it."""
    method = {"supported_methods": "https://www.x402.org/", "data": payload}
    details = {"cart_mandate": "sd-hash", "payment_request_id": "1", "payment_method": method}
    made = {"payment_details": details, "creation_time": "2026-01-31T12:00:00Z"}
    return {"ap2.mandates.PaymentMandate": made}


@pytest.mark.parametrize("x402_version", [1, 2])
async def test_a_payment_inside_of_another_protocol(
    facilitator: LoopbackFacilitator, x402_version: int
) -> None:
    shop = Shop(facilitator, x402_version=x402_version)
    async with shop.connect() as client:
        result = await client.send("tides")
        message = submitted(None)
        paid = mandate(await payment(offer_of(result)))
        message = replace(message, metadata={STATUS: "payment-submitted"}, parts=(Part(data=paid),))
        result = await client.task(result.task.id).reply(message)  # type: ignore[union-attr]
    assert (result.text, len(payments(result))) == ("All about tides", 1)
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    # its signature is in no log, either
    signature = facilitator.bodies[0]["paymentPayload"]["payload"]["signature"][2:]
    async with AdminThread(shop.app.admin) as admin:
        id = result.task.id  # type: ignore[union-attr]
        entries = await admin.call(lambda store: [*store.read(id), store.load(id)])
    assert signature not in repr(entries) and signature not in repr(result.task)


@pytest.mark.parametrize("case", ["altered", "two", "no status", "no signature"])
async def test_what_is_no_payment_inside_of_another_protocol(
    facilitator: LoopbackFacilitator, case: str
) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        result = await client.send("tides")
        changes = {"after": {"nonce": "0x" + "1" * 64}} if case == "altered" else {}
        paid = await payment(offer_of(result), **changes)
        if case == "no signature":
            del paid["payload"]["signature"]
        parts = (Part(data=mandate(paid)),) * (2 if case == "two" else 1)
        said_ = {} if case == "no status" else {STATUS: "payment-submitted"}
        message = replace(submitted(None), metadata=said_, parts=parts)
        result = await client.task(result.task.id).reply(message)  # type: ignore[union-attr]
    assert result.state is TaskState.INPUT_REQUIRED
    assert said(result).get(ERROR) == ("INVALID_SIGNATURE" if case == "altered" else None)
    assert (shop.worked, facilitator.asked) == ([], {})


def test_the_search_for_a_payment_ends() -> None:
    deep: Any = {"x402Version": 1, "payload": {"signature": "0x"}}
    assert embedded_payload([[{"a": deep}]]) == deep
    for _ in range(50_000):
        deep = [deep]
    assert embedded_payload(deep) is None
    assert embedded_payload({"x402Version": 1, "payload": "text"}) is None
    assert embedded_payload("text") is None


async def test_a_payment_counts_once(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        first, second = await client.send("tides"), await client.send("waves")
        paid = await payment(offer_of(first))
        result = await client.task(first.task.id).reply(submitted(paid))  # type: ignore[union-attr]
        assert result.ok
        # the facilitator of this test would not notice: the store does
        facilitator.chain.used.clear()
        result = await client.task(second.task.id).reply(submitted(paid))  # type: ignore[union-attr]
        assert said(result)[ERROR] == "DUPLICATE_NONCE"
    assert shop.worked == ["tides"]
    assert facilitator.asked["settle"] == 1


async def test_one_payment_at_two_tasks_at_once(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        asked = [await client.send("tides") for _ in range(4)]
        paid = await payment(offer_of(asked[0]))
        replies = [client.task(one.task.id).reply(submitted(paid)) for one in asked]  # type: ignore[union-attr]
        results = await asyncio.gather(*replies)
    assert [one.ok for one in results].count(True) == 1
    assert len(shop.worked) == 1


async def test_who_has_no_money(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    facilitator.chain.balances.clear()
    async with shop.connect() as client:
        result = await client.send("tides")
        paid = submitted(await payment(offer_of(result)))
        result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert said(result)[ERROR] == "INSUFFICIENT_FUNDS"
    assert shop.worked == []


@pytest.mark.parametrize("lie", ["network", "transaction", "shape"])
async def test_a_facilitator_that_lies(facilitator: LoopbackFacilitator, lie: str) -> None:
    shop = Shop(facilitator)
    facilitator.lies = lie
    async with shop.connect() as client:
        result = await client.send("tides")
        paid = submitted(await payment(offer_of(result)))
        result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert result.state is TaskState.FAILED
    assert (shop.worked, shop.kinds) == ([], ["unsettled"])


async def test_a_facilitator_that_hangs(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator, facilitator=facilitator.client(timeout=0.3))
    facilitator.trouble = ["silent"] * 9
    async with shop.connect() as client:
        result = await client.send("tides")
        paid = submitted(await payment(offer_of(result)))
        result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert result.state is TaskState.FAILED
    assert said(result)[ERROR] == "SETTLEMENT_FAILED"
    assert (shop.worked, shop.kinds) == ([], ["unsettled"])


async def test_the_facilitator_is_away_for_a_while(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    shop = Shop(facilitator, settle_pauses=(0.01, 0.01))
    facilitator.away = 4  # the task asks again after three
    async with shop.connect(wallet(tmp_path)) as client:
        result = await client.send("tides")
    assert result.ok
    assert facilitator.asked == {"verify": 5, "settle": 1}
    asked = [one for one in result.task.history if (one.metadata or {}).get(STATUS)]  # type: ignore[union-attr]
    said = [one.metadata[STATUS] for one in asked]  # type: ignore[index]
    assert said.count("payment-required") == said.count("payment-submitted") == 2
    # the same payment came again
    assert len({str(body["paymentPayload"]) for body in facilitator.bodies}) == 1


async def pay(shop: Shop) -> Any:
    """Pay for a task, once."""
    async with shop.connect() as client:
        result = await client.send("tides")
        paid = submitted(await payment(offer_of(result)))
        return await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]


async def test_a_second_facilitator(facilitator: LoopbackFacilitator) -> None:
    async with loopback_facilitator() as other:
        other.chain = facilitator.chain
        shop = Shop(facilitator, second=other.client())
        # the first is asked if it answers
        assert (await pay(shop)).ok
        assert (facilitator.asked, other.asked) == ({"verify": 1, "settle": 1}, {})
        facilitator.away = 1
        assert (await pay(shop)).ok
        assert (facilitator.asked, other.asked) == (
            {"verify": 2, "settle": 1},
            {"verify": 1, "settle": 1},
        )
        # what the first refuses is not tried at the second
        balances = facilitator.chain.balances.copy()
        facilitator.chain.balances.clear()
        assert said(await pay(shop))[ERROR] == "INSUFFICIENT_FUNDS"
        facilitator.chain.balances.update(balances)
        assert other.asked["verify"] == 1
        # nor what was sent to the first to be settled
        facilitator.trouble = ["lost"] * 9
        result = await pay(shop)
        assert (result.state, shop.kinds[-1]) == (TaskState.FAILED, "unsettled")
        assert other.asked == {"verify": 1, "settle": 1}
        # and what was sent to the second is not sent to the first
        facilitator.away, other.trouble = 1, ["lost"] * 9
        settled = facilitator.asked["settle"]
        result = await pay(shop)
        assert (result.state, shop.kinds[-1]) == (TaskState.FAILED, "unsettled")
        assert facilitator.asked["settle"] == settled and other.asked["settle"] > 2
        # nothing has happened if both are away
        facilitator.away = other.away = 9
        assert (await pay(shop)).state is TaskState.INPUT_REQUIRED
        assert facilitator.asked["settle"] == settled


async def test_the_facilitator_is_away(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(
        facilitator, facilitator=Facilitator("http://127.0.0.1:1", allow=["127.0.0.1"], timeout=5)
    )
    async with shop.connect() as client:
        result = await client.send("tides")
        paid = submitted(await payment(offer_of(result)))
        result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    # nothing has happened: the same payment may come again
    assert result.state is TaskState.INPUT_REQUIRED
    assert (shop.worked, shop.kinds) == ([], [])
    assert RECEIPTS not in said(result)


def test_the_card(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    (found,) = [one for one in shop.agent.extensions if one.uri == URI]
    assert found.required
    shown = {"amount": "0.1 TEST", "network": NETWORK, "payTo": SHOP}
    assert found.params == {"prices": {"analyze": shown}}
