"""What a merchant promises: prices, the card, the states of a payment, its reservation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dragoman import Agent, App, Caller, Part, Request, TaskState, Turn
from dragoman.client import Client
from dragoman.model.errors import ExtensionSupportRequired
from dragoman.payments import (
    Chain,
    Facilitator,
    Merchant,
    Price,
    payment_required,
    payments,
)
from dragoman.payments.extension import ERROR, RECEIPTS, REQUIRED, STATUS, URIS
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.store import Store
from tests.harness.server import served
from tests.harness.stores import BACKENDS, database
from tests.products.payments import parts
from tests.products.payments.loopback_facilitator import SHOP, TOKEN, LoopbackFacilitator
from tests.products.payments.parts import PRICE, URI, Shop, offer_of, payment, submitted, wallet
from tests.products.payments.test_crashes import Shop as Worker
from tests.products.payments.test_crashes import delays  # noqa: F401

UNITS = 100_000
HELLO = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "tides"}]}


def said(result: Any) -> dict[str, Any]:
    return dict(result.task.status.message.metadata or {})


# ---- prices


async def test_a_price_may_depend_on_the_caller(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    async def price(turn: Turn) -> Price | None:
        amounts = {"friend": "0", "guest": "0.20"}
        return Price(amounts[turn.caller.identity], TOKEN, to=SHOP)

    async def identify(request: Request) -> Caller:
        return Caller(identity=request.headers.get("x-name", "guest"))

    shop = Shop(facilitator, price)
    app = App(shop.agent, identify=identify)
    paying = wallet(tmp_path)
    async with Client.connect(app=app, headers={"x-name": "friend"}, answer=paying) as friend:
        result = await friend.send("tides")
        assert (result.text, payments(result)) == ("All about tides", ())
    async with Client.connect(app=app, headers={"x-name": "guest"}, answer=paying) as guest:
        assert len(payments(await guest.send("tides"))) == 1
    assert facilitator.chain.balances[SHOP.lower()] == 2 * UNITS


async def test_a_price_of_nothing(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator, Price("0.00", TOKEN, to=SHOP))
    assert not any(one.required for one in shop.agent.extensions)
    async with shop.connect() as client:
        client._connection.extensions = ()
        assert (await client.send("tides")).text == "All about tides"
    with pytest.raises(ValueError, match="no amount"):
        Price("-1", TOKEN, to=SHOP)


async def test_a_price_that_cannot_be_made(facilitator: LoopbackFacilitator) -> None:
    def price(turn: Turn) -> Price:
        raise LookupError("no rate today")

    shop = Shop(facilitator, price)
    async with shop.connect() as client:
        result = await client.send("tides")
    assert result.state is TaskState.FAILED and "no rate" not in result.text
    assert (shop.worked, facilitator.asked) == ([], {})


@pytest.mark.parametrize(
    ("given", "settle", "why"),
    [
        ("0.10", "before", "the function of a price must return a Price or None, and not a str"),
        (Price("0.10", TOKEN, to=SHOP, timeout=60), "after", "timeout must be greater than 60"),
    ],
)
async def test_a_function_with_a_wrong_price(
    facilitator: LoopbackFacilitator,
    caplog: pytest.LogCaptureFixture,
    given: Any,
    settle: Any,
    why: str,
) -> None:
    """Its author is told what is wrong, and the client is not asked for a payment."""
    shop = Shop(facilitator, lambda turn: given, settle=settle)
    async with shop.connect() as client:
        result = await client.send("tides")
    assert result.state is TaskState.FAILED and why in caplog.text
    assert (shop.worked, facilitator.asked) == ([], {})


@pytest.mark.parametrize("kind", [Facilitator, Chain])
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://pay.example", "the URL is not https"),
        ("https://user:word@pay.example", "credentials in the URL are not allowed"),
        ("https://10.1.2.3", "the address is not public"),
        ("pay.example", "the URL is not of the form"),
    ],
)
def test_a_url_that_is_never_called(kind: Any, url: str, why: str) -> None:
    """It is found when the program begins, and not when somebody has paid."""
    with pytest.raises(ValueError, match=why) as error:
        kind(url)
    assert "list its host in `allow`" in str(error.value) and "word" not in str(error.value)
    assert kind("http://10.1.2.3:8402", allow=["10.1.2.3"])


# ---- the card, and the extension


def mixed(facilitator: LoopbackFacilitator) -> App:
    """An agent with a skill that costs something, and one that does not."""
    agent = Agent("Shop", description="Sells.")
    merchant = Merchant(facilitator.client())

    @agent.skill(gate=merchant.price(PRICE))
    async def paid(turn: Turn) -> str:
        return f"All about {turn.text}"

    @agent.handler
    async def free(turn: Turn) -> str:
        return f"A little about {turn.text}"

    agent.skill(free)

    return App(agent)


async def test_the_free_skills_of_an_agent(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    app = mixed(facilitator)
    async with Client.connect(app=app) as client:
        (extension,) = [one for one in client.card.capabilities.extensions if one.uri == URI]
        assert not extension.required
        assert extension.params is not None and list(extension.params["prices"]) == ["paid"]
        assert (await client.send("tides", skill="free")).text == "A little about tides"
        result = await client.send("tides", skill="paid")
        assert result.state is TaskState.REJECTED and f"Activate the extension {URI}" in result.text
    async with Client.connect(app=app, answer=wallet(tmp_path)) as client:
        assert (await client.send("tides", skill="paid")).text == "All about tides"


@pytest.mark.parametrize("header", ["A2A-Extensions", "X-A2A-Extensions", ""])
async def test_the_extension_is_negotiated(facilitator: LoopbackFacilitator, header: str) -> None:
    shop = Shop(facilitator)
    async with served(shop.app) as server, aiohttp.ClientSession() as session:
        headers = {"A2A-Version": "1.0", "content-type": "application/a2a+json"}
        if header:
            headers[header] = f"https://example.org/other, {URI}"
        url = f"{server.url}/message:send"
        async with session.post(url, json={"message": HELLO}, headers=headers) as response:
            body, active = await response.json(), response.headers.get("A2A-Extensions")
    if header:
        assert active == URI
        assert REQUIRED in body["task"]["status"]["message"]["metadata"]
    else:
        assert response.status == ExtensionSupportRequired("").http and URI in str(body)


# ---- the states of a payment


def states(task: Any) -> list[tuple[str, str]]:
    """The states of the payment of a task, each with its error."""
    messages = [*task.history, task.status.message]
    found = [one.metadata for one in messages if one is not None and STATUS in (one.metadata or {})]
    return [(one[STATUS].removeprefix("payment-"), one.get(ERROR, "")) for one in found]


async def test_the_states_of_payments_that_fail(facilitator: LoopbackFacilitator) -> None:
    shop = Shop(facilitator)
    changes: list[dict[str, Any]] = [{"value": 1}, {"valid_before": 1}, {"to": parts.PAYER}]
    async with shop.connect() as client:
        result = await client.send("tides")
        for number, change in enumerate(changes):
            offer = payment_required(result)
            # asking again needs a reason
            assert offer is not None
            assert offer.error.startswith("the payment ") == (number > 0)
            paid = submitted(await payment(offer_of(result), **change))
            result = await client.task(result.task.id).reply(paid)  # type: ignore[union-attr]
    assert result.state is TaskState.FAILED
    codes = ["INVALID_AMOUNT", "EXPIRED_PAYMENT", "INVALID_SIGNATURE"]
    assert states(result.task) == [
        ("required", ""),
        ("submitted", ""),
        ("failed", codes[0]),
        ("required", codes[0]),
        ("submitted", ""),
        ("failed", codes[1]),
        ("required", codes[1]),
        ("submitted", ""),
        ("failed", codes[2]),
    ]


async def test_the_states_of_a_payment(facilitator: LoopbackFacilitator, tmp_path: Path) -> None:
    shop = Shop(facilitator)
    async with shop.connect(wallet(tmp_path)) as client:
        result = await client.send("tides")
    found = [name for name, _ in states(result.task)]
    assert found == ["required", "submitted", "verified", "completed"]


@pytest.mark.parametrize("how", ["text", "message", "nothing", "rejects", "raises"])
async def test_the_last_message_has_the_receipts(
    facilitator: LoopbackFacilitator, tmp_path: Path, how: str
) -> None:
    agent = Agent("Shop", description="Sells.")

    @agent.skill(gate=Merchant(facilitator.client()).price(PRICE))
    async def analyze(turn: Turn) -> AsyncIterator[Any]:
        if how == "text":
            yield "All of it"
        if how == "message":
            yield turn.complete("Done, as you asked")
        if how == "rejects":
            yield turn.reject("No")
        if how == "raises":
            raise ValueError("broken")

    async with Client.connect(app=App(agent), answer=wallet(tmp_path)) as client:
        result = await client.send("tides")
    ended = {"rejects": TaskState.REJECTED, "raises": TaskState.FAILED}
    assert result.state is ended.get(how, TaskState.COMPLETED)
    assert said(result)[STATUS] == "payment-completed"
    assert [one["success"] for one in said(result)[RECEIPTS]] == [True]
    if how == "message":
        assert result.task is not None and result.task.status.message is not None
        assert result.task.status.message.text == "Done, as you asked"


# ---- the order


async def test_the_work_begins_when_the_payment_is_settled(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Worker(store, facilitator)
    settle, begun = facilitator.settle, []

    async def look(request: Any) -> Any:
        begun.append(shop.done["work"])
        return await settle(request)

    facilitator.on_settle = look
    task = await shop.paid()
    await shop.life()
    assert (begun, shop.done["work"]) == ([0], 1)
    assert (await shop.task(task)).status.state is TaskState.COMPLETED


async def test_signatures_are_checked_beside_the_event_loop(
    facilitator: LoopbackFacilitator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dragoman.payments import checks

    threads: list[threading.Thread] = []
    signer_of = checks.signer_of

    def checked(*args: Any) -> str:
        threads.append(threading.current_thread())
        return signer_of(*args)

    monkeypatch.setattr(checks, "signer_of", checked)
    shop = Shop(facilitator)
    async with shop.connect(wallet(tmp_path)) as client:
        assert (await client.send("tides")).ok
    assert threads and threading.main_thread() not in threads


# ---- the reservation


async def paid_with(shop: Worker, payload: Any) -> Any:
    """Begin a task, and submit this payment, or one that fits."""
    task = await shop.say(replace(submitted(None), metadata=None, parts=(Part(text="x"),)))
    await shop.life()
    status = (await shop.task(task)).status
    assert status.message is not None and status.message.metadata is not None
    payload = payload or await payment(status.message.metadata[REQUIRED])
    await shop.say(replace(submitted(payload), task_id=task))
    await shop.life()
    return payload, await shop.task(task)


async def test_a_payment_counts_once_after_its_task_is_deleted(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    for make in (BACKENDS["memory"], BACKENDS["sqlite"]):
        store = make(tmp_path, retention=0.001)
        await store.open()
        shop = Worker(store, facilitator)
        payload, task = await paid_with(shop, None)
        assert task.status.state is TaskState.COMPLETED
        async with asyncio.timeout(10):
            while await store.head(shop.scope, task.id):
                await asyncio.sleep(0.01)
                await store.prune()
        facilitator.chain.used.clear()  # it would accept it again
        _, task = await paid_with(shop, payload)
        assert task.status.state is TaskState.INPUT_REQUIRED
        assert (task.status.message.metadata[ERROR], shop.done["work"]) == ("DUPLICATE_NONCE", 1)
        assert ("verified", "") not in states(task)
        await store.close()


async def test_a_payment_counts_once_for_all_replicas(facilitator: LoopbackFacilitator) -> None:
    url = database()
    shops = [Shop(facilitator) for _ in range(3)]
    stores = [PostgresStore(url) for _ in shops]
    payload: Any = None
    results = []
    for shop, store in zip(shops, stores, strict=True):
        app = App(shop.agent, store=store)
        async with app, Client.connect(app=app, extensions=[URIS["0.2"]]) as client:
            asked = await client.send("tides")
            payload = payload or await payment(offer_of(asked))
            reply = client.task(asked.task.id).reply(submitted(payload))  # type: ignore[union-attr]
            results.append(await reply)
        facilitator.chain.used.clear()
    assert [result.ok for result in results] == [True, False, False]
    assert {said(result)[ERROR] for result in results[1:]} == {"DUPLICATE_NONCE"}
    assert sum(len(shop.worked) for shop in shops) == 1


# ---- traces


async def test_no_signature_is_in_a_trace(
    facilitator: LoopbackFacilitator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    shop = Shop(facilitator)
    app = App(shop.agent)
    async with app, Client.connect(app=app, answer=wallet(tmp_path)) as client:
        assert (await client.send("tides")).ok
    spans = exporter.get_finished_spans()
    provider.shutdown()
    signature = facilitator.bodies[0]["paymentPayload"]["payload"]["signature"][2:]
    assert spans and not any(signature in span.to_json() for span in spans)
