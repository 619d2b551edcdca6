"""Signals, and what is none: what ends `serve` and `worker`, and what does not."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import pytest

from tests.harness.command import AGENTS, ServerProcess, environment, eventually, server_process
from tests.harness.raw_server import Certificate
from tests.harness.services import free

RAISING = '''
"""Agents that raise what ends a process."""

import asyncio

from dragoman import Agent, Turn

agent = Agent("Raising", description="Raises.")
ODD = {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit,
       "GeneratorExit": GeneratorExit}


@agent.handler
async def default(turn: Turn) -> str:
    return "ok"


@agent.skill
async def coroutine(turn: Turn):
    raise ODD[turn.text]()


@agent.skill
async def streams(turn: Turn):
    yield turn.working()
    await asyncio.sleep(0)
    raise ODD[turn.text]()


@agent.skill
def function(turn: Turn):
    raise ODD[turn.text]()


@agent.skill
def generator(turn: Turn):
    yield turn.working()
    raise ODD[turn.text]()


class Canceled:
    """Raises when it is canceled."""

    __name__ = "canceled"

    async def run(self, turn: Turn):
        yield turn.working()
        await asyncio.sleep(3600)

    async def cancel(self, turn: Turn):
        raise ODD[turn.text]()


agent.skill(Canceled())
'''


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with agents in it."""
    (tmp_path / "booking.py").write_text(AGENTS)
    (tmp_path / "raising.py").write_text(RAISING)
    return tmp_path


# ---- handlers that raise what ends a process -----------------------------------------------


def test_no_handler_ends_the_server(here: Path) -> None:
    with server_process(here, "raising:agent", anew=True) as served:
        for kind in ("coroutine", "streams", "function", "generator", "canceled"):
            for odd in ("KeyboardInterrupt", "SystemExit", "GeneratorExit"):
                task = served.send(odd, metadata={"skill": kind})["id"]
                if kind == "canceled":
                    served.until(task, "WORKING")
                    answer = httpx.post(f"{served.url}/tasks/{task}:cancel", timeout=20).json()
                    assert answer["status"]["state"] == "TASK_STATE_CANCELED", (kind, odd)
                else:
                    served.until(task, "FAILED")
        assert served.end(signal.SIGINT) == 0  # which a person's does
        assert "stopped" in served.text()


# ---- a terminal that is closed, a certificate that is renewed ------------------------------


def shown(url: str) -> bytes:
    """The certificate that a server shows."""
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((parts.hostname, parts.port), 10) as plain,
        context.wrap_socket(plain) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def told(served: ServerProcess, text: str) -> None:
    """Hang up, and wait until it says that."""
    known = served.text().count(text)
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: served.text().count(text) > known)


def test_a_server_without_certificates_goes_on(here: Path) -> None:
    with server_process(here, "booking:agent", anew=True) as served:
        for _ in range(2):
            told(served, "SIGHUP: there is no certificate to reload")
        served.until(served.send("hi")["id"], "COMPLETED")
        assert served.end() == 0


def greeted(port: int, trusted: Certificate, within: float = 10.0) -> bool:
    """Whether gRPC shows this certificate."""
    credentials = grpc.ssl_channel_credentials(trusted.file.read_bytes())
    with grpc.secure_channel(f"localhost:{port}", credentials) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=within)
        except grpc.FutureTimeoutError:
            return False
    return True


def test_a_renewed_certificate_is_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Certificate(here, "127.0.0.1", "localhost")
    (here / "second").mkdir()
    second = Certificate(here / "second", "127.0.0.1", "localhost")
    used, port, url = here / "used.pem", free(), free()
    used.write_bytes(first.file.read_bytes())
    flags = ("--set", f"cert={used}", "--set", f"grpc_port={port}", "--port", str(url))
    known = f"https://127.0.0.1:{url}"
    monkeypatch.setenv("SSL_CERT_FILE", str(first.file))
    with server_process(here, "booking:agent", *flags, url=known, anew=True) as served:
        before = shown(known)
        assert greeted(port, first)
        used.write_bytes(second.file.read_bytes())
        told(served, f"SIGHUP: reloaded the certificate {used} of gRPC")
        assert f"reloaded the certificate {used}\n" in served.text()
        after = shown(known)
        assert after != before
        assert greeted(port, second)
        assert not greeted(port, first, 1.0)
        used.write_bytes(b"nothing of the kind")  # the old one stays, and it says why
        told(
            served, "SIGHUP: the new certificate of gRPC cannot be used, the old one stays in use: "
        )
        assert (
            f"the new certificate cannot be used, the old one stays in use: cert: {used}"
            in served.text()
        )
        used.unlink()
        told(
            served, "SIGHUP: the new certificate of gRPC cannot be used, the old one stays in use: "
        )
        assert shown(known) == after
        assert greeted(port, second)
        assert served.end() == 0


@contextmanager
def working(
    here: Path, store: str, *arguments: str, name: str = "booking:agent"
) -> Iterator[ServerProcess]:
    """`dragoman worker` at work."""
    log = here / "worker.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "dragoman", "worker", name, "--store", store]
        process = subprocess.Popen(
            [*command, *arguments], cwd=here, env=environment(), stderr=output
        )
    try:
        eventually(lambda: "running turns for" in log.read_text())
        yield ServerProcess(process, log)
    finally:
        process.kill()
        process.wait()


def test_a_worker_goes_on_and_ends_at_the_second_signal(here: Path, database: str) -> None:
    flags = ("--set", "drain_timeout=600")
    with (
        working(here, database, *flags) as worker,
        server_process(
            here, "booking:agent", "--store", database, "--serve-only", anew=True
        ) as served,
    ):
        told(worker, "SIGHUP: a worker has no certificate to reload")
        served.until(served.send("hi")["id"], "COMPLETED")
        served.until(served.send("wait")["id"], "WORKING")
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: "draining" in worker.text())
        worker.end(signal.SIGTERM, within=5)


# ---- ending ---------------------------------------------------------------------------------


def test_the_second_signal_stops_it_now(here: Path) -> None:
    with server_process(here, "booking:agent", "--set", "drain_timeout=600", anew=True) as served:
        served.until(served.send("wait")["id"], "WORKING")
        served.process.send_signal(signal.SIGTERM)
        eventually(lambda: "draining" in served.text())
        served.end(signal.SIGTERM, within=5)


def test_bodies_that_never_come_do_not_delay_its_end(here: Path) -> None:
    head = b"POST /message:send HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with server_process(here, "booking:agent", anew=True) as served, ExitStack() as stack:
        address = ("127.0.0.1", urlsplit(served.url).port)
        peers = [stack.enter_context(socket.create_connection(address, 10)) for _ in range(20)]
        for number, peer in enumerate(peers):
            peer.sendall(head + (b"" if number % 4 == 3 else b'content-length: 99\r\n\r\n{"a":'))
        served.until(served.send("hi")["id"], "COMPLETED")
        began = time.monotonic()
        assert served.end(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 5
        answers = [peer.recv(100) for peer in peers]
    assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in answers), answers
