"""Very many streams on one waiting task, over two replicas: their memory, and the delay until the
last stream has received an event.

`python -m benchmarks.cases.fanout PORT,...` is the process that holds the streams.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import selectors
import socket
import subprocess
import sys
import time

from benchmarks import load, measure, wire
from benchmarks.bench import Bench
from benchmarks.cases import cluster
from benchmarks.load import Broken
from benchmarks.measure import Client, Server
from benchmarks.servers import script

FIRST = 40
"""Streams that pay for what is made once."""
ABREAST = 100
"""So many are being opened at once."""
SPARE = 200
"""Files that a process has open besides."""
_AT = re.compile(rb'"at (\d+\.\d+) "')


async def run(bench: Bench) -> None:
    """Only dragoman, with PostgreSQL."""
    if "postgres" not in bench.stores or not bench.only("dragoman"):
        return
    streams = 1_000 if bench.quick else 10_000
    files = _raised()
    if files < FIRST + streams + SPARE:
        bench.note(f"fanout: not measured; {files} open files are allowed, {streams} are too many")
        return
    key = f"fanout{streams // 1000}k.postgres.dragoman"
    # all of them come from one address, and from one caller
    settings = (f"max_connections={4 * streams}", "quota_tasks=0")
    most = [word for text in settings for word in ("--set", text)]
    with cluster.replicas(serve=most) as servers:
        await cluster.ready(servers)
        with _holding(servers) as client:
            bench.progress(f"fanout: {streams:,} streams")
            await _hold(bench, key, servers, client, streams)
    bench.note(f"fanout: {streams:,} streams over {len(servers)} replicas; {files} files a process")


def _raised() -> int:
    """As many open files as we may have; the processes that we start may have as many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _holding(servers: list[Server]) -> Holder:
    ports = ",".join(str(server.port) for server in servers)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cases.fanout", ports],
        cwd=measure.ROOT,
        env=measure.environment("dragoman"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    return Holder("dragoman", process)


class Holder(Client):
    """The process that holds the streams."""

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    async def took(self) -> list[float]:
        """How long each took to hear, in seconds."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return list(json.loads(await asyncio.to_thread(self.process.stdout.readline)))


async def _hold(
    bench: Bench, key: str, servers: list[Server], client: Holder, streams: int
) -> None:
    task = wire.task(await _send(servers[0], wire.send(script.ANSWER)))["id"]
    await client.tell(f"open {task} {FIRST}")
    before = [await server.settled() for server in servers]
    began = time.monotonic()
    await client.tell(f"open {task} {streams}", limit=300)
    bench.record(f"{key}.opened_per_s", streams / (time.monotonic() - began), max)
    grown = sum([await server.settled() for server in servers]) - sum(before)
    bench.record(f"{key}.rss_kib_per_stream", grown / streams / 1024)
    for number in range(max(3, bench.rounds)):
        bench.progress(f"fanout: event {number + 1}")
        await client.tell("hear")
        await _send(servers[0], wire.send("tell", task))
        took = sorted(await client.took())
        bench.record(f"{key}.median_ms", took[len(took) // 2] * 1000)
        bench.record(f"{key}.last_ms", took[-1] * 1000)


async def _send(server: Server, payload: bytes) -> bytes:
    """The answer of the agent, which waits again."""
    async with load.connect(server.port) as [connection]:
        body = await connection.send(payload)
        wire.has(b"TASK_STATE_INPUT_REQUIRED")(body)
        return body


class Streams:
    """The streams, on bare sockets: cheap enough that the last one is heard when it comes."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._selector = selectors.DefaultSelector()
        self._tails: dict[socket.socket, bytes] = {}

    def open(self, task: str, count: int) -> None:
        """Open so many more, each until its first event."""
        for first in range(0, count, ABREAST):
            fresh = {self._begin(task) for _ in range(first, min(first + ABREAST, count))}
            while fresh:
                for sock, tail in self._read():
                    if sock in fresh and b"TASK_STATE_INPUT_REQUIRED" in tail:
                        fresh.discard(sock)
                        self._tails[sock] = b""

    def _begin(self, task: str) -> socket.socket:
        port = self._ports[len(self._tails) % len(self._ports)]
        sock = socket.create_connection(("127.0.0.1", port))
        body = wire.call("SubscribeToTask", id=task)
        fields = "".join(f"{name}: {value}\r\n" for name, value in wire.HEADERS.items())
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{fields}Content-Length: {len(body)}"
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ)
        self._tails[sock] = b""
        return sock

    def hear(self) -> list[float]:
        """How long the next event takes to each of them."""
        took: dict[socket.socket, float] = {}
        while len(took) < len(self._tails):
            for sock, tail in self._read():
                if found := _AT.search(tail):
                    took[sock] = time.time() - float(found[1])
                    self._tails[sock] = tail[found.end() :]
                elif len(tail) > 4096:
                    self._tails[sock] = tail[-64:]
        return list(took.values())

    def _read(self) -> list[tuple[socket.socket, bytes]]:
        found = []
        for chosen, _ in self._selector.select(60):
            sock = chosen.fileobj
            assert isinstance(sock, socket.socket)
            data = sock.recv(65536)
            if not data:
                raise Broken("a server closed a stream")
            self._tails[sock] = tail = self._tails[sock] + data
            found.append((sock, tail))
        return found


def main(ports: list[int]) -> None:
    """Do what is said on standard input; see `Client.tell`."""
    streams = Streams(ports)
    for line in sys.stdin:
        match line.split():
            case ["open", task, count]:
                streams.open(task, int(count))
                print("done", flush=True)
            case ["hear"]:
                print("done", flush=True)
                print(json.dumps(streams.hear()), flush=True)


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1].split(",")])
