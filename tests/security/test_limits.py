"""What one caller may take: a rate of requests, and a share of tasks and streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dragoman import App
from dragoman.model.caller import Scope
from dragoman.model.errors import LimitExceeded
from dragoman.model.types import TaskState
from dragoman.security.limits import KNOWN, Proxies, Quota, Rate
from tests.harness import agents
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, HttpJson, JsonRpc
from tests.harness.protected_app import KINDS, asked, message, protected

UNKNOWN = "01900000-0000-7000-8000-000000000000"

# ---- rates ---------------------------------------------------------------------------------


def test_a_bucket_fills_again() -> None:
    now = 0.0
    rate = Rate(2.0, 3, now=lambda: now)
    for _ in range(3):
        rate.take("ann")
    with pytest.raises(LimitExceeded) as caught:
        rate.take("ann")
    assert caught.value.headers["retry-after"] == "1"
    rate.take("bob")  # another's is another
    now = 0.5
    rate.take("ann")
    with pytest.raises(LimitExceeded):
        rate.take("ann")
    now = 1000.0
    for _ in range(3):
        rate.take("ann")
    with pytest.raises(LimitExceeded):
        rate.take("ann")  # it does not grow beyond what may come at once


def test_a_slow_rate_says_how_long() -> None:
    rate = Rate(0.1, 1, now=lambda: 0.0)
    rate.take("ann")
    with pytest.raises(LimitExceeded) as caught:
        rate.take("ann")
    assert caught.value.headers["retry-after"] == "10"


def test_many_callers_cost_no_more_than_some() -> None:
    rate = Rate(1.0, 1)
    for number in range(KNOWN + 10):
        rate.take(str(number))
    assert len(rate._buckets) == KNOWN


@pytest.mark.clause("limits.rate")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_too_many_requests_of_an_identity(
    kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(rate_burst=3)
    async with protected(agents.make(), rate=0.01) as server:
        alice, bob = server.client(kind, "a-key"), server.client(kind, "b-key")
        found = [await asked(alice, "GetTask", {"id": UNKNOWN}) for _ in range(4)]
        assert [failed.reason for failed in found[:3]] == ["TASK_NOT_FOUND"] * 3
        # 0.3 over HTTP+JSON has a status and no reason of its own for this
        assert found[3].reason == "RESOURCE_EXHAUSTED" or found[3].status == 429
        same = server.client(kind, "a-key-that-comes")  # another key, and the same identity
        assert (await asked(same, "GetTask", {"id": UNKNOWN})).message == found[3].message
        assert (await asked(bob, "GetTask", {"id": UNKNOWN})).reason == "TASK_NOT_FOUND"


@pytest.mark.clause("limits.rate")
@pytest.mark.parametrize("kind", [JsonRpc, HttpJson])
async def test_a_limit_is_a_429_that_says_when_to_come_back(
    kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(rate_burst=1)
    async with protected(agents.make(), rate=0.05) as server:
        alice = server.client(kind, "a-key")
        await asked(alice, "GetTask", {"id": UNKNOWN})
        await asked(alice, "GetTask", {"id": UNKNOWN})
        assert alice.last.status_code == 429
        assert 15 <= int(alice.last.headers["retry-after"]) <= 20


@pytest.mark.clause("limits.rate")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_an_address_that_guesses_keys(
    kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(rate_burst=3)
    async with protected(agents.make(), rate_address=0.01) as server:
        found = [
            await asked(server.client(kind, f"guess-{n}"), "GetTask", {"id": UNKNOWN})
            for n in range(4)
        ]
        assert "card's security schemes" in found[2].message
        assert "requests per second" in found[3].message  # it is not even looked at
        late = await asked(server.client(kind, "a-key"), "GetTask", {"id": UNKNOWN})
        assert "requests per second" in late.message


async def test_who_is_anonymous_is_counted_by_address(constants: Callable[..., None]) -> None:
    constants(rate_burst=2)
    async with protected(agents.make(), auth=None, rate=0.01, rate_address=0.01) as h:
        found = [await asked(h.client(JsonRpc, ""), "GetTask", {"id": UNKNOWN}) for _ in range(3)]
        reasons = [failed.reason for failed in found]
        assert reasons == ["TASK_NOT_FOUND", "TASK_NOT_FOUND", "RESOURCE_EXHAUSTED"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "origin"),
    [
        ("203.0.113.9", "", "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # it is no proxy, so it may say anything
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),  # what comes first is anybody's word
        ("10.0.0.1", "6.6.6.6, 198.51.100.1, 10.0.0.7", "198.51.100.1"),
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", "unknown", "unknown"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("", "198.51.100.1", ""),
    ],
)
def test_whom_to_believe_on_where_a_request_comes_from(
    peer: str, forwarded: str, origin: str
) -> None:
    assert Proxies(["10.0.0.0/8"]).origin(peer, forwarded) == origin


async def test_callers_behind_a_proxy(constants: Callable[..., None]) -> None:
    constants(rate_burst=1)
    settings: dict[str, Any] = {"rate_address": 0.01, "trusted_proxies": ["127.0.0.1"]}
    async with protected(agents.make(), **settings) as server:
        for address in ("198.51.100.1", "198.51.100.2"):
            caller = server.client(JsonRpc, "a-key", **{"x-forwarded-for": address})
            first = await asked(caller, "GetTask", {"id": UNKNOWN})
            second = await asked(caller, "GetTask", {"id": UNKNOWN})
            assert (first.reason, second.reason) == ("TASK_NOT_FOUND", "RESOURCE_EXHAUSTED")


def test_a_wrong_network_is_named() -> None:
    with pytest.raises(ValueError, match=r"^trusted_proxies: 'nonsense'"):
        App(agents.make(), trusted_proxies=["nonsense"])


# ---- shares --------------------------------------------------------------------------------


numbers = count()


async def begin(client: Binding, text: str = "ask") -> Any:
    """What comes of a new task."""
    said = message(text, messageId=f"m{next(numbers)}")
    return await asked(client, "SendMessage", {"message": said})


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_a_send_that_comes_again_is_answered_without_room(store: str, tmp_path: Path) -> None:
    url = store if store == "memory:" else f"sqlite:///{tmp_path / 'tasks.db'}"
    async with protected(agents.make(), quota_tasks=1, store=url) as server:
        alice = server.client(JsonRpc, "a-key")
        first = await alice.call("SendMessage", message=message("ask"))
        assert isinstance(await begin(alice), Failed)
        again = await alice.call("SendMessage", message=message("ask"))
        assert again["task"]["id"] == first["task"]["id"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("tasks", "waiting"), [(3, 3), (6, 3)])
async def test_too_many_tasks_of_an_identity(
    tasks: int, waiting: int, kind: type[Binding], constants: Callable[..., None]
) -> None:
    constants(quota_waiting=waiting)
    async with protected(agents.make(), quota_tasks=tasks) as server:
        alice, bob = server.client(kind, "a-key"), server.client(kind, "b-key")
        tasks = [(await begin(alice))["task"]["id"] for _ in range(3)]
        refused = await begin(alice)
        assert isinstance(refused, Failed)
        assert refused.reason == "RESOURCE_EXHAUSTED" or refused.status == 429
        assert "of your tasks" in refused.message
        assert not isinstance(await begin(bob), Failed)
        # what is there goes on, and makes room by its end
        await alice.call("SendMessage", message=message("more", taskId=tasks[0]))
        assert not isinstance(await begin(alice), Failed)
        assert isinstance(await begin(alice), Failed)
        await alice.call("CancelTask", id=tasks[1])
        assert not isinstance(await begin(alice), Failed)


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_tasks_that_end_take_no_room(store: str, tmp_path: Path) -> None:
    url = store if store == "memory:" else f"sqlite:///{tmp_path / 'tasks.db'}"
    async with protected(agents.make(), quota_tasks=2, store=url) as server:
        alice = server.client(JsonRpc, "a-key")
        for _ in range(20):
            assert (await begin(alice, "hello"))["task"]["status"]["state"].endswith("COMPLETED")


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_many_at_once_are_counted_all(
    store: str, tmp_path: Path, constants: Callable[..., None]
) -> None:
    constants(quota_waiting=0)
    url = store if store == "memory:" else f"sqlite:///{tmp_path / 'tasks.db'}"
    async with protected(agents.make(), quota_tasks=10, store=url) as server:
        alice = server.client(JsonRpc, "a-key")
        found = await asyncio.gather(*(begin(alice) for _ in range(40)))
        assert sum(not isinstance(each, Failed) for each in found) <= 10
        while not isinstance(await begin(alice), Failed):
            pass
        assert len((await alice.call("ListTasks"))["tasks"]) == 10


async def test_a_count_that_takes_its_time_is_made_once() -> None:
    counts, gate = 0, asyncio.Event()

    async def counted(scope: Scope) -> Mapping[TaskState, int]:
        nonlocal counts
        counts += 1
        await gate.wait()
        return {TaskState.WORKING: 7, TaskState.COMPLETED: 100}

    quota = Quota(10, 0, counted)
    taking = [asyncio.create_task(quota.take(Scope("a", "", "ann"))) for _ in range(8)]
    await asyncio.sleep(0)
    gate.set()
    found = Counter(await asyncio.gather(*taking))
    full = "7 of your tasks are unfinished; wait until some of them end"
    assert found[""] <= 3  # more may not have landed yet
    assert found[full] == 8 - found[""]
    assert counts <= 8
    for _ in range(8):
        quota.landed(Scope("a", "", "ann"))
    assert await quota.take(Scope("a", "", "ann")) == ""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_too_many_streams_of_an_identity(kind: type[Binding]) -> None:
    agent = agents.make()
    async with protected(agent, quota_tasks=20) as server, AsyncExitStack() as stack:
        alice, bob = server.client(kind, "a-key"), server.client(kind, "b-key")
        for _ in range(2):
            events = await stack.enter_async_context(
                alice.open("SendStreamingMessage", message=message("gate"))
            )
            await anext(events)
        refused = await asked(alice, "SendStreamingMessage", {"message": message("gate")})
        assert isinstance(refused, Failed)
        assert "of your streams are open" in refused.message
        agent.gate.set()  # type: ignore[attr-defined]
        assert await bob.stream("SendStreamingMessage", message=message("gate"))
        await stack.aclose()
        await _closed(server)
        assert await alice.stream("SendStreamingMessage", message=message("gate"))
        await _closed(server)
        assert not server.app.streams._owned


async def _closed(server: RunningApp) -> None:
    async with asyncio.timeout(10):
        while server.app.streams.open:
            await asyncio.sleep(0.01)
