"""Slow readers: they cost nothing, lose nothing, and are cut only when they take nothing."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx

from dragoman import Agent, App, Turn
from dragoman.model.events import RESUME
from dragoman.testing import SilentBell
from tests.harness.server import serving

CHUNKS = 20_000
PADDING = "x" * 100


def talker() -> Agent:
    """An agent that says a lot."""
    agent = Agent("Talker", description="Says a lot.")

    @agent.handler
    async def talk(turn: Turn) -> AsyncIterator[Any]:
        for number in range(int(turn.text)):
            yield turn.write(f"{number} {PADDING}")

    return agent


def message(text: str) -> dict[str, Any]:
    """A send request."""
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}}


async def open_without_reading(
    url: str, chunks: int, room: int = 4096, path: str = "/message:stream", more: str = ""
) -> socket.socket:
    """A stream that was asked for, on a socket with little room, of which nothing is read."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = json.dumps(message(str(chunks))).encode() if chunks else b""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (host, int(port)))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{more}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    await loop.sock_sendall(sock, head.encode() + body)
    return sock


async def completed(http: httpx.AsyncClient, url: str) -> None:
    """Until the only task has ended."""
    async with asyncio.timeout(30):
        while True:
            page = (await http.get(f"{url}/tasks?status=TASK_STATE_COMPLETED")).json()
            if page["totalSize"]:
                return
            await asyncio.sleep(0.02)


async def test_a_reader_that_stalls_is_served_from_the_log_and_loses_nothing() -> None:
    app = App(talker())
    async with serving(app) as url, httpx.AsyncClient() as http:
        sock = await open_without_reading(url, CHUNKS)
        await completed(http, url)  # the agent does not wait for its reader
        assert len(app.streams.open) == 1
        loop = asyncio.get_running_loop()
        got = bytearray()
        async with asyncio.timeout(60):
            while data := await loop.sock_recv(sock, 1 << 20):
                got += data
        sock.close()
    numbers = [int(n) for n in re.findall(rb'"text":"(\d+) x', bytes(got))]
    assert numbers == list(range(CHUNKS))
    assert b"TASK_STATE_COMPLETED" in got


async def test_a_reader_that_takes_nothing_for_long_is_cut() -> None:
    app = App(talker(), stall=0.3)
    async with serving(app) as url, httpx.AsyncClient() as http:
        sock = await open_without_reading(url, CHUNKS)
        await completed(http, url)
        async with asyncio.timeout(10):
            while app.streams.open:
                await asyncio.sleep(0.02)
        assert (await http.get(f"{url}/healthz")).status_code == 200
        sock.close()


async def test_a_slow_reader_that_takes_a_little_is_not_cut() -> None:
    app = App(talker(), stall=0.5)
    async with serving(app) as url, httpx.AsyncClient() as http:
        with await open_without_reading(url, CHUNKS, room=1 << 18) as sock:
            await completed(http, url)
            loop = asyncio.get_running_loop()
            got = bytearray()
            async with asyncio.timeout(60):
                # Slower than the stream could go, and longer than the patience, but steadily.
                while data := await loop.sock_recv(sock, 1 << 18):
                    got += data
                    await asyncio.sleep(0.05)
    assert got.count(b'"artifactUpdate"') == CHUNKS


async def test_a_slow_reader_of_one_large_event_is_not_cut() -> None:
    agent = Agent("Large", description="Says one large thing.")

    @agent.handler
    def say(turn: Turn) -> str:
        return "x" * 12_000_000

    app = App(agent, stall=0.5)
    async with serving(app) as url, httpx.AsyncClient() as http:
        with await open_without_reading(url, 1, room=1 << 18) as sock:
            await completed(http, url)
            loop = asyncio.get_running_loop()
            got = 0
            last = b""
            async with asyncio.timeout(60):
                while data := await loop.sock_recv(sock, 1 << 18):
                    got += len(data)
                    last = (last + data)[-1000:]
                    await asyncio.sleep(0.02)
    assert got > 12_000_000
    assert b"TASK_STATE_COMPLETED" in last


async def test_a_stalled_reader_keeps_nobody_from_being_woken() -> None:
    agent = talker()

    @agent.skill
    async def ask(turn: Turn) -> AsyncIterator[Any]:
        if len(turn.history) > 1:
            yield turn.artifact("thank you")
            return
        for number in range(CHUNKS):
            yield turn.write(f"{number} {PADDING}")
        yield turn.ask("more?")

    asked: dict[str, Any] = message("x")
    asked["message"]["metadata"] = {"skill": "ask"}
    app = App(agent, bell=SilentBell(), poll=0.05)
    async with serving(app) as url, httpx.AsyncClient(timeout=20) as http:
        task = (await http.post(f"{url}/message:send", json=asked)).json()["task"]["id"]
        place = f"Last-Event-ID: {task}:1\r\nA2A-Extensions: {RESUME}\r\n"
        with await open_without_reading(url, 0, path=f"/tasks/{task}:subscribe", more=place):
            async with asyncio.timeout(10):
                while not any(pour.sending for pour in app.streams.open):
                    await asyncio.sleep(0.02)
            asked["message"]["taskId"] = task
            answer = (await http.post(f"{url}/message:send", json=asked)).json()
    assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_slow_reader_hurts_nobody_else() -> None:
    app = App(talker())
    async with serving(app) as url, httpx.AsyncClient(timeout=30) as http:
        with await open_without_reading(url, CHUNKS):
            await completed(http, url)
            request = http.stream("POST", f"{url}/message:stream", json=message("2000"))
            async with request as response:
                body = await response.aread()
            assert body.count(b'"artifactUpdate"') == 2000
