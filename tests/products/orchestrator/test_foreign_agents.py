"""Agents that others wrote, in a team: each in an environment and a process of its own.

`make test` runs those whose environments it installs anyway, `make interop` also the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dragoman import TaskState, Turn
from dragoman.client import Client
from dragoman.orchestrator import Orchestrator, Step
from tests.interop import peers
from tests.interop.peers import FULL, Absent, environments
from tests.products.orchestrator.office import begun, eventually, office, said, sources, texts

DONE, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED
ADK = "executors-adk"
DESKS = ("reference", "javascript", "reference-0.3", "javascript-0.3")
"""Those that do what the text says, see `tests/interop/peers`."""
Where = Callable[[str], str]


@pytest.fixture(scope="module")
def where() -> Iterator[Where]:
    """Gives the URL of a server, which is started once."""
    with ExitStack() as stack:
        found: dict[str, str] = {}

        def url(name: str) -> str:
            if not FULL and (name == ADK or not environments.ready(name)):
                pytest.skip(f"{name}: `make interop` installs and runs it")
            try:
                found[name] = found.get(name) or stack.enter_context(peers.serving(name))
            except Absent as absent:
                pytest.skip(f"{name}: {absent}")
            return found[name]

        yield url


def saying(where: Where, words: str, *names: str) -> Orchestrator:
    """An orchestrator that says this to all of these agents. Its steps have their names."""
    urls = {where(name).removeprefix("http://"): name.replace(".", "-") for name in names}

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step(urls[each.host], name, input=words) for name, each in members.items()]

    return Orchestrator("Desk", agents=[f"http://{url}" for url in urls], plan=plan)


@pytest.mark.parametrize("names", [DESKS, (*DESKS, ADK)], ids=["desks", "with ADK"])
async def test_all_of_them_in_one_team(where: Where, names: tuple[str, ...]) -> None:
    async with office(saying(where, "hello", *names)) as client:
        result = await client.send("go")
    expected = {name.replace(".", "-") for name in names}
    assert sources(result) == dict.fromkeys(expected, "done"), said(result)
    steps = {
        artifact.metadata["urn:dragoman:source:v1"]["step"]: artifact.text
        for artifact in result.artifacts
        if artifact.metadata
    }
    assert steps == dict.fromkeys(expected, "hello")


@pytest.mark.parametrize("name", DESKS)
async def test_a_question_and_its_answer(where: Where, name: str) -> None:
    async with office(saying(where, "ask", name)) as client:
        asked = await client.send("go")
        assert asked.state is ASKS, said(asked)
        assert "> Which?" in asked.text
        assert asked.task is not None
        result = await client.task(asked.task.id).reply("this one")
    assert result.state is DONE, said(result)
    assert list(texts(result).values()) == ["this one"]


@pytest.mark.parametrize("name", DESKS)
async def test_a_failure_is_told(where: Where, name: str) -> None:
    async with office(saying(where, "fail", name)) as client:
        result = await client.send("go")
    assert list(sources(result).values()) == ["failed"]
    assert "the task is failed: as told" in said(result)


@pytest.mark.parametrize("name", DESKS)
async def test_chunks_arrive_in_order(where: Where, name: str) -> None:
    async with office(saying(where, "count 40", name)) as client:
        result = await client.send("go")
    assert list(texts(result).values()) == ["".join(f"{n}," for n in range(40))], said(result)


@pytest.mark.parametrize("name", DESKS)
async def test_a_cancel_reaches_it(where: Where, name: str) -> None:
    desk = saying(where, "wait", name)
    async with office(desk) as client, Client.connect(where(name)) as own:
        task = await begun(client, "go")
        remote = ""
        async with asyncio.timeout(15):
            while not remote:
                await asyncio.sleep(0.02)
                execution = desk._running.get(task)
                steps = execution.plan.steps if execution else ()
                remote = next((step.task for step in steps if step.delivered), "")
        assert (await client.task(task).cancel()).status.state is TaskState.CANCELED

        async def ended() -> bool:
            return (await own.task(remote).get()).status.state is TaskState.CANCELED

        await eventually(ended)


@pytest.mark.parametrize("name", [*DESKS, ADK])
async def test_the_next_task_continues_the_conversation(where: Where, name: str) -> None:
    """An agent that takes our name of the conversation keeps it."""
    desk = saying(where, "hello", name)
    contexts = []
    async with office(desk) as client, Client.connect(where(name)) as own:
        context = ""
        for _ in range(2):
            result = await client.send("go", context=context)
            assert result.state is DONE, said(result)
            assert result.task is not None
            assert result.task.metadata is not None or result.task.status.message is not None
            context = result.task.context_id
            message = result.task.status.message
            found = {**(result.task.metadata or {}), **((message and message.metadata) or {})}
            (source,) = found["urn:dragoman:sources:v1"]
            contexts.append((await own.task(source["task"]).get()).context_id)
    assert contexts[0] == contexts[1] != context
