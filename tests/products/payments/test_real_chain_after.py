"""Payments after the work on a real chain: each row of the second table in docs/payments.md. The
facilitator is the reference package's."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import TaskState
from dragoman.payments.extension import ERROR
from dragoman.stores.store import Store
from tests.products.payments.chain_facilitator import ChainFacilitator
from tests.products.payments.local_chain import LocalChain
from tests.products.payments.loopback_facilitator import PAYER, SHOP
from tests.products.payments.parts import payment
from tests.products.payments.test_books import looked_up
from tests.products.payments.test_crashes import said, texts
from tests.products.payments.test_real_chain import (  # noqa: F401
    OTHER,
    PRICE,
    Offer,
    anvil,
    chain,
    delays,
    facilitator,
    offer_object,
    settled,
    store,
)
from tests.products.payments.test_settle_after import OUTPUT, After

SHOWN = (TaskState.COMPLETED, OUTPUT)
FAILED = (TaskState.FAILED, list[str]())


def shop_of(store: Store, facilitator: ChainFacilitator, **options: Any) -> After:  # noqa: F811
    """A worker that sells, is paid after its work, and looks at the chain."""
    return After(store, facilitator, **{"node": True, "price": PRICE, **options})


@pytest.mark.parametrize(
    ("die_at", "works"), [(1, 1), (2, 1), (4, 1)], ids=["unchecked", "unreserved", "worked"]
)
async def test_nothing_was_sent(
    store: Store,  # noqa: F811
    chain: LocalChain,  # noqa: F811
    facilitator: ChainFacilitator,  # noqa: F811
    die_at: int,
    works: int,
) -> None:
    shop = shop_of(store, facilitator)
    task = await shop.died(die_at)
    assert (task.status.state, texts(task)) == SHOWN
    assert [one.transaction for one in chain.transfers()] == settled(task)
    assert (facilitator.asked["settle"], shop.done["work"]) == (1, works)
    assert shop.kinds == ["settled"]


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_work_is_cut_off(
    store: Store,  # noqa: F811
    chain: LocalChain,  # noqa: F811
    facilitator: ChainFacilitator,  # noqa: F811
    retries: int,
) -> None:
    shop = shop_of(store, facilitator, retries=retries)
    task = await shop.died(3)
    assert (task.status.state, texts(task)) == (SHOWN if retries else FAILED)
    assert len(chain.transfers()) == facilitator.asked["settle"] == retries
    assert shop.kinds == ["settled"] * retries


@pytest.mark.parametrize("how", ["fails", "rejects"])
async def test_the_work_fails(
    store: Store,  # noqa: F811
    chain: LocalChain,  # noqa: F811
    facilitator: ChainFacilitator,  # noqa: F811
    how: str,
) -> None:
    shop = shop_of(store, facilitator, how=how)
    await shop.paid()
    await shop.life()
    await looked_up(shop)
    assert (chain.transfers(), facilitator.asked["settle"], shop.kinds) == ([], 0, [])


@pytest.mark.parametrize("node", [True, False])
@pytest.mark.parametrize("crash", [True, False])
async def test_sent_without_an_answer(
    store: Store,  # noqa: F811
    chain: LocalChain,  # noqa: F811
    facilitator: ChainFacilitator,  # noqa: F811
    node: bool,
    crash: bool,
) -> None:
    shop = shop_of(store, facilitator, node=node)
    if not crash:
        facilitator.trouble = ["lost"]
    if crash:
        task = await shop.died(5)
    else:
        id = await shop.paid()
        await shop.life()
        task = await shop.task(id)
    while not task.status.state.terminal:  # the pauses between two attempts
        await shop.recover()
        await shop.life()
        task = await shop.task(task.id)
    (transfer,) = chain.transfers()
    assert (task.status.state, texts(task)) == (SHOWN if node else FAILED)
    assert (shop.done["work"], shop.kinds) == (1, ["settled" if node else "unsettled"])
    assert shop.records[0].nonce == transfer.nonce


async def test_who_spends_the_money_during_the_work(
    store: Store,  # noqa: F811
    chain: LocalChain,  # noqa: F811
    facilitator: ChainFacilitator,  # noqa: F811
) -> None:
    """The settlement is refused: the output is not shown."""
    offer = offer_object(Offer((PRICE._requirement(),), 2))
    spent = await payment(offer, to=OTHER, value=chain.balance(PAYER))
    facilitator.before = lambda payload: chain.use(spent)
    shop = shop_of(store, facilitator)
    id = await shop.paid()
    await shop.life()
    task = await shop.task(id)
    assert (task.status.state, texts(task), chain.balance(SHOP)) == (TaskState.FAILED, [], 0)
    assert (said(task)[ERROR], shop.done["work"]) == ("SETTLEMENT_FAILED", 1)
