"""kill -9 of a server whose durable handler waits for another agent's task."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.model.caller import Scope
from dragoman.model.types import TaskState
from tests.faults.crash.checker import Breach, names
from tests.faults.crash.durable_history import History, kills, points, private
from tests.faults.crash.load import Down
from tests.faults.crash.sending_agent import REMOTE
from tests.faults.crash.server_process import GONE
from tests.faults.crash.waiting_agent import LOOKS
from tests.harness.scale import SCALE, SOAK, say, seeded
from tests.harness.server import serving
from tests.harness.services import Postgres

AGENT = "patient"
STEPS = ("between", "after")
TEXT = "input_required Which? completed red it is"
SOON, NEVER = 0.3, 600.0
"""When the handler looks again without a notification."""
ENDS = (TaskState.INPUT_REQUIRED, TaskState.COMPLETED)
"""How the two waits end."""


class Remote:
    """The other agent: it asks when its first gate opens, and ends when its second one does."""

    url = ""

    def __init__(self) -> None:
        self.gates = (asyncio.Event(), asyncio.Event())
        self.runs: Counter[str] = Counter()
        self.agent = Agent("Remote", description="Takes its time.")

        @self.agent.handler
        async def work(turn: Turn) -> AsyncIterator[Any]:
            self.runs[turn.text] += 1
            yield turn.working("begun")
            await self.gates[turn.text != "work"].wait()
            yield turn.ask("Which?") if turn.text == "work" else turn.artifact(f"{turn.text} it is")

        self.app = App(
            self.agent,
            push=True,
            egress_allow=["127.0.0.1"],
            poll=0.02,
            drain_timeout=0.0,
            push_retries=(0.2,) * 100,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Remote]:
        """Serve it on a port."""
        async with serving(self.app) as self.url:
            yield self
            self.open()

    def open(self) -> None:
        """Let it do all that it is asked to do."""
        for gate in self.gates:
            gate.set()

    async def settled(self, number: int) -> None:
        """Open a gate, and wait until what is behind it was done, if anything was asked."""
        self.gates[number].set()
        async with asyncio.timeout(10), Client.connect(self.url) as client:
            while True:
                states = [task.status.state async for task in client.list()]
                if all(state in ENDS for state in states):
                    return
                await asyncio.sleep(0.01)

    async def forget(self) -> int:
        """Delete all webhooks; how many there were."""
        found = 0
        async with Client.connect(self.url) as client:
            async for task in client.list():
                async for webhook in client.task(task.id).webhooks():
                    await client.task(task.id).delete_webhook(webhook.id)
                    found += 1
        return found

    async def webhooks(self, task: str) -> int:
        """How many are left."""
        return len(await self.app.store.webhooks(Scope(self.agent.key), task))


class Waiting(History):
    """The history of a task that waits for another agent."""

    def __init__(
        self, folder: Path, url: str, remote: Remote, looks: float = NEVER, **options: Any
    ) -> None:
        super().__init__(folder, url, **options)
        self.agent = "tests.faults.crash.waiting_agent:agent"
        self.remote = remote
        self.opens = True
        """The other agent goes on as soon as this one waits for it without a worker."""
        self.found = 0
        """How many of its ends may be there before this one waits."""
        self._environment |= {REMOTE: remote.url, LOOKS: str(looks)}

    def command(self) -> list[str]:
        """With an address for notifications, and a longer lease: a turn asks the other agent."""
        return [*super().command(), "--set", f"url={self.url}", "--set", "lease=0.8"]

    async def _ask(self) -> Any:
        if self.opens:
            for gate in self.remote.gates[: self.found + self.waits]:
                gate.set()
        return await super()._ask()

    @property
    def waits(self) -> int:
        """For how many ends it has waited without a worker."""
        begun = suspended = 0
        for line in points(self.folder):
            when, *names = line.split()
            begun += when == "after" and "waiting" in names
            suspended = begun if when == "after" and "suspend" in names else suspended
        return suspended

    async def life_until_it_waits(self) -> None:
        """Serve until it waits without a worker, and end then, from outside."""
        await self.start()
        async with asyncio.timeout(self.within):
            while not self.waits:
                with suppress(Down, *GONE):
                    await self._ask()
                await asyncio.sleep(0.01)
        assert await self.end() == -signal.SIGKILL


async def check(history: Waiting, task: Any) -> list[Breach]:
    """Every promise that was broken."""
    if task is None or task["status"]["state"] != "TASK_STATE_COMPLETED":
        return [Breach("ended", str(task))]
    breaches = []
    texts = ["".join(part["text"] for part in found["parts"]) for found in task["artifacts"]]
    if texts != [TEXT]:
        breaches.append(Breach("text", str(texts)))
    if history.remote.runs != {"work": 1, "red": 1}:
        breaches.append(Breach("sent", str(history.remote.runs)))
    return [*breaches, *_steps(history.folder), *await _logged(history, task["id"])]


def _steps(folder: Path) -> list[Breach]:
    times = Counter(line.split()[0] for line in (folder / "effects").read_text().splitlines())
    cut = Counter(name for kill in kills(folder) for name in (*kill["made"], *kill["sent"]))
    wrong = [step for step in STEPS if not 1 <= times[step] <= 1 + cut[step]]
    return [Breach("step-twice", f"{step} {times[step]} times") for step in wrong]


async def _logged(history: Waiting, task: str) -> list[Breach]:
    """Each wait began once and ended once; nobody is left to notify it."""
    found = await private(history.store, AGENT, task)
    breaches = []
    for kind, least in (("waiting", len(ENDS) - history.found), ("waited", len(ENDS))):
        times = sum(n for name, n in found.items() if name.split()[0] == kind)
        if not least <= times <= len(ENDS):
            breaches.append(Breach("once", f"{kind} {times} times"))
    (other,) = {name.split()[1] for name in found if name.startswith("wait")}
    lost = sum("before subscribed" in kill["at"] for kill in kills(history.folder))
    if (left := await history.remote.webhooks(other)) > lost:
        breaches.append(Breach("webhooks", f"{left} are left"))
    return breaches


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database, or empty for a file."""
    if request.param == "sqlite":
        return ""
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.create()


CHAIN = (
    *("after accept", "before sent", "after sent", "before waiting", "after subscribed"),
    *("before wake_now", "after wake_now", "before effect:between", "before waited"),
    *("after waited", "after waiting", "before effect:after", "before waited"),
    *("after waited", "before status:completed:"),
)
"""In the order of the handler, so that one task lives through all of them. Only a notification ends
the first wait, and only looks end the second one, which is killed before it subscribes."""
SOME = ("after subscribed", "before wake_now", "after wake_now", "after waited", "after waiting")
FEW = ("after subscribed", "before wake_now", "after waited")
"""For PostgreSQL, where the lease of a dead worker has to run out."""


@pytest.mark.soak
async def test_killed_at_one_point_after_the_other(tmp_path: Path, url: str) -> None:
    chain = CHAIN if SOAK else FEW if url else SOME
    async with Remote().serving() as remote, Waiting(tmp_path, url, remote) as history:
        for point in chain:
            assert await history.life(point) is None, f"no life ended {point}"
        task = await history.life()
        assert not await check(history, task)
    assert len(kills(tmp_path)) == len(chain)


WAITS = ""
"""Stands for the time while it waits, without a worker."""
MEANWHILE = (
    *(("before waiting", False), ("after waiting", False), ("before subscribed", False)),
    *(("after subscribed", False), (WAITS, False), (WAITS, True)),
)
"""Where the process is killed, and whether the notification is lost for good."""
SOME_MEANWHILE = (("before subscribed", False), (WAITS, True))


@pytest.mark.soak
async def test_the_other_agent_ends_meanwhile(tmp_path: Path, url: str, postgres: Postgres) -> None:
    some = MEANWHILE if SOAK else SOME_MEANWHILE[1:] if url else SOME_MEANWHILE
    for number, (point, lost) in enumerate(some):
        folder = tmp_path / str(number)
        folder.mkdir()
        store, looks = postgres.create() if url else "", SOON if lost else NEVER
        async with (
            Remote().serving() as remote,
            Waiting(folder, store, remote, looks) as history,
        ):
            task = await _meanwhile(history, point, lost=lost)
            found = await check(history, task)
            assert not found, (point, lost, found)


async def _meanwhile(history: Waiting, point: str, *, lost: bool) -> Any:
    """The other agent asks while the process is dead; the task in the end."""
    history.opens = False
    if point == WAITS:
        await history.life_until_it_waits()
    else:
        assert await history.life(point) is None, f"no life ended {point}"
    if lost:
        assert await history.remote.forget() == 1
    await history.remote.settled(0)
    history.opens, history.found = True, int(point == "before waiting")
    return await history.life()


BREACHES = [("looks", True), ("notifications", False)]
"""What is broken, and whether the notification is lost."""


@pytest.mark.soak
async def test_a_wait_that_hangs_is_found(tmp_path: Path) -> None:
    for switch, lost in BREACHES if SOAK else BREACHES[:1]:
        folder = tmp_path / switch
        folder.mkdir()
        looks = SOON if lost else NEVER
        async with (
            Remote().serving() as remote,
            Waiting(folder, "", remote, looks, broken=switch) as history,
        ):
            history.within = 1.5
            with pytest.raises(TimeoutError):
                await _meanwhile(history, WAITS, lost=lost)
            assert history.waits == 1, "it waits, and would do so for ever"
            await history.end()


@pytest.mark.soak
async def test_an_end_that_is_not_logged_is_found(tmp_path: Path) -> None:
    """The run after the second wait looks at the first one again, which does not fit the log."""
    async with (
        Remote().serving() as remote,
        Waiting(tmp_path, "", remote, SOON, broken="waited") as history,
    ):
        history.within = 1.5
        with pytest.raises(TimeoutError):
            await history.life()
        await history.end()
        assert "once" in names(await _logged(history, history.task))


async def _lives(folder: Path, url: str, deaths: list[str], *, early: bool) -> int:
    """Live through these deaths, as far as they come; how many did. With `early` the other agent
    has ended before this one looks."""
    folder.mkdir()
    task = None
    async with (
        Remote().serving() as remote,
        Waiting(folder, url, remote, 2.0) as history,
    ):
        if early:
            remote.open()
            history.found = len(ENDS)
        for point in [*deaths, ""]:
            task = await history.life(point)
            if task is not None:
                break
        found = await check(history, task)
    assert not found, (deaths, kills(folder), found)
    return len(kills(folder))


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
@pytest.mark.parametrize("early", [False, True])
async def test_killed_once_at_every_point(
    tmp_path: Path, url: str, postgres: Postgres, early: bool
) -> None:
    total = 0
    for point in count(1):
        store = postgres.create() if url else ""
        killed = await _lives(tmp_path / str(point), store, [str(point)], early=early)
        total += killed
        if not killed:
            break
    say(f"{total} kills")
    assert total > 15


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
async def test_killed_at_random_points(tmp_path: Path, url: str, postgres: Postgres) -> None:
    chance = seeded("waits")
    total = 0
    for number in range(max(1, int(30 * SCALE))):
        deaths = [str(chance.randint(1, 15)) for _ in range(chance.randint(2, 6))]
        store = postgres.create() if url else ""
        folder = tmp_path / str(number)
        total += await _lives(folder, store, deaths, early=chance.random() < 0.2)
    say(f"{total} kills")
    assert total
