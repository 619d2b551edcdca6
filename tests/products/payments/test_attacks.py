"""Attacks on a merchant: by facilitators, by nodes and by clients. No work begins that is not paid,
no payment counts twice, and what was paid is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Part, TaskState
from dragoman.client import Client
from dragoman.payments import Chain, Facilitator, Merchant, Price
from dragoman.payments.extension import ERROR, RECEIPTS, STATUS
from tests.products.payments import parts
from tests.products.payments.loopback_facilitator import (
    NETWORK,
    PAYER,
    SHOP,
    TOKEN,
    LoopbackFacilitator,
)
from tests.products.payments.parts import PRICE, Shop, offer_of, payment, submitted
from tests.products.payments.spoiled_answers import GIANT, SLOW, WAYS

UNITS = 100_000


def said(result: Any) -> Mapping[str, Any]:
    return dict(result.task.status.message.metadata or {})


async def paid(client: Client, payload: Any = None) -> Any:
    """Ask, and pay with this, or with what fits."""
    asked = await client.send("tides")
    assert asked.task is not None
    payload = payload or await payment(offer_of(asked))
    return await client.task(asked.task.id).reply(submitted(payload))


def impatient(facilitator: LoopbackFacilitator, way: str) -> Facilitator:
    """A client that does not wait for what is slow."""
    return facilitator.client(timeout=0.1 if way in SLOW else 10.0)


# ---- the facilitator


@pytest.mark.parametrize("way", WAYS)
async def test_spoiled_answers_of_verify(facilitator: LoopbackFacilitator, way: str) -> None:
    """Nothing has happened: the task asks again, and the same payment may come again."""
    calling = impatient(facilitator, way)
    shop = Shop(facilitator, facilitator=calling)
    facilitator.spoiler.ways["verify"] = way
    async with shop.connect() as client:
        asked = await client.send("tides")
        payload = await payment(offer_of(asked))
        handle = client.task(asked.task.id)  # type: ignore[union-attr]
        result = await handle.reply(submitted(payload))
        assert result.state is TaskState.INPUT_REQUIRED
        assert said(result)[ERROR] == "SETTLEMENT_FAILED"
        assert (shop.worked, shop.kinds, facilitator.asked["settle"]) == ([], [], 0)
        facilitator.spoiler.ways.clear()
        calling._timeout = 10.0
        assert (await handle.reply(submitted(payload))).ok
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert facilitator.spoiler.elsewhere == []
    assert facilitator.spoiler.sent < GIANT


@pytest.mark.parametrize("way", WAYS)
async def test_spoiled_answers_of_settle(facilitator: LoopbackFacilitator, way: str) -> None:
    """It was settled, and the merchant cannot know: no work begins, and it is recorded."""
    shop = Shop(facilitator, facilitator=impatient(facilitator, way))
    facilitator.spoiler.ways["settle"] = way
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.state, said(result)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
    assert (shop.worked, shop.kinds) == ([], ["unsettled"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert facilitator.spoiler.elsewhere == []
    assert facilitator.spoiler.sent < GIANT


@pytest.mark.parametrize("way", WAYS)
async def test_spoiled_answers_of_settle_with_a_node(
    facilitator: LoopbackFacilitator, way: str
) -> None:
    chains = {NETWORK: Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])}
    shop = Shop(facilitator, facilitator=impatient(facilitator, way), chains=chains)
    facilitator.spoiler.ways["settle"] = way
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.text, shop.kinds) == ("All about tides", ["settled"])
    assert [record.transaction for record in shop.records] == list(facilitator.chain.mined)


@pytest.mark.parametrize("way", [way for way in WAYS if "flags" not in way])
async def test_spoiled_answers_of_the_node(facilitator: LoopbackFacilitator, way: str) -> None:
    """A node counts more than a facilitator: if it says nothing, the payment is unsettled."""
    node = Chain(
        f"{facilitator.url}/rpc", allow=["127.0.0.1"], timeout=0.1 if way in SLOW else 10.0
    )
    shop = Shop(facilitator, chains={NETWORK: node})
    facilitator.spoiler.ways["rpc"] = way
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.state, said(result)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
    assert (shop.worked, shop.kinds) == ([], ["unsettled"])
    assert facilitator.spoiler.elsewhere == []


@pytest.mark.parametrize(
    "reason",
    [
        "network timeout after the transaction was sent",
        "failed to get the signature of the transaction",
        "transaction expired",
        "invalid_transaction_state",
        "invalid_exact_evm_transfer_event_mismatch",
        "settlement_pending",
        "gas amount too low",
        "nonce too low",
        "",
        "x" * 5000,
    ],
)
async def test_a_refusal_that_proves_nothing(facilitator: LoopbackFacilitator, reason: str) -> None:
    """It has settled, and gives a reason that only looks like a refusal: the client is not asked
    to pay again."""
    shop = Shop(facilitator)
    facilitator.denies = reason
    async with shop.connect() as client:
        result = await paid(client)
    assert result.state is TaskState.FAILED
    assert (shop.worked, shop.kinds) == ([], ["unsettled"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS


async def test_a_second_refusal_proves_nothing(facilitator: LoopbackFacilitator) -> None:
    """The answer is lost, and then the payer has no money any more: it was the payment that took
    the last of it."""
    shop = Shop(facilitator)
    facilitator.trouble = ["lost"]
    facilitator.chain.balances[PAYER.lower()] = UNITS
    async with shop.connect() as client:
        result = await paid(client)
    assert facilitator.asked["settle"] == 3
    assert (result.state, shop.worked, shop.kinds) == (TaskState.FAILED, [], ["unsettled"])


async def test_signed_for_another_chain(facilitator: LoopbackFacilitator) -> None:
    """The payment says the right chain, and its signature is for another one."""
    shop = Shop(facilitator, x402_version=2)
    async with shop.connect() as client:
        asked = await client.send("tides")
        payload = await payment(offer_of(asked), domain={"network": "eip155:8453"})
        payload["accepted"]["network"] = NETWORK
        result = await client.task(asked.task.id).reply(submitted(payload))  # type: ignore[union-attr]
    assert said(result)[ERROR] == "INVALID_SIGNATURE"
    assert (shop.worked, facilitator.asked) == ([], {})


async def test_a_liar_that_denies_each_settlement(facilitator: LoopbackFacilitator) -> None:
    """It takes the money, and says that there was none. The same payment cannot count twice, and a
    client that signs no second one loses one price."""
    shop = Shop(facilitator)
    facilitator.denies = "insufficient_funds"
    async with shop.connect() as client:
        asked = await client.send("tides")
        payload = await payment(offer_of(asked))
        for _ in range(3):
            result = await client.task(asked.task.id).reply(submitted(payload))  # type: ignore[union-attr]
    assert result.state is TaskState.FAILED
    assert shop.worked == []
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert facilitator.asked["settle"] == 1  # a used nonce does not verify


async def test_credentials_that_cannot_be_made(facilitator: LoopbackFacilitator) -> None:
    """The function that makes the headers fails after a payment was sent: it is recorded."""
    calls = 0

    async def headers() -> Mapping[str, str]:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError("the key service is away")
        return {"authorization": "Bearer x"}

    shop = Shop(facilitator, facilitator=facilitator.client(headers=headers))
    facilitator.trouble = ["lost"]
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.state, said(result)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
    assert (shop.worked, shop.kinds) == ([], ["unsettled"])


# ---- clients


@pytest.mark.parametrize("second", ["upper case", "other version", "other signature"])
async def test_a_payment_in_another_spelling(facilitator: LoopbackFacilitator, second: str) -> None:
    """It is the same payment: its nonce is reserved."""
    shop = Shop(facilitator, x402_version=2)
    async with shop.connect() as client:
        asked = await client.send("tides")
        payload = await payment(offer_of(asked))
        assert (await client.task(asked.task.id).reply(submitted(payload))).ok  # type: ignore[union-attr]
        facilitator.chain.used.clear()  # only the store knows
        signed = payload["payload"]["authorization"]
        if second == "upper case":
            signed["nonce"] = "0x" + signed["nonce"][2:].upper()
            signed["from"], signed["to"] = (signed[name].lower() for name in ("from", "to"))
        elif second == "other version":
            payload = {**payload, "x402Version": 1, "scheme": "exact", "network": NETWORK}
        else:
            payload["payload"]["signature"] = mirrored(payload["payload"]["signature"])
        result = await paid(client, payload)
    assert said(result)[ERROR] in ("DUPLICATE_NONCE", "INVALID_SIGNATURE")
    assert second == "other signature" or said(result)[ERROR] == "DUPLICATE_NONCE"
    assert shop.worked == ["tides"]


def mirrored(signature: str) -> str:
    """The other signature of the same key for the same message, which some code accepts."""
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    raw = bytes.fromhex(signature[2:])
    s = order - int.from_bytes(raw[32:64], "big")
    return "0x" + (raw[:32] + s.to_bytes(32, "big") + bytes([55 - raw[64]])).hex()


async def test_a_payment_at_two_agents_of_one_store(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    worked: list[str] = []
    merchant = Merchant(facilitator.client(), settle_pauses=(0.01,))
    results = []
    payload: Any = None
    for name in ("One", "Two"):
        agent = Agent(name, description="Sells.", key=name.lower())

        @agent.skill(gate=merchant.price(PRICE))
        async def analyze(text: str) -> str:
            worked.append(text)
            return "done"

        app = App(agent, store=f"sqlite:///{tmp_path}/tasks.db")
        async with app, Client.connect(app=app, extensions=[parts.URI]) as client:
            asked = await client.send("tides")
            payload = payload or await payment(offer_of(asked))
            reply = client.task(asked.task.id).reply(submitted(payload))  # type: ignore[union-attr]
            results.append(await reply)
        facilitator.chain.used.clear()
    assert results[0].ok and said(results[1])[ERROR] == "DUPLICATE_NONCE"
    assert len(worked) == 1


FORGED = [{"success": True, "transaction": "0x" + "44" * 32, "network": NETWORK, "payer": PAYER}]


@pytest.mark.parametrize("status", ["payment-verified", "payment-completed", "payment-required"])
async def test_a_forged_state(facilitator: LoopbackFacilitator, status: str) -> None:
    """What the client says of the state, and its receipts, count for nothing."""
    shop = Shop(facilitator)
    async with shop.connect() as client:
        message = submitted(None, **{STATUS: status, RECEIPTS: FORGED})
        asked = await client.send(replace(message, parts=(Part(text="tides"),)))
        assert asked.state is TaskState.INPUT_REQUIRED
        result = await client.task(asked.task.id).reply(message)  # type: ignore[union-attr]
    assert result.state is TaskState.INPUT_REQUIRED
    assert RECEIPTS not in said(result)
    assert (shop.worked, shop.kinds, facilitator.asked) == ([], [], {})


async def test_a_payment_before_the_offer(facilitator: LoopbackFacilitator) -> None:
    """There is an offer first: a payment in the first message is not looked at."""
    shop = Shop(facilitator)
    async with shop.connect() as client:
        asked = await client.send("tides")
        message = submitted(await payment(offer_of(asked)))
        early = await client.send(replace(message, parts=(Part(text="waves"),)))
    assert early.state is TaskState.INPUT_REQUIRED
    assert said(early)[STATUS] == "payment-required"
    assert (shop.worked, facilitator.asked) == ([], {})


HUGE: dict[str, Any] = {
    "a signature without an end": {"signature": "0x" + "ab" * 8193},
    "a deep payload": {"authorization": {}},
    "no nonce": {"authorization": {"nonce": ""}},
    "a number that is too long": {"authorization": {"value": "1" * 5000}},
    "a negative number": {"authorization": {"value": "-100000"}},
    "a fraction": {"authorization": {"value": 100000.5}},
    "hexadecimal": {"authorization": {"value": "0x186a0"}},
    "digits of other scripts": {"authorization": {"value": "\u0661\u0660\u0660\u0660\u0660\u0660"}},
}


@pytest.mark.parametrize("case", HUGE)
async def test_malformed_payments(facilitator: LoopbackFacilitator, case: str) -> None:
    shop = Shop(facilitator)
    async with shop.connect() as client:
        asked = await client.send("tides")
        payload = await payment(offer_of(asked))
        inner = payload["payload"]
        for key, value in HUGE[case].items():
            inner[key] = {**inner[key], **value} if isinstance(value, dict) else value
        if case == "a deep payload":
            nested: Any = 1
            for _ in range(60):
                nested = [nested]
            inner["authorization"] = nested
        result = await client.task(asked.task.id).reply(submitted(payload))  # type: ignore[union-attr]
    assert said(result)[ERROR] == "INVALID_SIGNATURE"
    assert (shop.worked, facilitator.asked) == ([], {})


@pytest.mark.parametrize("name", ["valid_before", "value", "valid_after"])
@pytest.mark.parametrize("number", [2**64, 2**256 - 1, 2**256, 10**78 - 1])
async def test_numbers_without_an_end(
    facilitator: LoopbackFacilitator, name: str, number: int
) -> None:
    """A payment that is valid for ever is a payment; other numbers are refused."""
    shop = Shop(facilitator)
    async with shop.connect() as client:
        asked = await client.send("tides")
        fits = number < 2**256
        payload = await payment(offer_of(asked), **({name: number} if fits else {}))
        camel = {"valid_before": "validBefore", "valid_after": "validAfter"}.get(name, name)
        payload["payload"]["authorization"][camel] = str(number)
        result = await client.task(asked.task.id).reply(submitted(payload))  # type: ignore[union-attr]
    if fits and name == "valid_before":
        assert (result.text, shop.kinds) == ("All about tides", ["settled"])
        return
    assert result.state is TaskState.INPUT_REQUIRED
    assert said(result)[ERROR] in ("INVALID_AMOUNT", "EXPIRED_PAYMENT", "INVALID_SIGNATURE")
    assert (shop.worked, shop.kinds, facilitator.asked) == ([], [], {})


async def test_a_large_price_of_a_token_with_many_decimals(
    facilitator: LoopbackFacilitator,
) -> None:
    """Its units are more than 64 bits."""
    facilitator.chain.balances[PAYER.lower()] = 10**30
    price = Price("1000", replace(TOKEN, decimals=18), to=SHOP)
    shop = Shop(facilitator, price)
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.text, shop.kinds) == ("All about tides", ["settled"])
    assert [one.amount for one in shop.records] == [10**21]


async def test_a_node_with_logs_without_an_end(facilitator: LoopbackFacilitator) -> None:
    """A nonce can be used once: more logs are not looked at."""
    node = Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])
    shop = Shop(facilitator, chains={NETWORK: node})
    facilitator.more_logs = [{"transactionHash": f"0xee{number:062x}"} for number in range(500)]
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.state, shop.kinds) == (TaskState.FAILED, ["unsettled"])
    assert facilitator.asked["receipt"] < 20


async def test_a_node_that_lags(facilitator: LoopbackFacilitator) -> None:
    """Several nodes answer at one address, and one of them does not know the latest block yet: that
    a nonce is unused must be said of the block whose time is past the authorization."""
    node = Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])
    shop = Shop(facilitator, chains={NETWORK: node})
    facilitator.later, facilitator.forgets, facilitator.lags = 3600, True, True
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.state, shop.kinds) == (TaskState.FAILED, ["unsettled"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS


async def test_the_client_is_not_told_about_the_facilitator(
    facilitator: LoopbackFacilitator, caplog: pytest.LogCaptureFixture
) -> None:
    """Its name, its address and what is wrong with it are for the log."""
    away = Facilitator("http://127.0.0.1:1/secret", allow=["127.0.0.1"], timeout=5.0)
    shop = Shop(facilitator, facilitator=away)
    async with shop.connect() as client:
        result = await paid(client)
    assert said(result)[ERROR] == "SETTLEMENT_FAILED"
    shown = f"{result.text} {said(result)}"
    assert "the facilitator gave no answer" in shown
    for secret in ("127.0.0.1", "secret", "reached", "refused"):
        assert secret not in shown
    assert "127.0.0.1" in caplog.text


async def test_a_payment_that_expires_between_check_and_settlement(
    facilitator: LoopbackFacilitator,
) -> None:
    shop = Shop(facilitator)
    facilitator.refuses = "invalid_exact_evm_payload_authorization_valid_before"
    async with shop.connect() as client:
        result = await paid(client)
    assert (result.state, said(result)[ERROR]) == (TaskState.INPUT_REQUIRED, "EXPIRED_PAYMENT")
    assert (shop.worked, shop.kinds, facilitator.chain.mined) == ([], [], {})
