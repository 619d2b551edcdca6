"""The ledger of a wallet, in each place where it can be."""

from __future__ import annotations

import asyncio
import fcntl
import json
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
from msgspec.structs import replace

from dragoman.payments import Chain, LedgerUnavailable, PaymentRefused
from dragoman.payments.ledger import DAY, DETAILS, Ledger, LedgerPlace, Signed
from dragoman.payments.ledger_file import load
from dragoman.payments.ledger_table import LedgerTable
from dragoman.payments.objects import Authorization
from tests.harness.stores import database
from tests.products.payments import paying_process
from tests.products.payments.loopback_facilitator import (
    NETWORK,
    PAYER,
    SHOP,
    TOKEN,
    LoopbackFacilitator,
)
from tests.products.payments.parts import wallet
from tests.products.payments.paying_forks import forked
from tests.products.payments.test_wallet import PAID, paused, payload

NOW = 1_800_000_000.0


def signed(number: int = 0, **changes: Any) -> Signed:
    usual: dict[str, Any] = {
        "offer": f"o-{number}",
        "origin": "http://inside",
        "task": f"t-{number}",
        "symbol": "TEST",
        "amount": 100_000,
        "decimals": 6,
        "network": NETWORK,
        "asset": TOKEN.address,
        "to": SHOP,
        "at": NOW,
        "signature": "0x12",
        "authorization": Authorization(
            payer=PAYER,
            to=SHOP,
            value=100_000,
            valid_after=0,
            valid_before=int(NOW) + 600,
            nonce=f"0x{number:064x}",
        ),
    }
    return Signed(**{**usual, **changes})


@pytest.fixture(params=["file", "table"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[dict[str, Any]]:
    """The options of a wallet with its ledger in a place."""
    if request.param == "file":
        yield {"file": tmp_path / "wallet.json"}
    else:
        yield {"file": None, "store": database()}


def ledger(place: dict[str, Any]) -> LedgerPlace:
    """The ledger of a wallet."""
    return wallet(Path(), **place)._ledger


# ---- each place


async def test_it_is_kept(place: dict[str, Any]) -> None:
    assert await ledger(place).read() == Ledger()
    first = await wallet(Path(), **place).answer(paused())
    again = await wallet(Path(), **place).answer(paused())  # another process
    assert first == again
    (kept,) = (await ledger(place).read()).payments
    assert kept.signature == payload(first).signature
    assert (await ledger(place).read()).limits == ("0.5 TEST", "5 TEST")


async def test_what_is_refused_changes_nothing(place: dict[str, Any]) -> None:
    await wallet(Path(), **place).answer(paused())
    before = await ledger(place).read()
    with pytest.raises(PaymentRefused):
        await wallet(Path(), **place, per_day="0.10 TEST").answer(paused(task="t-2"))
    assert await ledger(place).read() == before

    def broken(found: Ledger) -> None:
        found.payments.clear()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await ledger(place).change(broken)
    assert await ledger(place).read() == before


async def test_two_processes_at_the_limit(place: dict[str, Any], tmp_path: Path) -> None:
    where = str(place.get("store") or place["file"])
    files = [tmp_path / "p0", tmp_path / "p1"]
    processes = [
        await forked(paying_process, where, file.name, "12", stdout=file) for file in files
    ]
    async with asyncio.timeout(60):
        assert [await process.ended() for process in processes] == [0, 0]
    found = [json.loads(file.read_bytes()) for file in files]
    # 15 payments of 0.1 are within the limit of 1.5, and both have begun before either has ended
    assert sum(map(len, found)) == 15 and all(found)
    kept = (await ledger(place).read()).payments
    assert sorted(one.task for one in kept) == sorted(task for tasks in found for task in tasks)


async def test_a_row_is_locked_while_it_is_changed() -> None:
    store = database()
    begun, ended = threading.Event(), threading.Event()
    seen: list[int] = []

    def first(found: Ledger) -> None:
        begun.set()
        assert ended.wait(30)
        found.receivers["a"] = SHOP

    def second(found: Ledger) -> None:
        seen.append(len(found.receivers))

    await LedgerTable(store, PAYER).change(lambda found: None)
    one = asyncio.create_task(
        asyncio.to_thread(lambda: asyncio.run(LedgerTable(store, PAYER).change(first)))
    )
    assert await asyncio.to_thread(begun.wait, 30)
    two = asyncio.create_task(LedgerTable(store, PAYER).change(second))
    connection = await asyncpg.connect(store)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    async with asyncio.timeout(30):
        while not (seen or await connection.fetchval(waiting)):
            await asyncio.sleep(0.01)
    await connection.close()
    ended.set()
    await asyncio.gather(one, two)
    assert seen == [1]


async def test_a_budget_of_a_task_is_shared(place: dict[str, Any]) -> None:
    part = wallet(Path(), **place).part("0.25 TEST")
    for number in range(2):
        await part.answer(replace(paused(task=f"t-{number}"), on_behalf_of="mine"))
    with pytest.raises(PaymentRefused, match=r"0.2 TEST are counted.*budget of the task is 0.25"):
        await part.answer(replace(paused(task="t-3"), on_behalf_of="mine"))
    await part.answer(replace(paused(task="t-3"), on_behalf_of="other"))


async def test_a_damaged_ledger(place: dict[str, Any]) -> None:
    await wallet(Path(), **place).answer(paused())
    if place["file"]:
        place["file"].write_text('{"payments": [')
    else:
        connection = await asyncpg.connect(place["store"])
        await connection.execute("UPDATE dragoman_wallets SET ledger = 'x'")
        await connection.close()
    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        await wallet(Path(), **place).answer(paused())


# ---- the file


async def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(LedgerUnavailable, match="locked"):
        await wallet(tmp_path, file=tmp_path / "folder" / "wallet.json").answer(paused())
    (tmp_path / "wallet.json").mkdir()
    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        await wallet(tmp_path).answer(paused())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
async def test_a_file_that_others_can_use(tmp_path: Path, mode: int) -> None:
    paying = wallet(tmp_path)
    await paying.answer(paused())
    (tmp_path / "wallet.json").chmod(mode)
    with pytest.raises(LedgerUnavailable, match=r"by others.*chmod 600"):
        await paying.answer(paused())


async def test_a_file_that_somebody_else_has_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.payments.ledger_file.PATIENCE", 0.02)
    paying = wallet(tmp_path)
    await paying.answer(paused())
    with (tmp_path / "wallet.json.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LedgerUnavailable, match="another process has locked it"):
            await paying.answer(paused(task="t-2"))
    assert len(load(tmp_path / "wallet.json").payments) == 1
    assert await paying.answer(paused(task="t-2")) is not None


async def test_what_a_killed_process_leaves(tmp_path: Path) -> None:
    left = tmp_path / "wallet.json.new"
    left.write_text("{")
    left.chmod(0o644)
    await wallet(tmp_path).answer(paused())
    assert stat.S_IMODE((tmp_path / "wallet.json").stat().st_mode) == 0o600
    assert not left.exists()


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    found = wallet(tmp_path, file=None).file
    assert found == tmp_path / "dragoman" / f"wallet-{PAYER.lower()}.json"
    for wrong in ({"store": "sqlite:///x.db"}, {"store": "postgresql://x", "file": "y"}):
        with pytest.raises(ValueError, match="store"):
            wallet(tmp_path, **{"file": None, **wrong})


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dragoman.payments.ledger_table")
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dragoman\[postgres\]'"):
        wallet(tmp_path, file=None, store="postgresql://x")


async def test_a_database_that_is_away(tmp_path: Path) -> None:
    away = "postgresql://me:password@127.0.0.1:9/x"
    with pytest.raises(LedgerUnavailable, match="the wallet's database cannot be used") as error:
        await wallet(tmp_path, file=None, store=away).answer(paused())
    assert "password" not in str(error.value) and error.value.__suppress_context__


# ---- what is kept


def test_old_payments_become_sums() -> None:
    old = [signed(n, task=f"t-{n % 7}", on_behalf_of="mine") for n in range(DETAILS + 500)]
    old[3].unused = True
    old[4].amount = 50_000
    found = Ledger(payments=old)
    before = [found.of_task("http://inside", f"t-{n}", "TEST") for n in range(8)]
    mine = found.on_behalf_of("mine", "TEST")
    found.prune(NOW + DAY - 1)
    assert len(found.payments) == DETAILS + 500  # those of the last 24 hours
    found.prune(NOW + DAY + 1)
    assert len(found.payments) == DETAILS and len(found.sums) == 8
    assert [found.of_task("http://inside", f"t-{n}", "TEST") for n in range(8)] == before
    assert found.on_behalf_of("mine", "TEST") == mine == Decimal("149.85")
    assert found.of_task("http://other", "t-1", "TEST") == 0
    assert found.of_task("http://inside", "t-1", "USDC") == 0
    # one more time, and a year later
    found.payments += [signed(n, at=NOW + 2 * DAY) for n in range(DETAILS)]
    found.prune(NOW + 4 * DAY)
    assert found.on_behalf_of("mine", "TEST") == mine and len(found.payments) == DETAILS
    assert len(msgspec.json.encode(found)) < DETAILS * 1000
    found.prune(NOW + 368 * DAY)
    assert not found.sums


async def test_a_pruned_task_keeps_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.payments.ledger.DETAILS", 2)
    paying = wallet(tmp_path, per_call="0.15 TEST")
    await paying.answer(paused(task="first"))

    def older(found: Ledger) -> None:
        for one in found.payments:
            one.at -= 2 * DAY
            one.authorization = replace(one.authorization, valid_before=1)

    await paying._ledger.change(older)
    for number in range(3):
        await paying.answer(paused(task=f"t-{number}"))
    found = load(tmp_path / "wallet.json")
    assert [one.task for one in found.payments] == ["t-0", "t-1", "t-2"]
    with pytest.raises(PaymentRefused, match=r"0.1 TEST are counted already.*per_call"):
        await paying.answer(paused(task="first", message="m-2", **PAID))


# ---- what is given back


class Expiring:
    """A wallet whose limit is used up by a payment that has expired."""

    def __init__(self, facilitator: LoopbackFacilitator, folder: Path) -> None:
        node = Chain(f"{facilitator.url}/rpc", allow=["127.0.0.1"])
        self.facilitator = facilitator
        self.wallet = wallet(folder, per_day="0.10 TEST", chains={NETWORK: node})

    async def pay(self, expired: bool = True) -> Any:
        """Pay once, and let the time of the payment pass by."""
        message = await self.wallet.answer(paused(task="first"))
        if expired:
            await self.wallet._ledger.change(self._expire)
            self.facilitator.later = 1000
        return message

    def _expire(self, found: Ledger) -> None:
        for one in found.payments:
            before = int(time.time()) - 1
            one.authorization = replace(one.authorization, valid_before=before)


@pytest.fixture
def expiring(facilitator: LoopbackFacilitator, tmp_path: Path) -> Expiring:
    return Expiring(facilitator, tmp_path)


async def test_what_was_not_carried_out_is_given_back(expiring: Expiring) -> None:
    await expiring.pay()
    assert await expiring.wallet.answer(paused(task="second")) is not None
    second, first = await expiring.wallet.history()
    assert (first.task, first.state) == ("first", "unused")
    assert (second.task, second.state) == ("second", "signed")
    assert (await expiring.wallet.limits()).counted == ("0.1 TEST",)
    assert await expiring.wallet.reclaim() == 0  # the second one has time left


async def test_what_was_carried_out_is_not_given_back(expiring: Expiring) -> None:
    message = await expiring.pay()
    sent = message.metadata["x402.payment.payload"]
    transaction = expiring.facilitator.chain.transfer(sent)
    with pytest.raises(PaymentRefused, match=r"per_day is 0.1"):
        await expiring.wallet.answer(paused(task="second"))
    (first,) = await expiring.wallet.history()
    assert (first.state, first.transaction) == ("settled", transaction)
    asked = len(expiring.facilitator.bodies)
    with pytest.raises(PaymentRefused):  # it is known now
        await expiring.wallet.answer(paused(task="second"))
    assert len(expiring.facilitator.bodies) == asked


@pytest.mark.parametrize("why", ["time left", "chain behind", "node away", "forgotten", "no node"])
async def test_what_is_not_known_is_not_given_back(expiring: Expiring, why: str) -> None:
    message = await expiring.pay(expired=why != "time left")
    node = expiring.facilitator
    if why == "chain behind":
        node.later = 0
    node.node_away = why == "node away"
    if why == "forgotten":
        node.chain.transfer(message.metadata["x402.payment.payload"])
        node.forgets = True
    if why == "no node":
        expiring.wallet._chains = {}
    with pytest.raises(PaymentRefused, match=r"0.1 TEST are counted already"):
        await expiring.wallet.answer(paused(task="second"))
    assert [one.state for one in await expiring.wallet.history()] == ["signed"]
