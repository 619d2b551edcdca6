"""An agent whose skills are the tools of MCP servers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

import mcp.types as mcp
from msgspec import Struct

from dragoman import Agent, AgentError, App, JsonSchema, Message, Part, Turn, UserError
from dragoman.mcp.client.approved_tools import ApprovedTools, write
from dragoman.mcp.client.call_step import CallSettings
from dragoman.mcp.client.connection import Connection, ServerUnavailable
from dragoman.mcp.client.connection_pool import ConnectionPool
from dragoman.mcp.client.held_calls import HeldCalls
from dragoman.mcp.client.mcp_servers import MCPServer, parse_server
from dragoman.mcp.client.sampling import sample
from dragoman.mcp.client.tool_call import ToolCall, cancel
from dragoman.mcp.client.tool_definitions import ToolDefinition, definitions, skill_ids
from dragoman.mcp.client.tool_questions import NotUnderstood, Question, check, data_of, reply
from dragoman.orchestrator import Model

logger = logging.getLogger("dragoman")

CONNECTIONS = 8
TIMEOUT = 300.0
CONNECT = 60.0
TIDY = 30.0
"""Seconds between two looks for connections that are idle."""
SHOWN = 50
"""The most skills that a question lists."""
TRIES = 5
"""How often the client is asked which skill it means."""


class AgentOptions(TypedDict, total=False):
    """Options of `agent`."""

    name: str
    """The agent's name; by default, those of its servers."""
    description: str
    version: str
    key: str
    """The agent's key in the store; by default, made of its name."""
    per_caller: bool
    """Each authenticated caller gets connections, and so processes, of its own: for servers that
    keep state. Anonymous callers share one. By default, all callers share all connections."""
    connections: int
    """The most connections, and so processes, to each server at the same time; 8 by default. If
    there are no more, the one that was idle for longest ends."""
    timeout: float
    """Seconds without a result, a question or a report of progress, after which a call is
    canceled; 300 by default."""
    connect_timeout: float
    """Seconds for a connection and for the list of tools; 60 by default."""
    approved: str | Path
    """A file with the approved definitions of the tools. If there is none, it is written. Tools
    that their server describes in another way are refused."""
    model: Model
    """Answers what tools ask of a model (sampling). By default, that is refused."""
    trusted: bool
    """Descriptions of tools stand on the card without the delimiters that mark foreign text."""
    allow: Sequence[str]
    """Hosts that may be in the results of tools although they are not public; see
    `egress_allow`."""


def agent(*servers: str | MCPServer, **options: Unpack[AgentOptions]) -> Agent:
    """Make an agent of one MCP server, or of several. A server is a command or a URL, or a
    `StdioServer` or `HTTPServer`. Each tool is a skill with its schemas; it is called by data,
    without a model. Raises ValueError if something cannot be used."""
    return MCPAgent([parse_server(server) for server in servers], options)


async def approve(
    path: str | Path, *servers: str | MCPServer, **options: Unpack[AgentOptions]
) -> None:
    """Approve the tools of these servers as they are now: write their definitions to the file that
    `agent(approved=…)` reads."""
    found = MCPAgent([parse_server(server) for server in servers], options)
    try:
        await asyncio.gather(*(found._list(name) for name in found._pools))
        write(Path(path), {name: found._approved.of(name) for name in found._pools})
    finally:
        await found._close()


class MCPAgent(Agent):
    """See `agent`."""

    def __init__(self, servers: Sequence[MCPServer], options: AgentOptions) -> None:
        if not servers:
            raise AgentError("mcp.agent: give at least one server")
        names = [server.name for server in servers]
        if len(set(names)) < len(names):
            raise AgentError(f"mcp.agent: two servers have one name: {', '.join(names)}")
        most, timeout = options.get("connections", CONNECTIONS), options.get("timeout", TIMEOUT)
        if most < 1 or timeout <= 0:
            raise AgentError("mcp.agent: connections and timeout must be greater than 0")
        name = options.get("name") or " and ".join(names)
        super().__init__(
            name,
            description=options.get("description") or f"The tools of {' and '.join(names)} (MCP).",
            version=options.get("version", "1.0.0"),
            key=options.get("key") or _slug(name),
            input_modes=("text/plain", "application/json"),
            output_modes=("text/plain", "application/json", "*/*"),
        )
        model = options.get("model")
        self._trusted = options.get("trusted", False)
        path = options.get("approved")
        self._approved = ApprovedTools(None if path is None else Path(path))
        connect_timeout = options.get("connect_timeout", CONNECT)
        self._settings = CallSettings(
            timeout=timeout,
            connect_timeout=connect_timeout,
            held=HeldCalls(),
            sample=None if model is None else partial(sample, model),
            allow=tuple(options.get("allow", ())),
            refusal=self._approved.refusal,
        )
        self._pools = {
            server.name: ConnectionPool(
                server,
                partial(self._connection, server),
                most=most,
                per_caller=options.get("per_caller", False),
                connect_timeout=connect_timeout,
            )
            for server in servers
        }
        self._tools: dict[str, ToolDefinition] = {}
        """The tools by the ids of their skills."""
        self._changes: set[asyncio.Task[None]] = set()
        self._offer()
        self.handler(durable=True)(_Handler("unnamed", self._unnamed, self._cancel))

    @asynccontextmanager
    async def opened(self, app: App) -> AsyncIterator[Any]:
        """See `Agent.opened`: connects to the servers."""
        try:
            await asyncio.gather(*(self._first_list(name) for name in self._pools))
            async with super().opened(app) as state:
                tidying = asyncio.create_task(self._tidy())
                try:
                    yield state
                finally:
                    tidying.cancel()
        finally:
            await self._close()

    # -- the tools, and the card

    def _connection(self, server: MCPServer, key: str, tasks: bool) -> Connection:
        return Connection(
            server,
            key=key,
            tasks=tasks,
            sample=self._settings.sample,
            listed=partial(self._listed, server.name),
            changed=self._list_later,
        )

    async def _first_list(self, name: str) -> None:
        try:
            await self._list(name)
        except ServerUnavailable as error:
            if not self._approved.known(name):
                raise AgentError(f"{self.name}: {error}") from None
            logger.warning("%s: %s; its approved tools are offered", self.name, error)

    async def _list(self, name: str) -> None:
        """Read the list of the tools of a server."""
        pool = self._pools[name]
        connection = await pool.take("")
        try:
            await connection.tools(self._settings.connect_timeout)
        finally:
            await pool.give_back(connection)

    def _list_later(self, connection: Connection) -> None:
        """A server says that its tools have changed."""
        task = asyncio.create_task(self._list_again(connection))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    async def _list_again(self, connection: Connection) -> None:
        try:
            await connection.tools(self._settings.connect_timeout)
        except ServerUnavailable as error:
            logger.warning("%s: %s", self.name, error)

    def _listed(self, server: str, tools: Sequence[mcp.Tool]) -> None:
        self._approved.compare(server, definitions(server, tools, trusted=self._trusted))
        self._offer()

    def _offer(self) -> None:
        """Bring the skills in line with the approved tools."""
        approved: Iterable[ToolDefinition] = (
            tool for name in self._pools for tool in self._approved.of(name).values()
        )
        found = skill_ids(approved, several=len(self._pools) > 1)
        for id, tool in self._tools.items():
            if found.get(id) != tool:
                self.remove_skill(id)
        for id, tool in found.items():
            if self._tools.get(id) != tool:
                self._add(id, tool)
        self._tools = found

    def _add(self, id: str, tool: ToolDefinition) -> None:
        async def run(turn: Turn, arguments: dict[str, Any]) -> None:
            await self._call(turn, tool, arguments)

        run.__annotations__ = {
            "turn": Turn,
            "arguments": Annotated[dict[str, Any], JsonSchema(tool.input)],
        }
        if tool.output is not None:
            run.__annotations__["return"] = Annotated[dict[str, Any], JsonSchema(tool.output)]
        hints = ("read_only", "destructive", "idempotent")
        self.skill(
            id=id,
            name=tool.title,
            description=tool.description,
            tags=("mcp", *(hint.replace("_", "-") for hint in hints if getattr(tool, hint))),
            durable=True,
            ask=True,
        )(_Handler(re.sub(r"\W", "_", id), run, self._cancel))

    # -- calls

    async def _call(self, turn: Turn, tool: ToolDefinition, arguments: Mapping[str, Any]) -> None:
        await ToolCall(turn, tool, arguments, self._pools[tool.server], self._settings).run()

    async def _cancel(self, turn: Turn) -> None:
        self._settings.held.drop(turn.idempotency_key)
        await cancel(turn, self._pools)

    async def _unnamed(self, turn: Turn) -> None:
        """A message that names no skill."""
        chosen = _Chosen("")
        said: Message = turn.message
        for _ in range(TRIES):
            # a step, because the tools may have changed when the answer comes
            chosen = await turn.step("choose", _chosen, said, dict(self._tools), returns=_Chosen)
            if chosen.skill:
                break
            said = await turn.ask_for(_which(self._tools))
        tool = self._tools.get(chosen.skill)
        if tool is None:
            raise UserError("It is not clear which skill is meant")
        arguments = chosen.arguments
        for _ in range(TRIES):
            why = await turn.step("check", _problem, tool.input, arguments, returns=str)
            if not why:
                break
            asked = Question(text=f"{tool.name} needs other data: {why}", schema=tool.input)
            said = await turn.ask_for(list(asked.parts()))
            arguments = {**arguments, **_fields(asked, said)}
        await self._call(turn, tool, arguments)

    # -- the end

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY)
            for pool in self._pools.values():
                await pool.end_idle()

    async def _close(self) -> None:
        for task in self._changes:
            task.cancel()
        await self._settings.held.close()
        await asyncio.gather(*(pool.close() for pool in self._pools.values()))


class _Handler:
    """Runs calls, and ends a call when its client cancels it."""

    def __init__(
        self,
        name: str,
        run: Callable[..., Awaitable[None]],
        cancel: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self.__name__ = name
        self.run, self.cancel = run, cancel


class _Chosen(Struct, frozen=True):
    """The skill that a message means, and its arguments."""

    skill: str
    arguments: dict[str, Any] = {}


def _chosen(said: Message, tools: Mapping[str, ToolDefinition]) -> _Chosen:
    """What a message means: the skill that it names, or the only one that there is."""
    data = data_of(said)
    data = data if isinstance(data, dict) else None
    named = (said.metadata or {}).get("skill")
    if data is not None and set(data) <= {"skill", "arguments"} and data.get("skill") in tools:
        given = data.get("arguments")
        return _Chosen(data["skill"], given if isinstance(given, dict) else {})
    text = said.text.strip()
    for id in (named, text):
        if id in tools:
            return _Chosen(str(id), data or {})
    if len(tools) != 1:
        return _Chosen("")
    ((id, tool),) = tools.items()
    if data is not None:
        return _Chosen(id, data)
    if text and tool.text_parameter:
        return _Chosen(id, {tool.text_parameter: text})
    return _Chosen(id)


def _problem(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with the arguments of a tool; empty if nothing is."""
    try:
        check(schema, arguments)
    except NotUnderstood as error:
        return str(error)
    return ""


def _which(tools: Mapping[str, ToolDefinition]) -> list[Part]:
    """The question which skill to use."""
    names = list(tools)[:SHOWN]
    lines = ["Which skill? Answer with its id, or with data. The skills are:"]
    lines += [f"{id}: {tools[id].title}" for id in names]
    if len(tools) > SHOWN:
        lines.append(f"and {len(tools) - SHOWN} more, see the card")
    fields = {"skill": {"enum": list(tools)}, "arguments": {"type": "object"}}
    schema = {"type": "object", "properties": fields, "required": ["skill"]}
    return [Part(text="\n".join(lines)), Part(data=schema)]


def _fields(asked: Question, said: Message) -> dict[str, Any]:
    """The arguments that an answer gives; none if it is not understood."""
    loose = Question(text=asked.text, schema={**(asked.schema or {}), "required": []})
    try:
        return reply(loose, said).content or {}
    except NotUnderstood:
        return {}


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "mcp"
