"""MCP clients for the tests: the official SDK's, with a user who answers, and with tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import mcp.types as types
from mcp import Client
from mcp.client import ClientSession
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ConfigDict, Field

LEGACY, MODERN = "legacy", "2026-07-28"
MODES = (LEGACY, MODERN)


class User:
    """Answers questions in turn, and remembers them and all progress."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self._answers = list(answers)
        self.asked: list[types.ElicitRequestParams] = []
        self.progress: list[str] = []

    async def elicit(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer a question: with content, or "decline" or "cancel"."""
        self.asked.append(params)
        answer: Any = self._answers.pop(0)
        if isinstance(answer, str):
            return types.ElicitResult.model_validate({"action": answer})
        return types.ElicitResult(action="accept", content=answer or None)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Remember progress."""
        self.progress.append(message or "")


def client(server: Any, mode: str = MODERN, user: User | None = None, **more: Any) -> Client:
    """A client for the server at a URL."""
    if user is not None:
        more["elicitation_callback"] = user.elicit
    return Client(server, mode=mode, cache=None, **more)


def text(result: Any) -> str:
    """The text of a result."""
    return "\n".join(each.text for each in result.content if isinstance(each, types.TextContent))


def task_of(result: Any) -> str:
    """The id of the task of a result."""
    found: str = result.meta["dragoman/task"]["id"]
    return found


# ---- tasks -----------------------------------------------------------------------------------


class _Fields(types.Result):
    model_config = ConfigDict(populate_by_name=True, extra="allow")

    task_id: str = Field(alias="taskId")
    status: str
    created_at: str = Field(alias="createdAt")
    ttl_ms: int | None = Field(alias="ttlMs")
    status_message: str | None = Field(default=None, alias="statusMessage")


class Created(_Fields):
    """A call that has become a task."""

    result_type: Literal["task"] = Field(alias="resultType")


class Got(_Fields):
    """The answer to `tasks/get`."""

    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = Field(default=None, alias="inputRequests")


class _Params(types.RequestParams):
    model_config = ConfigDict(populate_by_name=True, extra="allow")

    task_id: str = Field(serialization_alias="taskId")


class _Request(types.Request[_Params, str]):
    name_param = "taskId"


async def ask(
    session: ClientSession, method: str, id: str, model: type[Any] = types.Result, **more: Any
) -> Any:
    """Send `tasks/get`, `tasks/update` or `tasks/cancel`."""
    request = _Request(method=method, params=_Params(task_id=id, **more))
    return await session.send_request(request, model)


async def get(session: ClientSession, id: str) -> Got:
    """Get a task."""
    found: Got = await ask(session, "tasks/get", id, Got)
    return found


async def until(session: ClientSession, id: str, reached: Callable[[Got], bool]) -> Got:
    """Poll a task until it is as it should be."""
    async with asyncio.timeout(20):
        while not reached(found := await get(session, id)):
            await asyncio.sleep(0.05)
    return found


class Tasks(ClientExtension):
    """Takes part in the extension for tasks; the calls are made with `allow_claimed`."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Any:
        """See `ClientExtension.claims`."""

        async def resolve(created: Created, context: Any) -> types.CallToolResult:
            raise AssertionError("the tests drive their tasks themselves")

        return [ResultClaim(result_type="task", model=Created, resolve=resolve)]


async def begin(found: Client, name: str, arguments: dict[str, Any]) -> Created:
    """Call a tool, and return the task that it has become."""
    result = await found.session.call_tool(name, arguments, allow_claimed=True)
    assert isinstance(result, Created)
    return result
