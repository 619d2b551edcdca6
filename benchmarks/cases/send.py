"""A blocking send, with 32 connections and with one."""

from __future__ import annotations

from benchmarks import load, wire
from benchmarks.bench import Bench, Work
from benchmarks.measure import Server


async def run(bench: Bench) -> None:
    """Measure it on all peers."""
    if "fasta2a" in bench.peers and "memory" in bench.stores:
        bench.note(
            "fasta2a does not block: its send answers with whatever state the task is in. "
            "Its CPU is read when it is quiet again, so that the run of every task is counted."
        )
    for store in bench.stores:
        await bench.compare("send", prepare, store)


async def prepare(bench: Bench, server: Server) -> list[Work]:
    """The works for one server."""
    needles = [wire.ECHO.encode(), b'"status"']
    if server.peer == "fasta2a":
        await _runs_all(server)
    else:
        needles += [b"TASK_STATE_COMPLETED", b'"artifacts"']
    many, few = (200, 100) if bench.quick else (1000, 300)
    if server.store != "memory" and server.peer != "dragoman":
        many, few = 64, 16  # a few dozen each second
    return [_work(server, 32, many, needles), _work(server, 1, few, needles)]


def _work(server: Server, connections: int, count: int, needles: list[bytes]) -> Work:
    return Work(
        key=f"send.{server.store}.c{connections}",
        per="request",
        connections=connections,
        count=count,
        payload=lambda: wire.send(wire.ECHO),
        check=wire.has(*needles),
        limit=60,
    )


async def _runs_all(server: Server) -> None:
    """Make sure that a server which does not block has run every task once it is quiet."""
    sent: list[str] = []
    async with load.connect(server.port, 32) as connections:
        await load.drive(
            connections,
            200,
            lambda: wire.send(wire.ECHO),
            lambda body: sent.append(wire.task(body)["id"]),
        )
        await server.quiet()
        left = iter(list(sent))
        check = wire.has(b"TASK_STATE_COMPLETED", wire.ECHO.encode())
        await load.drive(connections, len(sent), lambda: wire.call("GetTask", id=next(left)), check)
