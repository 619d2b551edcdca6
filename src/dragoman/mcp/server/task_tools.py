"""The tools `get_task`, `answer_task` and `cancel_task`, for clients that do not take part in MCP's
extension for tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp.types as mcp
from mcp.server.context import HandlerResult

from dragoman import Part
from dragoman.client import Client, Result, Stream
from dragoman.mcp.server import results
from dragoman.mcp.server.exchange import AT_ONCE, Exchange
from dragoman.mcp.server.exposed_agents import FAILURES, FoundTask
from dragoman.mcp.server.questions import decide, question_of, send_to_task, unpaid
from dragoman.mcp.server.tool_call import Call, failure

TASK_ID = {"type": "string", "description": "The id of the task, from the result of a tool."}
WAIT = {
    "type": "number",
    "minimum": 0,
    "description": "Seconds to wait for the result, if the task still runs.",
}


def listed() -> list[mcp.Tool]:
    """The tools."""
    return [
        _tool(
            "get_task",
            "Get the state of a task that a tool has begun, and its result if it has ended.",
            {"wait": WAIT},
            mcp.ToolAnnotations(title="Get a task", read_only_hint=True),
        ),
        _tool(
            "answer_task",
            "Answer what a task asks. Give the answer in `message`, or in `data` if it has the "
            "fields of a schema. If the task asks for the approval of an operation, ask the user "
            "and give `approve`.",
            {
                "message": {"type": "string", "description": "The answer in words."},
                "data": {"type": "object", "description": "The answer as data."},
                "approve": {"type": "boolean", "description": "What the user has decided."},
            },
            mcp.ToolAnnotations(title="Answer a task", destructive_hint=True),
        ),
        _tool(
            "cancel_task",
            "Cancel a task that a tool has begun.",
            {},
            mcp.ToolAnnotations(title="Cancel a task", destructive_hint=True, idempotent_hint=True),
        ),
    ]


def _tool(
    name: str, description: str, fields: dict[str, Any], annotations: mcp.ToolAnnotations
) -> mcp.Tool:
    schema = {
        "type": "object",
        "properties": {"task_id": TASK_ID, **fields},
        "required": ["task_id"],
        "additionalProperties": False,
    }
    return mcp.Tool(
        name=name,
        title=annotations.title,
        description=description,
        input_schema=schema,
        annotations=annotations,
    )


async def call(exchange: Exchange, name: str, arguments: Mapping[str, Any]) -> HandlerResult:
    """Call one of the tools."""
    id = arguments.get("task_id")
    if not isinstance(id, str) or not id:
        return failure(f"{name}: `task_id` must be the id of a task")
    try:
        found = await exchange.state.agents.find(id, exchange.caller)
        if found is None:
            return failure(f"{name}: there is no task {id[:128]!r}")
        return await _TOOLS[name](exchange, found, arguments)
    except FAILURES as error:
        return failure(f"{name}: {error}")


async def _get(exchange: Exchange, found: FoundTask, arguments: Mapping[str, Any]) -> HandlerResult:
    wait = arguments.get("wait")
    seconds = float(wait) if isinstance(wait, int | float) and wait > 0 else 0.0
    state = found.task.status.state
    waits = bool(unpaid(found.task))  # a wallet pays it, and the call follows what comes then
    if not waits and (state.settled or not seconds):
        return _shown(found)

    async def begin(client: Client) -> None:
        return None

    limit = min(seconds or AT_ONCE, exchange.state.patience)
    call = Call(exchange, found.agent, task=found.task.id, limit=limit, cancels=False)
    return await call.run(begin)


async def _answer(
    exchange: Exchange, found: FoundTask, arguments: Mapping[str, Any]
) -> HandlerResult:
    question = question_of(found.task)
    if question is None:
        return _shown(found)
    approve, words, data = (arguments.get(name) for name in ("approve", "message", "data"))
    key = exchange.key("answer_task", {**arguments, "question": question.id})
    if question.approval:
        if not isinstance(approve, bool):
            return failure("answer_task: the task asks for an approval: give `approve`")
        decision = approve

        async def begin(client: Client) -> Stream | None:
            await decide(client, question, key, decision)
            return None

    else:
        parts = [Part(text=words)] if isinstance(words, str) and words else []
        parts += [Part(data=data)] if isinstance(data, dict) else []
        if not parts:
            return failure("answer_task: give the answer in `message` or in `data`")

        async def begin(client: Client) -> Stream | None:
            return await send_to_task(client, found.task.id, parts, key)

    call = Call(exchange, found.agent, task=found.task.id)
    return await call.run(begin, before=question.id)


async def _cancel(
    exchange: Exchange, found: FoundTask, arguments: Mapping[str, Any]
) -> HandlerResult:
    async with found.agent.connect() as client:
        task = await client.task(found.task.id).cancel()
    return results.tool_result(found.agent, Result(task=task)).model_copy(
        update={"is_error": False}
    )


def _shown(found: FoundTask) -> mcp.CallToolResult:
    result = Result(task=found.task)
    if found.task.status.state.terminal or unpaid(found.task):
        return results.tool_result(found.agent, result)
    question = question_of(found.task)
    if question is not None:
        return results.asks(found.agent, question)
    return results.still_working(found.agent, result)


Handler = Callable[[Exchange, FoundTask, Mapping[str, Any]], Awaitable[HandlerResult]]
_TOOLS: dict[str, Handler] = {"get_task": _get, "answer_task": _answer, "cancel_task": _cancel}
