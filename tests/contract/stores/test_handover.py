"""Tasks that are handed over: somebody outside finishes them, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import dragoman
from dragoman import (
    Agent,
    App,
    Artifact,
    Handover,
    HandoverEnded,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    Turn,
)
from dragoman.client import Client
from dragoman.model.errors import InvalidParams, TaskNotFound, Unavailable
from dragoman.server.handover_writes import write
from dragoman.server.worker import Worker
from dragoman.stores.store import WRITER, Store
from dragoman.testing import SilentBell
from tests.harness.lives import Lives
from tests.harness.stores import BACKENDS
from tests.harness.workers import AT

C, W = TaskState.COMPLETED, TaskState.WORKING
HOME = "http://agent.test"


class Office:
    """An agent that gives its tasks away, and what it gave."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.given: asyncio.Queue[str] = asyncio.Queue()
        self.timeout = 60.0
        self.ends = asyncio.Event()
        self.ends.set()
        self.heard: list[str] = []
        agent = Agent("Office", description="Has others do the work.")

        @agent.skill
        async def pass_on(turn: Turn) -> AsyncIterator[Any]:
            self.heard.append(turn.text)
            if turn.text != "give it away":
                yield turn.artifact(f"heard {turn.text}")
                return
            yield turn.working("passing it on")
            handover = await turn.hand_over(timeout=self.timeout)
            self.given.put_nowait(str(handover))
            await self.ends.wait()

        given: dict[str, Any] = {"url": HOME, "poll": 0.02, "cancel_grace": 1.0, **settings}
        self.app = App(agent, store=store, trusted_hosts=["inside", "agent.test"], **given)

    async def hand_over(self, client: Client) -> tuple[str, str]:
        """A task that was handed over, and the handover."""
        result = await client.send("give it away", wait=False)
        assert result.task is not None
        async with asyncio.timeout(30):
            return result.task.id, await self.given.get()


@pytest.fixture(params=BACKENDS)
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """Makes a store that is not open yet."""
    return lambda: BACKENDS[request.param](tmp_path)


@pytest.fixture
async def office(make_store: Callable[[], Store]) -> AsyncIterator[Office]:
    office = Office(make_store())
    async with asyncio.timeout(20), office.app:
        yield office


@pytest.fixture
async def client(office: Office) -> AsyncIterator[Client]:
    async with Client.connect(app=office.app) as client:
        yield client


def texts(task: Task) -> list[str]:
    return ["".join(part.text or "" for part in artifact.parts) for artifact in task.artifacts]


async def test_somebody_else_finishes_the_task(office: Office, client: Client) -> None:
    async def follow() -> list[Any]:
        async with client.stream("give it away") as stream:
            return [event async for event in stream]

    following = asyncio.create_task(follow())
    async with dragoman.resume(await office.given.get(), app=office.app) as work:
        assert (work.state, work.ended) == (W, False)
        await work.working("half done")
        await work.write("one ", name="report")
        await work.write("two", name="report", last=True)
        await work.artifact({"pages": 2}, name="data")
        await work.complete("here you are")
        assert (work.state, work.ended) == (C, True)
        with pytest.raises(HandoverEnded, match="has ended"):
            await work.working("too late")
    seen = await following
    chunks = [event.text for event in seen if hasattr(event, "artifact")]
    assert chunks[:2] == ["one ", "two"], "the stream goes on while somebody else writes"
    found = await client.task(seen[0].id).get()
    assert found.status.state is C
    assert found.status.message is not None
    assert found.status.message.text == "here you are"
    assert texts(found)[0] == "one two"
    said = [message.text for message in found.history if message.role.name == "AGENT"]
    assert said == ["passing it on", "half done"]


async def test_a_blocking_send_waits_for_the_writer(office: Office, client: Client) -> None:
    sending = asyncio.create_task(client.send("give it away"))
    async with dragoman.resume(await office.given.get(), app=office.app) as work:
        await work.fail("nobody could do it")
    result = await sending
    assert result.state is TaskState.FAILED
    assert result.text == "nobody could do it"


async def test_a_writer_that_comes_before_the_handler_ended_waits(
    office: Office, client: Client
) -> None:
    office.ends.clear()
    task, text = await office.hand_over(client)
    handover = Handover.parse(text)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(office.app)) as http:
        answer = await http.post(
            handover.url,
            json={"statusUpdate": {"status": {"state": "TASK_STATE_COMPLETED"}}},
            headers={"authorization": f"Bearer {handover.secret}"},
        )
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"] == "1"
    async with dragoman.resume(handover, app=office.app) as work:
        completing = asyncio.create_task(work.complete())
        await asyncio.sleep(0)
        office.ends.set()
        await completing
    assert (await client.task(task).get()).status.state is C


async def test_a_message_meanwhile_gets_a_turn_of_its_own(office: Office, client: Client) -> None:
    task, handover = await office.hand_over(client)
    sending = asyncio.create_task(client.send("and this?", task=task))
    while (await client.task(task).get()).history[-1].text != "and this?":
        await asyncio.sleep(0.01)
    assert office.heard == ["give it away"], "the handler does not run while somebody else writes"
    async with dragoman.resume(handover, app=office.app) as work:
        await work.artifact("done")
        await work.complete()
        # a message waits, so the task goes on: it is working, or the next turn has ended already
        assert work.state is W or office.heard[1:] == ["and this?"]
        with pytest.raises((HandoverEnded, Unavailable)):
            await work._once(work_request(work))
    result = await sending
    assert result.state is C
    assert office.heard == ["give it away", "and this?"]
    assert texts(await client.task(task).get()) == ["done", "heard and this?"]


def work_request(work: Any) -> Any:
    from dragoman.client.transport import TransportRequest

    headers = {
        "authorization": f"Bearer {work._handover.secret}",
        "content-type": "application/json",
    }
    body = b'{"artifactUpdate": {"artifact": {"artifactId": "x", "parts": [{"text": "x"}]}}}'
    return TransportRequest("POST", work._handover.url, headers, body)


async def test_a_question_gives_the_task_back(office: Office, client: Client) -> None:
    task, handover = await office.hand_over(client)
    async with dragoman.resume(handover, app=office.app) as work:
        await work.ask("which color?")
        with pytest.raises(HandoverEnded):
            await work.working()
    assert (await client.task(task).get()).status.state is TaskState.INPUT_REQUIRED
    result = await client.send("red", task=task)
    assert result.state is C
    assert office.heard[-1] == "red"


async def test_the_handover_of_an_earlier_turn_stays_ended(office: Office, client: Client) -> None:
    """The answer to its question leads to another handover, which somebody else may have."""
    task, old = await office.hand_over(client)
    async with dragoman.resume(old, app=office.app) as work:
        await work.ask("to whom?")
        await client.send("give it away", task=task, wait=False)
        new = await office.given.get()
        with pytest.raises(HandoverEnded):
            await work.complete("too late")
    async with dragoman.resume(new, app=office.app) as work:
        await work.complete("in time")
    found = await client.task(task).get()
    assert found.status.message is not None
    assert found.status.message.text == "in time"


async def test_a_cancel_ends_it(office: Office, client: Client) -> None:
    task, handover = await office.hand_over(client)
    async with dragoman.resume(handover, app=office.app) as work:
        await work.working("begun")
        assert (await client.task(task).cancel()).status.state is TaskState.CANCELED
        with pytest.raises(HandoverEnded, match="canceled"):
            await work.complete()
        assert await work.refresh() is TaskState.CANCELED


async def test_its_time_runs_out(office: Office, client: Client) -> None:
    office.timeout = 0.1
    task, handover = await office.hand_over(client)
    async with dragoman.resume(handover, app=office.app) as work:
        found = await client.task(task).wait()
        assert found.status.state is TaskState.FAILED
        with pytest.raises(HandoverEnded):
            await work.complete()


async def test_a_wrong_secret_looks_like_no_task(office: Office, client: Client) -> None:
    task, text = await office.hand_over(client)
    handover = Handover.parse(text)
    event = {"statusUpdate": {"status": {"state": "TASK_STATE_COMPLETED"}}}
    other = "01a1e5df-d9dd-70ac-ab08-3a7d7e7f4403"
    bodies = set()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(office.app)) as http:
        for url, secret in (
            (handover.url, "guess"),
            (handover.url, ""),
            (handover.url, "x" * 10_000),
            (f"{HOME}/handovers/{other}", handover.secret),
        ):
            answer = await http.post(url, json=event, headers={"authorization": f"Bearer {secret}"})
            assert answer.status_code == 404
            bodies.add(answer.content)
    assert len(bodies) == 1
    with pytest.raises(TaskNotFound):
        async with dragoman.resume(Handover(handover.url, "guess"), app=office.app):
            pass
    assert (await client.task(task).get()).status.state is W


async def test_the_secret_of_one_task_opens_no_other(office: Office, client: Client) -> None:
    first, one = await office.hand_over(client)
    second, _ = await office.hand_over(client)
    stolen = Handover(f"{HOME}/handovers/{second}", Handover.parse(one).secret)
    with pytest.raises(TaskNotFound):
        async with dragoman.resume(stolen, app=office.app):
            pass
    async with dragoman.resume(one, app=office.app) as work:
        await work.complete()
    assert (await client.task(first).get()).status.state is C
    assert (await client.task(second).get()).status.state is W


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"events": []}, "events"),
        ({"events": "x"}, "events"),
        ({"task": {}}, "events[0]"),
        ({"statusUpdate": {"status": {"state": "DONE"}}}, "events[0].status.state"),
        ({"artifactUpdate": {"artifact": {"artifactId": "a", "parts": 3}}}, "events[0].artifact"),
        (
            {"artifactUpdate": {"append": True, "artifact": {"artifactId": "a", "parts": []}}},
            "events[0].artifact",
        ),
        (
            {
                "events": [
                    {"statusUpdate": {"status": {"state": "TASK_STATE_COMPLETED"}}},
                    {"statusUpdate": {"status": {"state": "TASK_STATE_WORKING"}}},
                ]
            },
            "events[1]",
        ),
    ],
)
async def test_an_event_that_is_wrong_names_its_field(
    office: Office, client: Client, body: Any, field: str
) -> None:
    task, text = await office.hand_over(client)
    handover = Handover.parse(text)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(office.app)) as http:
        answer = await http.post(
            handover.url, json=body, headers={"authorization": f"Bearer {handover.secret}"}
        )
    assert answer.status_code == InvalidParams.http, answer.text
    assert field in answer.text
    assert (await client.task(task).get()).status.state is W


async def test_a_repeated_write_is_done_once(office: Office, client: Client) -> None:
    task, text = await office.hand_over(client)
    handover = Handover.parse(text)
    chunk = {"artifact": {"artifactId": "a", "parts": [{"text": "once "}]}}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(office.app)) as http:

        async def post(key: str, append: bool) -> int:
            answer = await http.post(
                handover.url,
                json={"artifactUpdate": {**chunk, "append": append}},
                headers={"authorization": f"Bearer {handover.secret}", "idempotency-key": key},
            )
            return answer.status_code

        assert await post("first", False) == 200
        # at the same time, as a client does that has lost the first response
        assert set(await asyncio.gather(*(post("again", True) for _ in range(5)))) == {200}
        assert await post("again", True) == 200
        assert await post("other", True) == 200
    assert texts(await client.task(task).get()) == ["once once once "]


async def test_writers_at_the_same_time_write_one_after_the_other(
    office: Office, client: Client
) -> None:
    task, handover = await office.hand_over(client)
    async with dragoman.resume(handover, app=office.app) as work:
        await asyncio.gather(*(work.artifact(str(number)) for number in range(8)))
        await work.complete()
    assert sorted(texts(await client.task(task).get())) == [str(number) for number in range(8)]


async def test_a_handover_survives_a_restart(make_store: Callable[[], Store]) -> None:
    first = make_store()
    if first.url == "memory:":
        pytest.skip("memory does not survive a restart")
    office = Office(first)
    async with office.app, Client.connect(app=office.app) as client:
        task, handover = await office.hand_over(client)
        async with dragoman.resume(handover, app=office.app) as work:
            await work.artifact("before")
    async with asyncio.timeout(20), office.app, Client.connect(app=office.app) as client:
        async with dragoman.resume(handover, app=office.app) as work:
            await work.artifact("after")
            await work.complete()
        found = await client.task(task).get()
    assert (found.status.state, texts(found)) == (C, ["before", "after"])
    assert office.heard == ["give it away"], "the handler did not run again"


async def test_a_handover_needs_an_address(make_store: Callable[[], Store]) -> None:
    office = Office(make_store(), url="")
    async with office.app, Client.connect(app=office.app) as client:
        result = await client.send("give it away")
    assert result.state is TaskState.FAILED


async def test_with_a_silent_bell(make_store: Callable[[], Store]) -> None:
    office = Office(make_store(), bell=SilentBell())
    async with asyncio.timeout(20), office.app, Client.connect(app=office.app) as client:
        sending = asyncio.create_task(client.send("give it away"))
        async with dragoman.resume(await office.given.get(), app=office.app) as work:
            await work.artifact("done")
            await work.complete()
        assert (await sending).text == "done"


class Reachable(Lives):
    """Workers that know the address of their agent."""

    def worker(self) -> Worker:
        worker = super().worker()
        worker.addresses = {self.agent.key: HOME}
        return worker


async def test_a_crash_before_the_handler_ended_leaves_both_handovers_valid(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler is run again and hands over again; nobody knows who has got the first one."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)
    given: list[Handover] = []

    async def handler(turn: Turn) -> None:
        given.append(await turn.hand_over(timeout=60))
        await lives.point()

    lives = Reachable(handler, store)
    task = (await lives.send()).head.id
    await lives.life(die_at=1)
    await lives.recover()
    await lives.life()
    head = await lives.head(task)
    assert (head.state, head.holder, head.waits) == (W, "", WRITER)
    first, second = given
    for handover, text in ((first, "one"), (second, "two")):
        event = TaskArtifactUpdateEvent(
            task_id=task,
            context_id=head.context,
            artifact=Artifact(artifact_id=text, parts=(Part(text=text),)),
        )
        await write(store, lives.bell, lives.agent.key, task, handover.secret, [event])
    assert texts(await lives.task(task)) == ["one", "two"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_write_between_a_crash_and_the_next_run_is_to_be_repeated(
    store: Store, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handover is not over: it begins when the handler has ended."""
    monkeypatch.setattr("dragoman.server.handover_writes.PATIENCE", 0.01)
    given: list[Handover] = []

    async def handler(turn: Turn) -> None:
        given.append(await turn.hand_over(timeout=60))
        await lives.point()

    lives = Reachable(handler, store, durable=durable)
    lives.agent.retries = 1
    task = (await lives.send()).head.id
    await lives.life(die_at=1)
    await lives.reap()
    head = await lives.head(task)
    assert (head.state.terminal, head.holder) == (False, "")
    event = TaskStatusUpdateEvent(
        task_id=task, context_id=head.context, status=TaskStatus(state=C, timestamp=AT)
    )

    async def complete() -> Task:
        return await write(store, lives.bell, lives.agent.key, task, given[0].secret, [event])

    with pytest.raises(Unavailable):
        await complete()
    await store.wake_now([task])  # not after a pause
    await lives.life()
    assert (await complete()).status.state is C
