"""Several replicas and workers on one database, and a monkey among them: every promise is kept."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.faults.cluster import history
from tests.faults.cluster.agent import RETRIES, Run, runs
from tests.faults.cluster.chaos import Deed, Monkey
from tests.faults.cluster.cluster import DRAIN, GRACE, LEASE, POLL, Cluster, Replica
from tests.faults.cluster.traffic import HOOK, Front, Moody, Traffic
from tests.faults.crash import checker
from tests.faults.crash.load import ended
from tests.harness.raw_server import listening
from tests.harness.scale import SCALE, SOAK, say, seeded

REPLICAS = WORKERS = 3 if SOAK else 2
SENDS = int(10_000 * SCALE) if SOAK else 150
STREAMS = int(400 * SCALE) if SOAK else 16
TRICKS = int(150 * SCALE) if SOAK else 11
ABREAST = 20 if SOAK else 6
"""How many streams are open at once."""
PAUSE = (0.5, 3.0) if SOAK else (0.2, 0.8)
WITHIN = 60 + 1800 * SCALE if SOAK else 60
TAKEOVER = 2.0 if SOAK else 6.0
"""How long after a lease another worker may take to begin."""
RECOVERY = 5.0 if SOAK else 10.0
NAP = (60.0 if SCALE > 0.2 else 10.0) if SOAK else 0.0
HANGING = 12.0 if SOAK else LEASE + 0.5
KINDS: list[tuple[str, float, float]] = [("", LEASE, 1.0)]
"""With which bell (the first is the database's own), which lease, and what part of the whole."""
if SOAK:
    KINDS += [("nats:", LEASE, 0.2), ("redis:", LEASE, 0.1)]
    KINDS += [("", lease, 0.1) for lease in (5.0, 10.0, 30.0)]


@asynccontextmanager
async def fronting(cluster: Cluster, chance: random.Random) -> AsyncIterator[tuple[Front, Moody]]:
    """The way in, and a receiver of webhooks."""
    inbox = Moody()
    inbox.chance = chance
    async with (
        listening(inbox.talk) as listener,
        aiohttp.ClientSession(
            # each request is a connection of its own, and so goes to the next replica
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=30),
        ) as http,
    ):
        inbox.port = listener.port
        yield Front(cluster.balance.url, http, chance, inbox), inbox


@pytest.mark.soak
@pytest.mark.parametrize(("bell", "lease", "part"), KINDS)
async def test_whatever_the_monkey_does(
    tmp_path: Path, bell: str, lease: float, part: float
) -> None:
    chance = seeded("cluster")
    load = Traffic(
        chance, sends=int(SENDS * part), streams=int(STREAMS * part), abreast=ABREAST, pause=1.0
    )
    began = time.monotonic()
    async with (
        Cluster(tmp_path, replicas=REPLICAS, workers=WORKERS, bell=bell, lease=lease) as cluster,
        fronting(cluster, chance) as (front, inbox),
    ):
        say(f"up after {time.monotonic() - began:.1f} s")
        monkey = Monkey(cluster, chance, lambda: front.open, NAP, HANGING)
        playing = asyncio.create_task(monkey.play(max(11, int(TRICKS * part)), PAUSE))
        done = await load.until(front, playing, WITHIN)
        await playing
        within = await settled(cluster, lease + 2 + GRACE + DRAIN)
        delivered = await told(cluster)
        await cluster.end()
        found = await history.logs(cluster.url)
        effects = checker.effects(cluster.effects)
        breaches = checker.check([x for x in load.letters if not x.refused], found, effects)
        breaches += await history.rest(cluster.url)
    breaches += history.often(effects, RETRIES)
    hooked = {letter.acks[0].task for letter in load.letters if letter.hooked and letter.acks}
    posts = zip((post.id for post in inbox.posts), inbox.well, strict=True)
    breaches += history.pushed(found, hooked, HOOK, posts)
    say(
        f"{len(load.letters)} sent, {ended(load.all)} told their end, {front.down} times sent "
        f"away, {sum(effect.attempt > 1 for effect in effects)} runs again, "
        f"{sum(len(send.sights) - 1 for send in load.streams)} streams resumed, settled after "
        f"{within:.1f} s, {len(inbox.posts)} posts told after {delivered:.1f} s, "
        f"{time.monotonic() - began:.1f} s in all"
    )
    times = Times(monkey.deeds, runs(cluster.runs), front.answers, lease)
    times.tell()
    assert not breaches, breaches[:20]
    assert done
    assert within < lease + 2 + GRACE + DRAIN
    assert all(cluster.balance.carried)
    cluster.sound()
    times.check()


class Times:
    """How long it took others to notice, and what was open when the monkey struck."""

    def __init__(
        self,
        deeds: Sequence[Deed],
        runs: Sequence[Run],
        answers: Sequence[float],
        lease: float,
    ) -> None:
        self.deeds = deeds
        self.lease = lease
        again = {(run.turn, run.attempt): run.begun for run in runs}
        self.spans = [
            (run, run.ended or again.get((run.turn, run.attempt + 1), run.begun + lease))
            for run in runs
        ]
        outages = [deed for deed in deeds if "database" in deed.what]

        def taken(*whats: str) -> list[float]:
            return [
                begun - deed.at
                for deed in deeds
                if deed.what in whats
                for run in runs
                if run.pid == deed.pid and run.begun < deed.at < (run.ended or deed.over)
                if (begun := again.get((run.turn, run.attempt + 1), 0.0)) > deed.at
                if not any(o.at < begun and o.over + lease > deed.at for o in outages)
            ]

        self.takeovers = taken("kill worker", "stop worker")
        self.handed = taken("restart worker")
        """From the end of a worker to the next attempt, where the database was there; and from
        its being told to go."""
        hangs = [deed for deed in deeds if deed.what == "hang database"]
        self.robbed = [
            (deed, run)
            for deed in hangs
            for run in runs
            if run.begun < deed.at < (run.ended or deed.over)
            if (begun := again.get((run.turn, run.attempt + 1), 0.0)) > deed.at
            if not any(
                other.at < begun and other.over > run.begun
                for other in deeds
                if other is not deed and (other.pid == run.pid or "database" in other.what)
            )
        ]
        """Turns that others took up because the database hung, though nothing else happened."""
        self.kills = [deed for deed in deeds if deed.kills]
        self.torn = [deed for deed in self.kills if deed.transactions]
        """Kills, and those that tore a transaction."""
        begun = [run.begun for run in runs]
        self.answered = [wait for o in outages if (wait := _after(answers, o.over)) is not None]
        self.worked = [wait for o in outages if (wait := _after(begun, o.over)) is not None]
        """From the return of the database to the first answer, and to the first turn."""

    def turns(self, at: float) -> int:
        """How many turns were open."""
        return sum(run.begun < at < until for run, until in self.spans)

    @property
    def hits(self) -> list[Deed]:
        """What struck while something was open."""
        return [deed for deed in self.deeds if deed.streams and self.turns(deed.at)]

    def tell(self) -> None:
        """Say it in figures."""
        streams = sum(deed.streams for deed in self.deeds)
        turns = sum(self.turns(deed.at) for deed in self.deeds)
        say(
            f"{len(self.deeds)} deeds, {len(self.hits)} of them hit; {len(self.torn)} of "
            f"{len(self.kills)} kills fell into an open transaction; "
            f"{streams} streams and {turns} turns were open"
        )
        for what, values in (
            ("takeover", self.takeovers),
            ("handed over", self.handed),
            ("first answer", self.answered),
            ("first turn", self.worked),
        ):
            if values:
                middle = history.quantile(values, 0.5)
                say(f"{what}: {len(values)} times, {middle:.2f} s, at most {max(values):.2f} s")

    def check(self) -> None:
        """It hit, and was noticed in time."""
        assert len(self.hits) * 2 >= len(self.deeds), self.deeds
        assert len(self.torn) * 2 >= len(self.kills), self.kills
        takeover = self.lease + TAKEOVER
        assert max(self.takeovers, default=0.0) < takeover, sorted(self.takeovers)[-9:]
        assert max(self.handed, default=0.0) < DRAIN + takeover, self.handed
        assert not self.robbed
        assert max(self.answered, default=0.0) < RECOVERY, self.answered
        assert max(self.worked, default=0.0) < RECOVERY, self.worked


def _after(times: Sequence[float], moment: float) -> float | None:
    """How long after a moment the next of these was."""
    later = [at - moment for at in times if at > moment]
    return min(later) if later else None


async def settled(cluster: Cluster, within: float) -> float:
    """How long it takes until no task is open; no longer than this."""
    return await _until(cluster, "SELECT count(*) FROM task WHERE ended IS NULL", within)


async def told(cluster: Cluster) -> float:
    """How long it takes until webhooks know everything."""
    return await _until(cluster, "SELECT count(*) FROM line WHERE behind AND NOT parked", 60.0)


async def _until(cluster: Cluster, sql: str, within: float) -> float:
    began = time.monotonic()
    while (took := time.monotonic() - began) < within:
        if cluster.postgres.sql(sql, "cluster") == "0":
            break
        await asyncio.sleep(0.05)
    return took


@pytest.mark.soak
async def test_a_rolling_restart(tmp_path: Path) -> None:
    """Each of them is told to go, and comes back: no send fails, streams go on elsewhere, turns
    end or are handed on."""
    chance = seeded("rolling")
    load = Traffic(chance, sends=20, streams=6, abreast=6, pause=0.2 if SOAK else 1.0)
    async with (
        Cluster(tmp_path, replicas=2, workers=2) as cluster,
        fronting(cluster, chance) as (front, _),
    ):
        rolling = asyncio.create_task(roll(cluster, front))
        assert await load.until(front, rolling, 60)
        await rolling
        assert await settled(cluster, LEASE) < LEASE
        await cluster.end()
        found = await history.logs(cluster.url)
        effects = checker.effects(cluster.effects)
    resumed = sum(len(send.sights) - 1 for send in load.streams)
    say(f"{len(load.letters)} sent, {len(front.failed)} failed, {resumed} streams resumed")
    assert not checker.check([x for x in load.letters if not x.refused], found, effects)
    assert resumed
    # who comes in the instant in which a listener is closed is sent away by the kernel
    told = [why for why in front.failed if "disconnected" not in why]
    assert not told and len(front.failed) <= 1, front.failed[:3]
    cluster.sound()


async def roll(cluster: Cluster, front: Front) -> None:
    """One after the other, while streams are open."""
    for served in cluster.all:
        while not front.open:
            await asyncio.sleep(0.01)
        assert await served.kill(signal.SIGTERM) == 0
        await served.start()


async def streamed(front: Front, name: str) -> asyncio.Task[bool]:
    """A stream that has begun; its task ends when it has been read to its end."""
    load = Traffic(front.chance, sends=0, streams=1, abreast=1, name=name)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    over.set_result(None)
    streaming = asyncio.create_task(load.until(front, over, 60))
    while not front.open:
        await asyncio.sleep(0.01)
    return streaming


async def test_without_the_database(tmp_path: Path) -> None:
    """Callers are told at once, and whoever asks for health; and who is told to end, ends, even
    while the database hangs."""
    async with (
        Cluster(tmp_path, replicas=1, workers=2) as cluster,
        fronting(cluster, seeded("away")) as (front, _),
        asyncio.timeout(60),
    ):
        (replica,) = cluster.replicas
        streaming = await streamed(front, "first")
        assert (await replica.get("/readyz"))["status"] == "ok"
        await asyncio.to_thread(cluster.postgres.kill)
        await refused(replica)
        while (await replica.get("/readyz"))["status"] == "ok":
            await asyncio.sleep(POLL)
        async with front.http.get(f"{replica.url}/readyz") as response:
            assert response.status == 503
        assert (await replica.get("/healthz"))["status"] == "ok"
        began = time.monotonic()
        assert await cluster.hands[1].kill(signal.SIGINT) == 0
        assert time.monotonic() - began < DRAIN + GRACE + 5
        await asyncio.to_thread(cluster.postgres.start)
        assert await streaming
        while (await replica.get("/readyz"))["status"] != "ok":
            await asyncio.sleep(POLL)
        cluster.sound()
        streaming = await streamed(front, "second")
        with hanging(cluster):
            began = time.monotonic()
            await cluster.end()
            assert time.monotonic() - began < 18
        streaming.cancel()


async def refused(replica: Replica) -> None:
    """A send is refused for now, and at once."""
    message = {"messageId": "x", "role": "ROLE_USER", "parts": [{"text": "x 1 0"}]}
    for _ in range(3):
        began = time.monotonic()
        status, headers, _ = await replica.post("/message:send", {"message": message})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert time.monotonic() - began < 2


@contextmanager
def hanging(cluster: Cluster) -> Iterator[None]:
    """The database says nothing more for a while."""
    sql = "SELECT pid FROM pg_stat_activity WHERE application_name SIMILAR TO '(replica|worker)%'"
    pids = [int(pid) for pid in cluster.postgres.sql(sql).split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
