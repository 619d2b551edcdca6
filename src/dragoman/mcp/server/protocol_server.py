"""A server of the SDK whose tools are the skills of agents."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp.types as mcp
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)

from dragoman import __version__
from dragoman.mcp.server import (
    prompts,
    resources,
    task_extension,
    task_tools,
    tool_call,
)
from dragoman.mcp.server.connected_clients import ConnectedClients
from dragoman.mcp.server.exchange import TASKS, Context, Exchange, ServerState
from dragoman.mcp.server.exposed_agents import FAILURES
from dragoman.mcp.server.tools import TASK_TOOLS, SkillTool, skill_tools

INSTRUCTIONS = (
    "The tools are skills of agents. A call may take long: its result then names a task, and says "
    "which tool to call next."
)
STATE_AGE = 7 * 86400.0
"""Seconds in which a question can be answered by calling the tool again."""


class AgentServer(Server[Any]):
    """An MCP server for the agents in `state`. `secret` signs what clients carry between their
    requests."""

    def __init__(self, state: ServerState, secret: bytes, *, name: str = "dragoman") -> None:
        super().__init__(
            name,
            version=__version__,
            instructions=INSTRUCTIONS,
            get_tool_input_schema=_no_headers,
            on_list_tools=self._list_tools,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )
        self.state = state
        self._bus = InMemorySubscriptionBus()
        self._listeners = ListenHandler(self._bus)
        self._clients = ConnectedClients()
        self.extensions = {TASKS: {}}
        self.add_request_handler("tools/call", mcp.CallToolRequestParams, self._call_tool)
        self.add_request_handler(
            "subscriptions/listen", mcp.SubscriptionsListenRequestParams, self._listeners
        )
        self.add_request_handler(
            "tasks/get", task_extension.TaskParams, self._on_task(task_extension.get)
        )
        self.add_request_handler(
            "tasks/update", task_extension.UpdateParams, self._on_task(task_extension.update)
        )
        self.add_request_handler(
            "tasks/cancel", task_extension.TaskParams, self._on_task(task_extension.cancel)
        )
        self.middleware.append(self._observe)
        security = RequestStateSecurity(
            keys=[hmac.digest(secret, b"request state", hashlib.sha256)],
            ttl=STATE_AGE,
            bind_principal=self._principal,
        )
        self.middleware.append(RequestStateBoundary(security, default_audience=name))

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """See `Server.create_initialization_options`. Changes of the tools are announced."""
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True, prompts_changed=True),
            experimental_capabilities,
            extensions,
        )

    async def announce(self) -> None:
        """Tell all clients that the tools have changed."""
        await self._bus.publish(ToolsListChanged())
        await self._bus.publish(PromptsListChanged())
        await self._clients.tools_changed()

    def end_subscriptions(self) -> None:
        """End the streams that clients have opened for changes."""
        self._listeners.close()

    # -- tools

    async def _tools(self, exchange: Exchange) -> dict[str, SkillTool]:
        try:
            agents = await self.state.agents.visible(exchange.caller)
        except FAILURES as error:
            raise MCPError(mcp.INTERNAL_ERROR, str(error)) from None
        return skill_tools(agents, modern=exchange.modern)

    async def _list_tools(
        self, context: Context, params: mcp.PaginatedRequestParams | None
    ) -> mcp.ListToolsResult:
        exchange = Exchange(context, self.state)
        found = [each.tool for each in (await self._tools(exchange)).values()]
        if not exchange.takes_tasks:
            found += task_tools.listed()
        return mcp.ListToolsResult(tools=found)

    async def _call_tool(
        self, context: Context, params: mcp.CallToolRequestParams
    ) -> HandlerResult:
        exchange = Exchange(context, self.state)
        arguments = params.arguments or {}
        found = (await self._tools(exchange)).get(params.name)
        if found is None and params.name in TASK_TOOLS:
            return await task_tools.call(exchange, params.name, arguments)
        if found is None:
            raise MCPError(mcp.INVALID_PARAMS, f"Unknown tool: {params.name[:128]!r}")
        if params.request_state is not None:
            return await tool_call.continue_call(
                exchange, found, params.request_state, params.input_responses
            )
        return await tool_call.call_skill(exchange, found, arguments)

    def _on_task(
        self, answer: Callable[[Exchange, Any], Awaitable[HandlerResult]]
    ) -> Callable[[Context, Any], Awaitable[HandlerResult]]:
        async def handle(context: Context, params: Any) -> HandlerResult:
            try:
                return await answer(Exchange(context, self.state), params)
            except FAILURES as error:
                raise MCPError(mcp.INTERNAL_ERROR, str(error)) from None

        return handle

    # -- prompts and resources

    async def _list_prompts(
        self, context: Context, params: mcp.PaginatedRequestParams | None
    ) -> mcp.ListPromptsResult:
        tools = await self._tools(Exchange(context, self.state))
        return mcp.ListPromptsResult(prompts=[each.prompt for each in prompts.examples(tools)])

    async def _get_prompt(
        self, context: Context, params: mcp.GetPromptRequestParams
    ) -> mcp.GetPromptResult:
        return prompts.get(await self._tools(Exchange(context, self.state)), params.name)

    async def _list_resources(
        self, context: Context, params: mcp.PaginatedRequestParams | None
    ) -> mcp.ListResourcesResult:
        found = await resources.listed(Exchange(context, self.state))
        return mcp.ListResourcesResult(resources=found)

    async def _list_templates(
        self, context: Context, params: mcp.PaginatedRequestParams | None
    ) -> mcp.ListResourceTemplatesResult:
        return mcp.ListResourceTemplatesResult(resource_templates=resources.templates())

    async def _read_resource(
        self, context: Context, params: mcp.ReadResourceRequestParams
    ) -> mcp.ReadResourceResult:
        return await resources.read(Exchange(context, self.state), params.uri)

    # -- every message

    async def _observe(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Remember clients that have connected, and cancel the task of a canceled call."""
        if ctx.method == "notifications/initialized":
            self._clients.add(ctx)
        if ctx.method == "notifications/cancelled":
            params: Mapping[str, Any] = ctx.params or {}
            session = Exchange(ctx, self.state).session
            flight = self.state.in_flight.get((session, params.get("requestId", "")))
            if session and flight is not None:
                flight.cancel()
        return await call_next(ctx)

    def _principal(self, context: Context) -> str:
        caller = Exchange(context, self.state).caller
        return f"{caller.tenant}\0{caller.qualified}"


def _no_headers(name: str) -> None:
    """No parameter of a tool is also a header, so there is nothing to compare."""
