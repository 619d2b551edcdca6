"""Executors that agent frameworks bring for a2a-sdk: the same on its own server and on dragoman."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import Part

from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.both import both, plain, talk, told
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs the frameworks")
EXECUTORS = {
    "Google ADK": Framework("executors-adk", "adk_executor", "executor"),
    "Google ADK, newer": Framework("executors-adk", "adk_executor", "newer"),
    "Microsoft": Framework("executors-microsoft", "microsoft_executor", "executor"),
    "Microsoft, streaming": Framework("executors-microsoft", "microsoft_executor", "streaming"),
}
ADK = [name for name in EXECUTORS if "ADK" in name]


@pytest.fixture(scope="module")
def desks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Desk, Desk]]:
    """The executor on both servers."""
    try:
        with both(EXECUTORS[request.param], tmp_path_factory.mktemp("both")) as found:
            yield found
    except Absent as absent:
        pytest.skip(f"{request.param}: {absent}")


every = pytest.mark.parametrize("desks", EXECUTORS, indirect=True)


def bare(found: Any) -> Any:
    """What was said, without metadata: ADK puts ids of its own into it."""
    if isinstance(found, list):
        return [bare(each) for each in found]
    if not isinstance(found, dict):
        return found
    return {key: bare(value) for key, value in found.items() if key != "metadata"}


async def said(desk: Desk, text: str, *, streaming: bool = True) -> list[Any]:
    """What a server says to a message, and the task in the end."""
    async with talk(desk, streaming=streaming) as server:
        events = told(await server.say(text))
        return [bare(events), bare(plain(await server.get()))]


@every
@pytest.mark.parametrize("text", ["hello", "weather", "fail"])
async def test_both_stream_the_same(desks: tuple[Desk, Desk], text: str) -> None:
    theirs, ours = [await said(desk, text) for desk in desks]
    assert ours == theirs
    ending = "FAILED" if text == "fail" else "COMPLETED"
    assert ours[1]["status"]["state"] == f"TASK_STATE_{ending}"


@every
async def test_both_answer_the_same(desks: tuple[Desk, Desk]) -> None:
    theirs, ours = [await said(desk, "hello", streaming=False) for desk in desks]
    assert ours == theirs
    assert "You said hello" in str(ours[1])


@every
async def test_the_next_task_of_a_context_remembers(desks: tuple[Desk, Desk]) -> None:
    for desk in desks:
        async with talk(desk) as server:
            await server.say("hello")
            server.task = ""
            await server.say("again")
            assert "You said again as message 2" in str(plain(await server.get()))


@every
async def test_a_cancel_ends_the_work(desks: tuple[Desk, Desk]) -> None:
    _, ours = desks
    async with talk(ours) as server:
        stream = asyncio.create_task(server.say("slow"))
        await server.at_work()
        await server.done("slow begins")
        canceled = await server.cancel()
        await stream
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        assert (await server.get())["status"]["state"] == "TASK_STATE_CANCELED"
        await server.done("slow is stopped")


def answer(asked: dict[str, Any]) -> Part:
    """What a client of ADK sends: the result of the call that the question is."""
    (call,) = asked["status"]["message"]["parts"]
    part = new_data_part({"id": call["data"]["id"], "name": "ask", "response": {"result": "blue"}})
    part.metadata.update({"adk_type": "function_response"})
    return part


@pytest.mark.parametrize("desks", ADK, indirect=True)
async def test_a_question_of_adk_and_its_answer(desks: tuple[Desk, Desk]) -> None:
    found = []
    for desk in desks:
        async with talk(desk) as server:
            await server.say("question")
            asked = await server.get()
            assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            said = told(await server.say([answer(asked)]))
            task = plain(await server.get())
            assert task["status"]["state"] == "TASK_STATE_COMPLETED"
            assert "The tool says: blue" in str(task)
            found.append(bare([said, task]))
    assert found[0] == found[1]


@pytest.mark.parametrize("desks", ["Google ADK, newer"], indirect=True)
async def test_adk_asks_again_for_what_is_no_answer(desks: tuple[Desk, Desk]) -> None:
    for desk in desks:
        async with talk(desk) as server:
            await server.say("question")
            await server.say("blue")
            status = (await server.get())["status"]
            assert status["state"] == "TASK_STATE_INPUT_REQUIRED"
            assert "not provided a function response" in str(status["message"])
