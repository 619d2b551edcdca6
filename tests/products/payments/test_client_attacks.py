"""Agents that want more from a wallet than they were offered."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, Result
from dragoman.dialects import v1_0
from dragoman.payments import PaymentRefused, Price, Wallet
from dragoman.payments.extension import PAYLOAD, RECEIPTS, REQUIRED, STATUS
from dragoman.payments.ledger_file import load
from dragoman.payments.objects import Offer, offer_object, read_payload
from dragoman.payments.signing import signer_of
from tests.products.payments.loopback_facilitator import (
    KEY,
    PAYER,
    SHOP,
    TOKEN,
    LoopbackFacilitator,
)
from tests.products.payments.parts import PRICE, Shop, wallet
from tests.products.payments.test_wallet import CARD, OTHER

PAID = {"success": True, "transaction": "0x1", "network": "eip155:31337"}


class Crook:
    """An agent that asks for a payment again and again. `ask` says how, for each message."""

    def __init__(self, ask: Callable[[int], dict[str, Any]], *, card: Any = CARD) -> None:
        self._ask, self._card = ask, card
        self.payloads: list[dict[str, Any]] = []
        """The payments that it got."""
        self._messages = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            return
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        request = json.loads(body) if scope["method"] == "POST" else {}
        found = json.dumps(self._answer(request)) if request else v1_0.encode(self._card).decode()
        kind = b"application/json"
        if request.get("method") == "SendStreamingMessage":
            found, kind = f"data: {found}\n\n", b"text/event-stream"
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": found.encode()})

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        sends = request["method"].startswith("Send")
        if sends:
            message = request["params"]["message"]
            if PAYLOAD in (message.get("metadata") or {}):
                self.payloads.append(message["metadata"][PAYLOAD])
            self._messages += 1
        task = self._task(self._messages)
        result = {"task": task} if sends else task
        return {"jsonrpc": "2.0", "id": request["id"], "result": result}

    def _task(self, number: int) -> dict[str, Any]:
        said = {STATUS: "payment-required", **self._ask(number)}
        message = {
            "messageId": f"asked-{number}",
            "role": "ROLE_AGENT",
            "parts": [{"text": "Pay!"}],
            "metadata": said,
        }
        return {
            "id": said.pop("task", "t-1"),
            "contextId": "c",
            "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": message},
        }


def offer(price: Any = PRICE) -> dict[str, Any]:
    """The metadata of an offer."""
    required = price._requirement() if isinstance(price, Price) else price
    return {REQUIRED: offer_object(Offer((required,), 1))}


def cost(amount: str) -> Price:
    """A price of this many tokens."""
    return Price(amount, TOKEN, to=SHOP)


async def sent(agent: Client) -> Result:
    return await agent.send("tides")


async def streamed(agent: Client) -> Result:
    async with agent.stream("tides") as stream:
        async for _ in stream:
            pass
    return stream.result


async def robbed(crook: Crook, paying: Wallet, how: Any = sent) -> Result | str:
    """Send it a message; the result, or why nothing more was paid."""
    async with Client.connect(app=crook, answer=paying) as agent:
        try:
            found: Result = await how(agent)
        except PaymentRefused as error:
            return str(error)
        return found


def value(crook: Crook) -> int:
    """What all payments together are worth that it could carry out."""
    signed = {one.authorization.nonce: one for one in map(read_payload, crook.payloads)}
    return sum(one.authorization.value for one in signed.values())


@pytest.mark.parametrize("how", [sent, streamed])
async def test_it_asks_again_and_again(tmp_path: Path, how: Any) -> None:
    crook = Crook(lambda number: offer())
    found = await robbed(crook, wallet(tmp_path), how)
    assert isinstance(found, Result) and found.state is TaskState.INPUT_REQUIRED
    assert (len(crook.payloads), value(crook)) == (16, 100_000)


@pytest.mark.parametrize("how", [sent, streamed])
async def test_it_says_that_each_payment_was_carried_out(tmp_path: Path, how: Any) -> None:
    crook = Crook(lambda number: {**offer(), RECEIPTS: [PAID] * number})
    why = await robbed(crook, wallet(tmp_path), how)
    assert "0.5 TEST are counted already, and the limit per_call is 0.5 TEST" in str(why)
    assert value(crook) == 500_000


@pytest.mark.parametrize("how", [sent, streamed])
async def test_each_question_is_another_task(tmp_path: Path, how: Any) -> None:
    """The limit of a task would be no limit."""
    crook = Crook(lambda number: {**offer(cost("0.5")), "task": f"t-{number}"})
    found = await robbed(crook, wallet(tmp_path), how)
    assert isinstance(found, Result) and found.pause is not None
    assert found.pause.kind == "payment"
    assert (len(crook.payloads), value(crook)) == (1, 500_000)


@pytest.mark.parametrize("how", [sent, streamed])
async def test_it_raises_the_price(tmp_path: Path, how: Any) -> None:
    crook = Crook(lambda number: offer(cost(f"0.{number}")))
    why = await robbed(crook, wallet(tmp_path, per_call="0.35 TEST"), how)
    assert "asks for 0.3 TEST; 0.3 TEST are counted already" in str(why)
    assert value(crook) == 300_000


async def test_the_price_is_raised_between_question_and_payment(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    prices = iter(["0.1", "0.4"])
    shop = Shop(facilitator, lambda turn: cost(next(prices)))
    async with shop.connect() as agent:
        asked = await agent.send("tides")
        assert asked.task is not None
    async with shop.connect(wallet(tmp_path)) as agent:
        paid = await agent.task(asked.task.id).answer_pause()
    assert paid.ok and facilitator.chain.balances[SHOP.lower()] == 100_000


@pytest.mark.parametrize(
    "amount", [10**77, 2**256 - 1, 500_001, 50_000_000_000_000_000_000_000_000_000_001]
)
async def test_a_huge_price(tmp_path: Path, amount: int) -> None:
    crook = Crook(lambda number: offer(replace(PRICE._requirement(), amount=amount)))
    assert "limit per_call is 0.5 TEST" in str(await robbed(crook, wallet(tmp_path)))
    assert crook.payloads == []


async def test_a_price_that_no_contract_can_read(tmp_path: Path) -> None:
    crook = Crook(lambda number: offer(replace(PRICE._requirement(), amount=2**256)))
    assert "the agent's offer cannot be read" in str(await robbed(crook, wallet(tmp_path)))
    assert crook.payloads == []


@pytest.mark.parametrize("timeout", [1, 600, 10**8])
async def test_times(tmp_path: Path, timeout: int) -> None:
    crook = Crook(lambda number: offer(replace(PRICE._requirement(), timeout=timeout)))
    await robbed(crook, wallet(tmp_path))
    (first, *_) = map(read_payload, crook.payloads)
    at = load(tmp_path / "wallet.json").payments[0].at
    assert first.authorization.valid_before - at <= min(timeout, 600)
    assert value(crook) <= 500_000


@pytest.mark.parametrize("timeout", [0, -1, "600", True, 1e300])
async def test_wrong_times(tmp_path: Path, timeout: Any) -> None:
    said = offer()
    said[REQUIRED]["accepts"][0]["maxTimeoutSeconds"] = timeout
    crook = Crook(lambda number: said)
    assert "the agent's offer cannot be read" in str(await robbed(crook, wallet(tmp_path)))
    assert crook.payloads == []


@pytest.mark.parametrize("extra", [{}, {"name": "", "version": ""}, {"chainId": 1}])
async def test_what_is_signed_is_for_the_known_contract_only(tmp_path: Path, extra: Any) -> None:
    """Name, version and chain of the signature are the wallet's own."""
    said = offer()
    said[REQUIRED]["accepts"][0]["extra"] = extra
    crook = Crook(lambda number: said)
    await robbed(crook, wallet(tmp_path))
    found = read_payload(crook.payloads[0])
    assert signer_of(found, PRICE._requirement()) == PAYER
    for other in ({"network": "eip155:1"}, {"name": "USD Coin"}, {"asset": OTHER}):
        assert signer_of(found, replace(PRICE._requirement(), **other)) != PAYER


async def test_the_receiver_changes(tmp_path: Path) -> None:
    crook = Crook(lambda number: offer(Price("0.10", TOKEN, to=SHOP if number < 2 else OTHER)))
    asked: list[Any] = []
    paying = wallet(
        tmp_path, receivers={}, on_payment=lambda one: asked.append(one) or one.to == SHOP
    )
    assert f"the receiver was {SHOP.lower()} before" in str(await robbed(crook, paying))
    assert [(one.to, one.before) for one in asked] == [(SHOP, ""), (OTHER, SHOP.lower())]
    assert {read_payload(one).authorization.to for one in crook.payloads} == {SHOP}


async def test_an_offer_that_looks_like_a_known_asset(tmp_path: Path) -> None:
    """Symbols and decimals are not the agent's to say: the contract counts."""
    said = offer(replace(PRICE._requirement(), asset=OTHER))
    said[REQUIRED]["accepts"][0]["extra"] |= {"symbol": "TEST", "decimals": 18}
    crook = Crook(lambda number: said)
    assert "none of this wallet's assets" in str(await robbed(crook, wallet(tmp_path)))


# ---- what nobody sees


async def test_key_and_signature_are_in_no_log(
    facilitator: LoopbackFacilitator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shop, paying = Shop(facilitator), wallet(tmp_path)
    async with shop.connect(paying) as agent:
        result = await agent.send("tides")
        said = f"{paying!r} {agent!r} {result!r} {vars(paying)!r} {await paying.history()!r}"
    with pytest.raises(PaymentRefused) as error:
        async with shop.connect(wallet(tmp_path, per_day="0.10 TEST")) as agent:
            await agent.send("waves")
    (signed,) = load(tmp_path / "wallet.json").payments
    written = caplog.text + "".join(f"{record.args!r}" for record in caplog.records)
    assert "is settled" in written
    for secret in (KEY[2:], signed.signature[2:]):
        assert secret not in written + said + repr(error.value) + repr(signed)
    assert KEY[2:] not in (tmp_path / "wallet.json").read_text()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


async def test_key_and_signature_are_in_no_trace(
    facilitator: LoopbackFacilitator, tmp_path: Path, exported: InMemorySpanExporter
) -> None:
    paying = wallet(tmp_path)
    shop = Shop(facilitator)
    async with shop.connect(paying) as agent:
        assert (await agent.send("tides")).ok
    spans = "\n".join(span.to_json() for span in exported.get_finished_spans())
    (signed,) = load(tmp_path / "wallet.json").payments
    assert "analyze" in spans
    assert KEY[2:] not in spans and signed.signature[2:] not in spans


# ---- agents that pay others


async def test_an_agent_that_delegates_pays_within_its_budget(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    shop = Shop(facilitator)
    part = wallet(tmp_path).part("0.25 TEST")
    buyer = Agent("Buyer", description="Buys.")

    @buyer.skill(durable=True)
    async def buy(turn: Turn) -> str:
        paid = []
        async with turn.connect(app=shop.app, answer=part) as agent:
            for name in turn.text.split():
                try:
                    paid.append((await agent.send(name)).text)
                except PaymentRefused as error:
                    return f"{len(paid)}: {error}"
        return f"{len(paid)}: all"

    app = App(buyer)
    async with shop.connect(), Client.connect(app=app) as client:
        first = await client.send("a b c")
        assert "2: the agent asks for 0.1 TEST; 0.2 TEST are counted already" in first.text
        assert "the budget of the task is 0.25 TEST" in first.text
        second = await client.send("a b")  # each task has its own
        assert second.text == "2: all"
    assert len(load(tmp_path / "wallet.json").payments) == 4
    tasks = {one.on_behalf_of for one in load(tmp_path / "wallet.json").payments}
    assert first.task is not None and second.task is not None
    assert tasks == {first.task.id, second.task.id}
