"""An agent that lets in whom it knows, and a card that says how to be known."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from msgspec.structs import replace

from dragoman import Agent, App, Caller, Request, Turn
from dragoman.bindings.card import PATHS
from dragoman.client import Client, Unreachable
from dragoman.client.transport import TransportRequest as Sent
from dragoman.client.transport import TransportResponse
from dragoman.dialects import v1_0
from dragoman.model.errors import Unauthenticated
from dragoman.model.types import (
    AgentCard,
    AgentInterface,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from tests.harness.server import serving

Guard = Callable[[Request], Caller]
Needs = Mapping[str, Sequence[str]]


class Guarded:
    """The application, and what it has been asked."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.url = ""
        self.requests: list[Request] = []
        """All requests but those for the card."""
        self.card_requests: list[dict[str, str]] = []
        """The headers of the requests for the card."""
        self.cuts: list[int] = []
        """After how many pieces with events the next answers are broken off."""
        self.mounts: dict[str, Any] = {}
        """Other applications by their first path segment."""
        self.gate = asyncio.Event()
        """Counting goes on after the first number while it is set."""
        self.gate.set()
        self.agent = echo(self.gate)
        self.app = App(self.agent, identify=self._identify, drain_timeout=0.0, poll=0.02)
        self.drain = self.app.drain

    def demand(
        self,
        schemes: Mapping[str, SecurityScheme],
        *alternatives: Needs,
        url: str = "",
    ) -> AgentCard:
        """Say in the card what it takes to be let in, by default the first scheme; and where."""
        needs = alternatives or ({next(iter(schemes)): ()},)
        self.card = replace(
            self.agent.card(url or self.url),
            security_schemes=dict(schemes),
            security_requirements=tuple(
                SecurityRequirement(
                    schemes={name: StringList(list=tuple(scopes)) for name, scopes in need.items()}
                )
                for need in needs
            ),
        )
        return self.card

    def point(self, binding: str, url: str) -> None:
        """Have the card name one address only."""
        interface = AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")
        self.card = replace(self.card, supported_interfaces=(interface,))

    def headers(self, name: str) -> list[str | None]:
        """One header of all requests."""
        return [request.headers.get(name) for request in self.requests]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        _, first, *rest = scope["path"].split("/")
        if first in self.mounts:
            return await self.mounts[first]({**scope, "path": "/" + "/".join(rest)}, receive, send)
        if scope["path"] in PATHS:
            self.card_requests.append(
                {name.decode(): value.decode() for name, value in scope["headers"]}
            )
            body = v1_0.encode(self.card)
            head = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": head})
            return await send({"type": "http.response.body", "body": body})
        if self.cuts:
            return await self._broken_off(scope, receive, send, self.cuts.pop(0))
        return await self.app(scope, receive, send)

    async def _broken_off(self, scope: Any, receive: Any, send: Any, pieces: int) -> None:
        """Serve so many pieces, and drop the connection."""
        over = asyncio.Event()

        async def counting(message: Any) -> None:
            nonlocal pieces
            await send(message)
            pieces -= b"data:" in message.get("body", b"")
            if not pieces:
                over.set()
                await asyncio.Event().wait()

        serving = asyncio.create_task(self.app(scope, receive, counting))
        await over.wait()
        serving.cancel()
        await asyncio.wait([serving])

    def _identify(self, request: Request) -> Caller:
        self.requests.append(request)
        return self.guard(request)


def echo(gate: asyncio.Event | None = None) -> Agent:
    """An agent that says who has come, and what with; with `count n` it also counts."""
    agent = Agent("Doorman", description="Says who you are.")

    @agent.handler
    async def greet(turn: Turn) -> AsyncIterator[Any]:
        """Say it."""
        word, _, number = turn.text.partition(" ")
        if word == "count":
            for index in range(int(number)):
                yield turn.write(f"{index},")
                if gate is not None:
                    await gate.wait()
        for part in turn.message.parts:
            if part.raw is not None:
                yield turn.artifact(f"{len(part.raw)} bytes")
        scopes = " ".join(sorted(turn.caller.scopes))
        yield turn.artifact(f"{turn.caller.identity}:{scopes}", name="who")

    return agent


def has(**expected: Any) -> Guard:
    """A guard who looks for headers, by names with underscores, or the pairs of the `query`."""

    def guard(request: Request) -> Caller:
        found = {**request.headers, "query": parse_qsl(request.query)}
        for name, value in expected.items():
            if found.get(name.replace("_", "-")) != value:
                raise Unauthenticated(f"{name} is not as it should be")
        return Caller(identity="robot")

    return guard


@contextlib.asynccontextmanager
async def guarded(guard: Guard, **options: Any) -> AsyncIterator[Guarded]:
    """The agent, up and running until the block ends."""
    agent = Guarded(guard)
    async with serving(agent, **options) as url:
        agent.url = url.replace("http:", "https:") if "ssl_certfile" in options else url
        yield agent


@contextlib.asynccontextmanager
async def calling(agent: Guarded, auth: Any, **options: Any) -> AsyncIterator[Client]:
    """A client of the agent, for a while."""
    async with asyncio.timeout(20), Client.connect(agent.url, auth=auth, **options) as client:
        yield client


async def greeted(agent: Guarded, auth: Any, binding: str = "JSONRPC", **options: Any) -> str:
    """How the agent greets who shows this, in a send and in a stream alike."""
    async with calling(agent, auth, bindings=[binding], **options) as client:
        said = (await client.send("hello")).text
        assert await counted(client, 3) == f"0,1,2,\n{said}"
        return said


async def counted(client: Client, to: int) -> str:
    """What the agent says in a stream when it is to count."""
    async with client.stream(f"count {to}") as stream:
        async for _ in stream:
            pass
    return stream.result.text


def key(location: str, name: str) -> SecurityScheme:
    """An API key, as a card tells of it."""
    return SecurityScheme(
        api_key_security_scheme=APIKeySecurityScheme(location=location, name=name)
    )


def http(scheme: str) -> SecurityScheme:
    """A scheme of HTTP, as a card tells of it."""
    return SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme=scheme))


class Nowhere:
    """A transport that leads nowhere, and remembers what should have gone out."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    async def send(self, request: Sent) -> TransportResponse:
        self.sent.append(request)
        raise Unreachable("nowhere")

    async def close(self) -> None:
        pass


def at(url: str, scheme: SecurityScheme) -> AgentCard:
    """The card of an agent at an address where nobody has to be."""
    return Guarded(has()).demand({"it": scheme}, url=url)
