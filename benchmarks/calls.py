"""Sends load over gRPC, as bytes, and checks the responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from benchmarks import wire
from benchmarks.load import Broken, Caller, Connect
from dragoman.dialects.protobuf import V1

SERVICE = "lf.a2a.v1.A2AService"
CHANNELS = 4
VERSION = (("a2a-version", "1.0"),)

_numbers = count(1)


def kind(name: str) -> Any:
    """The class of a message of A2A 1.0."""
    return GetMessageClass(V1.descriptor(name))


_Request, _Answer, _Event = map(
    kind, ("SendMessageRequest", "SendMessageResponse", "StreamResponse")
)


def send(text: str) -> bytes:
    """A send, blocking or streaming."""
    message = {
        "message_id": f"message-{next(_numbers)}",
        "role": "ROLE_USER",
        "parts": [{"text": text}],
    }
    return bytes(_Request(message=message).SerializeToString())


def echoed(body: bytes) -> None:
    """A check that a task is completed, and holds the echo."""
    task = _Answer.FromString(body).task
    if task.status.state != 3 or [part.text for part in task.artifacts[0].parts] != [wire.ECHO]:
        raise Broken(f"no echo: {task}")


def chunks(expected: int) -> Callable[[list[bytes]], None]:
    """A check that a stream holds all of its chunks in order, and its end."""

    def check(bodies: list[bytes]) -> None:
        events = [_Event.FromString(body) for body in bodies]
        updates = [event.artifact_update for event in events if event.HasField("artifact_update")]
        texts = [update.artifact.parts[0].text for update in updates]
        if texts != [f"chunk {number} " for number in range(expected)]:
            raise Broken(f"{expected} chunks are not in order: {texts[:20]} ...")
        if events[-1].status_update.status.state != 3:
            raise Broken(f"the stream has no end: {events[-1]}")

    return check


class Send:
    """One blocking send at a time."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.unary_unary(f"/{SERVICE}/SendMessage")

    async def send(self, payload: bytes) -> Any:
        """See `load.Caller`."""
        try:
            return await self._call(payload, metadata=VERSION)
        except grpc.aio.AioRpcError as error:
            raise Broken(f"answered {error.code()}: {error.details()}") from None


class Stream:
    """One streaming send at a time."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.unary_stream(f"/{SERVICE}/SendStreamingMessage")

    async def send(self, payload: bytes) -> list[bytes]:
        """See `load.Caller`."""
        call = self._call(payload, metadata=VERSION)
        found = []
        try:
            while (body := await call.read()) is not grpc.aio.EOF:
                found.append(body)
        except grpc.aio.AioRpcError as error:
            raise Broken(f"answered {error.code()}: {error.details()}") from None
        return found


def through(caller: Callable[[grpc.aio.Channel], Caller]) -> Connect:
    """Callers over a few connections."""

    @asynccontextmanager
    async def connect(port: int, count: int) -> AsyncIterator[list[Caller]]:
        options = [("grpc.use_local_subchannel_pool", 1)]  # or they would share one connection
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)
                )
                for _ in range(min(count, CHANNELS))
            ]
            yield [caller(channels[number % len(channels)]) for number in range(count)]

    return connect
