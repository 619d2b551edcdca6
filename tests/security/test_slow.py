"""Who takes their time: they are waited for only so long, and nobody else waits for them.

Readers who take no byte of a stream are in tests/faults/test_slow_readers.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from dragoman import Agent, App, Turn
from dragoman.cli.connection_limits import RESERVE, ConnectionLimits
from dragoman.server.settings import Settings
from tests.harness.command import AGENTS, server_process
from tests.harness.raw_http import Answer, Connection, connect
from tests.harness.raw_server import Certificate
from tests.harness.server import Served, served

HEAD = b"POST /message:send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SEND = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
LARGE = 4_000_000
LATE = 20.0
"""Seconds after which something is not due but forgotten; a machine may be slow."""


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The event loop that the command has."""
    return uvloop.EventLoopPolicy()


def echo() -> Agent:
    """Says the same, or a lot."""
    agent = Agent("Echo", description="Says the same.")

    @agent.handler
    def answer(turn: Turn) -> str:
        return "x" * LARGE if turn.text == "much" else turn.text

    return agent


def quick(**settings: Any) -> App:
    """An application with little patience."""
    return App(
        echo(),
        **{"request_timeout": 1.5, "stall": 1, "drain_timeout": 0.1} | settings,
    )


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    """Such a server."""
    async with served(quick()) as server:
        yield server


async def drip(connection: Connection, each: bytes, pause: float = 0.05) -> None:
    """Send the same again and again."""
    while not connection.writer.is_closing():
        await connection.send(each)
        await asyncio.sleep(pause)


async def ending(server: Served, first: bytes, each: bytes = b"") -> tuple[Answer | None, float]:
    """What comes of a connection that goes on like this, and how long it takes."""
    loop = asyncio.get_running_loop()
    async with connect(server.url) as connection:
        start = loop.time()
        await connection.send(first)
        dripping = loop.create_task(drip(connection, each)) if each else None
        answer = await connection.answer()
        assert await connection.over()
        if dripping is not None:
            dripping.cancel()
        return answer, loop.time() - start


async def test_the_event_loop() -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)


async def empty(server: Served) -> None:
    """Until nobody is connected."""
    async with asyncio.timeout(30):
        while server.limits.count or server.server_state.connections:
            await asyncio.sleep(0.02)


# ---- heads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "each", "status"),
    [
        (b"", b"", None),
        (b"G", b"", 408),
        (b"GET /healthz HT", b"", 408),
        (HEAD, b"", 408),
        (HEAD, b"X-A: b\r\n", 408),
        (HEAD + b"X-A: ", b"x", 408),
        (b"\r\n", b"\r\n", None),
    ],
    ids=["nothing", "a letter", "half a line", "half a head", "lines", "letters", "empty lines"],
)
async def test_a_head_is_due(server: Served, first: bytes, each: bytes, status: int | None) -> None:
    answer, took = await ending(server, first, each)
    assert (answer and answer.status) == status
    assert 0.4 < took < LATE
    await empty(server)


@pytest.mark.parametrize(
    ("each", "status"), [(b"G", 408), (b"\r\n", None)], ids=["a request", "empty lines"]
)
async def test_a_further_head_is_due_as_well(
    server: Served, each: bytes, status: int | None
) -> None:
    loop = asyncio.get_running_loop()
    async with connect(server.url) as connection:
        await connection.send(GET)
        first = await connection.answer()
        assert first is not None
        assert first.status == 200
        start = loop.time()
        await connection.send(each)
        answer = await connection.answer()
        assert (answer and answer.status) == status
        assert await connection.over()
        assert loop.time() - start < LATE
    await empty(server)


async def test_nobody_stays_without_a_request() -> None:
    async with (
        served(quick(request_timeout=90), timeout_keep_alive=1) as server,
        connect(server.url) as connection,
    ):
        await connection.send(GET)
        first = await connection.answer()
        assert first is not None
        assert first.status == 200
        assert "connection" not in first.headers
        async with asyncio.timeout(5):
            assert await connection.over()


async def test_requests_in_a_row_are_not_late(server: Served) -> None:
    async with connect(server.url) as connection:
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.5
        while loop.time() < end:  # each head is on its way most of the time
            await connection.send(GET[:20])
            await asyncio.sleep(0.2)
            await connection.send(GET[20:])
            answer = await connection.answer()
            assert answer is not None
            assert answer.status == 200


@pytest.mark.parametrize("whole", [False, True], ids=["endless", "at once"])
async def test_a_head_has_an_end(whole: bool) -> None:
    """It is refused before it is due, which would be in three minutes."""
    large = HEAD + b"X-A: " + b"x" * 70_000 + (b"\r\n\r\n" if whole else b"")
    async with asyncio.timeout(60), served(quick(request_timeout=180)) as server:
        answer, _ = await ending(server, large)
        assert answer is not None
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        await empty(server)


async def poured(connection: Connection, data: bytes) -> int:
    """How much of what never ends is taken before the connection is closed."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while not connection.reader.at_eof() and sent < 100_000_000:
            connection.writer.write(data)
            await connection.writer.drain()
            sent += len(data)
            await asyncio.sleep(0)
    return sent


@pytest.mark.parametrize(
    "first",
    [
        HEAD + b"X-A: ",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: ",
        HEAD.replace(b":send", b":stream") + b"Content-Length: 2\r\n\r\n{}" + HEAD + b"X-A: ",
        GET + HEAD + b"X-A: ",
    ],
    ids=["a head", "a trailer", "a head behind a request", "a head behind an answer"],
)
async def test_no_line_is_endless(first: bytes) -> None:
    async with served(quick(request_timeout=180)) as server:
        async with connect(server.url) as connection:
            await connection.send(first)
            # what is in the buffers of the network is in nobody's memory for long
            assert await poured(connection, b"x" * 20_000) < 20_000_000
        await empty(server)


async def test_a_body_may_be_larger_than_a_head(server: Served) -> None:
    large = {"message": {**SEND["message"], "parts": [{"text": "x" * 1_000_000}]}}
    async with httpx.AsyncClient(base_url=server.url) as http:
        for _ in range(2):
            assert (await http.post("/message:send", json=large)).status_code == 200
            # one that is not read, since there is nothing
            assert (await http.post("/nothing/here", json=large)).status_code == 404


# ---- bodies --------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [b"", b" "], ids=["never", "drop by drop"])
@pytest.mark.parametrize(
    "more",
    [b"Content-Length: 1000\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"],
    ids=["declared", "chunked"],
)
async def test_a_body_is_due(server: Served, more: bytes, each: bytes) -> None:
    drop = b"1\r\n \r\n" if each and b"chunked" in more else each
    answer, took = await ending(server, HEAD + more, drop)
    assert answer is not None
    assert answer.status == 408
    assert 0.4 < took < LATE
    await empty(server)


async def test_a_body_that_nobody_wants_is_due_as_well(server: Served) -> None:
    """It is answered at once, and then dripped on."""
    head = b"POST /nothing/here HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    answer, took = await ending(server, head, b" ")
    assert answer is not None
    assert answer.status == 404
    assert took < LATE
    await empty(server)


# ---- answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("path", [b":send", b":stream"], ids=["an answer", "a stream"])
async def test_what_nobody_reads(tmp_path: Path, path: bytes, secured: bool) -> None:
    body = b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"much"}]}}'
    head = HEAD.replace(b":send", path) + b"Content-Length: %d\r\n\r\n" % len(body)
    certificate = Certificate(tmp_path, "127.0.0.1")
    context = certificate.client() if secured else None
    settings = {"cert": str(certificate.file)} if secured else {}
    async with served(quick(**settings)) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
        await asyncio.get_running_loop().sock_connect(sock, address)
        _, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname="127.0.0.1" if secured else None
        )
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(head + body)
        async with asyncio.timeout(10):
            while not any(c.transport.get_write_buffer_size() for c in connections(server)):
                await asyncio.sleep(0.02)
        await empty(server)  # although it is still open at this end
        writer.transport.abort()


def connections(server: Served) -> list[Any]:
    """Those that are let in."""
    return list(server.server_state.connections)


# ---- handshakes ----------------------------------------------------------------------------


def hello() -> bytes:
    """The first that a client of TLS says."""
    out = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


@pytest.mark.parametrize(
    ("part", "each"),
    [(0, b""), (20, b""), (None, b""), (0, b"\x16")],
    ids=["nothing", "half a hello", "a hello", "a drip"],
)
async def test_a_handshake_is_due(tmp_path: Path, part: int | None, each: bytes) -> None:
    file = str(Certificate(tmp_path, "127.0.0.1").file)
    loop = asyncio.get_running_loop()
    async with served(quick(cert=file)) as server:
        async with connect(server.url.replace("https", "http")) as connection:
            start = loop.time()
            await connection.send(hello()[:part])
            dripping = loop.create_task(drip(connection, each)) if each else None
            assert await connection.over()
            assert loop.time() - start < LATE
            if dripping is not None:
                dripping.cancel()
        await empty(server)


# ---- many of them --------------------------------------------------------------------------

SLOW: list[tuple[bytes, bytes]] = [
    (b"", b""),
    (b"GET /healthz HT", b""),
    (HEAD + b"X-A: ", b"x"),
    (HEAD + b"Content-Length: 1000\r\n\r\n{", b""),
    (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
]


@contextlib.asynccontextmanager
async def crowd(url: str, size: int, hold: Callable[[int], tuple[bytes, bytes]]) -> Any:
    """So many slow connections."""
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        drips = []
        for number in range(size):
            connection = await stack.enter_async_context(connect(url))
            first, each = hold(number)
            await connection.send(first)
            if each:
                drips.append(group.create_task(drip(connection, each, 0.2)))
        yield
        for task in drips:
            task.cancel()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nothing tells the open files")
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
async def test_a_crowd_keeps_nobody_out(tmp_path: Path, secured: bool) -> None:
    certificate = Certificate(tmp_path, "127.0.0.1")
    settings = {"cert": str(certificate.file)} if secured else {}
    verify = certificate.client()
    async with served(quick(request_timeout=9, **settings)) as server:
        async with httpx.AsyncClient(base_url=server.url, verify=verify) as http:
            assert (await http.post("/message:send", json=SEND)).status_code == 200
        await empty(server)
        before = open_files()
        plain = server.url.replace("https", "http")
        hello_ = hello()[:50]

        def hold(number: int) -> tuple[bytes, bytes]:
            return (hello_ * (number % 2), b"") if secured else SLOW[number % len(SLOW)]

        async with (
            crowd(plain, 300, hold),
            httpx.AsyncClient(base_url=server.url, verify=verify) as http,
        ):
            assert server.limits.count >= 300
            for _ in range(50):
                answer = await http.post("/message:send", json=SEND, timeout=3)
                assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
            assert server.limits.count >= 300, "they were there all the while"
            await http.aclose()
            await empty(server)  # although they are still open at the other end
        async with asyncio.timeout(30):
            while open_files() > before:
                await asyncio.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="nothing tells the open files")
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
async def test_a_process_lets_go_of_them(
    tmp_path: Path, secured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command itself, with the event loop that it has."""
    (tmp_path / "booking.py").write_text(AGENTS)
    file = str(Certificate(tmp_path, "127.0.0.1").file)
    monkeypatch.setenv("SSL_CERT_FILE", file)
    limits = ("--set", "request_timeout=18", "--set", "stall=4")
    more = ("--cert", file) if secured else ()
    with server_process(tmp_path, "booking:agent", *limits, *more, anew=True) as running:
        files = Path(f"/proc/{running.process.pid}/fd")
        plain = running.url.replace("https", "http")

        def count() -> int:
            return len(list(files.iterdir()))

        def hold(number: int) -> tuple[bytes, bytes]:
            return (hello()[:50] * (number % 2), b"") if secured else SLOW[number % len(SLOW)]

        async with httpx.AsyncClient(base_url=running.url) as http:
            assert (await http.post("/message:send", json=SEND)).status_code == 200
            before = count()
            async with crowd(plain, 300, hold):
                for _ in range(20):
                    answer = await http.post("/message:send", json=SEND, timeout=10)
                    assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
                assert count() >= before + 300
                async with asyncio.timeout(30):
                    while count() > before:
                        await asyncio.sleep(0.05)
        assert running.end() == 0
        assert "Traceback" not in running.text()


# ---- as many as there is room for ----------------------------------------------------------


async def status(url: str, source: str = "127.0.0.1") -> int | None:
    """What a connection from an address is told at first; nothing if it is let in."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(url.rpartition(":")[2]), local_addr=(source, 0)
    )
    try:
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1])
    except (ConnectionError, asyncio.IncompleteReadError):
        return None
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def held(server: Served, count: int) -> AsyncIterator[None]:
    """So many connections that say nothing."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(count):
            await stack.enter_async_context(connect(server.url.replace("https", "http")))
        async with asyncio.timeout(30):
            while server.limits.count < count:
                await asyncio.sleep(0.01)
        yield


async def test_one_address_cannot_hold_all_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with served(quick(request_timeout=90, max_connections=6)) as server:
        async with held(server, 3):
            assert await status(server.url) in (503, None)
            assert await status(server.url) in (503, None)
            assert await status(server.url, "127.0.0.2") == 200
        await empty(server)
        assert await status(server.url) == 200
    told = [r.getMessage() for r in caplog.records if "refusing new connections" in r.getMessage()]
    assert len(told) == 1, "not one for each"
    assert "max_connections allows 6, and 3 from one address" in told[0]


async def test_there_is_room_for_so_many(tmp_path: Path) -> None:
    proxied = quick(request_timeout=90, max_connections=4, trusted_proxies=["127.0.0.1"])
    async with served(proxied) as server:  # a proxy may have all of them
        async with held(server, 4):
            assert await status(server.url, "127.0.0.2") in (503, None)
            async with connect(server.url) as connection:  # who says nothing can read it
                answer = await connection.answer()
                assert answer is not None
                assert answer.status == 503
        await empty(server)
        assert await status(server.url) == 200
    file = str(Certificate(tmp_path, "127.0.0.1").file)
    async with served(quick(request_timeout=90, cert=file, max_connections=4)) as server:
        plain = server.url.replace("https", "http")
        # half of them are all that one address gets
        async with held(server, 2), connect(plain) as connection:
            assert await connection.over()
        await empty(server)


def test_files_are_a_limit_as_well() -> None:
    settings = Settings(max_connections=5000)
    assert ConnectionLimits(settings, 1024).most == 1024 - RESERVE
    assert ConnectionLimits(settings, 1024).each == (1024 - RESERVE) // 2
    assert ConnectionLimits(settings, 10).most == 1
    assert ConnectionLimits(settings).most == 5000


@pytest.fixture(autouse=True)
def calm(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """None of it is an error of the server."""
    yield
    records = caplog.get_records("call")
    assert [r.getMessage() for r in records if r.levelname == "ERROR"] == []
