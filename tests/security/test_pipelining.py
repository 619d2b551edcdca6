"""Requests that come before the answer to the one before: served in order, and few of them held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
import uvloop

from dragoman import Agent, App, Turn
from tests.harness.raw_http import connect
from tests.harness.server import Served, served

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
FLOOD = 8_000_000
"""More bytes than the buffers of both ends of a connection hold."""
FEW = 32
"""The most requests of one connection that may be parsed and wait."""


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The event loop that the command has."""
    return uvloop.EventLoopPolicy()


def post(text: str, verb: bytes = b"send", *, chunked: bool = False) -> bytes:
    """A message, as it is on the wire."""
    body = b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"%b"}]}}'
    body %= text.encode()
    head = b"POST /message:%b HTTP/1.1\r\n%bContent-Type: application/json\r\n" % (verb, HOST)
    if chunked:
        return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.fixture
async def server(constants: Callable[..., None]) -> AsyncIterator[Served]:
    """A server whose agent says the same, or waits until it is canceled."""
    agent = Agent("Echo", description="Says the same.")

    @agent.handler
    async def answer(turn: Turn) -> str:
        if turn.text == "wait":
            await asyncio.Event().wait()
        return turn.text

    constants(max_in_flight=2_000_000)
    async with served(App(agent, drain_timeout=0.1)) as server:
        yield server


def held(server: Served) -> tuple[int, int]:
    """How many requests wait in the server for those before them, and how many bytes."""
    found: list[Any] = list(server.server_state.connections)
    return max(len(c.pipeline) for c in found), max(len(c._rest) for c in found)


@pytest.mark.parametrize(
    "first", [post("wait"), post("wait", b"stream")], ids=["a send", "a stream"]
)
async def test_a_flood_behind_an_answer_that_takes_its_time(server: Served, first: bytes) -> None:
    async with connect(server.url) as flood, httpx.AsyncClient(base_url=server.url) as other:
        await flood.send(first)
        flood.writer.write(GET * (FLOOD // len(GET)))
        for _ in range(20):
            assert (await other.get("/healthz")).status_code == 200
            requests, size = held(server)
            assert requests <= FEW
            assert size <= 512 * 1024
        # the rest is still at the sender's end
        assert flood.writer.transport.get_write_buffer_size() > 1_000_000
        flood.writer.transport.abort()


async def test_what_many_connections_wait_with_has_a_budget(
    server: Served, constants: Callable[..., None]
) -> None:
    constants(keepalive=0.05)  # a server that does not read notices by this that a client is gone
    budget = server.config.loaded_app.bodies.budget
    async with AsyncExitStack() as stack:
        floods = [await stack.enter_async_context(connect(server.url)) for _ in range(20)]
        for flood in floods:
            await flood.send(post("wait", b"stream"))
            flood.writer.write(GET * 20_000)
        # those that are beyond it are closed
        endings = [asyncio.ensure_future(flood.over()) for flood in floods]
        await asyncio.wait(endings, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert any(ending.done() and ending.result() for ending in endings)
        assert budget.used <= budget.share
        for flood in floods:
            flood.writer.transport.abort()
        await asyncio.wait(endings)
    async with asyncio.timeout(10):
        while budget.used:
            await asyncio.sleep(0.01)


async def test_a_flood_of_quick_ones(server: Served) -> None:
    async with connect(server.url) as flood, httpx.AsyncClient(base_url=server.url) as other:
        flood.writer.write(GET * 20_000)
        for _ in range(100):
            assert (await flood.answer()).status == 200  # type: ignore[union-attr]
            assert held(server)[0] <= FEW
        assert (await other.get("/healthz")).status_code == 200
        flood.writer.transport.abort()


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
@pytest.mark.parametrize("size", [1, 3_000, 100_000])
async def test_they_are_answered_in_order(server: Served, size: int, chunked: bool) -> None:
    texts = [f"{number}:{'x' * size}" for number in range(20)]
    async with connect(server.url) as connection:
        wire = b"".join(post(text, chunked=chunked) + GET for text in texts)
        sending = asyncio.create_task(connection.send(wire))
        for text in texts:
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 200
            assert text in answer.body.decode()
            answer = await connection.answer()
            assert answer is not None
            assert answer.json() == {"status": "ok"}
        await sending
