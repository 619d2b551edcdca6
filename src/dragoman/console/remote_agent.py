"""What the inspector looks at: any agent, reached by the client under its rules for credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from typing import Any, Protocol

import msgspec

from dragoman import A2AError, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.client import (
    BasicAuth,
    Client,
    LoginPrompt,
    OAuth,
    StaticToken,
    TokenProvider,
    Transport,
    fetch_card,
)
from dragoman.conformance.card import check
from dragoman.console.http import ConsoleError, Request, Response, respond
from dragoman.console.recorded_transport import RecordedTransport
from dragoman.console.session import Operator
from dragoman.console.shapes import AgentName, AgentView, FindingView, PromptView, SchemeView
from dragoman.console.source import schemes_of

KEY = "agent"
"""The key of the agent in addresses of the console."""


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
        self._auth: dict[str, TokenProvider] = {}
        self._headers: dict[str, str] = {}
        self._extensions: tuple[str, ...] = ()
        self._metadata: dict[str, Any] = {}
        self._client: Client | None = None
        self._opening = asyncio.Lock()
        self._exits = AsyncExitStack()
        self.wire: RecordedTransport | None = None
        self.prompt = PromptView()
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
                    self.wire.exchanges.extend(old.exchanges)
                made = self._connect(
                    self.wire,
                    auth=self._auth,
                    headers=self._headers,
                    extensions=self._extensions,
                )
                try:
                    self._client = await self._exits.enter_async_context(made)
                except BaseException:
                    await made.close()
                    raise
                self.name = self._client.card.name
            return self._client

    async def close(self) -> None:
        """Close the client."""
        self._client = None
        await self._exits.aclose()

    async def agents(self, request: Request) -> Sequence[AgentView]:
        """The agent with its card."""
        try:
            client = await self.client()
            transport = self._transport()
            try:
                found = await fetch_card(self.url, transport)
            finally:
                await transport.close()
            findings = check(found.document, url=found.url, headers=found.headers)
        except (A2AError, OSError, ValueError) as error:
            return [AgentView(key=KEY, name=self.title, card=None, url=self.url, error=str(error))]
        return [
            AgentView(
                key=KEY,
                name=self.title,
                card=msgspec.to_builtins(client.card),
                url=client.interface.url,
                findings=[
                    FindingView(level=each.level, path=each.field, text=each.text)
                    for each in findings
                ],
            )
        ]

    async def schemes(self, request: Request) -> Sequence[SchemeView]:
        """The ways to log in, from its card."""
        try:
            card = msgspec.to_builtins((await self.client()).card)
        except (A2AError, OSError, ValueError):
            return []
        found = schemes_of(card)
        return [
            msgspec.structs.replace(each, kind="oauth", title="OAuth")
            if each.kind == "token"
            else each
            for each in found
            if each.kind != "certificate"
        ]

    # -- what a person types

    async def log_in(self, given: Mapping[str, str], schemes: Sequence[SchemeView]) -> None:
        """Use these credentials from now on. Raises ConsoleError."""
        scheme = next((each for each in schemes if each.name == given.get("scheme")), None)
        secret = given.get("secret", "").strip()
        if scheme is None:
            raise ConsoleError("the card has no such scheme")
        if scheme.kind == "basic":
            self._auth[scheme.name] = BasicAuth(given.get("user", ""), secret)
        elif scheme.kind == "oauth" and given.get("client"):
            self._auth[scheme.name] = OAuth(given["client"], secret, tell=self._tell)
        elif secret:
            self._auth[scheme.name] = StaticToken(secret)
        else:
            raise ConsoleError("the credentials are not complete")
        await self.close()

    def _tell(self, prompt: LoginPrompt) -> None:
        self.prompt = PromptView(url=prompt.url, code=prompt.code)

    async def change(
        self, headers: Mapping[str, str], extensions: Sequence[str], metadata: Mapping[str, Any]
    ) -> None:
        """Send these headers, extensions and metadata from now on. Raises ConsoleError."""
        for name, text in headers.items():
            if not name.isascii() or not text.isprintable() or not name.isprintable():
                raise ConsoleError(f"headers: {name[:40]!r} is not valid")
        self._headers = {name.lower(): text for name, text in headers.items()}
        self._extensions, self._metadata = tuple(extensions), dict(metadata)
        await self.close()

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
        self.prompt = PromptView()
        if method in ("SendStreamingMessage", "SubscribeToTask"):
            stream = self._stream(method, params, id)
            response = Response(kind="text/event-stream", stream=stream)
        else:
            response = Response(await self._answer(method, params, id))
        await respond(request, send, response)

    async def _answer(self, method: str, params: Any, id: Any) -> dict[str, Any]:
        try:
            found = await self._one(await self.client(), method, params)
        except (A2AError, OSError, ValueError, msgspec.ValidationError) as error:
            return _failure(error, id)
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
                tasks = [task async for task in _some(client, params.get("contextId", ""))]
                return {"tasks": tasks, "nextPageToken": "", "totalSize": len(tasks)}
            case _:
                raise ValueError(f"the inspector has no call {method[:40]!r}")

    async def _stream(self, method: str, params: Any, id: Any) -> AsyncIterator[bytes]:
        try:
            client = await self.client()
            if method == "SubscribeToTask":
                stream = client.task(params["id"]).subscribe()
            else:
                sent = msgspec.convert(params["message"], Message)
                stream = client.stream(sent, metadata=self._metadata)
            async with stream:
                async for event in stream:
                    yield _event({"jsonrpc": "2.0", "id": id, "result": _result(event)})
        except (A2AError, OSError, ValueError, msgspec.ValidationError) as error:
            yield _event(_failure(error, id))


async def _some(client: Client, context: str) -> AsyncIterator[Task]:
    number = 0
    async for task in client.list(context=context):
        yield task
        number += 1
        if number >= 100:
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


def _failure(error: Exception, id: Any) -> dict[str, Any]:
    code = getattr(error, "rpc", -32603)
    text = str(error) or type(error).__name__
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def exchanges(wire: RecordedTransport | None, after: int) -> list[Any]:
    """What was sent and received after an exchange."""
    return [] if wire is None else list(islice((e for e in wire.exchanges if e.number > after), 50))
