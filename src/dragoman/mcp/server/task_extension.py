"""MCP's extension for tasks (SEP-2663): the task of A2A is the task of MCP.

Nothing is stored here. A task is read where it is, so it can be asked for after a restart, and from
another replica.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import mcp.types as mcp
from mcp import MCPError
from mcp.server.context import HandlerResult

from dragoman import A2AError, Task, TaskState
from dragoman.client import Result
from dragoman.mcp.server.exchange import AT_ONCE, TASKS, Exchange, digest
from dragoman.mcp.server.exposed_agents import FAILURES, ExposedAgent, FoundTask
from dragoman.mcp.server.questions import deliver, question_of, unpaid
from dragoman.mcp.server.results import tool_result
from dragoman.prompt_safety import clean

POLL = 1000
"""Milliseconds after which a client should look again."""
WORDS = 1000
"""The most characters of a status message."""
STATES = {
    TaskState.SUBMITTED: "working",
    TaskState.WORKING: "working",
    TaskState.INPUT_REQUIRED: "input_required",
    TaskState.AUTH_REQUIRED: "input_required",
    TaskState.COMPLETED: "completed",
    TaskState.CANCELED: "cancelled",
    TaskState.FAILED: "failed",
    TaskState.REJECTED: "failed",
}
"""The states of MCP for those of A2A."""
MISSING_CAPABILITY = -32021
DONE: dict[str, Any] = {"resultType": "complete"}
"""The answer to what brings no result."""


class TaskParams(mcp.RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of `tasks/update`."""

    input_responses: mcp.InputResponses


def created(agent: ExposedAgent, task: Task) -> dict[str, Any]:
    """The result of a call that has become a task."""
    seed = _seed(agent, task)
    if unpaid(task):
        seed["status"] = "working"  # `tasks/get` has it paid, or fails
    return {"resultType": "task", **seed}


async def get(exchange: Exchange, params: TaskParams) -> HandlerResult:
    """Answer `tasks/get`."""
    found = await _found(exchange, params.task_id)
    agent, task, refused = found.agent, found.task, ""
    if unpaid(task):
        try:
            task = await _paid(found)
        except FAILURES as error:
            refused = str(error)
    said = {"resultType": "complete", **_seed(agent, task)}
    if (question := question_of(task)) is not None:
        said["inputRequests"] = {question.id: _wire(question.request)}
    elif said["status"] == "completed":
        said["result"] = _wire(tool_result(agent, Result(task=task)))
    elif said["status"] == "failed":
        said["error"] = _failure(agent, task)
    if refused:
        said["error"]["message"] = clean(refused, WORDS)
    return said


async def _paid(found: FoundTask) -> Task:
    """The task after the wallet of the agent's client has paid it, if there is one."""
    async with found.agent.connect() as client:
        handle = client.task(found.task.id)
        try:
            async with asyncio.timeout(AT_ONCE):
                return (await handle.answer_pause()).task or found.task
        except TimeoutError:  # it is paid, and the agent works
            return await handle.get()


async def update(exchange: Exchange, params: UpdateParams) -> HandlerResult:
    """Answer `tasks/update`: send the answer to the question that the task asks now. Others are
    ignored. A question that was canceled counts as declined: clients would ask again at once."""
    found = await _found(exchange, params.task_id)
    question = question_of(found.task)
    response = params.input_responses.get(question.id) if question is not None else None
    if question is None or not isinstance(response, mcp.ElicitResult):
        return DONE
    key = digest("answer", found.task.id, question.id)
    async with found.agent.connect() as client:
        stream = await deliver(client, question, response, key)
        if stream is not None:
            async with stream:
                await anext(aiter(stream), None)  # the agent has it
    return DONE


async def cancel(exchange: Exchange, params: TaskParams) -> HandlerResult:
    """Answer `tasks/cancel`. A task that has ended stays as it is."""
    found = await _found(exchange, params.task_id)
    if not found.task.status.state.terminal:
        exchange.state.begin(_cancel(found))
    return DONE


async def _cancel(found: FoundTask) -> None:
    try:
        async with found.agent.connect() as client:
            await client.task(found.task.id).cancel()
    except (A2AError, OSError, TimeoutError):
        return  # the client sees in the task whether it continues, or how it has ended


async def _found(exchange: Exchange, id: str) -> FoundTask:
    if not exchange.modern:
        raise MCPError(mcp.METHOD_NOT_FOUND, "Method not found")
    if not exchange.takes_tasks:
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(MISSING_CAPABILITY, "The client must declare the extension", needed)
    found = await exchange.state.agents.find(id, exchange.caller)
    if found is None:
        raise MCPError(mcp.INVALID_PARAMS, f"There is no task {id[:128]!r}")
    return found


def _seed(agent: ExposedAgent, task: Task) -> dict[str, Any]:
    """The fields that all forms of a task have."""
    state = "failed" if unpaid(task) else STATES[task.status.state]
    updated = task.status.timestamp or _stamp(time.time())
    kept = agent.retention
    said: dict[str, Any] = {
        "taskId": agent.name_task(task.id),
        "status": state,
        "createdAt": min(_birth(task.id) or updated, updated),
        "lastUpdatedAt": updated,
        "ttlMs": None if kept is None else int(kept * 1000),
        "pollIntervalMs": POLL,
    }
    if words := clean(unpaid(task) or task.status.text, WORDS):
        said["statusMessage"] = words
    return said


def _failure(agent: ExposedAgent, task: Task) -> dict[str, Any]:
    """The error of a task that has failed: its words, and what it has brought."""
    found = tool_result(agent, Result(task=task))
    words = next((each.text for each in found.content if isinstance(each, mcp.TextContent)), "")
    state = task.status.state.name.lower()
    return {
        "code": mcp.INTERNAL_ERROR,
        "message": clean(words, WORDS),
        "data": {"state": state, "result": _wire(found)},
    }


def _wire(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = value.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found


def _birth(id: str) -> str:
    """When a task with a time-ordered id began; empty if the id does not say it."""
    try:
        found = uuid.UUID(id)
    except ValueError:
        return ""
    return _stamp((found.int >> 80) / 1000) if found.version == 7 else ""


def _stamp(seconds: float) -> str:
    when = datetime.fromtimestamp(seconds, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
