"""Tasks of A2A as tasks of MCP, for clients that take part in the extension."""

from __future__ import annotations

from collections.abc import AsyncIterator

import mcp.types as types
import pytest
from mcp import MCPError

from dragoman import App
from dragoman.mcp import mounts
from tests.harness.server import served
from tests.products.mcp import served_agents as desk
from tests.products.mcp.clients import OLD, Tasks, ask, begin, client, get, text, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = {"message": "Hello"}
ENDED = ("completed", "failed", "cancelled")


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    app = App(desk.desk, mounts=mounts(desk.desk, patience=0.2), retention=3600.0)
    async with served(app) as server:
        yield f"{server.url}/mcp"


async def test_a_call_becomes_the_task(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        assert "get_task" not in {tool.name for tool in (await found.list_tools()).tools}
        task = await begin(found, "book", {"city": "Rome"})
        got = await get(found.session, task.task_id)
    assert got.status == "completed"
    assert got.ttl_ms == 3600_000
    assert got.created_at.endswith("Z")
    assert got.result is not None
    assert got.result["structuredContent"] == {"reference": "FL-Rome", "seats": 1}


async def test_the_id_is_that_of_the_a2a_task(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        task = await begin(found, "echo", HELLO)
    from dragoman.client import Client

    async with Client.connect(url.removesuffix("/mcp")) as agent:
        assert (await agent.task(task.task_id).get()).artifacts[0].text == "Hello"


async def test_a_question_is_answered_by_an_update(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        session, task = found.session, await begin(found, "chat", HELLO)
        asked = await until(session, task.task_id, lambda got: got.status == "input_required")
        assert asked.input_requests is not None
        ((key, request),) = asked.input_requests.items()
        assert request["params"]["message"] == "Which date?"
        for id, day in (("another", "Friday"), (key, "Monday"), (key, "Sunday")):
            answer = {"action": "accept", "content": {"answer": f"On {day}"}}
            await ask(session, "tasks/update", task.task_id, inputResponses={id: answer})
        done = await until(session, task.task_id, lambda got: got.status in ENDED)
    assert done.result is not None
    assert done.result["content"][0]["text"] == "Booked On Monday"


async def test_an_approval_that_is_not_given_is_declined(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        session, task = found.session, await begin(found, "pay", HELLO)
        asked = await until(session, task.task_id, lambda got: got.status == "input_required")
        assert asked.input_requests is not None
        answers = {key: {"action": "cancel"} for key in asked.input_requests}
        await ask(session, "tasks/update", task.task_id, inputResponses=answers)
        done = await until(session, task.task_id, lambda got: got.status in ENDED)
    assert done.status == "failed"
    assert done.error is not None
    assert done.error["message"] == "The agent has rejected the task: It was declined"


async def test_a_failure_has_its_words_and_artifacts(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        task = await begin(found, "fail", HELLO)
        got = await get(found.session, task.task_id)
    assert (got.status, got.status_message) == ("failed", "No seats are left")
    assert got.error is not None
    assert got.error["data"]["state"] == "failed"
    assert got.error["data"]["result"]["content"][1]["text"] == "half"


async def test_cancel_cancels(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        session, task = found.session, await begin(found, "wait", HELLO)
        assert task.status == "working"
        await ask(session, "tasks/cancel", task.task_id)
        done = await until(session, task.task_id, lambda got: got.status in ENDED)
        await ask(session, "tasks/cancel", task.task_id)  # it has ended, and stays as it is
    assert done.status == "cancelled"


async def test_who_does_not_take_part_is_refused(url: str) -> None:
    async with client(url, extensions=[Tasks()]) as found:
        with pytest.raises(MCPError, match="no task") as unknown:
            await get(found.session, "nothing")
        task = await begin(found, "echo", HELLO)
    assert unknown.value.error.code == types.INVALID_PARAMS
    async with client(url) as found:
        with pytest.raises(MCPError, match="must declare") as missing:
            await get(found.session, task.task_id)
    assert missing.value.error.code == -32021
    async with client(url, OLD) as session:
        with pytest.raises(MCPError, match="not found"):
            await get(session, task.task_id)
        call = {"task_id": task.task_id}
        assert text(await session.call_tool("get_task", call)) == "Hello"
