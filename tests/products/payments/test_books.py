"""The merchant's books, on every store: what they have, and who completes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from msgspec.structs import replace

from dragoman import App, TaskState
from dragoman.client import Client
from dragoman.payments import Books, PaymentRecord, Price, Refund
from dragoman.payments.books import OPEN, space
from dragoman.server.gate_store import StoreOfGate
from dragoman.stores.store import Store
from tests.harness.stores import BACKENDS
from tests.products.payments import parts
from tests.products.payments.loopback_facilitator import PAYER, SHOP, TOKEN, LoopbackFacilitator
from tests.products.payments.test_crashes import UNITS, Shop, delays, said  # noqa: F401

T = TypeVar("T")
KINDS = ("offered", "settled", "owed", "unsettled", "unused", "refunded")


async def operator(store: Store, work: Callable[[Books], T]) -> T:
    """What an operator does with the books."""

    def run() -> T:
        assert store.admin is not None
        with store.admin(write=True) as admin:
            return work(Books(admin))

    return await asyncio.to_thread(run)


async def kept(store: Store) -> dict[str, list[PaymentRecord]]:
    """All records, by their kind."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        found[kind] = await operator(store, lambda books, kind=kind: list(books.records(kind)))  # type: ignore[misc]
    return {kind: records for kind, records in found.items() if records}


async def looked_up(shop: Shop) -> None:
    """What maintenance does."""
    key = shop.agent.key
    gate: Any = shop.agent.skills["work"].handler.gate
    await gate.maintain(StoreOfGate(shop.store, key, "work", None, audits=False))


async def open_payments(store: Store) -> int:
    return len(await store.reservations(OPEN, "", "", 99))


async def test_a_payment_is_in_the_books(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator)
    task = await shop.paid()
    await shop.life()
    found = await kept(store)
    assert found.keys() == {"offered", "settled"}
    (offered,), (settled,) = found["offered"], found["settled"]
    assert (offered.task, offered.amount, offered.payer) == (task, UNITS, "")
    assert (settled.agent, settled.task, settled.skill) == ("test", task, "work")
    assert (settled.payer, settled.to, settled.amount) == (PAYER, SHOP, UNITS)
    assert settled.transaction in facilitator.chain.mined
    (paid,) = await operator(store, lambda books: list(books.payments()))
    assert (paid.state, paid.record, paid.refund) == ("settled", settled, None)
    # its task has completed, so nothing is left to do
    assert await open_payments(store) == 1
    await looked_up(shop)
    assert await open_payments(store) == 0
    assert (await kept(store), shop.kinds) == (found, ["settled"])


async def test_the_books_outlive_the_task(
    facilitator: LoopbackFacilitator, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    for make in (BACKENDS["memory"], BACKENDS["sqlite"]):
        store = make(tmp_path, retention=0.001)
        await store.open()
        shop = Shop(store, facilitator)
        task = await shop.paid()
        await shop.life()
        async with asyncio.timeout(10):
            while await store.head(shop.scope, task):
                await asyncio.sleep(0.01)
                await store.prune()
        await looked_up(shop)
        assert (await kept(store)).keys() == {"offered", "settled"}
        await store.close()


async def test_the_books_have_a_retention(facilitator: LoopbackFacilitator) -> None:
    store = BACKENDS["memory"](None)
    await store.open()
    shop = Shop(store, facilitator, retention=3600.0)
    await shop.paid()
    await shop.life()
    for kind in ("offered", "settled"):
        (found,) = await store.reservations(space(kind), "", "", 9)  # type: ignore[arg-type]
        assert found.expires is not None
        (nonce,) = await store.reservations("x402.nonces", "", "", 9)
        assert nonce.expires is not None and nonce.expires - found.expires > 20 * 86400
    await store.close()
    with pytest.raises(ValueError, match="retention"):
        Shop(store, facilitator, retention=0.0)


async def test_no_signature_is_in_the_books(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator, how="fails")
    await shop.paid()
    await shop.life()
    signature = facilitator.bodies[0]["paymentPayload"]["payload"]["signature"][2:]
    spaces = [space(kind) for kind in KINDS] + [OPEN, "x402.nonces", "x402.turns"]  # type: ignore[arg-type]
    rows = [row for name in spaces for row in await store.reservations(name, "", "", 99)]
    assert len(rows) >= 4
    assert not any(signature.encode() in row.value or signature in row.key for row in rows)


# ---- owed, and paid back


async def test_a_refund_is_recorded(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator, how="fails")
    task = await shop.paid()
    await shop.life()
    (owed,) = await operator(store, lambda books: list(books.owed()))
    assert (owed.task, owed.payer, owed.amount) == (task, PAYER, UNITS)
    for wrong in (0, UNITS + 1):
        with pytest.raises(ValueError, match="at most 100000"):
            await operator(store, lambda books, n=wrong: books.refund(task, Refund("0x1", n)))  # type: ignore[misc]
    with pytest.raises(LookupError, match="no payment of the task x"):
        await operator(store, lambda books: books.refund("x", Refund("0x1")))
    made = await operator(store, lambda books: books.refund(task, Refund("0xab", 5)))
    assert (made.kind, made.amount, made.transaction) == ("refunded", 5, "0xab")
    with pytest.raises(ValueError, match="already recorded"):
        await operator(store, lambda books: books.refund(task, Refund("0xcd")))
    assert await operator(store, lambda books: list(books.owed())) == []
    (paid,) = await operator(store, lambda books: list(books.payments()))
    assert (paid.state, paid.refund) == ("refunded", made)
    await looked_up(shop)
    assert shop.kinds == ["settled", "owed"]


async def test_a_hook_pays_back(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator, how="fails")

    async def pay_back(found: PaymentRecord) -> Refund | None:
        shop.records.append(found)
        return Refund("0xback") if found.kind == "owed" else None

    gate: Any = shop.agent.skills["work"].handler.gate
    gate._terms = replace(gate._terms, record=pay_back)
    await shop.paid()
    await shop.life()
    (refund,) = (await kept(store))["refunded"]
    assert (refund.amount, refund.transaction) == (UNITS, "0xback")
    assert await operator(store, lambda books: list(books.owed())) == []
    assert shop.kinds == ["settled", "owed"]


async def test_workers_that_die_again_and_again(
    store: Store, facilitator: LoopbackFacilitator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the runtime ends the task, and the gate does not run any more."""
    monkeypatch.setattr("dragoman.server.maintenance.ATTEMPTS", 1)
    shop = Shop(store, facilitator, retries=3)
    task = await shop.paid()
    await shop.life(5)
    await shop.reap()
    assert (await shop.task(task)).status.state is TaskState.FAILED
    assert (shop.done["work"], shop.kinds) == (1, ["settled"])
    await looked_up(shop)
    assert shop.kinds == ["settled", "owed"]
    assert await open_payments(store) == 0
    await looked_up(shop)
    assert shop.kinds == ["settled", "owed"]


# ---- not known


async def lost(shop: Shop, facilitator: LoopbackFacilitator) -> str:
    """A payment that was carried out, and whose task knows nothing of that."""
    facilitator.trouble, facilitator.node_away = ["lost"], True
    task = await shop.paid()
    await shop.life()
    assert (await shop.task(task)).status.state is TaskState.FAILED
    assert shop.kinds == ["unsettled"]
    return task


async def test_an_unsettled_payment_is_found_later(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    task = await lost(shop, facilitator)
    await looked_up(shop)  # the node is still away
    (waits,) = await operator(store, lambda books: list(books.unsettled()))
    assert (waits.task, shop.kinds, await open_payments(store)) == (task, ["unsettled"], 1)
    facilitator.node_away = False
    await looked_up(shop)
    assert shop.kinds == ["unsettled", "settled", "owed"]
    assert shop.records[-1].transaction in facilitator.chain.mined
    assert await operator(store, lambda books: list(books.unsettled())) == []
    (paid,) = await operator(store, lambda books: list(books.payments()))
    assert (paid.state, paid.record.task) == ("owed", task)
    await looked_up(shop)
    assert (shop.kinds[3:], await open_payments(store)) == ([], 0)


async def test_an_unsettled_payment_was_never_carried_out(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    facilitator.chain.transfer = lambda payload: "0x" + "44" * 32  # type: ignore[method-assign]
    id = await shop.paid()
    await shop.life()
    assert (await shop.task(id)).status.state is TaskState.FAILED
    await looked_up(shop)  # its time is not over
    assert (shop.kinds, await open_payments(store)) == (["unsettled"], 1)
    facilitator.later = 10_000
    await looked_up(shop)
    assert (shop.kinds, await open_payments(store)) == (["unsettled", "unused"], 0)
    (paid,) = await operator(store, lambda books: list(books.payments()))
    assert paid.state == "unused"
    assert await operator(store, lambda books: list(books.unsettled())) == []
    with pytest.raises(LookupError):
        await operator(store, lambda books: books.refund(id, Refund("0x1")))


async def test_without_a_node_it_stays_unsettled(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator)
    task = await lost(shop, facilitator)
    await looked_up(shop)
    assert (shop.kinds, await open_payments(store)) == (["unsettled"], 1)
    # until the operator pays it back
    await operator(store, lambda books: books.refund(task, Refund("0x1")))
    assert await operator(store, lambda books: list(books.unsettled())) == []


async def test_a_cancel_while_it_is_not_known(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    """The task ends as canceled, without its gate: the payment must not be forgotten."""
    shop = Shop(store, facilitator, node=True, settle_pauses=(600.0,))
    facilitator.trouble, facilitator.node_away = ["lost"], True
    task = await shop.paid()
    await shop.life()  # it sleeps now
    await looked_up(shop)
    assert shop.kinds == []  # its own turn looks
    await shop.ask_to_cancel(task)
    assert (await shop.task(task)).status.state is TaskState.CANCELED
    await looked_up(shop)
    assert shop.kinds == ["unsettled"]
    facilitator.node_away = False
    await looked_up(shop)
    assert shop.kinds == ["unsettled", "settled", "owed"]


async def test_a_refused_payment_is_not_open(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator)
    facilitator.trouble = ["refused"]
    task = await shop.paid()
    await shop.life()
    assert (await shop.task(task)).status.state is TaskState.INPUT_REQUIRED
    assert await open_payments(store) == 0
    assert (await kept(store)).keys() == {"offered"}


class Ended(StoreOfGate):
    """The store, as maintenance sees it once the task has ended."""

    async def task_state(self, task: str) -> TaskState | None:
        """See `GateStore`."""
        return TaskState.CANCELED


async def test_a_refusal_that_comes_after_the_end(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    """A worker was stopped, and its task has ended: the payment is unsettled. Then it wakes up, and
    is refused. Maintenance goes on to look, so that the books do not list it for ever."""
    shop = Shop(store, facilitator, node=True)
    gate: Any = shop.agent.skills["work"].handler.gate
    ended = Ended(shop.store, shop.agent.key, "work", None, audits=False)

    async def refuse(request: Any) -> web.Response:
        await gate.maintain(ended)
        assert shop.kinds == ["unsettled"]
        return web.json_response({"success": False, "errorReason": "insufficient_funds"})

    facilitator.on_settle = refuse
    await shop.paid()
    await shop.life()
    facilitator.later = 3600
    await gate.maintain(ended)
    assert (shop.kinds, await open_payments(store)) == (["unsettled", "unused"], 0)


async def test_one_of_several_processes_looks(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    await lost(shop, facilitator)
    other = Shop(store, facilitator, node=True)
    await looked_up(other)
    facilitator.node_away = False
    await looked_up(shop)
    assert (shop.kinds, other.kinds, await open_payments(store)) == (["unsettled"], [], 1)
    await looked_up(other)
    assert (shop.kinds, other.kinds) == (["unsettled"], ["settled", "owed"])
    await looked_up(shop)
    assert shop.kinds == ["unsettled"]


async def test_a_broken_hook_stops_nothing(
    store: Store, facilitator: LoopbackFacilitator, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(store, facilitator, node=True)
    await lost(shop, facilitator)
    facilitator.node_away = False

    heard: list[str] = []

    async def broken(found: PaymentRecord) -> None:
        heard.append(found.kind)
        if len(heard) < 4:
            raise OSError("the disk is full")

    gate: Any = shop.agent.skills["work"].handler.gate
    gate._terms = replace(gate._terms, record=broken)
    await looked_up(shop)
    assert "could not be passed on" in caplog.text
    assert (await kept(store)).keys() == {"offered", "unsettled", "settled", "owed"}
    assert await open_payments(store) == 1
    # it is called again until it has had all of them
    await looked_up(shop)
    assert await open_payments(store) == 1
    await looked_up(shop)
    assert await open_payments(store) == 0
    assert heard == ["settled", "owed"] * 2 + ["settled"]


# ---- metrics, the audit log


async def test_metrics_and_audit(
    facilitator: LoopbackFacilitator, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop = parts.Shop(facilitator)
    app = App(shop.agent, audit=True, metrics=0, push=False)
    cheap = Price("0.01", TOKEN, to=SHOP)
    with caplog.at_level("DEBUG"):
        async with app, Client.connect(app=app, answer=parts.wallet(tmp_path)) as client:
            paid = await client.send("fail")
            async with Client.connect(app=app, extensions=[parts.URI]) as stranger:
                asked = await stranger.send("tides")
                offer = {**parts.offer_of(asked)}
                offer["accepts"] = [{**offer["accepts"][0], "maxAmountRequired": str(cheap.units)}]
                given = parts.submitted(await parts.payment(offer))
                assert asked.task is not None
                await stranger.task(asked.task.id).reply(given)
            assert app.monitoring is not None
            page = (await app.monitoring.page()).decode()
    for event, number in (("offered", 2), ("settled", 1), ("owed", 1), ("refused", 1)):
        line = f'dragoman_gate_events_total{{agent="shop",event="payment.{event}"}} {number}'
        assert line in page
    entries = [json.loads(one.message) for one in caplog.records if one.name == "dragoman.audit"]
    found = [one for one in entries if one["event"].startswith("payment.")]
    assert [one["event"][8:] for one in found] == [
        "offered",
        "settled",
        "owed",
        "offered",
        "refused",
    ]
    assert paid.task is not None
    assert all(one["task"] == paid.task.id and one["agent"] == "shop" for one in found[:3])
    assert (found[1]["amount"], found[1]["payer"]) == (str(UNITS), PAYER)
    assert (found[4]["result"], found[4]["reason"]) == (
        "INVALID_AMOUNT",
        "the payment is of another amount",
    )
    signature = facilitator.bodies[0]["paymentPayload"]["payload"]["signature"][2:]
    assert signature not in page and signature not in caplog.text


async def test_a_hook_that_fails_in_maintenance_is_called_again(
    store: Store, facilitator: LoopbackFacilitator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The books have the record before the hook: a crash between the two loses no call."""
    monkeypatch.setattr("dragoman.server.maintenance.ATTEMPTS", 1)
    monkeypatch.setattr("dragoman.payments.lookup.TURN", 0.001)
    shop = Shop(store, facilitator, retries=3)
    await shop.paid()
    await shop.life(5)
    await shop.reap()
    heard: list[str] = []

    async def hook(found: PaymentRecord) -> Refund | None:
        heard.append(found.kind)
        if len(heard) == 1:
            raise OSError("the disk is full")
        return Refund("0xback")

    gate: Any = shop.agent.skills["work"].handler.gate
    gate._terms = replace(gate._terms, record=hook)
    for times in (1, 2, 2):
        await asyncio.sleep(0.01)
        await looked_up(shop)
        assert heard == ["owed"] * times
    assert await open_payments(store) == 0
    (refund,) = (await kept(store))["refunded"]
    assert refund.transaction == "0xback"


@pytest.mark.parametrize("node", [False, True])
async def test_a_cancel_while_the_payment_is_settled(
    store: Store, facilitator: LoopbackFacilitator, node: bool
) -> None:
    """The client cancels while the facilitator works: no work begins, and what was paid is in the
    books."""
    shop = Shop(store, facilitator, node=node)
    task = await shop.paid()
    facilitator.trouble = ["silent"]
    worker = shop.worker()
    run = worker.begin(await shop.claim(worker))
    async with asyncio.timeout(30):
        while not facilitator.asked["settle"]:
            await asyncio.sleep(0.005)
    await shop.ask_to_cancel(task, undo=True)
    run.stop("cancel")
    await run.task
    facilitator.released.set()
    async with asyncio.timeout(30):
        while not facilitator.chain.mined:
            await asyncio.sleep(0.005)
    assert (await shop.task(task)).status.state is TaskState.CANCELED
    await looked_up(shop)
    assert (shop.done["work"], len(facilitator.chain.mined)) == (0, 1)
    assert shop.kinds == (["unsettled", "settled", "owed"] if node else ["unsettled"])
    assert await open_payments(store) == (not node)
