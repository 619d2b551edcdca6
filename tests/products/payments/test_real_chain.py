"""Payments on a real chain: twenty tasks, and each row of the table in docs/payments.md that the
chain decides. The facilitator is the reference package's."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Task, TaskState
from dragoman.payments import Chain, PaymentRefused, Price
from dragoman.payments.extension import ERROR, PAYLOAD, RECEIPTS, STATUS
from dragoman.payments.ledger import Ledger
from dragoman.payments.objects import Offer, offer_object
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Store
from tests.products.payments import parts
from tests.products.payments.chain_facilitator import ChainFacilitator, chain_facilitator
from tests.products.payments.local_chain import (
    NETWORK,
    OTHER_TOKEN,
    TOKEN,
    LocalChain,
    transfer_call,
)
from tests.products.payments.loopback_facilitator import PAYER, SHOP
from tests.products.payments.parts import offer_of, payment, submitted
from tests.products.payments.test_crashes import Shop, canceled, said, texts
from tests.products.payments.test_wallet import paused

UNITS = 100_000
PRICE = Price("0.10", TOKEN, to=SHOP)
OTHER = "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
PAID = (TaskState.COMPLETED, ["one, two"])


@pytest.fixture(autouse=True)
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that died runs again soon."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


@pytest.fixture(scope="module")
def anvil() -> Iterator[LocalChain]:
    """The chain of all tests."""
    with LocalChain() as found:
        yield found


@pytest.fixture
def chain(anvil: LocalChain) -> Iterator[LocalChain]:
    """The chain, as it was at its start."""
    with anvil.undone():
        yield anvil


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    found = SqliteStore(tmp_path / "tasks.db")
    await found.open()
    yield found
    await found.close()


@pytest.fixture
async def facilitator(chain: LocalChain) -> AsyncIterator[ChainFacilitator]:
    """A facilitator."""
    async with chain_facilitator(chain.url) as found:
        yield found


def shop_with_node(facilitator: ChainFacilitator, **options: Any) -> parts.Shop:
    """An agent that sells, and looks at the chain."""
    chains = {NETWORK: Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])}
    return parts.Shop(facilitator, PRICE, chains=chains, **options)


def settled(task: Task) -> list[str]:
    """The transactions among the receipts."""
    return [one["transaction"] for one in said(task).get(RECEIPTS, ()) if one["success"]]


# ---- each row of the table


@pytest.mark.parametrize("die_at", [1, 2])
async def test_nonce_not_yet_reserved(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator, die_at: int
) -> None:
    shop = Shop(store, facilitator, node=True, price=PRICE)
    task = await shop.died(die_at)
    assert (task.status.state, texts(task)) == PAID
    assert [one.transaction for one in chain.transfers()] == settled(task)
    assert (facilitator.asked["settle"], shop.kinds) == (1, ["settled"])


async def test_reserved_and_not_sent(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True, price=PRICE)
    task = await shop.died(3)
    assert (task.status.state, texts(task)) == PAID
    assert [one.transaction for one in chain.transfers()] == settled(task)
    assert (shop.done["work"], shop.kinds) == (1, ["settled"])


@pytest.mark.parametrize("node", [True, False])
@pytest.mark.parametrize("crash", [True, False])
async def test_sent_without_an_answer(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator, node: bool, crash: bool
) -> None:
    """The same payment is sent again; the chain counts, and not what the facilitator says then."""
    shop = Shop(store, facilitator, node=node, price=PRICE)
    if crash:
        task = await shop.died(4)
    else:
        facilitator.trouble = ["lost"]
        id = await shop.paid()
        await shop.life()
        task = await shop.task(id)
    while not task.status.state.terminal:  # the pauses between two attempts
        await shop.recover()
        await shop.life()
        task = await shop.task(task.id)
    (transfer,) = chain.transfers()
    if node:
        assert (task.status.state, texts(task)) == PAID
        assert settled(task) == [transfer.transaction]
        assert (shop.done["work"], shop.kinds) == (1, ["settled"])
    else:
        assert (task.status.state, said(task)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
        assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])
    assert shop.records[0].nonce == transfer.nonce


async def unsettled(shop: Shop, chain: LocalChain) -> None:
    """Pay for a task whose payment nobody can find, and see that no work begins."""
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, said(task)[ERROR]) == (TaskState.FAILED, "SETTLEMENT_FAILED")
    assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])
    assert [one for one in chain.transfers() if one.nonce == shop.records[0].nonce] == []


async def test_a_nonce_that_its_payer_voids(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True, price=PRICE)
    facilitator.trouble = ["lost"]
    facilitator.before = lambda payload: chain.void(payload["payload"]["authorization"]["nonce"])
    await unsettled(shop, chain)
    assert chain.balance(SHOP) == 0


@pytest.mark.parametrize("batch", [False, True])
async def test_a_nonce_that_its_payer_uses_for_another_transfer(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator, batch: bool
) -> None:
    """Also if another transfer to the shop, of the same amount, is in the same transaction."""
    shop = Shop(store, facilitator, node=True, price=PRICE)
    facilitator.trouble = ["lost"]
    loop = asyncio.get_running_loop()
    offer = Offer((PRICE._requirement(),), 2)

    def use(payload: Any) -> None:
        nonce = payload["payload"]["authorization"]["nonce"]

        async def sign() -> list[Any]:
            paid = functools.partial(payment, offer_object(offer))
            return [await paid(to=OTHER, nonce=nonce), await paid()]

        other, real = asyncio.run_coroutine_threadsafe(sign(), loop).result()
        if batch:
            chain.batch([transfer_call(other), transfer_call(real)])
        else:
            chain.use(other)

    facilitator.before = use
    await unsettled(shop, chain)
    assert chain.balance(OTHER) == UNITS
    assert chain.balance(SHOP) == (UNITS if batch else 0)


async def test_a_payment_in_one_transaction_with_others(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    """Some facilitators settle several payments at once."""
    shop = Shop(store, facilitator, node=True, price=PRICE)
    facilitator.trouble = ["lost"]
    other = await payment(offer_object(Offer((PRICE._requirement(),), 2)), to=OTHER)
    facilitator.before = lambda payload: chain.batch([transfer_call(other), transfer_call(payload)])
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == PAID
    assert settled(task) == [one.transaction for one in chain.transfers()]


async def test_a_facilitator_that_says_it_settled_and_did_not(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    facilitator.trouble = ["lies"] * 9
    await unsettled(Shop(store, facilitator, node=True, price=PRICE), chain)
    assert chain.transfers() == []


@pytest.mark.parametrize("node", [True, False])
async def test_a_facilitator_that_settled_and_says_it_did_not(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator, node: bool
) -> None:
    """A transaction that failed, as far as the facilitator knows, may have been carried out. The
    client is not asked to pay again."""
    facilitator.trouble = ["denies"]
    shop = Shop(store, facilitator, node=node, price=PRICE)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    (transfer,) = chain.transfers()
    if node:
        assert (task.status.state, texts(task)) == PAID
        assert settled(task) == [transfer.transaction]
    else:
        assert task.status.state is TaskState.FAILED
        assert (shop.done["work"], shop.kinds) == (0, ["unsettled"])


async def test_somebody_else_has_carried_it_out(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    """A reader of the task may do that: it is paid, whoever sent it."""
    facilitator.before = chain.use
    shop = Shop(store, facilitator, node=True, price=PRICE)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task)) == PAID
    assert settled(task) == [one.transaction for one in chain.transfers()]


async def test_a_payment_that_expired_unused(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    def late(payload: Any) -> None:
        chain.rpc("evm_increaseTime", 10_000)
        chain.rpc("evm_mine")

    facilitator.before = late
    facilitator.trouble = ["lies"] * 9
    shop = Shop(store, facilitator, node=True, price=PRICE)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    # it is known that nothing was paid, so the task asks again
    assert (task.status.state, said(task)[ERROR]) == (TaskState.INPUT_REQUIRED, "EXPIRED_PAYMENT")
    assert (shop.done["work"], shop.kinds, chain.transfers()) == (0, [], [])


@pytest.mark.parametrize("retries", [0, 1])
async def test_settled_and_the_work_is_cut_off(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator, retries: int
) -> None:
    shop = Shop(store, facilitator, retries, node=True, price=PRICE)
    task = await shop.died(5)
    assert [one.transaction for one in chain.transfers()] == settled(task)
    if retries:
        assert (task.status.state, texts(task)) == PAID
        assert (shop.done["work"], shop.kinds) == (2, ["settled"])
    else:
        assert task.status.state is TaskState.FAILED
        assert (shop.done["work"], shop.kinds) == (1, ["settled", "owed"])


@pytest.mark.parametrize("how", ["fails", "rejects"])
async def test_settled_and_the_work_fails(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator, how: str
) -> None:
    shop = Shop(store, facilitator, how=how, node=True, price=PRICE)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert said(task)[STATUS] == "payment-completed"
    assert [one.transaction for one in chain.transfers()] == settled(task)
    assert shop.kinds == ["settled", "owed"]


async def test_settled_and_canceled(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    shop = Shop(store, facilitator, node=True, price=PRICE)
    task = await canceled(shop)
    assert (task.status.state, said(task)[STATUS]) == (TaskState.CANCELED, "payment-completed")
    assert [one.transaction for one in chain.transfers()] == settled(task)
    assert Counter(shop.kinds) == {"settled": 1, "owed": 1}


# ---- attacks that the chain takes part in


async def pay(client: Any, asked: Any, paid: Any) -> Any:
    """Submit a payment."""
    return await client.task(asked.task.id).reply(submitted(paid))


async def test_a_payment_that_was_used_at_another_shop(
    chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    """The other one has a store of its own: the chain knows."""
    shop, other = (shop_with_node(facilitator, x402_version=2) for _ in range(2))
    async with shop.connect() as client, other.connect() as second:
        asked, again = await client.send("tides"), await second.send("waves")
        paid = await payment(offer_of(asked))
        assert (await pay(client, asked, paid)).ok
        result = await pay(second, again, paid)
    assert said(result.task)[ERROR] == "DUPLICATE_NONCE"
    assert (other.worked, len(chain.transfers())) == ([], 1)


async def test_who_has_no_money(chain: LocalChain, facilitator: ChainFacilitator) -> None:
    shop = shop_with_node(facilitator, x402_version=2)
    async with shop.connect() as client:
        asked = await client.send("tides")
        paid = await payment(offer_of(asked))
        spent = await payment(offer_of(asked), to=OTHER, value=chain.balance(PAYER))
        await asyncio.to_thread(chain.use, spent)
        result = await pay(client, asked, paid)
    assert said(result.task)[ERROR] == "INSUFFICIENT_FUNDS"
    assert (shop.worked, chain.transfers()) == ([], [])


async def test_who_spends_the_money_after_the_check(
    store: Store, chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    offer = offer_object(Offer((PRICE._requirement(),), 2))
    spent = await payment(offer, to=OTHER, value=chain.balance(PAYER))
    facilitator.before = lambda payload: chain.use(spent)
    shop = Shop(store, facilitator, node=True, price=PRICE)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert task.status.state is not TaskState.COMPLETED
    assert (shop.done["work"], chain.transfers()) == (0, [])


async def test_the_money_of_another_contract(
    chain: LocalChain, facilitator: ChainFacilitator
) -> None:
    """Of the same code, at another address."""
    shop = shop_with_node(facilitator, x402_version=2)
    async with shop.connect() as client:
        asked = await client.send("tides")
        paid = await payment(offer_of(asked), domain={"asset": OTHER_TOKEN})
        assert said((await pay(client, asked, paid)).task)[ERROR] == "NETWORK_MISMATCH"
        paid["accepted"]["asset"] = TOKEN.address
        result = await pay(client, asked, paid)
    assert said(result.task)[ERROR] == "INVALID_SIGNATURE"
    assert (shop.worked, facilitator.asked) == ([], {})


# ---- the payer's side


async def test_a_wallet_asks_the_chain(
    chain: LocalChain, facilitator: ChainFacilitator, tmp_path: Path
) -> None:
    """What was carried out stays counted; what has expired unused is given back."""
    node = Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])
    assert await node.network() == NETWORK
    assert await node.balance(TOKEN, PAYER) == chain.balance(PAYER)
    amounts = {"per_call": "0.10 USDC", "per_day": "0.30 USDC", "assets": [TOKEN]}
    paying = parts.wallet(tmp_path, **amounts, chains={NETWORK: node})
    messages = [await paying.answer(paused(PRICE, task=name)) for name in ("a", "b", "c")]
    sent = [message.metadata[PAYLOAD] for message in messages if message and message.metadata]
    transaction = chain.use(sent[0])
    chain.void(sent[1]["payload"]["authorization"]["nonce"])

    def expire(found: Ledger) -> None:
        for one in found.payments:
            one.authorization = replace(one.authorization, valid_before=int(time.time()) - 1)

    await paying._ledger.change(expire)
    with pytest.raises(PaymentRefused, match="limit per_day"):
        await paying.answer(paused(PRICE, task="d"))  # the chain's time is not over
    chain.rpc("evm_increaseTime", 120)
    chain.rpc("evm_mine")
    assert await paying.answer(paused(PRICE, task="d")) is not None
    found = {one.task: (one.state, one.transaction) for one in await paying.history()}
    # a nonce that was used without a transfer is no proof: it stays counted
    assert found == {
        "a": ("settled", transaction),
        "b": ("signed", ""),
        "c": ("unused", ""),
        "d": ("signed", ""),
    }
