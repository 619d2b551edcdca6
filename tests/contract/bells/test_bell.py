"""The contract of all bells, and of those that reach other processes, on real services."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from dragoman import Agent, App, bells, stores
from dragoman.bells import remote
from dragoman.bells.bell import Bell
from dragoman.model import clock
from dragoman.model.caller import Scope
from dragoman.server.settings import Settings
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import Accepted, Draft
from tests.harness.server import serving
from tests.harness.services import Server, free
from tests.harness.tcp_proxy import piping

SOON = 10.0
"""Longer than anything here should take."""


class Place(NamedTuple):
    """Where bells hang."""

    server: Server
    url: str
    others: tuple[str, ...]
    """Bells of other installations on the same server."""


Hang = Callable[..., Awaitable[Bell]]


@pytest.fixture(params=["postgres", "nats", "redis"])
def place(request: pytest.FixtureRequest) -> Place:
    """A server for bells, which is running again after the test."""
    server = request.getfixturevalue(request.param)
    if request.param == "postgres":
        url = request.getfixturevalue("database")
        found = Place(server, url, (server.dsn("postgres"), f"{url}?prefix=other"))
    elif request.param == "nats":
        found = Place(server, server.url, (f"{server.url}?prefix=other",))
    else:
        other = server.url.replace("/0", "/1")
        found = Place(server, server.url, (other, f"{server.url}?prefix=other"))
    request.addfinalizer(lambda: server.process or server.start())
    return found


@pytest.fixture
async def hang() -> AsyncIterator[Hang]:
    """Opens bells; they are closed after the test, and have left nothing behind."""
    opened: list[Bell] = []

    async def build(url: str) -> Bell:
        bell = bells.connect(url)
        await bell.open()
        opened.append(bell)
        return bell

    yield build
    for bell in opened:
        await bell.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def pair(place: Place, hang: Hang) -> tuple[Bell, Bell]:
    """Two bells of one installation."""
    return await hang(place.url), await hang(place.url)


class Count:
    """How often something was heard."""

    def __init__(self, bell: Bell, *topics: str) -> None:
        self.times = 0
        self._changed = asyncio.Event()
        bell.listeners.on_ring(self.hear, *topics)

    def hear(self) -> None:
        """Once more."""
        self.times += 1
        self._changed.set()

    async def reach(self, times: int = 1) -> None:
        """Until it has been heard so often."""
        async with asyncio.timeout(SOON):
            while self.times < times:
                self._changed.clear()
                await self._changed.wait()


async def settled(one: Bell, other: Bell) -> None:
    """Until all that `one` has rung before has come."""
    topic = str(clock.uuid7())
    last = Count(other, topic)
    one.ring(topic)
    await last.reach()


# ---- each of them


@pytest.mark.parametrize("kind", ["memory", "postgres", "nats", "redis"])
async def test_own_ears_are_woken_at_once(
    kind: str, hang: Hang, request: pytest.FixtureRequest
) -> None:
    bell = await hang(_url(kind, request))
    heard, deaf = Count(bell, "a", "b"), Count(bell, "c")
    bell.ring("a")
    assert (heard.times, deaf.times) == (1, 0)
    bell.ring("b")
    assert (heard.times, deaf.times) == (2, 0)


@pytest.mark.parametrize("kind", ["memory", "postgres", "nats", "redis"])
async def test_a_ring_before_the_wait_is_not_lost(
    kind: str, hang: Hang, request: pytest.FixtureRequest
) -> None:
    url = _url(kind, request)
    there = await hang(url)
    here = there if kind == "memory" else await hang(url)
    with here.listeners.listen("a") as listener:
        there.ring("a")
        await settled(there, here)
        async with asyncio.timeout(SOON):
            await listener.wait()
        with pytest.raises(TimeoutError):  # and it counts once
            async with asyncio.timeout(0.05):
                await listener.wait()


def _url(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "memory":
        return "memory:"
    if kind == "postgres":
        return str(request.getfixturevalue("database"))
    return str(request.getfixturevalue(kind).url)


@pytest.mark.parametrize(
    ("store", "bell"),
    [
        ("memory:", "memory:"),
        ("sqlite:///x.db", "memory:"),
        ("postgresql://u:p@h/d", "postgresql://u:p@h/d"),
        ("postgresql://h/d?prepared=false", "postgresql://h/d"),
        ("postgres://h/d?prepared=false&sslmode=require", "postgres://h/d?sslmode=require"),
        ("postgresql://h/d?sslmode=require&prepared=false", "postgresql://h/d?sslmode=require"),
    ],
)
def test_the_bell_that_fits_a_store(store: str, bell: str) -> None:
    assert stores.connect(Settings(store=store)).bell == bell


async def test_a_bell_that_is_not_open_is_heard_here(place: Place) -> None:
    bell = bells.connect(place.url)
    heard = Count(bell, "a")
    bell.ring("a")
    assert heard.times == 1
    await bell.close()


# ---- those that reach further


async def test_a_ring_reaches_others(pair: tuple[Bell, Bell]) -> None:
    one, other = pair
    heard = Count(other, "a")
    one.ring("a")
    await heard.reach()
    back = Count(one, "b")
    other.ring("b")
    await back.reach()


async def test_what_is_carried_reaches_others_alone(pair: tuple[Bell, Bell]) -> None:
    one, other = pair
    heard, own = Count(other, "a"), Count(one, "a")
    one.carry("a")
    await heard.reach()
    assert own.times == 0


async def test_other_topics_wake_nobody(pair: tuple[Bell, Bell]) -> None:
    one, other = pair
    deaf = Count(other, "aa", "b")
    for topic in ("a", "", "a:b", "ba"):
        one.ring(topic)
    await settled(one, other)
    assert deaf.times == 0


async def test_our_own_rings_do_not_come_back(pair: tuple[Bell, Bell]) -> None:
    one, other = pair
    heard = Count(one, "a")
    one.ring("a")
    await settled(one, other)
    await settled(other, one)
    assert heard.times == 1


async def test_a_ring_reaches_another_process(place: Place, hang: Hang) -> None:
    script = (
        "import asyncio, sys\n"
        "from dragoman import bells\n"
        "async def main():\n"
        "    bell = bells.connect(sys.argv[1])\n"
        "    await bell.open()\n"
        "    with bell.listeners.listen('there') as listener:\n"
        "        print('ready', flush=True)\n"
        "        await listener.wait()\n"
        "    bell.ring('here')\n"
        "    await bell.close()\n"
        "asyncio.run(main())\n"
    )
    bell = await hang(place.url)
    answered = Count(bell, "here")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, place.url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    bell.ring("there")
    await answered.reach()  # although that process ended right after it rang
    assert await process.wait() == 0


async def test_many_rings_at_once(pair: tuple[Bell, Bell]) -> None:
    one, other = pair
    topics = [f"{index}-{'é' * (index % 100)}" for index in range(5000)]
    counts = [Count(other, topic) for topic in topics]
    for topic in topics:
        one.ring(topic)
    await asyncio.gather(*(count.reach() for count in counts))


async def test_a_topic_that_is_too_long_hurts_no_other(pair: tuple[Bell, Bell]) -> None:
    one, other = pair
    heard = Count(other, "a")
    one.ring("x" * 10_000)
    one.ring("a")
    await heard.reach()


async def test_an_oversized_word_is_dropped_unread(
    place: Place, pair: tuple[Any, Bell], caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who reaches the server may publish what no replica would send."""
    one, other = pair
    heard, heard_too, deaf = Count(other, "a"), Count(one, "a"), Count(other, "b")
    line = await one._connect(lambda word: None, lambda: None)
    size = remote.SIZE + 1 if "postgres" in place.url else 900_000
    for _ in range(3):
        await line.send(["stranger\nb\n".ljust(size, "x")])
    await line.send(["stranger\na\n".ljust(remote.SIZE, "x")])
    await heard.reach()
    await heard_too.reach()
    await line.close()
    assert deaf.times == 0
    said = [record.getMessage() for record in caplog.records if "oversized" in record.getMessage()]
    assert len(said) == 2, "once for each of the two bells"
    assert f"published {size} bytes" in said[0]


async def test_the_last_ring_before_closing_is_heard(place: Place, hang: Hang) -> None:
    bell = await hang(place.url)
    heard = Count(bell, "a")
    leaving = bells.connect(place.url)
    await leaving.open()
    leaving.ring("a")
    await leaving.close()
    await heard.reach()


async def test_installations_do_not_hear_each_other(place: Place, hang: Hang) -> None:
    one = await hang(place.url)
    mine = Count(one, "a")
    for url in place.others:
        other = await hang(url)
        theirs = Count(other, "a")
        one.ring("a")
        other.ring("a")
        await settled(other, await hang(url))
        await settled(one, await hang(place.url))
        assert theirs.times == 1, url  # its own
    assert mine.times == len(place.others)


# ---- when the server goes


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_that_goes_and_comes_back(
    how: str, place: Place, pair: tuple[Bell, Bell], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, other = pair
    woken = [Count(one, "woken"), Count(other, "woken")]
    getattr(place.server, how)()
    for _ in range(20):
        one.ring("while down")  # nothing is raised, and nothing is waited for
        await asyncio.sleep(0.01)
    place.server.start()
    await asyncio.gather(*(count.reach() for count in woken))  # nobody has rung for them
    heard = Count(other, "a")
    one.ring("a")
    await heard.reach()
    said = [record.getMessage() for record in caplog.records if record.name == "dragoman"]
    assert sum("cannot connect to the bell" in line for line in said) == 2  # once for each of them
    assert sum("is restored" in line for line in said) == 2


async def test_what_is_rung_while_the_server_is_away_comes_later(
    place: Place,
    hang: Hang,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(remote, "KEPT", 2)
    there = await hang(place.url)
    async with piping(place.server.port) as pipe:
        here = await hang(place.url.replace(str(place.server.port), str(pipe.port)))
        await settled(here, there)
        first, second, third = (Count(there, name) for name in ("first", "second", "third"))
        back = Count(here, "back")
        await pipe.cut()
        while "cannot connect to the bell" not in caplog.text:
            await asyncio.sleep(0.005)
        for name in ("first", "second", "third"):
            here.ring(name)
        await asyncio.gather(first.reach(), second.reach(), back.reach())
        await settled(here, there)
        assert third.times == 0  # it keeps no more than that
        await here.close()


async def test_a_line_that_falls_silent_is_left(
    place: Place, hang: Hang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BEAT", 0.1)
    monkeypatch.setattr(remote, "PATIENCE", 0.5)
    there = await hang(place.url)
    async with piping(place.server.port) as pipe:
        here = await hang(place.url.replace(str(place.server.port), str(pipe.port)))
        await settled(there, here)
        woken = Count(here, "woken")
        await asyncio.sleep(0.5)
        assert woken.times == 0  # one that is merely idle is kept
        pipe.silent = True
        await woken.reach()
        await settled(there, here)
        await here.close()


async def test_a_server_that_is_not_there_at_the_start(place: Place, hang: Hang) -> None:
    place.server.stop()
    began = time.monotonic()
    one, other = await hang(place.url), await hang(place.url)
    assert time.monotonic() - began < 2
    woken = [Count(one, "a"), Count(other, "b")]
    one.ring("b")
    place.server.start()
    await asyncio.gather(*(count.reach() for count in woken))
    await settled(one, other)


async def test_closing_ends_everything(place: Place) -> None:
    before = asyncio.all_tasks()
    for down in (False, True):
        bell = bells.connect(place.url)
        if down:
            place.server.stop()
        await bell.open()
        bell.ring("a")
        began = time.monotonic()
        await bell.close()
        assert time.monotonic() - began < 0.5
        assert asyncio.all_tasks() == before
        bell.ring("a")
        await bell.close()


async def test_a_bell_opens_again(place: Place, hang: Hang) -> None:
    there = await hang(place.url)
    bell = bells.connect(place.url)
    for _ in range(2):
        await bell.open()
        await settled(bell, there)
        await settled(there, bell)
        await bell.close()


# ---- settings and the application


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter222@127.0.0.1:{}/x",
        "postgresql://127.0.0.1:{}/x?user=me&password=hunter222",
        "nats://me:hunter222@127.0.0.1:{}",
        "redis://me:hunter222@127.0.0.1:{}/0",
        "redis://127.0.0.1:{}/0?password=hunter222",
    ],
)
async def test_no_password_in_the_log(
    url: str, hang: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await hang(url.format(free()))
    said = [
        record for record in caplog.records if "cannot connect to the bell" in record.getMessage()
    ]
    assert len(said) == 1
    assert "hunter222" not in caplog.text


@pytest.mark.parametrize(
    ("url", "extra", "package"),
    [
        ("postgresql://x/y", "postgres", "asyncpg"),
        ("nats://x", "nats", "nats"),
        ("rediss://x", "redis", "redis"),
    ],
)
def test_a_package_that_is_missing(
    url: str, extra: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"dragoman.bells.{extra}", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"bell: .*pip install 'dragoman\[{extra}\]'"):
        bells.connect(url)


@pytest.mark.parametrize("url", ["kafka://x", "x", ""])
def test_a_bell_that_nobody_knows(url: str) -> None:
    with pytest.raises(ValueError, match=r"bell: no backend for .*memory:, postgresql:"):
        bells.connect(url)


def test_an_address_that_nobody_can_read() -> None:
    with pytest.raises(ValueError, match="bell: is not a valid URL") as caught:
        bells.connect("nats://me:hunter222\u2100@x")
    assert "hunter222" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["a.b", "a b", "*", "x" * 41])
def test_a_prefix_that_no_server_takes(prefix: str) -> None:
    with pytest.raises(ValueError, match="bell: prefix"):
        bells.connect(f"nats://x?prefix={prefix}")


async def test_applications_wake_each_other(place: Place) -> None:
    store = MemoryStore()
    gate = asyncio.Event()

    def app() -> App:
        agent = Agent("Waiter", description="Waits.")

        @agent.skill
        async def wait() -> str:
            await gate.wait()
            return "done"

        return App(agent, store=store, bell=place.url, poll=600, lease=6000)

    async with (
        serving(app()) as one,
        serving(app()) as other,
        httpx.AsyncClient(timeout=SOON, headers={"a2a-version": "1.0"}) as http,
    ):
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        sent = {"message": message, "configuration": {"returnImmediately": True}}
        task = (await http.post(f"{one}/message:send", json=sent)).json()["task"]["id"]
        async with http.stream("POST", f"{other}/tasks/{task}:subscribe") as stream:
            lines = stream.aiter_lines()
            assert "data" in await anext(lines) + await anext(lines)
            gate.set()
            rest = "".join([line async for line in lines])
        assert "TASK_STATE_COMPLETED" in rest


class Late(MemoryStore):
    """A store in which a message can be found only after a while."""

    def accept(self, scope: Scope, draft: Draft) -> asyncio.Future[Accepted]:
        """See `Store.accept`."""
        return asyncio.ensure_future(self._later(scope, draft))

    async def _later(self, scope: Scope, draft: Draft) -> Accepted:
        await asyncio.sleep(0.1)  # a bell is faster
        return await super().accept(scope, draft)


async def test_workers_elsewhere_are_woken_when_there_is_something_to_find(place: Place) -> None:
    store = Late()

    def app(**settings: int) -> App:
        agent = Agent("Echo", description="Answers.")

        @agent.skill
        async def echo() -> str:
            return "done"

        return App(agent, store=store, bell=place.url, poll=600, lease=6000, **settings)

    async with (
        serving(app(serve_only=True)) as url,
        serving(app()),
        httpx.AsyncClient(timeout=SOON, headers={"a2a-version": "1.0"}) as http,
    ):
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        answer = await http.post(f"{url}/message:send", json={"message": message})
        assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_an_application_starts_without_its_bell() -> None:
    agent = Agent("Echo", description="Answers.")

    @agent.skill
    async def echo() -> str:
        return "done"

    async with serving(App(agent, bell=f"nats://127.0.0.1:{free()}")):
        pass
