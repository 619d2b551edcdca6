"""What the inspector looks at: any agent, reached by the client under its rules for credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from dragoman import A2AError, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.client import PAUSE_EXTENSIONS, Client, TokenProvider, Transport, fetch_card
from dragoman.client.transport import origin
from dragoman.conformance.card import check
from dragoman.console.http import ConsoleError, Request, Response, respond
from dragoman.console.recorded_transport import CALL, HIDDEN, RecordedTransport
from dragoman.console.remote_login import RemoteLogin
from dragoman.console.session import Operator
from dragoman.console.shapes import AgentName, AgentView, CallOptions, FindingView, SchemeView
from dragoman.console.source import schemes_of

KEY = "agent"
"""The key of the agent in addresses of the console."""
FAILURES = (A2AError, OSError, ValueError, ModuleNotFoundError)
"""What a call may raise."""


MOST = 100
"""The most tasks in a list."""
UNREADABLE = "INVALID_AGENT_RESPONSE"
"""The reason in the client's errors about answers that it cannot read."""


class Connect(Protocol):
    """Makes a client of the agent, with what a person has typed in the page."""

    def __call__(
        self,
        transport: Transport,
        *,
        auth: Mapping[str, TokenProvider],
        headers: Mapping[str, str],
        extensions: Sequence[str],
    ) -> Client:
        """Return a client that is not open yet."""


class RemoteAgent:
    """An agent at a URL. `transport` makes what sends the requests, `connect` the client."""

    kind = "agent"
    reads = False

    def __init__(self, url: str, transport: Any, connect: Connect) -> None:
        self.url = url
        self._transport, self._connect = transport, connect
        self.login = RemoteLogin()
        self._headers: dict[str, str] = {}
        self._extensions: tuple[str, ...] = ()
        self._metadata: dict[str, Any] = {}
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._exits = AsyncExitStack()
        self.wire: RecordedTransport | None = None
        self._card: dict[str, Any] | None = None
        self.name = ""

    @property
    def title(self) -> str:
        """What the console is named after."""
        return self.name or self.url

    def names(self) -> Sequence[AgentName]:
        """The agent, and where the chat calls it."""
        return [AgentName(key=KEY, name=self.title, path=f"agents/{KEY}")]

    def needs_caller(self, operator: Operator) -> bool:
        """The agent itself says when it needs a log-in."""
        return False

    async def client(self) -> Client:
        """The open client."""
        async with self._opening:
            if self._client is None:
                old = self.wire
                self.wire = RecordedTransport(self._transport(), frozenset(self._headers))
                if old is not None:
                    self.wire.goes_on(old)
                made = self._connect(
                    self.wire,
                    auth=self.login.auth,
                    headers=self._headers,
                    extensions=(*self._extensions, *PAUSE_EXTENSIONS),
                )
                try:
                    self._client = await self._exits.enter_async_context(made)
                except BaseException:
                    await made.close()
                    raise
                self._know(msgspec.to_builtins(self._client.card))
            return self._client

    def _know(self, card: dict[str, Any]) -> None:
        self._card, self.name = card, card["name"]
        if self.wire is not None:
            keys = (each.field.lower() for each in schemes_of(card) if each.kind == "key")
            self.wire.fields = frozenset(keys)

    async def close(self) -> None:
        """End a log-in, and close the client."""
        await self.login.stop()
        await self._disconnect()

    async def _disconnect(self) -> None:
        async with self._opening:
            self._client = None
            await self._exits.aclose()

    async def agents(self, request: Request) -> Sequence[AgentView]:
        """The agent with its card. Without a log-in, the card is there if anybody may fetch it."""
        url, error = self.url, ""
        try:
            url = (await self.client()).interface.url
        except FAILURES as failed:
            error = str(failed) or type(failed).__name__
        try:
            transport = self._transport()
            try:
                found = await fetch_card(self.url, transport)
            finally:
                await transport.close()
            findings = check(found.document, url=found.url, headers=found.headers)
            if self._card is None:
                self._know(msgspec.to_builtins(found.card))
        except FAILURES as failed:
            findings, error = [], error or str(failed)
        return [
            AgentView(
                key=KEY,
                name=self.title,
                card=self._card,
                url=url,
                error=error,
                findings=[
                    FindingView(level=each.level, path=each.field, text=each.text)
                    for each in findings
                ],
            )
        ]

    async def schemes(self, request: Request) -> Sequence[SchemeView]:
        """The ways to log in, from its card."""
        if self._card is None:
            await self.agents(request)
        return [
            msgspec.structs.replace(
                each,
                used=each.name in self.login.auth,
                foreign=bool(each.server) and each.server != origin(self.url),
            )
            for each in schemes_of(self._card or {})
        ]

    async def ways(self, request: Request) -> Sequence[Sequence[str]]:
        """Each scheme alone: the credentials stay here until those of all are known."""
        return [[each.name] for each in await self.schemes(request)]

    # -- what a person types

    async def log_in(
        self, request: Request, given: Mapping[str, str], schemes: Sequence[SchemeView]
    ) -> None:
        """Use these credentials from now on, and see whether the agent accepts them. Raises
        ConsoleError."""
        self.login.take(request, given, schemes)
        await self.login.stop()
        await self._disconnect()
        if not given.get("forget"):
            self.login.begin(self._ask)

    async def _ask(self) -> None:
        """Make a call that changes nothing: for a task that does not exist."""
        await (await self.client()).task(str(uuid4())).get()

    @property
    def options(self) -> CallOptions:
        """What is sent with each call. The values of headers may be secrets: they are hidden."""
        return CallOptions(
            headers=dict.fromkeys(self._headers, HIDDEN),
            extensions=self._extensions,
            metadata=self._metadata,
        )

    async def change(
        self, headers: Mapping[str, str], extensions: Sequence[str], metadata: Mapping[str, Any]
    ) -> None:
        """Send these headers, extensions and metadata from now on. A header with a hidden value
        keeps the value that it has. Raises ConsoleError."""
        for name, text in headers.items():
            if not name.isascii() or not text.isprintable() or not name.isprintable():
                raise ConsoleError(f"headers: {name[:40]!r} is not valid")
        known = self._headers
        self._headers = {
            name.lower(): known.get(name.lower(), text) if text == HIDDEN else text
            for name, text in headers.items()
        }
        self._extensions, self._metadata = tuple(extensions), dict(metadata)
        unfinished = self.login.state.state in ("trying", "waiting")
        if unfinished:
            await self.login.stop()
        await self._disconnect()
        if unfinished:
            self.login.begin(self._ask)

    # -- calls of the chat

    async def call(
        self, request: Request, operator: Operator, key: str, rest: str, send: Any
    ) -> None:
        """Make a call of the chat: JSON-RPC of 1.0, whatever the agent speaks."""
        try:
            asked = msgspec.json.decode(await request.body())
            method, params, id = asked["method"], asked.get("params") or {}, asked.get("id")
        except (msgspec.DecodeError, KeyError, TypeError):
            raise ConsoleError("the body is not a call") from None
        if method in ("SendStreamingMessage", "SubscribeToTask"):
            stream = self._stream(method, params, id)
            response = Response(kind="text/event-stream", stream=stream)
        else:
            response = Response(await self._answer(method, params, id))
        await respond(request, send, response)

    async def _answer(self, method: str, params: Any, id: Any) -> dict[str, Any]:
        try:
            client = await self.client()
            CALL.set((method, params))
            found = await self._one(client, method, params)
        except FAILURES as error:
            return self._failure(method, error, id)
        return {"jsonrpc": "2.0", "id": id, "result": msgspec.to_builtins(found)}

    async def _one(self, client: Client, method: str, params: Any) -> Any:
        match method:
            case "SendMessage":
                sent = msgspec.convert(params["message"], Message)
                found = await client.send(sent, metadata=self._metadata)
                return {"task": found.task} if found.task else {"message": found.message}
            case "GetTask":
                return await client.task(params["id"]).get()
            case "CancelTask":
                return await client.task(params["id"]).cancel()
            case "ListTasks":
                tasks = [task async for task in _some(client, params)]
                return {"tasks": tasks, "nextPageToken": "", "totalSize": len(tasks)}
            case _:
                raise ValueError(f"the inspector has no call {method[:40]!r}")

    async def _stream(self, method: str, params: Any, id: Any) -> AsyncIterator[bytes]:
        try:
            client = await self.client()
            CALL.set((method, params))
            if method == "SubscribeToTask":
                stream = client.task(params["id"]).subscribe()
            else:
                sent = msgspec.convert(params["message"], Message)
                stream = client.stream(sent, metadata=self._metadata)
            async with stream:
                async for event in stream:
                    yield _event({"jsonrpc": "2.0", "id": id, "result": _result(event)})
        except FAILURES as error:
            yield _event(self._failure(method, error, id))

    def _failure(self, method: str, error: Exception, id: Any) -> dict[str, Any]:
        code = getattr(error, "rpc", -32603)
        text = str(error) or type(error).__name__
        if getattr(error, "reason", "") == UNREADABLE and self.wire is not None:
            self.wire.undecoded(method, text)
        return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}


async def _some(client: Client, params: Mapping[str, Any]) -> AsyncIterator[Task]:
    number = 0
    found = client.list(
        context=params.get("contextId", ""),
        history=params.get("historyLength"),
        artifacts=params.get("includeArtifacts"),
        page=MOST,
    )
    async for task in found:
        yield task
        number += 1
        if number >= MOST:
            return


def _result(event: Any) -> dict[str, Any]:
    match event:
        case Task():
            name = "task"
        case TaskStatusUpdateEvent():
            name = "statusUpdate"
        case TaskArtifactUpdateEvent():
            name = "artifactUpdate"
        case _:
            name = "message"
    return {name: msgspec.to_builtins(event)}


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
