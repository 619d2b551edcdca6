"""The client over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, Unreachable
from tests.harness.server import serving

BINDINGS = ["JSONRPC", "HTTP+JSON"]


def counter() -> Agent:
    """An agent that counts, slowly enough to be killed in between."""
    agent = Agent("Counter", description="Counts.", retries=3)

    @agent.handler
    async def count(turn: Turn) -> AsyncIterator[Any]:
        """Count to the number that was said."""
        yield turn.working("on it")
        for number in range(int(turn.text)):
            yield turn.write(f"{number},")
            await asyncio.sleep(0.002)

    return agent


@pytest.mark.parametrize("binding", BINDINGS)
async def test_send_and_stream(binding: str) -> None:
    async with (
        serving(App(counter())) as url,
        Client.connect(url, bindings=[binding]) as client,
    ):
        assert client.interface.url.startswith(url)
        assert (await client.send("3")).text == "0,1,2,"
        async with client.stream("4") as stream:
            assert len([event async for event in stream]) == 7
        assert stream.result.text == "0,1,2,3,"
        found = await asyncio.gather(*(client.send("1") for _ in range(30)))
        assert {result.state for result in found} == {TaskState.COMPLETED}


async def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(Unreachable):
        async with Client.connect(f"http://127.0.0.1:{port}", attempts=1):
            pass


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_outlives_its_server(binding: str, tmp_path: Path) -> None:
    """The server is stopped in the middle, and another one takes over its file and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"store": f"sqlite:///{tmp_path}/a.db", "drain_timeout": 0.0, "poll": 0.05}
    url = f"http://127.0.0.1:{port}"
    first = serving(App(counter(), **options), port=port)
    await first.__aenter__()
    client = Client.connect(url, bindings=[binding], attempts=50)
    async with asyncio.timeout(30), client, client.stream("100") as stream:
        events = 0
        async for _ in stream:
            events += 1
            if events == 20:
                await first.__aexit__(None, None, None)
                second = serving(App(counter(), **options), port=port)
                await second.__aenter__()
        assert stream.result.state is TaskState.COMPLETED
        assert stream.result.text == "".join(f"{number}," for number in range(100))
    await second.__aexit__(None, None, None)
