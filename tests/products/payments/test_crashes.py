"""Payments and crashes: each row of the table in docs/payments.md, on every store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Caller, Message, Part, Role, Task, TaskState, Turn
from dragoman.model.caller import Call
from dragoman.model.types import SendMessageRequest
from dragoman.payments import Chain, Facilitator, Merchant, PaymentRecord, Price
from dragoman.payments.extension import ERROR, RECEIPTS, REQUIRED, STATUS
from dragoman.stores.store import Store
from tests.harness.lives import Lives
from tests.products.payments.loopback_facilitator import SHOP, LoopbackFacilitator
from tests.products.payments.parts import PRICE, URI, payment, submitted

UNITS = 100_000
CALL = Call(Caller(extensions=(URI,)))


@pytest.fixture(autouse=True)
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that died runs again soon."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


class Dying(Facilitator):
    """A facilitator around whose calls the process may end."""

    lives: Lives

    async def _verify(self, *args: Any) -> Any:
        await self.lives.point()
        found = await super()._verify(*args)
        await self.lives.point()
        return found

    async def _settle(self, *args: Any) -> Any:
        await self.lives.point()
        found = await super()._settle(*args)
        await self.lives.point()
        return found


class Shop(Lives):
    """A worker that sells, and may die."""

    def __init__(
        self,
        store: Store,
        loopback: Any,
        retries: int = 0,
        how: str = "",
        node: bool = False,
        price: Price = PRICE,
        **options: Any,
    ) -> None:
        self.records: list[PaymentRecord] = []
        facilitator = Dying(loopback.url, allow=["127.0.0.1"], timeout=5.0)
        facilitator.lives = self

        async def record(found: PaymentRecord) -> None:
            self.records.append(found)

        async def work(turn: Turn) -> AsyncIterator[Any]:
            self.done["work"] += 1
            yield "one, "
            await self.point()
            if how == "fails":
                raise ValueError("broken")
            if how == "rejects":
                yield turn.reject("No")
                return
            if how == "asks" and self.done["work"] == 1:
                yield turn.ask("Which one?")
                return
            yield "two"

        async def returns(turn: Turn) -> str:
            self.done["work"] += 1
            await turn.emit(turn.artifact("one, "))
            await self.point()
            if how == "fails":
                raise ValueError("broken")
            if how == "rejects":
                await turn.emit(turn.reject("No"))
            if how == "waits":
                await asyncio.sleep(60)
            return "two"

        rpc = Chain(f"{loopback.url}/rpc", allow=["127.0.0.1"])
        chains = {price.asset.network: rpc} if node else {}
        options = {"settle_pauses": (0.01, 0.01), **options}
        merchant = Merchant(facilitator, record=record, chains=chains, **options)
        handler: Any = returns if merchant._terms.settle == "after" else work
        gate = merchant.price(price)
        super().__init__(handler, store, id="work", durable=False, gate=gate)
        self.agent.retries = retries

    async def say(self, message: Message) -> str:
        """Send a message, and return the id of its task."""
        request = SendMessageRequest(message=message)
        return (await self.service._accept(request, self.scope, CALL)).head.id

    async def paid(self) -> str:
        """Begin a task, and submit its payment."""
        task = await self.say(Message(message_id="m", role=Role.USER, parts=(Part(text="x"),)))
        await self.life()
        status = (await self.task(task)).status
        assert status.message is not None and status.message.metadata is not None
        found = submitted(await payment(status.message.metadata[REQUIRED]))
        await self.say(replace(found, task_id=task))
        return task

    async def died(self, die_at: int) -> Task:
        """Pay for a task, die, and go on in another life until it ends."""
        task = await self.paid()
        await self.life(die_at)
        await self.recover()
        await self.life()
        return await self.task(task)

    @property
    def kinds(self) -> list[str]:
        """What was recorded."""
        return [record.kind for record in self.records]


def texts(task: Task) -> list[str]:
    return ["".join(part.text or "" for part in artifact.parts) for artifact in task.artifacts]


def said(task: Task) -> dict[str, Any]:
    assert task.status.message is not None
    return dict(task.status.message.metadata or {})


@pytest.mark.parametrize("die_at", [1, 2])
async def test_nonce_not_yet_reserved(
    store: Store, facilitator: LoopbackFacilitator, die_at: int
) -> None:
    shop = Shop(store, facilitator)
    task = await shop.died(die_at)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, ["one, two"])
    assert (shop.done["work"], shop.kinds) == (1, ["settled"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert facilitator.asked["settle"] == 1


async def test_reserved_and_not_sent(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator)
    task = await shop.died(3)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, ["one, two"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert (shop.done["work"], shop.kinds) == (1, ["settled"])


@pytest.mark.parametrize("remembers", [True, False])
async def test_sent_without_an_answer(
    store: Store, facilitator: LoopbackFacilitator, remembers: bool
) -> None:
    facilitator.remembers = remembers
    shop = Shop(store, facilitator)
    task = await shop.died(4)
    while not task.status.state.terminal:  # the pauses between two attempts
        await shop.recover()
        await shop.life()
        task = await shop.task(task.id)
    payloads = [body["paymentPayload"] for body in facilitator.bodies]
    assert all(payload == payloads[0] for payload in payloads)
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    if remembers:
        assert (task.status.state, texts(task)) == (TaskState.COMPLETED, ["one, two"])
        assert (shop.done["work"], shop.kinds) == (1, ["settled"])
    else:
        # it says that the payment was used: by whom is not known, so no work begins
        assert (task.status.state, said(task)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
        assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])


async def test_sent_without_an_answer_and_found_on_the_chain(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    task = await shop.died(4)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, ["one, two"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    (transaction,) = facilitator.chain.mined
    assert [one["transaction"] for one in said(task)[RECEIPTS]] == [transaction]
    assert (shop.done["work"], shop.kinds) == (1, ["settled"])


async def test_a_nonce_that_was_used_without_a_transfer(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    facilitator.trouble = ["lost"]
    id = await shop.paid()
    transfer = facilitator.chain.transfer

    def voided(payload: Any) -> str:
        transaction = transfer(payload)
        facilitator.chain.mined[transaction]["to"] = "0x" + "33" * 20
        return transaction

    facilitator.chain.transfer = voided  # type: ignore[method-assign]
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, said(task)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
    assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])


async def test_a_facilitator_that_says_it_settled_and_did_not(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    facilitator.chain.transfer = lambda payload: "0x" + "44" * 32  # type: ignore[method-assign]
    id = await shop.paid()
    await shop.life()
    assert (await shop.task(id)).status.state is TaskState.FAILED
    assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])


async def test_a_payment_that_expired_unused(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    facilitator.chain.transfer = lambda payload: "0x" + "44" * 32  # type: ignore[method-assign]
    facilitator.later = 10_000
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    # it is known that nothing was paid, so the task asks again
    assert (task.status.state, said(task)[ERROR]) == (TaskState.INPUT_REQUIRED, "EXPIRED_PAYMENT")
    assert (shop.done["work"], shop.kinds) == (0, [])


async def test_a_payment_that_is_older_than_what_the_node_searches(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True)
    facilitator.forgets, facilitator.later = True, 10_000
    id = await shop.paid()
    await shop.life()
    assert (await shop.task(id)).status.state is TaskState.FAILED
    assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])


async def test_a_node_that_is_away(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator, node=True)
    facilitator.node_away = True
    id = await shop.paid()
    await shop.life()
    assert (await shop.task(id)).status.state is TaskState.FAILED
    assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])


async def test_an_answer_that_is_lost_on_its_way(
    store: Store, facilitator: LoopbackFacilitator
) -> None:
    facilitator.remembers, facilitator.trouble = True, ["lost"]
    shop = Shop(store, facilitator)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == (TaskState.COMPLETED, ["one, two"])
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert facilitator.asked["settle"] == 2


@pytest.mark.parametrize("retries", [0, 1])
async def test_settled_and_the_work_is_cut_off(
    store: Store, facilitator: LoopbackFacilitator, retries: int
) -> None:
    shop = Shop(store, facilitator, retries)
    task = await shop.died(5)
    assert facilitator.chain.balances[SHOP.lower()] == UNITS
    assert [one["success"] for one in said(task)[RECEIPTS]] == [True]
    if retries:
        assert (task.status.state, texts(task)) == (TaskState.COMPLETED, ["one, two"])
        assert (shop.done["work"], shop.kinds) == (2, ["settled"])
    else:
        assert task.status.state is TaskState.FAILED
        assert (shop.done["work"], shop.kinds) == (1, ["settled", "owed"])


@pytest.mark.parametrize("how", ["fails", "rejects"])
async def test_settled_and_the_work_fails(
    store: Store, facilitator: LoopbackFacilitator, how: str
) -> None:
    shop = Shop(store, facilitator, how=how)
    task = await shop.paid()
    await shop.life()
    found = await shop.task(task)
    assert found.status.state is (TaskState.FAILED if how == "fails" else TaskState.REJECTED)
    assert said(found)[STATUS] == "payment-completed"
    assert [one["success"] for one in said(found)[RECEIPTS]] == [True]
    assert shop.kinds == ["settled", "owed"]


async def test_one_payment_for_all_turns(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator, how="asks")
    task = await shop.paid()
    await shop.life()
    assert (await shop.task(task)).status.state is TaskState.INPUT_REQUIRED
    await shop.say(
        Message(message_id="m2", role=Role.USER, parts=(Part(text="that"),), task_id=task)
    )
    await shop.life()
    found = await shop.task(task)
    assert found.status.state is TaskState.COMPLETED
    assert len(said(found)[RECEIPTS]) == 1
    assert (facilitator.asked["settle"], shop.kinds) == (1, ["settled"])


async def test_a_record_that_cannot_be_written(
    store: Store, facilitator: LoopbackFacilitator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.payments.collection.RECORDS", 0)
    shop = Shop(store, facilitator)

    async def broken(found: PaymentRecord) -> None:
        raise OSError("the disk is full")

    gate: Any = shop.agent.skills["work"].handler.gate
    gate._terms = replace(gate._terms, record=broken)
    task = await shop.paid()
    await shop.life()
    found = await shop.task(task)
    assert (found.status.state, texts(found)) == (TaskState.COMPLETED, ["one, two"])


async def canceled(shop: Shop) -> Task:
    """Pay for a task, and cancel it while its handler works."""
    begun = asyncio.Event()

    async def waits(turn: Turn) -> None:
        begun.set()
        await asyncio.sleep(60)

    gate = shop.agent.skills.popitem()[1].handler.gate
    shop.agent.skill(id="waits", gate=gate)(waits)
    task = await shop.paid()
    worker = shop.worker()
    run = worker.begin(await shop.claim(worker))
    await begun.wait()
    await shop.ask_to_cancel(task, undo=True)
    run.stop("cancel")
    await run.task
    return await shop.task(task)


async def test_settled_and_canceled(store: Store, facilitator: LoopbackFacilitator) -> None:
    shop = Shop(store, facilitator)
    task = await canceled(shop)
    assert (task.status.state, said(task)[STATUS]) == (TaskState.CANCELED, "payment-completed")
    assert [one["success"] for one in said(task)[RECEIPTS]] == [True]
    assert Counter(shop.kinds) == {"settled": 1, "owed": 1}
