"""Engines that stand in for a network, and do what a test wants of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.client import Transport, TransportRequest, TransportResponse, Unreachable
from dragoman.client.transport import origin
from dragoman.model.types import AgentCapabilities, AgentCard, AgentInterface

BINDINGS = ["JSONRPC", "HTTP+JSON"]
STREAM = {"content-type": "text/event-stream"}


class Answer:
    """A response that was written beforehand."""

    def __init__(
        self,
        body: bytes | Iterable[bytes] = b"",
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers or {"content-type": "application/json"}
        self.closed = False
        self._body = [body] if isinstance(body, bytes) else body

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body."""
        for piece in self._body:
            yield piece

    async def close(self) -> None:
        """Note it."""
        self.closed = True


class Script:
    """Asks a function for each answer, and remembers what was asked."""

    def __init__(self, answer: Callable[[TransportRequest], TransportResponse]) -> None:
        self._answer = answer
        self.asked: list[TransportRequest] = []

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Answer."""
        self.asked.append(request)
        return self._answer(request)

    async def close(self) -> None:
        """Nothing to close."""


class Dead:
    """Nobody is there."""

    def __init__(self) -> None:
        self.asked = 0

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Refuse, as a closed port does."""
        self.asked += 1
        await asyncio.sleep(0)
        raise Unreachable("refused")

    async def close(self) -> None:
        """Nothing to close."""


class Mute:
    """Takes every request, and never answers."""

    def __init__(self) -> None:
        self.asked = 0

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Wait for ever."""
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """Nothing to close."""


class Ways:
    """Leads the requests to each host to a transport of its own, and remembers where they went."""

    def __init__(self, **ways: Transport) -> None:
        self.ways = ways
        self.asked: list[TransportRequest] = []

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Pass it on."""
        self.asked.append(request)
        return await self.ways[origin(request.url).removeprefix("http://")].send(request)

    async def close(self) -> None:
        """Close all."""
        for way in self.ways.values():
            await way.close()

    def hosts(self) -> list[str]:
        """Where the requests went."""
        return [origin(request.url).removeprefix("http://") for request in self.asked]


def interface(
    url: str, binding: str = "JSONRPC", *, tenant: str = "", version: str = "1.0"
) -> AgentInterface:
    """One interface of a card."""
    return AgentInterface(
        url=url, protocol_binding=binding, tenant=tenant, protocol_version=version
    )


def card(
    *interfaces: AgentInterface,
    streaming: bool = True,
    push: bool = False,
    like: AgentCard | None = None,
) -> AgentCard:
    """The card of an agent at these interfaces: a foreign one's, or like another card."""
    if like is not None:
        return replace(like, supported_interfaces=interfaces)
    return AgentCard(
        name="Stranger",
        description="Speaks A2A, and not dragoman's extensions.",
        version="1",
        supported_interfaces=interfaces or (interface("http://agent"),),
        capabilities=AgentCapabilities(streaming=streaming, push_notifications=push),
        default_input_modes=("text/plain",),
        default_output_modes=("text/plain",),
        skills=(),
    )


def document(request: TransportRequest) -> Any:
    """The JSON that a request holds."""
    assert isinstance(request.body, bytes)
    return json.loads(request.body)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def task(state: str = "COMPLETED", *texts: str, id: str = "t", **status: Any) -> dict[str, Any]:
    """A task as it is on the wire, with an artifact of these texts."""
    found: dict[str, Any] = {
        "id": id,
        "contextId": "c",
        "status": {"state": f"TASK_STATE_{state}", **status},
    }
    if texts:
        found["artifacts"] = [{"artifactId": "a", "parts": [{"text": text} for text in texts]}]
    return found


def result(value: Any) -> bytes:
    """The answer of JSON-RPC."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode()


def event(value: Any) -> bytes:
    """The same as an event of a stream."""
    return b"data: %b\n\n" % result(value)
