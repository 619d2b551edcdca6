"""A server that is told to end: who has come in may still ask, and nobody else comes in."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from dragoman import Agent, App
from tests.harness.raw_server import Certificate
from tests.harness.server import Served, served

ASK = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Certificate | None:
    """How it is spoken to."""
    return Certificate(tmp_path, "127.0.0.1") if request.param else None


def app(secured: Certificate | None) -> App:
    """Something to ask."""
    agent = Agent("Leaving", description="Goes away.")
    agent.skill()(lambda turn: "bye")
    return App(agent, **({"cert": str(secured.file)} if secured else {}))


async def connected(
    server: Served, secured: Certificate | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has asked for nothing."""
    port = int(server.url.rpartition(":")[2])
    context: ssl.SSLContext | None = secured.client() if secured else None
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


async def answered(reader: asyncio.StreamReader) -> bytes:
    """The head of an answer."""
    async with asyncio.timeout(30):
        return await reader.readuntil(b"\r\n\r\n")


async def shut(server: Served) -> None:
    """Until nobody gets in any more."""
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await connected(server, None)
            except OSError:
                return
            writer.transport.abort()
            await asyncio.sleep(0.01)


async def test_who_has_connected_may_still_ask(secured: Certificate | None) -> None:
    async with served(app(secured)) as server:
        reader, writer = await connected(server, secured)
        # one that has asked before is kept open, and hears that it is the last time
        again, often = await connected(server, secured)
        often.write(ASK)
        assert b"connection: close" not in await answered(again)
        await again.readexactly(len(b'{"status":"ok"}'))
        server.should_exit = True
        await shut(server)
        writer.write(ASK)
        head = await answered(reader)
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head
        for one in (writer, often):
            one.transport.abort()


async def test_who_says_nothing_is_not_waited_for_long(secured: Certificate | None) -> None:
    async with served(app(secured)) as server:
        _, writer = await connected(server, None)  # with TLS it does not even shake hands
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 4
    writer.transport.abort()
