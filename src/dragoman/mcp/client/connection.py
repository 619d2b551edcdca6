"""One connection to an MCP server, over its standard input and output or over HTTP.

Before protocol 2026-07-28 a server asks the client by requests that do not say for which call they
are. So there one call runs at a time; while it waits for an answer, another one may run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Protocol, TypeAlias

import mcp.types as mcp
from mcp import Client, MCPError
from mcp.client import ClientRequestContext, IncomingMessage, advertise
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from dragoman import __version__
from dragoman.mcp.client.mcp_servers import MCPServer, StdioServer
from dragoman.mcp.client.server_over_http import server_over_http
from dragoman.mcp.client.server_process import server_process
from dragoman.mcp.client.server_tasks import (
    TASKS,
    CancelTask,
    GetTask,
    TaskBegun,
    TaskParams,
    TaskState,
    UpdateParams,
    UpdateTask,
)
from dragoman.prompt_safety import clean

logger = logging.getLogger("dragoman")

PAGES = 100
"""The most pages of a list of tools."""
FRESH = 5.0
"""Seconds for which a list of tools counts as current."""
Result: TypeAlias = mcp.CallToolResult | mcp.InputRequiredResult | TaskBegun
"""What a call brings."""
CALL_RESULT: TypeAdapter[Result] = TypeAdapter(Result)
LISTEN_AGAIN = 30.0
"""Seconds after which a server whose stream of changes has ended is listened to again."""
CLOSED = "Connection closed"
"""What the SDK says if it does not know how a request ended."""
AUTO, LEGACY = "auto", "legacy"

Sample = Callable[[mcp.CreateMessageRequestParams], Awaitable[mcp.CreateMessageResult]]
"""Answers what a server asks of a model."""


class Tell(Protocol):
    """Takes a report of progress."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Take it."""


class ServerUnavailable(Exception):
    """The server cannot be reached, or its connection has ended. The text may be shown to
    clients."""

    started = True
    """Whether the process started, or the server was reached."""


class Asked(Protocol):
    """A running call, as far as the connection knows it."""

    async def ask(self, params: mcp.ElicitRequestParams) -> mcp.ElicitResult | mcp.ErrorData:
        """Ask the client."""


class Connection:
    """A connection. One task owns it from its beginning to its end."""

    def __init__(
        self,
        server: MCPServer,
        *,
        key: str = "",
        tasks: bool = False,
        sample: Sample | None = None,
        listed: Callable[[list[mcp.Tool]], None] | None = None,
        changed: Callable[[Connection], None] | None = None,
    ) -> None:
        self.server = server
        self.key = key
        """The caller that it is for; empty if it is for all callers."""
        self.tasks = tasks
        """Whether it declares the extension for tasks."""
        self.calls = 0
        """How many calls run in it, or wait in it for an answer."""
        self.idle_since = self.opened_at = time.monotonic()
        self.ended = asyncio.Event()
        """Set when it cannot be used any more."""
        self._sample = sample
        self._told_list, self._told_change = listed, changed
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._tools: list[mcp.Tool] = []
        self._listed_at = 0.0
        self._list_lock = asyncio.Lock()
        self._one_at_a_time = asyncio.Lock()
        self._running: Asked | None = None
        self._waiting: list[Asked] = []

    # -- from start to end

    async def open(self, mode: str, timeout: float) -> None:
        """Connect. Raises ServerUnavailable."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(mode, ready))
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(ready)
        except TimeoutError:
            await self.close()
            raise ServerUnavailable(
                f"The MCP server {self.server.name} did not respond within {timeout:g} seconds"
            ) from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection and, if there is one, the process."""
        self.ended.set()
        if self._owner is not None:
            await asyncio.wait((self._owner,))

    async def _own(self, mode: str, ready: asyncio.Future[None]) -> None:
        try:
            client = Client(
                self._transport(),
                mode=mode,
                client_info=mcp.Implementation(name="dragoman", version=__version__),
                elicitation_callback=self._elicited,
                sampling_callback=self._sampled if self._sample is not None else None,
                message_handler=self._heard,
                extensions=[advertise(TASKS)] if self.tasks else None,
                cache=None,
            )
            async with client:
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                listening = asyncio.create_task(self._listen(client))
                try:
                    await self.ended.wait()
                finally:
                    listening.cancel()
                    await asyncio.wait((listening,))
        except Exception as error:  # noqa: BLE001 - whatever a server or its protocol raises
            if not ready.done():
                why = reason(error)
                logger.warning("%s: cannot connect: %s", self.server.name, why)
                found = ServerUnavailable(f"The MCP server {self.server.name} is not available")
                found.started = not isinstance(error, OSError)
                ready.set_exception(found)
                ready.exception()  # retrieved also if nobody waits any more
            elif not self.ended.is_set():
                logger.warning("%s: the connection has ended: %s", self.server.name, reason(error))
        finally:
            self._client = None
            self.ended.set()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        inner: AbstractAsyncContextManager[Any] = (
            server_process(self.server, ended=self.ended.set)
            if isinstance(self.server, StdioServer)
            else server_over_http(self.server)
        )
        async with inner as streams:
            yield streams

    # -- what it knows of the server

    @property
    def client(self) -> Client:
        """The client of the SDK. Raises ServerUnavailable if the connection has ended."""
        if self._client is None or self.ended.is_set():
            raise ServerUnavailable(f"The MCP server {self.server.name} has ended")
        return self._client

    @property
    def version(self) -> str:
        """The version of the protocol."""
        return self.client.protocol_version

    @property
    def asks_back(self) -> bool:
        """Whether the server asks by requests of its own, as before 2026-07-28."""
        return self.version in HANDSHAKE_PROTOCOL_VERSIONS

    async def tools(self, timeout: float) -> list[mcp.Tool]:
        """The tools of the server, as they were a few seconds ago at most. Raises
        ServerUnavailable."""
        async with self._list_lock:
            if time.monotonic() - self._listed_at > FRESH:
                try:
                    async with asyncio.timeout(timeout):
                        self._tools = await self._list()
                except (MCPError, ValidationError, TimeoutError) as error:
                    logger.warning("%s: cannot list its tools: %s", self.server.name, reason(error))
                    raise ServerUnavailable(
                        f"The MCP server {self.server.name} does not list its tools"
                    ) from error
                self._listed_at = time.monotonic()
                if self._told_list is not None:
                    self._told_list(self._tools)
        return self._tools

    async def _list(self) -> list[mcp.Tool]:
        found: list[mcp.Tool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self.client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def responds(self, timeout: float) -> bool:
        """Whether the server answers a small request."""
        try:
            async with asyncio.timeout(timeout):
                await self.client.list_tools()
        except (MCPError, ValidationError, TimeoutError, ServerUnavailable):
            return False
        return True

    def lost(self, error: MCPError) -> bool:
        """Whether a request failed because the connection has ended."""
        return self.ended.is_set() or error.error.message == CLOSED

    # -- calls

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        progress: Tell,
        responses: mcp.InputResponses | None = None,
        state: str | None = None,
    ) -> Result:
        """Call a tool. Raises MCPError, and ValidationError if the result cannot be read."""
        # not `call_tool`, which checks the result against any pattern that the server sends
        return await self.client.session.send_request(
            mcp.CallToolRequest(
                params=mcp.CallToolRequestParams(
                    name=name,
                    arguments=dict(arguments),
                    input_responses=responses,
                    request_state=state,
                )
            ),
            CALL_RESULT,
            progress_callback=progress,
        )

    async def read_resource(self, uri: str) -> mcp.ReadResourceResult:
        """Read a resource. Raises MCPError."""
        return await self.client.session.read_resource(uri)

    async def task(self, id: str) -> TaskState:
        """Ask how a task of the server is. Raises MCPError."""
        asked = GetTask(params=TaskParams(task_id=id))
        return await self.client.session.send_request(asked, TaskState)

    async def update_task(self, id: str, responses: mcp.InputResponses) -> None:
        """Answer what a task asks. Raises MCPError."""
        params = UpdateParams(task_id=id, input_responses=responses)
        await self.client.session.send_request(UpdateTask(params=params), mcp.EmptyResult)

    async def cancel_task(self, id: str) -> None:
        """Cancel a task. Raises MCPError."""
        asked = CancelTask(params=TaskParams(task_id=id))
        await self.client.session.send_request(asked, mcp.EmptyResult)

    async def begin(self, call: Asked) -> None:
        """Wait until a call may run."""
        if self.asks_back:
            await self._one_at_a_time.acquire()
            self._running = call
            with suppress(ValueError):
                self._waiting.remove(call)

    def wait(self, call: Asked) -> None:
        """The call waits for an answer: others may run meanwhile."""
        self.end(call)
        self._waiting.append(call)

    def end(self, call: Asked) -> None:
        """The call has ended."""
        if self._running is call:
            self._running = None
            self._one_at_a_time.release()
        with suppress(ValueError):
            self._waiting.remove(call)

    # -- what the server sends by itself

    async def _elicited(
        self, context: ClientRequestContext, params: mcp.ElicitRequestParams
    ) -> mcp.ElicitResult | mcp.ErrorData:
        asking = [self._running] if self._running is not None else self._waiting
        if len(asking) != 1:
            return mcp.ErrorData(
                code=mcp.INVALID_REQUEST, message="It is not known which call this question is for"
            )
        return await asking[0].ask(params)

    async def _sampled(
        self, context: ClientRequestContext, params: mcp.CreateMessageRequestParams
    ) -> mcp.CreateMessageResult | mcp.ErrorData:
        assert self._sample is not None
        try:
            return await self._sample(params)
        except ValueError as error:
            return mcp.ErrorData(code=mcp.INVALID_REQUEST, message=str(error))

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp.ToolListChangedNotification) and self.asks_back:
            self._change()

    async def _listen(self, client: Client) -> None:
        """Since 2026-07-28, a server says that its tools have changed only to clients that
        listen."""
        tools = client.server_capabilities.tools
        if self.asks_back or tools is None or not tools.list_changed:
            return
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._change()
            except ListenNotSupportedError:
                return
            except (MCPError, SubscriptionLost, TimeoutError) as error:
                logger.debug("%s: cannot listen: %s", self.server.name, reason(error))
            await asyncio.sleep(LISTEN_AGAIN)

    def _change(self) -> None:
        self._listed_at = 0.0
        if self._told_change is not None:
            self._told_change(self)


def reason(error: BaseException) -> str:
    """Why something failed, on one line, for the log."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    text = str(error) or type(error).__name__
    return " ".join(clean(f"{text}", 500).split())
