"""Merchant, client and facilitator are killed again and again, and tasks are canceled: the chain's,
the merchant's and the client's books are equal, but for what merchant and client both list as
unsettled or owed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.admin import open_store
from dragoman.client import Client
from dragoman.payments import Books as MerchantBooks
from dragoman.payments import PaymentRecord
from dragoman.payments.extension import ERROR, STATUS, URIS
from dragoman.payments.ledger import Signed
from dragoman.payments.ledger_file import load
from dragoman.payments.objects import Payload, payload_object, read_offer
from tests.faults.cluster.load_balancer import balancing
from tests.faults.crash.server_process import GONE, HERE, Served
from tests.harness.scale import SCALE, SOAK, say, seeded
from tests.harness.services import Missing, Postgres, free
from tests.products.payments.killed import buyer, shop
from tests.products.payments.killed.three_books import KINDS, Books
from tests.products.payments.local_chain import FACILITATOR_KEY, NETWORK, SECOND_KEY, LocalChain
from tests.products.payments.loopback_facilitator import KEY
from tests.products.payments.parts import offer_of, submitted

TASKS = int(1000 * SCALE)
LIMIT = TASKS * 96_000
"""What the client may spend: less than all of it costs."""
MINED = 0.3
"""Seconds from one block to the next."""
SETTINGS = ("lease=2", "poll=0.2", "drain_timeout=1")
PAUSE = (0.1, 1.0)
WITHIN = 120 + 3000 * SCALE
COMPLETED_WITHIN = 200.0


class Program:
    """A Python module as a process, which is killed and started again."""

    def __init__(self, *command: str, **environment: str) -> None:
        self.command, self.lines = command, list[str]()
        self._environment = {**os.environ, **environment}
        self.process: Process

    async def start(self) -> None:
        """Start it, and wait until it is ready, or has ended."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *self.command), cwd=HERE, env=self._environment, stderr=PIPE
        )
        ready = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(ready))
        async with asyncio.timeout(60):
            await ready.wait()
        assert not self.process.returncode, "\n".join(self.lines[-40:])

    async def _listen(self, ready: asyncio.Event) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())
            if self.lines[-1] == "ready":
                ready.set()
        ready.set()

    async def kill(self) -> None:
        """End it as the kernel does."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        await self._listening


class Replica(Served):
    """A replica of the shop."""

    store = ""
    ready = 120.0  # the machine may be busy with all that is started again

    def command(self) -> list[str]:
        """See `Served.command`."""
        return ["serve", self.agent, "--port", str(self.port), "--store", self.store]


class Market:
    """Chain, database, facilitator, two replicas of the shop, and a client."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records, self.work = folder / "records", folder / "work"
        self.facilitators: list[Program] = []
        self.sent: list[Path] = []
        """Where each facilitator writes down the nonces that it is to settle."""
        self.kills: Counter[str] = Counter()
        self.bought = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Market]:
        """Start everything but the client."""
        async with AsyncExitStack() as stack:
            self.chain = stack.enter_context(LocalChain(block_time=MINED))
            try:
                postgres = stack.enter_context(Postgres(fsync=False))
            except Missing as missing:
                pytest.skip(str(missing))
            environment = {}
            for name, key in ((shop.FACILITATOR, FACILITATOR_KEY), (shop.SECOND, SECOND_KEY)):
                port, file = free(), self.folder / name
                module = "tests.products.payments.chain_facilitator"
                program = Program(module, str(port), self.chain.url, key, str(file))
                await program.start()
                stack.push_async_callback(program.kill)
                self.facilitators.append(program)
                self.sent.append(file)
                environment[name] = f"http://127.0.0.1:{port}"
            environment |= {
                shop.NODE: self.chain.url,
                shop.RECORDS: str(self.records),
                shop.WORK: str(self.work),
            }
            self.store = f"{postgres.dsn()}"
            self.replicas = []
            for _ in range(2):
                replica = Replica(
                    self.folder, *SETTINGS, agent=f"{shop.__name__}:agent", **environment
                )
                replica.store = self.store
                self.replicas.append(await stack.enter_async_context(replica))
            await asyncio.gather(*(replica.start() for replica in self.replicas))
            ports = [replica.port for replica in self.replicas]
            self.url = (await stack.enter_async_context(balancing(ports))).url
            arguments = (self.url, str(self.folder), str(TASKS), f"{LIMIT / 1e6:f} USDC")
            self.buyer = Program(buyer.__name__, *arguments, WALLET_KEY=KEY)
            await self.buyer.start()
            stack.push_async_callback(self.buyer.kill)
            yield self

    async def disturb(self, chance: random.Random) -> None:
        """Kill somebody, again and again."""
        targets: dict[str, Callable[[], Any]] = {
            "merchant": lambda: chance.choice(self.replicas),
            "client": lambda: self.buyer,
            "facilitator": lambda: self.facilitators[0],
            "second facilitator": lambda: self.facilitators[1],
        }
        names: list[str] = []
        while not await self.over(chance.uniform(*PAUSE)):
            names = names or chance.sample(list(targets), len(targets))
            target = targets[name := names.pop()]()
            if target.process.returncode is not None:
                return
            await target.kill()
            self.kills[name] += 1
            await asyncio.sleep(chance.uniform(0, 0.5))
            await target.start()

    async def over(self, seconds: float) -> bool:
        """Whether everything is bought; waits so long for that."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.bought.wait()
        return self.bought.is_set()

    async def ended(self) -> None:
        """Wait until the client has bought everything: it may be killed meanwhile."""
        while True:
            process = self.buyer.process
            if await process.wait() == 0:
                self.bought.set()
                return
            if process.returncode != -signal.SIGKILL:
                raise RuntimeError("\n".join(self.buyer.lines[-40:]))
            while self.buyer.process is process:
                await asyncio.sleep(0.05)

    async def completed(self) -> Books:
        """What each side knows, as soon as maintenance has completed the merchant's books, which it
        does every minute."""
        until = time.monotonic() + COMPLETED_WITHIN
        while (found := await asyncio.to_thread(self.books)).breaches():
            if time.monotonic() > until:
                break
            await asyncio.sleep(1)
        return found

    def books(self) -> Books:
        """What each side knows."""
        lines = self.records.read_bytes().splitlines()
        work = [line.split() for line in self.work.read_text().splitlines()]
        with open_store(self.store) as admin:
            kinds: tuple[Any, ...] = ("settled", "owed", "unsettled", "unused")
            records = [one for kind in kinds for one in MerchantBooks(admin).records(kind)]
            unsettled = {one.nonce for one in MerchantBooks(admin).unsettled()}
        return Books(
            transfers=self.chain.transfers(),
            records=records,
            unsettled=unsettled,
            told=[msgspec.json.decode(line, type=PaymentRecord) for line in lines],
            signed=load(self.folder / buyer.WALLET).payments,
            outcomes=buyer.outcomes(self.folder),
            work=Counter(task for task, _ in work),
            first={task for task, skill in work if skill == shop.AFTER},
            sent=[file.read_text().split() for file in self.sent],
            retries=shop.RETRIES,
            per_call=300_000,
            per_day=LIMIT,
        )


class Thief:
    """Sends payments again that were used: each in a task of its own."""

    def __init__(self, market: Market, chance: random.Random) -> None:
        self._market, self._chance = market, chance
        self.answers: Counter[str] = Counter()

    async def steal(self) -> None:
        """Go on until everything is bought."""
        while not await self._market.over(self._chance.uniform(0.2, 1.0)):
            ended = {one["task"] for one in buyer.outcomes(self._market.folder) if one["paid"]}
            signed = load(self._market.folder / buyer.WALLET).payments
            used = [one for one in signed if one.task in ended]
            if used:
                try:
                    await self._try(self._chance.choice(used))
                except (*GONE, OSError):
                    self.answers["none"] += 1

    async def _try(self, signed: Signed) -> None:
        async with Client.connect(self._market.url, extensions=[URIS["0.2"]]) as client:
            asked = await client.send("stolen", skill=self._chance.choice(buyer.SKILLS))
            assert asked.task is not None
            offer = read_offer(offer_of(asked))
            payload = Payload(
                version=offer.version,
                network=NETWORK,
                authorization=signed.authorization,
                signature=signed.signature,
                accepted=offer.accepts[0],
            )
            result = await client.task(asked.task.id).reply(submitted(payload_object(payload)))
        assert result.task is not None and result.task.status.message is not None
        said = result.task.status.message.metadata or {}
        assert said[STATUS] != "payment-completed", result
        self.answers[said.get(ERROR, "none")] += 1


@pytest.mark.skipif(not SOAK, reason="takes minutes: see `make soak`")
async def test_the_books_are_equal(tmp_path: Path) -> None:
    chance, began = seeded("payments"), time.monotonic()
    async with Market(tmp_path).open() as market:
        thief = Thief(market, chance)
        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:
            group.create_task(market.ended())
            group.create_task(market.disturb(chance))
            group.create_task(thief.steal())
        assert await market.replicas[0].settled(60)
        books = await market.completed()
    tell(market, thief, books, time.monotonic() - began)
    (tmp_path / "books").write_bytes(msgspec.json.encode(books))
    assert not (breaches := books.breaches()), breaches[:20]
    assert len(books.outcomes) == TASKS
    assert len(market.kills) == 4
    assert all(books.sent) and books.first


def tell(market: Market, thief: Thief, books: Books, seconds: float) -> None:
    """Say what has happened."""
    states = Counter(one["state"] for one in books.outcomes)
    kinds = Counter(kind for kind in KINDS for _ in books.of(kind))
    again = sum(n - 1 for n in books.work.values())
    lost = {one.nonce for one in books.transfers} & set(books.unsettled)
    copies = sum(one["copies"] - 1 for one in books.outcomes)
    say(f"{len(books.outcomes)} tasks in {seconds:.0f} s: {dict(states)}")
    say(f"killed: {dict(market.kills)}; sent twice: {copies}; stolen: {dict(thief.answers)}")
    asked = [len(set(nonces)) for nonces in books.sent]
    say(f"worked on first: {len(books.first)}; sent to each facilitator: {asked}")
    say(f"{len(books.signed)} signed, {len(books.transfers)} transfers, {dict(kinds)}")
    late = len(books.of("unsettled")) - len(books.unsettled)
    say(f"unsettled in the end: {len(books.unsettled)}, of these on the chain: {len(lost)}")
    say(f"found later: {late}; work run again: {again}")
    say(f"repeated calls of the hook: {len(books.told) - len(books.records)}")
    say(json.dumps(Counter(one["why"][:60] for one in books.outcomes if not one["paid"])))
