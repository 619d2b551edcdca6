"""What an attacker does, each for a while: one row for each way to be expensive.

It runs as a process of its own, so that it takes the server's time and not the neighbour's:
`python -m tests.security.neighbours.attacks URL GRPC-PORT TOKEN SECONDS [NAME…]`. It comes from
another address of this machine. It tells on its standard output which attack begins, and which has
ended; every loop ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import grpc

from dragoman.dialects.protobuf.wellknown import framed

ADDRESS = "127.0.0.2"
MEGABYTE = 1 << 20
BODY = 16 * MEGABYTE - 4096


@dataclass
class Target:
    """Whom to attack, as whom, and until when."""

    host: str
    port: int
    grpc: int
    token: str
    until: float
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """It is time to stop."""
        return time.monotonic() > self.until

    def head(self, path: str, length: int | None, more: bytes = b"") -> bytes:
        """The head of a request."""
        verb = "GET" if length is None else "POST"
        found = f"{verb} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        if self.token:
            found += f"Authorization: Bearer {self.token}\r\n"
        if length is not None:
            found += f"Content-Type: application/json\r\nContent-Length: {length}\r\n"
        return found.encode() + more + b"\r\n"

    @contextlib.asynccontextmanager
    async def connect(self, *, slow: bool = False) -> AsyncIterator[Connection]:
        """A connection from the attacker's address."""
        reader, writer = await asyncio.open_connection(
            self.host, self.port, local_addr=(ADDRESS, 0), limit=4096 if slow else 1 << 20
        )
        try:
            yield Connection(reader, writer, self)
        finally:
            writer.transport.abort()

    async def call(self, method: str, body: bytes) -> bytes:
        """A call over gRPC."""
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        about = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        async with grpc.aio.insecure_channel(f"{self.host}:{self.grpc}", options) as channel:
            send = channel.unary_unary(f"/lf.a2a.v1.A2AService/{method}")
            found: bytes = await send(body, metadata=about, timeout=10)
            return found


class Connection:
    """One connection to the server."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target
    ) -> None:
        self.reader, self.writer, self.target = reader, writer, target

    async def send(self, data: bytes) -> None:
        """Write it, if the server takes it in time."""
        self.writer.write(data)
        async with asyncio.timeout(max(self.target.until - time.monotonic(), 0.1)):
            await self.writer.drain()

    async def answer(self) -> int:
        """Read a whole answer; its status."""
        async with asyncio.timeout(max(self.target.until - time.monotonic(), 0.1)):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line[15:])
            await self.reader.readexactly(length)
            return int(head.split()[1])

    async def post(self, path: str, body: bytes, more: bytes = b"") -> int:
        """Send a request; the status of its answer."""
        await self.send(self.target.head(path, len(body), more) + body)
        return await self.answer()


def message(part: bytes, more: bytes = b"") -> bytes:
    """A send with this part."""
    return (
        b'{"configuration":{"returnImmediately":true},"message":{"messageId":"%d",'
        b'"role":"ROLE_USER","parts":[%b]%b}}' % (random.getrandbits(60), part, more)
    )


def rpc(method: str, params: bytes) -> bytes:
    """The same over JSON-RPC."""
    return b'{"jsonrpc":"2.0","id":1,"method":"%b","params":%b}' % (method.encode(), params)


async def crowd(target: Target, size: int, work: Callable[[], Awaitable[object]]) -> None:
    """Have several do something again and again until it is over; whatever comes of it."""

    async def one() -> None:
        while not target.over:
            try:
                await work()
                target.counts["done"] = target.counts.get("done", 0) + 1
            except (OSError, TimeoutError, asyncio.IncompleteReadError, grpc.RpcError) as error:
                name = type(error).__name__
                target.counts[name] = target.counts.get(name, 0) + 1
                await asyncio.sleep(0.01)

    await asyncio.gather(*(one() for _ in range(size)))


def posting(path: str, body: Callable[[], bytes], size: int, more: bytes = b"") -> Attack:
    """Post the same on several connections, again and again."""

    async def attack(target: Target) -> None:
        async def work() -> None:
            async with target.connect() as connection:
                for _ in range(20):
                    if target.over:
                        return
                    status = await connection.post(path, body(), more)
                    target.counts[str(status)] = target.counts.get(str(status), 0) + 1

        await crowd(target, size, work)

    return attack


def calling(method: str, body: bytes, size: int) -> Attack:
    """Call the same over gRPC, again and again."""

    async def attack(target: Target) -> None:
        await crowd(target, size, lambda: target.call(method, body))

    return attack


def holding(first: Callable[[Target], bytes], size: int) -> Attack:
    """Send this on many connections, read nothing, and hold them open."""

    async def attack(target: Target) -> None:
        async def work() -> None:
            async with target.connect(slow=True) as connection:
                connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await connection.send(first(target))
                await asyncio.sleep(max(target.until - time.monotonic(), 0))

        await crowd(target, size, work)

    return attack


async def pipelining(target: Target, first: bytes = b"") -> None:
    """Requests without end, before any answer is read."""
    get = target.head("/healthz", None)

    async def work() -> None:
        async with target.connect() as connection:
            await connection.send(first)
            while not target.over:
                await connection.send(get * 5000)
                await connection.reader.read(1 << 16)

    await crowd(target, 20, work)


async def pipelining_behind(target: Target) -> None:
    """The same, behind an answer that takes its time."""
    body = message(b'{"text":"wait 30"}').replace(b"true", b"false")
    await pipelining(target, target.head("/message:stream", len(body)) + body)


async def large_tasks(target: Target) -> list[str]:
    """Tasks with large artifacts."""
    found = []
    number = 6 if target.until - time.monotonic() > 1 else 2
    async with target.connect() as connection:
        for _ in range(number):
            body = message(b'{"text":"much %d"}' % (4 * MEGABYTE)).replace(b"true", b"false")
            await connection.send(target.head("/message:send", len(body)) + body)
            head = await connection.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            answer = json.loads(await connection.reader.readexactly(length))
            if "task" in answer:
                found.append(answer["task"]["id"])
    return found


async def listing(target: Target) -> None:
    """Pages of large tasks, many at once."""
    await large_tasks(target)

    async def work() -> None:
        async with target.connect() as connection:
            path = "/tasks?pageSize=100&includeArtifacts=true"
            await connection.send(target.head(path, None))
            await connection.answer()

    await crowd(target, 10, work)


async def listing_over_grpc(target: Target) -> None:
    """The same over gRPC."""
    await large_tasks(target)
    await crowd(target, 4, lambda: target.call("ListTasks", b"\x20\x64\x40\x01"))


async def reading_slowly(target: Target) -> None:
    """Large tasks, asked for by those who read nothing."""
    tasks = await large_tasks(target)
    if tasks:
        await holding(lambda at: at.head(f"/tasks/{random.choice(tasks)}", None), 60)(target)


async def unfinished_over_grpc(target: Target) -> None:
    """Calls whose message never comes to its end."""
    about = (("authorization", f"Bearer {target.token}"),) if target.token else ()
    async with grpc.aio.insecure_channel(f"{target.host}:{target.grpc}") as channel:
        method = channel.stream_unary("/lf.a2a.v1.A2AService/SendMessage")
        calls = [method(metadata=about, timeout=30) for _ in range(200)]
        await asyncio.sleep(max(target.until - time.monotonic(), 0))
        for call in calls:
            call.cancel()


async def many_tasks(target: Target) -> None:
    """Tasks that take all the slots, and then wait."""
    work = posting("/message:send", lambda: message(b'{"text":"wait 2"}'), 16)
    await work(target)


async def walking(target: Target) -> None:
    """Other people's tasks, by their ids."""

    async def work() -> None:
        async with target.connect() as connection:
            for _ in range(50):
                task = f"{random.getrandbits(128):032x}"
                await connection.send(target.head(f"/tasks/{task}", None))
                await connection.answer()

    await crowd(target, 16, work)


async def guessing(target: Target) -> None:
    """Tokens, by chance."""

    async def work() -> None:
        async with target.connect() as connection:
            for _ in range(50):
                token = f"Authorization: Bearer {random.getrandbits(128):x}\r\n".encode()
                plain = Target(target.host, target.port, 0, "", target.until)
                body = message(b'{"text":"a"}')
                await connection.send(plain.head("/message:send", len(body), token) + body)
                await connection.answer()

    await crowd(target, 16, work)


def lists(number: int) -> bytes:
    """A send over gRPC with so many empty lists in its data."""
    data = framed(b"\x32", b"\x0a\x02\x32\x00" * number)
    inner = framed(b"\x0a", b"m") + b"\x20\x01" + framed(b"\x2a", framed(b"\x22", data))
    return framed(b"\x12", inner)


Attack = Callable[[Target], Awaitable[None]]
NESTED = b'{"data":[' + b"[]," * (BODY // 3) + b"1]}"
MOST = b'{"data":[' + b"[]," * 49_000 + b"1]}"
FILE = b'{"raw":"%b"}' % (b"QUJD" * 10**6)
ESCAPES = b'{"text":"%b"}' % (b"\\n" * 10**6)
COOKIES = b"Cookie: " + b'a="\\' * 15_000 + b"\r\n"

ATTACKS: dict[str, Attack] = {
    "pipelined requests": pipelining,
    "pipelined behind a stream": pipelining_behind,
    "large JSON, HTTP+JSON": posting("/message:send", lambda: message(NESTED), 4),
    "large JSON, JSON-RPC": posting("/", lambda: rpc("SendMessage", message(NESTED)), 4),
    "large JSON, 0.3": posting("/", lambda: rpc("message/send", message(NESTED)), 4),
    "many elements, HTTP+JSON": posting("/message:send", lambda: message(MOST), 8),
    "many elements, JSON-RPC": posting("/", lambda: rpc("SendMessage", message(MOST)), 8),
    "many parts to tidy up": posting(
        "/message:send",
        lambda: message(b",".join([b'{"text":"a"}'] * 9_000)).replace(b"messageId", b"message_id"),
        8,
    ),
    "large protobuf": calling("SendMessage", lists(BODY // 4), 8),
    "many elements, gRPC": calling("SendMessage", lists(30_000), 8),
    "large files": posting(
        "/message:send", lambda: message(b'{"raw":"%b"}' % (b"QUJD" * 10**6)), 8
    ),
    "escapes": posting("/message:send", lambda: message(b'{"text":"%b"}' % (b"\\n" * 10**6)), 8),
    "unfinished bodies": holding(
        lambda at: at.head("/message:send", BODY) + b" " * (BODY - 1), 100
    ),
    "unfinished heads": holding(lambda at: at.head("/message:send", 9)[:-2], 400),
    "unfinished gRPC messages": unfinished_over_grpc,
    "pages of large tasks": listing,
    "pages of large tasks, gRPC": listing_over_grpc,
    "slow readers": reading_slowly,
    "streams that nobody reads": holding(
        lambda at: at.head("/message:stream", len(STREAM)) + STREAM, 300
    ),
    "long names": posting(
        "/message:send", lambda: message(b'{"text":"a"}', b',"taskId":"%b"' % (b"t" * 10**6)), 8
    ),
    "large ids": posting(
        "/", lambda: rpc("SendStreamingMessage", b"{}").replace(b"1", b'"%b"' % (b"i" * 10**6)), 8
    ),
    "tenants without end": posting(
        "/message:send",
        lambda: b'{"tenant":"%d",' % random.getrandbits(60) + message(b'{"text":"a"}')[1:],
        8,
    ),
    "cookies": posting("/message:send", lambda: message(b'{"text":"a"}'), 8, COOKIES),
    "walking through ids": walking,
    "guessed tokens": guessing,
    # the last: what it leaves behind goes on for long
    "more tasks than slots": many_tasks,
}


async def main(url: str, port: str, token: str, seconds: str, *names: str) -> None:
    """Each of these attacks in turn, and which it is."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    for name in names or ATTACKS:
        until = time.monotonic() + float(seconds)
        target = Target(parts.hostname, parts.port, int(port), token, until)
        print(f"begin {name}", flush=True)  # noqa: T201
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, grpc.RpcError):
            async with asyncio.timeout(float(seconds) + 10):
                await ATTACKS[name](target)
        print(f"end {name} {json.dumps(target.counts)}", flush=True)  # noqa: T201


STREAM = message(b'{"text":"much 1000000"}')

if __name__ == "__main__":
    os.environ["GRPC_VERBOSITY"] = "NONE"
    asyncio.run(main(*sys.argv[1:]))
