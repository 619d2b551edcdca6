"""The same over gRPC: connections without a call, handshakes without an end, too much at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2

from dragoman import Agent, App, Turn
from dragoman.server.settings import Settings
from tests.harness.raw_http import Connection, connect
from tests.harness.raw_server import Certificate
from tests.security.test_slow import drip, hello

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes(3) + b"\x04" + bytes(5)
SERVICE = "/lf.a2a.v1.A2AService"
VERSION = (("a2a-version", "1.0"),)


class WaitingAgent:
    """An agent that says something and waits until it may go on."""

    def __init__(self) -> None:
        self.agent = Agent("WaitingAgent", description="Waits.")
        self.open = asyncio.Event()
        self.running = 0

        @self.agent.handler
        async def wait(turn: Turn) -> AsyncIterator[Any]:
            self.running += 1
            if turn.text == "wait":
                await self.open.wait()
            yield turn.artifact("done")


@contextlib.asynccontextmanager
async def opened(waiting: WaitingAgent | None = None, **settings: Any) -> AsyncIterator[str]:
    """The address of an application with little patience."""
    agent = (waiting or WaitingAgent()).agent
    usual = {"grpc_port": 0, "request_timeout": 1.5, "stall": 1, "drain_timeout": 0.1}
    async with App(agent, **usual | settings) as app:
        yield f"127.0.0.1:{app.ports[0].number}"


def request(text: str = "hello") -> bytes:
    part = a2a_pb2.Part(text=text)
    message = a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_USER, parts=[part])
    return a2a_pb2.SendMessageRequest(message=message).SerializeToString()


async def works(address: str) -> bool:
    """Whether a call is answered, on a connection of its own."""
    alone = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=alone) as channel:
        send = channel.unary_unary(f"{SERVICE}/SendMessage")
        return bool(await send(request(), metadata=VERSION, timeout=5))


@pytest.mark.parametrize(
    "first",
    [b"", b"PRI * HT", PREFACE, PREFACE + SETTINGS],
    ids=["nothing", "half a preface", "a preface", "no call"],
)
async def test_a_connection_without_a_call_ends(first: bytes) -> None:
    async with opened() as address, connect(address) as connection:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await connection.send(first)
        assert await connection.over()
        assert loop.time() - start < 10
        assert await works(address)


@pytest.mark.parametrize(
    ("part", "each"), [(0, b""), (50, b""), (0, b"\x16")], ids=["nothing", "half", "a drip"]
)
async def test_a_handshake_is_due(tmp_path: Path, part: int, each: bytes) -> None:
    file = str(Certificate(tmp_path, "127.0.0.1").file)
    async with opened(cert=file) as address, connect(address) as connection:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await connection.send(hello()[:part])
        dripping = loop.create_task(drip(connection, each)) if each else None
        assert await connection.over()
        assert loop.time() - start < 10
        if dripping is not None:
            dripping.cancel()


async def test_a_crowd_keeps_nobody_out() -> None:
    async with (
        opened(request_timeout=9, stall=3) as address,
        contextlib.AsyncExitStack() as stack,
    ):
        crowd: list[Connection] = []
        for number in range(200):
            connection = await stack.enter_async_context(connect(address))
            await connection.send((PREFACE + SETTINGS)[: number % 34])
            crowd.append(connection)
        for _ in range(20):
            assert await works(address)
        async with asyncio.timeout(20):
            assert all(await asyncio.gather(*(each.over() for each in crowd)))


async def test_there_is_room_for_so_many() -> None:
    async with opened(request_timeout=90, stall=30, max_connections=3) as address:
        async with contextlib.AsyncExitStack() as stack:
            crowd = [await stack.enter_async_context(connect(address)) for _ in range(6)]
            async with asyncio.timeout(5):
                # those beyond are closed at once; of the others none
                ends = [asyncio.create_task(each.over()) for each in crowd]
                done: set[Any] = set()
                while len(done) < 3:
                    found, _ = await asyncio.wait(
                        set(ends) - done, return_when=asyncio.FIRST_COMPLETED
                    )
                    done |= found
            assert len(done) == 3
            for task in ends:
                task.cancel()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert await works(address)
                    break


async def test_calls_beyond_those_of_a_connection_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "grpc_calls", 2)
    waiting = WaitingAgent()
    async with (
        opened(waiting) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        send = channel.unary_unary(f"{SERVICE}/SendMessage")
        calls = [send(request("wait"), metadata=VERSION, timeout=20) for _ in range(4)]
        tasks = [asyncio.ensure_future(_answer(call)) for call in calls]
        async with asyncio.timeout(5):
            while waiting.running < 2:
                await asyncio.sleep(0.01)
        assert await works(address), "others do not wait for them"
        assert waiting.running == 3  # two of these, and the other's
        waiting.open.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
    # who comes while the last one is still being put away is refused
    failed = [each for each in answers if isinstance(each, grpc.aio.AioRpcError)]
    assert all(each.code() is grpc.StatusCode.UNAVAILABLE for each in failed)
    assert len(failed) <= 2


async def _answer(call: Any) -> Any:
    return await call


async def test_metadata_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "max_head", 20_000)
    async with opened() as address:
        async with grpc.aio.insecure_channel(address) as channel:
            send = channel.unary_unary(f"{SERVICE}/SendMessage")
            for size, refused in ((10_000, False), (30_000, True)):
                metadata = (*VERSION, ("x-a", "x" * size))
                call = send(request(), metadata=metadata, timeout=5)
                if not refused:
                    assert await call
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await works(address)
