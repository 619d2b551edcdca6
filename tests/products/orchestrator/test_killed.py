"""The booking story over real processes: the orchestrator is killed, and goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman.orchestrator.questions import QUESTIONS
from dragoman.registry import Registry
from tests.faults.crash.checker import ENDS
from tests.faults.crash.durable_history import ASKS, History, kills, points
from tests.faults.crash.load import Down
from tests.faults.crash.server_process import Served
from tests.harness.remote_agents import Reference
from tests.harness.scale import SCALE, SOAK, say
from tests.products.orchestrator.booking import (
    BOOKED,
    CAR,
    DATES,
    MODEL,
    PAUSE,
    REGISTRY,
    REPEATABLE,
)
from tests.products.orchestrator.chat_server import Call, Request, serving
from tests.products.orchestrator.chat_server import say as says

BOOKINGS = ("flight 2026-08-10 2026-08-15", "hotel Rome 2")
LETTER = "letter: booked flight 2026-08-10 2026-08-15, HT-1"
POINTS = max(5, int(50 * SCALE)) if SOAK else 5
"""How many points of a life it is killed at, one in each life."""
MODULE = "tests.products.orchestrator.booking"


class Car(Reference):
    """An agent on the reference SDK, which books cars. It keeps no receipts."""

    lists = True
    deadly: Any = None
    """The orchestrator, which dies before it hears that the message has arrived."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self.gate.set()

    def run(self, text: str) -> None:
        """Book."""
        super().run(text)
        with self._file.open("a") as file:
            file.write(f"{text}\n")
        if self.deadly is not None:
            os.kill(self.deadly.pid, signal.SIGKILL)

    def _noting(self, app: Any, *, keyless: bool = False) -> Any:
        inner = super()._noting(app, keyless=keyless)
        if self.lists:
            return inner

        async def silent(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http" or scope["method"] != "POST":
                return await inner(scope, receive, send)
            message = await receive()
            asked = json.loads(message["body"])
            if asked["method"] == "ListTasks":
                return await _refuse(send, asked["id"])
            given = iter([message])

            async def again() -> Any:
                return next(given, None) or await receive()

            return await inner(scope, again, send)

        return silent


class Forgetful(Car):
    """The same, and it cannot list its tasks."""

    lists = False


async def _refuse(send: Any, id: Any) -> None:
    error = {"code": -32601, "message": "Method not found"}
    body = json.dumps({"jsonrpc": "2.0", "id": id, "error": error}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Desk(History):
    """The orchestrator, one life after the other, and a client that answers its questions."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__(folder)
        self.agent = f"{MODULE}:travel"
        self._environment |= environment
        self.asked: list[dict[str, Any]] = []
        """All questions, in order."""
        self.answers = {"question": DATES, "uncertain": "no"}
        self._answered: set[str] = set()

    def command(self) -> list[str]:
        """With a longer lease: a turn may wait for others."""
        return [*super().command(), "--set", "lease=1.5", "--set", "drain_timeout=0.2"]

    async def _ask(self) -> Any:
        if not self.task:
            found = await self._say("book", {"returnImmediately": True})
            self.task = found["task"]["id"]
        task = await self.get(f"/tasks/{self.task}")
        status = task["status"]
        if status["state"] == ASKS and status["message"]["messageId"] not in self._answered:
            await self._answer(status["message"])
        return task if status["state"] in ENDS else None

    async def _answer(self, message: Any) -> None:
        asked = message["metadata"][QUESTIONS]
        lines = [f"{each['name']}: {self.answers[each['kind']]}" for each in asked]
        text = "\n".join(lines)
        said = {"messageId": message["messageId"], "role": "ROLE_USER", "parts": [{"text": text}]}
        body = {"message": {**said, "taskId": self.task}}
        body["configuration"] = {"returnImmediately": True}  # type: ignore[assignment]
        headers = {"Idempotency-Key": message["messageId"]}
        status, *_ = await self.post("/message:send", body, **headers)
        if status == 503:
            raise Down
        if status == 200:
            self._answered.add(message["messageId"])
            self.asked += asked


class Place(Served):
    """`dragoman registry serve`."""

    def command(self) -> list[str]:
        """See `Served.command`."""
        store = f"sqlite:///{self.folder / 'agents.db'}"
        return ["registry", "serve", "--port", str(self.port), "--store", store]


class Story:
    """Registry, flight and hotel as processes, and the folder of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {BOOKED: str(folder / "booked"), PAUSE: "0.05"}

    async def __aenter__(self) -> Story:
        async with AsyncExitStack() as self.stack:
            await self._begin()
            self.stack = self.stack.pop_all()
        return self

    async def _begin(self) -> None:
        self.processes: dict[str, Served] = {}
        for name in ("registry", "flight", "hotel"):
            folder = self.folder / name
            folder.mkdir()
            kind = Place if name == "registry" else Served
            served = kind(folder, agent=f"{MODULE}:{name}", **self.environment)
            self.processes[name] = await self.stack.enter_async_context(served)
        await asyncio.gather(*(served.start() for served in self.processes.values()))
        async with Registry(self.processes["registry"].url) as registry:
            for name in ("flight", "hotel"):
                await registry.add(self.processes[name].url, approve=True)
        self.environment[REGISTRY] = registry.url

    async def __aexit__(self, *error: Any) -> None:
        await self.stack.__aexit__(*error)

    def booked(self) -> Counter[str]:
        """What was booked since the last look."""
        file = self.folder / "booked"
        found = Counter(file.read_text().splitlines() if file.exists() else ())
        file.unlink(missing_ok=True)
        return found

    async def told(self, deaths: list[str], name: str, **more: str) -> tuple[Any, Desk]:
        """The story with these deaths of the orchestrator: its task, and the orchestrator."""
        folder = self.folder / name
        folder.mkdir()
        async with Desk(folder, **{**self.environment, **more}) as desk:
            for death in [*deaths, ""]:
                if (task := await desk.life(death)) is not None:
                    break
        return task, desk


@pytest.fixture
async def story(tmp_path: Path) -> AsyncIterator[Story]:
    """The agents."""
    async with Story(tmp_path) as found:
        yield found


def said(task: Any) -> str:
    """The words of the final status."""
    parts = task["status"].get("message", {}).get("parts", [])
    return " ".join(part.get("text", "") for part in parts)


def letters(task: Any) -> list[str]:
    """The letters among the results."""
    found = [part.get("text", "") for one in task.get("artifacts", ()) for part in one["parts"]]
    return [text for text in found if text.startswith("letter")]


class Deaths:
    """The same story again and again, with a death at one point after the other."""

    def __init__(self, story: Story, **environment: str) -> None:
        self.story, self.environment = story, environment
        self.killed = self.doubts = 0

    async def each(self) -> AsyncIterator[tuple[Any, Desk, Counter[str]]]:
        """The first life, which nobody ends; then the others. What was booked in each. A life may
        have fewer points than the first one; then earlier points make up for those it never came
        to."""
        task, desk = await self.story.told([], "whole", **self.environment)
        yield task, desk, self.story.booked()
        number = len(points(desk.folder))
        wanted = sorted({1 + (number - 2) * at // (POINTS - 1) for at in range(POINTS)})
        others = [point for point in range(number, 0, -1) if point not in wanted]
        for point in [*wanted, *others]:
            if point in others and self.killed > 0.7 * POINTS:
                break
            task, desk = await self.story.told([str(point)], str(point), **self.environment)
            self.killed += len(kills(desk.folder))
            self.doubts += len(doubts(desk))
            say(f"{point}: {[each['at'] for each in kills(desk.folder)]} {doubts(desk)}")
            yield task, desk, self.story.booked()
        assert self.killed > 0.7 * POINTS


def doubts(desk: Desk) -> list[str]:
    """The steps that it named as doubtful."""
    return [each["name"] for each in desk.asked if each["kind"] == "uncertain"]


async def test_nobody_is_killed(story: Story) -> None:
    task, desk = await story.told([], "whole")
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", said(task)
    assert story.booked() == dict.fromkeys(BOOKINGS, 1)
    assert [each["name"] for each in desk.asked] == ["flight"]
    assert len(points(story.folder / "whole")) >= 25


async def test_killed_again_and_again(story: Story) -> None:
    deaths = ["after step:plan", "after sent", "after step:event", "after asked", "after sent"]
    task, desk = await story.told([*deaths, "before step:save"], "often")
    assert len(kills(desk.folder)) == 6, kills(desk.folder)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", said(task)
    assert story.booked() == dict.fromkeys(BOOKINGS, 1)


@pytest.mark.parametrize("kind", [Car, Forgetful])
async def test_killed_at_one_point_after_the_other(story: Story, kind: type[Car]) -> None:
    """Agents that keep receipts book once; one that keeps none never twice, and each doubtful step
    is named and asked about."""
    async with kind(story.folder / "booked").serving() as car:
        deaths = Deaths(story, **{CAR: car.url})
        async for task, desk, booked in deaths.each():
            where = desk.folder, kills(desk.folder), said(task)
            cars = booked.pop("car", 0)
            assert booked == dict.fromkeys(BOOKINGS, 1), where
            assert letters(task) == [LETTER], where
            if doubts(desk):
                assert kills(desk.folder)
                assert doubts(desk) == ["car"], where
                assert cars <= 1, where
                assert "car (remote, " in said(task), where
                assert "it is not known whether the agent has got the message" in said(task)
            else:
                assert task["status"]["state"] == "TASK_STATE_COMPLETED", where
                assert cars == 1, where
        say(f"{deaths.killed} kills, {deaths.doubts} doubts")


@pytest.mark.parametrize(("answer", "cars"), [("yes", 2), ("no", 1), ("repeatable", 2)])
async def test_a_doubtful_step_is_asked_about(story: Story, answer: str, cars: int) -> None:
    """The process dies when the message has arrived, and before it knows that. The author may say
    that the step can be repeated."""
    asked = ["car"] if answer != "repeatable" else []
    async with Forgetful(story.folder / "booked").serving() as car:
        folder = story.folder / answer
        folder.mkdir()
        environment = {**story.environment, CAR: car.url, REPEATABLE: "" if asked else "car"}
        async with Desk(folder, **environment) as desk:
            desk.answers["uncertain"] = answer
            car.deadly = desk
            assert await desk.life() is None
            car.deadly = None
            task = await desk.life()
        assert car.runs["car"] == cars
        assert doubts(desk) == asked
    booked = story.booked()
    assert booked.pop("car") == cars
    assert booked == dict.fromkeys(BOOKINGS, 1)
    done = task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done is (answer != "no"), said(task)


def booking_model(request: Request) -> Any:
    """Books both, writes the letter, and answers."""
    tools = {name.rpartition("__")[2]: name for name in request.tools}
    results = request.results
    if not results:
        sent = {"agent": "flight", "text": "Rome"}
        stay = {"city": "Rome", "nights": 2}
        return says(None, Call("send_message", sent), Call(tools["book_hotel"], stay))
    if len(results) == 2:
        letter = {"flight": "booked flight 2026-08-10 2026-08-15", "hotel": "HT-1"}
        return says(None, Call(tools["write_letter"], letter))
    return "All is booked."


async def test_at_most_one_call_of_the_model_is_repeated(story: Story) -> None:
    async with serving(booking_model) as server:
        before = 0
        async for task, desk, booked in Deaths(story, **{MODEL: server.url}).each():
            where = desk.folder, kills(desk.folder), said(task)
            assert task["status"]["state"] == "TASK_STATE_COMPLETED", where
            assert booked == dict.fromkeys(BOOKINGS, 1), where
            assert letters(task) == [LETTER], where
            assert 3 <= len(server.requests) - before <= 3 + len(kills(desk.folder)), where
            before = len(server.requests)


@pytest.mark.parametrize("name", ["flight", "hotel"])
async def test_an_agent_is_killed_and_comes_back(story: Story, name: str) -> None:
    folder = story.folder / "one"
    folder.mkdir()
    process = story.processes[name]
    async with Desk(folder, **story.environment) as desk:
        living = asyncio.create_task(desk.life())
        while not await begun(process):
            await asyncio.sleep(0.01)
        await process.kill()
        await asyncio.sleep(0.5)
        await process.start()
        task = await living
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", said(task)
    assert story.booked() == dict.fromkeys(BOOKINGS, 1)
    assert letters(task) == [LETTER]


async def begun(process: Served) -> bool:
    """Whether an agent has a task."""
    return bool((await process.get("/tasks?pageSize=1"))["totalSize"])
