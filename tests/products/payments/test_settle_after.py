"""Payments after the work, on every store: the output is held back until the payment is settled,
and each row of the table in docs/payments.md."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client
from dragoman.payments import Merchant, Price, payments
from dragoman.payments.collection import LEAST, SETTLE_TIME
from dragoman.payments.extension import URIS
from dragoman.stores.store import Store
from tests.products.payments.loopback_facilitator import SHOP, TOKEN, LoopbackFacilitator
from tests.products.payments.parts import PRICE, offer_of, payment, submitted, wallet
from tests.products.payments.test_books import looked_up, open_payments
from tests.products.payments.test_crashes import (  # noqa: F401
    UNITS,
    Shop,
    delays,
    said,
    texts,
)

OUTPUT = ["one, ", "two"]


class After(Shop):
    """A worker that sells, and is paid after its work."""

    def __init__(self, store: Store, loopback: Any, **options: Any) -> None:
        super().__init__(store, loopback, **{"settle": "after", **options})


def paid(facilitator: LoopbackFacilitator) -> int:
    """What the shop has on the chain."""
    return facilitator.chain.balances[SHOP.lower()]


def nothing(shop: Shop, facilitator: LoopbackFacilitator) -> bool:
    """Whether no payment was sent."""
    return (paid(facilitator), facilitator.asked["settle"], shop.kinds) == (0, 0, [])


async def test_nothing_is_seen_before_it_is_settled(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = After(store, facilitator)
    seen: list[Any] = []
    settle = facilitator.settle

    async def look(request: Any) -> Any:
        task = await shop.task(id)
        seen.append((texts(task), task.status.state, shop.done["work"]))
        assert b"two" not in b"".join(entry.wire or b"" for entry in await shop.log(id)), (
            "the output is in an event"
        )
        return await settle(request)

    id = await shop.paid()
    facilitator.on_settle = look
    await shop.life()
    assert seen == [([], TaskState.WORKING, 1)]
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, OUTPUT)
    assert (said(task)["x402.payment.status"], paid(facilitator)) == ("payment-completed", UNITS)
    assert shop.kinds == ["settled"]
    await looked_up(shop)
    assert (shop.kinds, await open_payments(store)) == (["settled"], 0)


# ---- the rows of the table


@pytest.mark.parametrize("die_at", [1, 2])
async def test_nonce_not_yet_reserved(
    store: Store, facilitator: LoopbackFacilitator, die_at: int
) -> None:
    shop = After(store, facilitator)
    task = await shop.died(die_at)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, OUTPUT)
    assert (shop.done["work"], shop.kinds, paid(facilitator)) == (1, ["settled"], UNITS)


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_work_is_cut_off(
    store: Store, facilitator: LoopbackFacilitator, retries: int
) -> None:
    shop = After(store, facilitator, retries=retries)
    task = await shop.died(3)
    if retries:
        assert (task.status.state, texts(task)) == (TaskState.COMPLETED, OUTPUT)
        assert (shop.done["work"], shop.kinds, paid(facilitator)) == (2, ["settled"], UNITS)
    else:
        assert (task.status.state, texts(task)) == (TaskState.FAILED, [])
        assert nothing(shop, facilitator)


async def test_the_work_is_done_and_nothing_sent(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = After(store, facilitator)
    task = await shop.died(4)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, OUTPUT)
    assert (shop.done["work"], shop.kinds, paid(facilitator)) == (1, ["settled"], UNITS)


@pytest.mark.parametrize("how", ["remembers", "node", "neither"])
async def test_sent_without_an_answer(
    store: Store, facilitator: LoopbackFacilitator, how: str
) -> None:
    facilitator.remembers = how == "remembers"
    shop = After(store, facilitator, node=how == "node")
    task = await shop.died(5)
    while not task.status.state.terminal:  # the pauses between two attempts
        await shop.recover()
        await shop.life()
        task = await shop.task(task.id)
    assert (paid(facilitator), shop.done["work"]) == (UNITS, 1)
    if how == "neither":
        assert (task.status.state, texts(task)) == (TaskState.FAILED, [])
        assert shop.kinds == ["unsettled"]
    else:
        assert (task.status.state, texts(task)) == (TaskState.COMPLETED, OUTPUT)
        assert shop.kinds == ["settled"]


@pytest.mark.parametrize("die_at", [6, 7])
async def test_settled_and_not_shown(
    store: Store, facilitator: LoopbackFacilitator, die_at: int
) -> None:
    shop = After(store, facilitator)
    merchant: Any = shop.agent.skills["work"].handler.gate
    record = merchant._terms.record

    async def dying(found: Any) -> None:
        await shop.point()
        await record(found)
        await shop.point()

    merchant._terms = replace(merchant._terms, record=dying)
    task = await shop.died(die_at)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, OUTPUT)
    assert (paid(facilitator), facilitator.asked["settle"], shop.done["work"]) == (UNITS, 1, 1)
    assert set(shop.kinds) == {"settled"}


@pytest.mark.parametrize("how", ["fails", "rejects"])
async def test_work_that_fails_costs_nothing(
    store: Store, facilitator: LoopbackFacilitator, how: str
) -> None:
    shop = After(store, facilitator, how=how)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert task.status.state is (TaskState.FAILED if how == "fails" else TaskState.REJECTED)
    assert (texts(task), said(task)) == ([], {"x402.payment.status": "payment-failed"})
    assert nothing(shop, facilitator)
    await looked_up(shop)
    assert nothing(shop, facilitator)


# ---- time


async def test_work_ends_before_the_authorization_does(
    store: Store, facilitator: LoopbackFacilitator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = After(store, facilitator, how="waits")
    id = await shop.paid()  # the authorization lives 300 seconds
    now = time.time
    monkeypatch.setattr(
        "dragoman.payments.collection.time.time", lambda: now() + 300 - SETTLE_TIME - 1.1
    )
    monkeypatch.setattr("dragoman.payments.collection.LEAST", 0)
    async with asyncio.timeout(20):
        await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == (TaskState.FAILED, [])
    assert nothing(shop, facilitator)


async def test_an_authorization_that_is_too_short(facilitator: LoopbackFacilitator) -> None:
    app = selling(facilitator)
    async with Client.connect(app=app, extensions=[URIS["0.2"]]) as client:
        asked = await client.send("tides")
        soon = int(time.time()) + LEAST - 5
        given = submitted(await payment(offer_of(asked), valid_before=soon))
        result = await client.task(asked.task.id).reply(given)  # type: ignore[union-attr]
    assert result.state is TaskState.INPUT_REQUIRED
    assert said(result.task)["x402.payment.error"] == "EXPIRED_PAYMENT"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be greater than 60"):
        merchant(facilitator).price(Price("0.10", TOKEN, to=SHOP, timeout=60))


# ---- what a settlement comes to


async def test_a_payment_that_is_refused_after_the_work(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = After(store, facilitator)
    facilitator.trouble = ["refused"]
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == (TaskState.FAILED, [])
    assert said(task)["x402.payment.error"] == "INSUFFICIENT_FUNDS"
    assert [one["success"] for one in said(task)["x402.payment.receipts"]] == [False]
    assert (shop.kinds, shop.done["work"], await open_payments(store)) == ([], 1, 0)


async def test_a_cancel_during_the_settlement(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = After(store, facilitator, node=True, settle_pauses=(600.0,))
    facilitator.trouble, facilitator.node_away = ["lost"], True
    id = await shop.paid()
    await shop.life()  # it sleeps now
    await shop.ask_to_cancel(id, undo=True)
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == (TaskState.CANCELED, [])
    facilitator.node_away = False
    await looked_up(shop)
    assert shop.kinds == ["unsettled", "settled", "owed"]


# ---- with clients


def merchant(facilitator: LoopbackFacilitator) -> Merchant:
    return Merchant(facilitator.client(), settle="after")


def selling(facilitator: LoopbackFacilitator, price: Any = PRICE) -> App:
    agent, one = Agent("Shop", description="Sells."), merchant(facilitator)

    @agent.skill(gate=one.price(price))
    async def analyze(turn: Turn) -> dict[str, Any]:
        return {"about": turn.text}

    return App(agent)


async def test_a_client_pays_after_the_work(
    facilitator: LoopbackFacilitator, tmp_path: Path
) -> None:
    app = selling(facilitator)
    async with Client.connect(app=app, answer=wallet(tmp_path)) as client:
        result = await client.send("tides")
        assert (result.data, len(payments(result))) == ({"about": "tides"}, 1)
        async with client.stream("waves") as stream:
            kinds = [type(event).__name__ async for event in stream]
    assert stream.result.ok and kinds.index("TaskArtifactUpdateEvent") == len(kinds) - 2
    assert paid(facilitator) == 2 * UNITS


async def test_a_free_request(facilitator: LoopbackFacilitator) -> None:
    app = selling(facilitator, lambda turn: None)
    async with Client.connect(app=app, extensions=[URIS["0.2"]]) as client:
        assert (await client.send("tides")).data == {"about": "tides"}


def test_handlers_that_stream_are_refused(facilitator: LoopbackFacilitator) -> None:
    agent = Agent("Shop", description="Sells.")

    async def streams(turn: Turn) -> AsyncIterator[str]:
        yield "one"

    with pytest.raises(TypeError, match="holds back the output"):
        agent.skill(gate=merchant(facilitator).price(PRICE))(streams)
    with pytest.raises(ValueError, match="settle must be"):
        Merchant(facilitator.client(), settle="later")  # type: ignore[arg-type]
