"""MCP clients for the tests: the official SDK's, with a user who answers, and with tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal

import httpx2
import mcp.types as types
from mcp import Client, StdioServerParameters
from mcp.client import ClientSession
from mcp.client.extension import ClientExtension, ResultClaim
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import ConfigDict, Field

OLDER, OLD, NEW = "2025-06-18", "2025-11-25", "2026-07-28"
VERSIONS = (OLDER, OLD, NEW)


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


@asynccontextmanager
async def client(
    server: str | StdioServerParameters,
    version: str = NEW,
    user: User | None = None,
    *,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[Any]:
    """A client for the server at a URL, or for a command, that speaks this version: a `Client`, or
    for versions with a handshake a `ClientSession`, which has the same methods."""
    if user is not None:
        more["elicitation_callback"] = user.elicit
    async with AsyncExitStack() as stack:
        if isinstance(server, str):
            sockets = await stack.enter_async_context(
                httpx2.AsyncClient(headers=headers, timeout=30)
            )
            transport = streamable_http_client(server, http_client=sockets)
        else:
            transport = stdio_client(server)
        if version == NEW:
            yield await stack.enter_async_context(Client(transport, mode=NEW, cache=None, **more))
            return
        read, write, *_ = await stack.enter_async_context(transport)
        session = await stack.enter_async_context(ClientSession(read, write, **more))
        await _shake_hands(session, version, asks=user is not None)
        yield session


async def _shake_hands(session: ClientSession, version: str, *, asks: bool) -> None:
    pages = types.UrlElicitationCapability() if version != OLDER else None
    forms = types.FormElicitationCapability() if pages else None
    asking = types.ElicitationCapability(form=forms, url=pages) if asks else None
    able = types.ClientCapabilities(elicitation=asking)
    asked = types.InitializeRequestParams(
        protocol_version=version,
        capabilities=able,
        client_info=types.Implementation(name="test", version="1"),
    )
    found = await session.send_request(
        types.InitializeRequest(params=asked), types.InitializeResult
    )
    assert found.protocol_version == version
    session.adopt(found)
    await session.send_notification(types.InitializedNotification())


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
