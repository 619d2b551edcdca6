"""An agent by hand, that tells on a stream whatever a test wants, over each binding."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc

from dragoman.dialects.protobuf.package_codec import BY_VERSION
from dragoman.model.types import AgentCard, Artifact, Part, Task, TaskState, TaskStatus
from dragoman.model.types import TaskArtifactUpdateEvent as Chunk
from dragoman.model.types import TaskStatusUpdateEvent as Status
from tests.client.transports import card, interface
from tests.harness.raw_server import Visit, listening

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nConnection: close\r\n\r\n"

Events = Callable[[], Iterator[Any]]


def chunk(text: str, id: str = "t", artifact: str = "a", *, append: bool = True) -> Chunk:
    """A piece of an artifact."""
    made = Artifact(artifact_id=artifact, parts=(Part(text=text),))
    return Chunk(task_id=id, context_id="c", artifact=made, append=append)


def status(state: TaskState, id: str = "t", **more: Any) -> Status:
    """A status."""
    return Status(task_id=id, context_id="c", status=TaskStatus(state=state), **more)


def begun(id: str = "t", state: TaskState = TaskState.WORKING) -> Task:
    """A task."""
    return Task(id=id, context_id="c", status=TaskStatus(state=state))


class Stranger:
    """What a test learns of it."""

    def __init__(self, card: AgentCard) -> None:
        self.card = card
        self.told = 0
        """How many events it has sent."""


@contextlib.asynccontextmanager
async def telling(
    binding: str, events: Events, *, host: str = "127.0.0.1", pem: bytes = b""
) -> AsyncIterator[Stranger]:
    """An agent that answers any request with these events. With `pem` (a key and its certificate)
    gRPC has TLS."""
    if binding == "GRPC":
        server = grpc.aio.server()
        if pem:
            papers = grpc.ssl_server_credentials([(pem, pem)])
            port = server.add_secure_port(f"{host}:0", papers)
        else:
            port = server.add_insecure_port(f"{host}:0")
        found = Stranger(card(interface(f"http://127.0.0.1:{port}", binding)))
        server.add_generic_rpc_handlers((_Any(events, found),))
        await server.start()
        try:
            yield found
        finally:
            await server.stop(0)
        return

    async def talk(visit: Visit) -> None:
        await visit.request()
        await visit.send(HEAD % b"text/event-stream")
        for event in events():
            found.told += 1
            await visit.send(b"data: %b\n\n" % _json(binding, event))

    async with listening(talk) as listener:
        found = Stranger(card(interface(f"http://127.0.0.1:{listener.port}", binding)))
        yield found


def _json(binding: str, event: Any) -> bytes:
    from dragoman.dialects import v1_0

    body: bytes = v1_0.response(event)
    if binding == "JSONRPC":
        return json.dumps({"jsonrpc": "2.0", "id": 1, "result": json.loads(body)}).encode()
    return body


class _Any(grpc.GenericRpcHandler):
    def __init__(self, events: Events, stranger: Stranger) -> None:
        self._events = events
        self._stranger = stranger

    def service(self, details: Any) -> Any:
        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            for event in self._events():
                self._stranger.told += 1
                yield BY_VERSION["1.0"].response(event)

        return grpc.unary_stream_rpc_method_handler(stream)
