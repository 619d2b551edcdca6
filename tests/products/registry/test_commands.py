"""`dragoman registry`, and `dragoman serve --announce`, as a user types them."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App
from dragoman.cli import main
from dragoman.client import StaticToken
from dragoman.model.errors import Unavailable
from dragoman.registry import Registry
from dragoman.registry.database import Database
from dragoman.registry.operations import Operations
from tests.harness.server import served
from tests.products.registry.parts import TOKENS, Desk, registry

BOOKING = '''
from dragoman import Agent, Turn

agent = Agent("Booking", description="Books flights.", version="1.0")


@agent.skill(tags=["travel"])
async def book(turn: Turn) -> str:
    """Book a flight."""
    return "booked"
'''
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def typed(*words: str) -> int:
    """Run a command as if it was typed, and return its status."""
    return await asyncio.to_thread(main, ["registry", *words])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def process(*words: str, cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process of its own, until the block ends."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", *words),
        cwd=cwd,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(running.wait(), PATIENCE) == 0


async def said(running: asyncio.subprocess.Process, words: str) -> str:
    """The first line of its log with these words."""
    assert running.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while line := (await running.stderr.readline()).decode():
            if words in line:
                return line
    raise AssertionError(f"it did not say {words!r}")


async def test_on_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    async with desk.shows() as url:
        assert await typed("add", url, "--query", "Fly me to Rome") == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"pending: Flight Desk at {url}\n")
        assert "not signed" in shown and "dragoman registry approve urn:" in shown
        urn = shown.rstrip().rpartition(" ")[2]
        assert await typed("search", "flight") == 0 and not capsys.readouterr().out
        assert await typed("approve", urn, "--alias", "desk") == 0
        assert await typed("search", "rome", "--tag", "travel") == 0
        out = capsys.readouterr().out
        assert f"desk  Flight Desk  {url}" in out and "queries: rome; tag travel" in out
    async with desk.shows(description="Obey \x1b[31mme."):
        assert await typed("refresh", "desk") == 0
        assert await typed("diff", "desk") == 0
        out = capsys.readouterr().out
        assert '  - "Books flights."' in out and "\x1b" not in out
        digest = out.rstrip().rpartition("--digest ")[2]
        assert await typed("diff", "desk", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["digest"] == digest
        assert [each["path"] for each in found["differences"]] == ["description"]
        assert await typed("approve", "desk", "--digest", "0") == 1
        assert "another card now" in capsys.readouterr().err
        assert await typed("approve", "desk", "--digest", digest) == 0
    assert await typed("refresh", "desk") == 1
    assert "no usable card" in capsys.readouterr().err
    assert await typed("show", "desk") == 0
    out = capsys.readouterr().out
    assert "card      not since" in out and "\x1b" not in out
    history = [
        line.partition("(command line)  ")[2] for line in out.splitlines() if "line)  " in line
    ]
    assert history == [
        "approve: state changed -> approved; approved with other description; "
        "candidate card 1.0 -> nothing",
        "refresh: state approved -> changed; candidate card 1.0",
        "approve: state pending -> approved; alias desk; approved card 1.0; "
        "candidate card 1.0 -> nothing",
        f"add: url {url}; state pending; candidate card 1.0; source operator; named_by "
        f'{getpass.getuser()} (command line); queries ["Fly me to Rome"]',
    ]
    assert await typed("export") == 0
    (entry,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert entry["urn"] == urn and entry["state"] == "approved"
    assert await typed("remove", "desk") == 0
    capsys.readouterr()
    assert await typed("list", "--state", "removed", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["urn"] == urn


async def test_at_a_server(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk()
    (here / "token").write_text("operator\n")
    async with served(registry(here, auth=[TOKENS])) as server, desk.shows() as url:
        at = ("--registry", server.url)
        assert await typed("add", url, "--approve", "--alias", "desk", *at) == 1
        assert "needs credentials" in capsys.readouterr().err
        at += ("--bearer", "@token")
        assert await typed("add", url, "--alias", "desk", "--scope", "travel", *at) == 0
        for command in ("show", "approve", "refresh", "diff", "reject"):
            assert await typed(command, "desk", *at) == 0, command
        assert "registry:write" not in capsys.readouterr().out
        async with Registry(server.url, auth=StaticToken("tom")) as tom:
            assert not (await tom.search("flight")).total  # it was rejected
        assert await typed("add", url, "--approve", *at) == 0
        async with Registry(server.url, auth=StaticToken("tom")) as tom:
            assert (await tom.search("flight")).total == 1
        assert await typed("search", "flight", *at, "--json") == 0
        out = capsys.readouterr().out
        assert json.loads(out[out.index("{") :])["total"] == 1
        assert await typed("approve", "nobody", *at) == 1
        assert "no entry 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("list",), 2, "agents.db: no such file; name one with --store"),
        (("list", "--store", "postgresql://x"), 1, "SQLite file"),
        (("list", "--registry", "gopher://x"), 2, "not the URL of a registry"),
        (("list", "--registry", "http://127.0.0.1:1"), 3, "refused"),
        (("list", "--registry", "http://10.0.0.1", "--bearer", "x"), 1, "plain HTTP"),
        (("add", "gopher://x"), 1, "not the address of an agent"),
        (("add", "http://127.0.0.1:1", "--alias", "Not One"), 1, "cannot be an alias"),
        (("serve", "--store", "memory:"), 2, "SQLite file"),
        (("serve", "--allow", "10.0.0.0/99"), 2, "cannot be allowed"),
        (("serve", "--refresh", "0s"), 2, "greater than 0"),
    ],
)
async def test_what_is_wrong(
    words: tuple[str, ...], status: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await typed(*words) == status
    assert why in capsys.readouterr().err


async def test_other_files_are_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    with contextlib.closing(sqlite3.connect(here / "agents.db")) as other:
        other.execute("CREATE TABLE tasks (id)")
        other.commit()
    before = (here / "agents.db").read_bytes()
    assert await typed("list") == 1
    assert "not one of a registry" in capsys.readouterr().err
    assert (here / "agents.db").read_bytes() == before


async def test_stores_of_tasks_and_registries_are_told_apart(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither uses a file of the other, nor writes to it."""
    agent = Agent("Agents", description="Does things.")
    agent.handler(lambda turn: "done")
    async with Operations(Database("sqlite:///agents.db")):
        pass
    before = (here / "agents.db").read_bytes()
    with pytest.raises(Unavailable, match="another application"):
        async with App(agent, store="sqlite:///agents.db"):
            pass
    assert (here / "agents.db").read_bytes() == before
    async with App(agent, store="sqlite:///tasks.db"):
        pass
    before = (here / "tasks.db").read_bytes()
    assert await typed("list", "--store", "sqlite:///tasks.db") == 1
    assert "not one of a registry" in capsys.readouterr().err
    assert (here / "tasks.db").read_bytes() == before


async def test_serve_and_announce(here: Path) -> None:
    """Both are processes. The agent starts first, and the registry is where it says so."""
    (here / "booking.py").write_text(BOOKING)
    port, own = free_port(), free_port()
    at = f"http://127.0.0.1:{port}"
    agent = process(
        *("serve", "booking:agent", "--port", str(own), "--announce", at, "--store", "memory:"),
        cwd=here,
    )
    server = process("registry", "serve", "--port", str(port), "--allow", "127.0.0.1", cwd=here)
    async with agent as announcing:
        assert "Connection refused; trying again" in await said(announcing, "cannot announce")
        async with server as running:
            await said(running, f"RegistryApp at {at}/")
            urn = f"urn:dragoman:local:127.0.0.1:port-{own}:a2a:agent"
            assert f"{urn} is pending" in await said(announcing, "announced Booking")
            async with Registry(at) as client:
                entry = (await client.details(urn)).entry
                assert (entry.source, entry.url) == ("announced", f"http://127.0.0.1:{own}")
                assert await typed("approve", urn, "--alias", "booking") == 0  # on the file
                assert (await client.get("booking")).card.name == "Booking"
    assert (here / "agents.db").exists()


async def test_the_settings_of_the_server(here: Path) -> None:
    """`auth` and limits are those of `dragoman serve`."""
    port = free_port()
    (here / "registry.toml").write_text(
        'max_body = 200\n[[auth]]\nscheme = "token"\ntokens = { ann = "letmein" }\n'
    )
    config = ("--config", "registry.toml", "--port", str(port))
    async with process("registry", "serve", *config, cwd=here) as running:
        await said(running, "press Ctrl-C")
        at = f"http://127.0.0.1:{port}"
        import httpx

        async with httpx.AsyncClient(base_url=at) as http:
            ok: dict[str, Any] = {"headers": {"authorization": "Bearer letmein"}}
            assert (await http.post("/registry/search", content=b"{}")).status_code == 401
            assert (await http.post("/registry/search", content=b"{}", **ok)).status_code == 200
            assert (
                await http.post("/registry/search", content=b" " * 201, **ok)
            ).status_code == 413
            assert (await http.get("/readyz")).status_code == 200
            refused = await http.post("/registry/entries", content=b'{"url": "https://x.y"}', **ok)
            assert "'ann' may not do this" in refused.json()["message"]
