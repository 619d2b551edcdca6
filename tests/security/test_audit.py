"""What leaves an audit line: walking other people's tasks, hosts and pages that are refused, and
certificates that are."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.telemetry import logs
from tests.harness import agents
from tests.harness.app import RunningApp
from tests.harness.clients import Binding, Failed, JsonRpc
from tests.harness.older_clients import JsonRpc01
from tests.harness.protected_app import KINDS, asked, message, protected
from tests.harness.raw_server import Certificate
from tests.harness.server import served, serving
from tests.security.test_ownership import CALLS, UNKNOWN

Lines = list[dict[str, Any]]
EVENTS = {
    "SendMessage": "send",
    "SendStreamingMessage": "stream",
    "GetTask": "get",
    "SubscribeToTask": "subscribe",
    "CancelTask": "cancel",
    "GetTaskPushNotificationConfig": "get_webhook",
    "ListTaskPushNotificationConfigs": "list_webhooks",
}


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The audit log."""
    found: Lines = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(record.getMessage()))

    handler = Keep()
    logs.auditor.addHandler(handler)
    yield found
    logs.auditor.removeHandler(handler)


@pytest.fixture
async def server() -> AsyncIterator[RunningApp]:
    """A server that keeps an audit log."""
    settings: dict[str, Any] = {"push": True, "egress_allow": ["*.example"], "audit": True}
    async with protected(agents.make(), **settings) as found:
        yield found


@pytest.mark.clause("logs.security-events", "audit.trail")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_who_walks_other_people_s_tasks(
    server: RunningApp, kind: type[Binding], lines: Lines
) -> None:
    alice, bob = server.client(JsonRpc, "a-key"), server.client(kind, "b-key")
    task = (await alice.call("SendMessage", message=message("ask")))["task"]["id"]
    lines.clear()
    for name, event in EVENTS.items():
        if not kind.can(name):
            continue
        for id in (task, UNKNOWN):
            assert isinstance(await asked(bob, name, CALLS[name](id)), Failed)
            (line,) = lines
            assert (line["event"], line["result"]) == (event, "TASK_NOT_FOUND")
            assert (line["who"], line["client"]) == ("bob", "127.0.0.1")
            assert line["task"].endswith(id)  # 0.1 has a prefix in front of the names of its tasks
            lines.clear()


async def test_whose_task_it_is_leaves_no_line(server: RunningApp, lines: Lines) -> None:
    for kind in KINDS:
        alice = server.client(kind, "a-key")
        task = (await alice.call("SendMessage", message=message("ask")))["task"]["id"]
        await alice.call("GetTask", id=task)
    assert lines == []


async def test_a_task_that_is_found_in_another_version(server: RunningApp, lines: Lines) -> None:
    """Names of 0.1 are looked for twice: only what comes of it is put down."""
    alice, bob = (server.client(JsonRpc01, key) for key in ("a-key", "b-key"))
    await alice.call("SendMessage", message=message("ask", taskId="mine"))
    await alice.call("GetTask", id="mine")
    assert lines == []
    await asked(bob, "GetTask", {"id": "mine"})
    (line,) = lines
    assert (line["event"], line["result"]) == ("get", "TASK_NOT_FOUND")


async def test_a_line_is_not_longer_than_it_must_be(server: RunningApp, lines: Lines) -> None:
    await asked(server.client(JsonRpc, "b-key"), "GetTask", {"id": "x" * 100_000})
    assert all(len(json.dumps(line)) < 1000 for line in lines)


@pytest.mark.clause("logs.security-events")
async def test_hosts_and_pages_that_are_refused(lines: Lines) -> None:
    app = App(agents.make(), audit=True, trusted_proxies=["127.0.0.1/32"], drain_timeout=0.0)
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        via = {"x-forwarded-for": "192.0.2.7"}
        await http.get("/tasks", headers={"host": "evil.example", **via})
        await http.get("/tasks", headers={"origin": "https://evil.example", **via})
        await http.get("/tasks", headers=[("authorization", "a"), ("authorization", "b")])
        await http.get("/healthz", headers={"host": "evil.example"})
    assert [(line["event"], line["result"], line["client"]) for line in lines] == [
        ("host", "MISDIRECTED", "192.0.2.7"),
        ("origin", "PERMISSION_DENIED", "192.0.2.7"),
        ("headers", "INVALID_REQUEST", "127.0.0.1"),
    ]
    assert lines[0]["host"] == "evil.example"
    assert lines[1]["origin"] == "https://evil.example"
    assert all(line["path"] == "/tasks" for line in lines)


# ---- certificates ----------------------------------------------------------------------------


def shaken(port: int, context: ssl.SSLContext) -> str:
    """What a client is told by a server that refuses its certificate."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        # with TLS 1.3 a client learns only now whether its certificate was good
        secured.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return secured.recv(100).decode()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("audit", [True, False])
async def test_certificates_that_are_refused(
    tmp_path: Path, lines: Lines, version: ssl.TLSVersion, audit: bool
) -> None:
    own, ann, eve = (certificate(tmp_path, name) for name in ("server", "ann", "eve"))
    app = App(agents.make(), cert=str(own.file), ca=str(ann.file), audit=audit, drain_timeout=0.0)
    async with served(app) as server:
        port = int(server.url.rpartition(":")[2])

        def client(shown: Certificate | None) -> ssl.SSLContext:
            context = own.client()
            context.minimum_version = context.maximum_version = version
            if shown is not None:
                context.load_cert_chain(shown.file)
            return context

        assert "200 OK" in await asyncio.to_thread(shaken, port, client(ann))
        assert lines == []
        for shown, alert in ((eve, "UNKNOWN_CA"), (None, "CERTIFICATE_REQUIRED|HANDSHAKE_FAILURE")):
            with pytest.raises(ssl.SSLError, match=alert):
                await asyncio.to_thread(shaken, port, client(shown))
    expected = [("certificate", "UNAUTHENTICATED", "127.0.0.1")] * 2 if audit else []
    assert [(line["event"], line["result"], line["client"]) for line in lines] == expected
    assert [line["why"] for line in lines[1:]] == ["no certificate"][: len(lines[1:])]


def certificate(folder: Path, name: str) -> Certificate:
    """One of this name."""
    (folder / name).mkdir()
    return Certificate(folder / name, "127.0.0.1", "localhost")
