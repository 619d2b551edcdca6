"""`python booking.py`: the server of `dragoman serve`, started from code."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import dragoman
from dragoman import Agent, App
from dragoman.security import Anonymous
from dragoman.stores.memory import MemoryStore
from tests.cli.test_cli import SHORT
from tests.harness.command import AGENTS, environment, run, server_process

IMPORTS = """
import dragoman
from dragoman import App
from dragoman.stores.memory import MemoryStore
"""
MAIN = '\n\nif __name__ == "__main__":\n    '


def program(here: Path, end: str, main: str = MAIN) -> tuple[str, ...]:
    """A file that ends with this call."""
    (here / "program.py").write_text(AGENTS + IMPORTS + main + end + "\n")
    return ("program.py",)


def failed(here: Path, end: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The program, which does not start."""
    command = [sys.executable, *program(here, end)]
    return subprocess.run(
        command, cwd=here, env=environment(**env), capture_output=True, text=True, timeout=30
    )


@pytest.fixture
def agent() -> Agent:
    """The shortest."""
    found = Agent("Echo", description="Echoes.")
    found.handler(lambda turn: turn.text)
    return found


@pytest.mark.parametrize(
    "call",
    [
        "agent.serve(port=0, drain_timeout=0.5)",
        "dragoman.serve(App(agent, port=1, drain_timeout=0.5), port=0)",
    ],
)
def test_a_program_serves_its_agent(here: Path, call: str) -> None:
    with server_process(here, command=program(here, call)) as served:
        task = served.until(served.send("hello")["id"], "COMPLETED")
        assert task["artifacts"][0]["parts"] == [{"text": "hello"}]
        # the hardened server, not a plain uvicorn: it limits the head of a request
        large = httpx.get(f"{served.url}/healthz", headers={"x": "x" * 70_000})
        assert large.status_code == 431
        assert (here / "echo.db").exists()  # the default of the command
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(20) == 0
    log = served.log.read_text()
    assert "draining" in log
    assert "stopped" in log


def test_settings_from_code_come_before_the_environment(here: Path) -> None:
    call = "agent.serve(port=0, file_types=['image/png'], store=MemoryStore())"
    env = {"DRAGOMAN_FILE_TYPES": "text/plain", "DRAGOMAN_MAX_BODY": "1KiB"}
    with server_process(here, command=program(here, call), **env) as served:
        parts: list[Any] = [{"raw": "YQ==", "mediaType": "text/plain"}]
        body: dict[str, Any] = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": parts}}
        headers = {"a2a-version": "1.0"}
        assert httpx.post(f"{served.url}/message:send", json=body, headers=headers).is_error
        body["message"]["parts"] = [{"text": "a" * 1024}]
        large = httpx.post(f"{served.url}/message:send", json=body, headers=headers)
        assert large.status_code == 413
    assert not (here / "echo.db").exists()


def test_what_cannot_start_says_why_in_one_line(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = failed(here, f"agent.serve(port={port})")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"dragoman: cannot listen on 127.0.0.1:{port}: ")
    done = failed(here, "dragoman.serve(agent, serve_only=True)")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("dragoman: serve_only: other processes run the turns")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("max_boddy", "dragoman: max_boddy: there is no such setting;"),
        ("workers", "dragoman: workers: there is no such setting; one server is one process"),
    ],
)
def test_a_wrong_option_is_told(
    agent: Agent, capsys: pytest.CaptureFixture[str], option: str, words: str
) -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(SystemExit) as left:
            agent.serve(**{option: 3})
    finally:
        signal.signal(signal.SIGHUP, before)
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith(words)


def test_a_module_that_serves_when_it_is_imported_is_refused(here: Path) -> None:
    program(here, "agent.serve()", main="")
    done = run(here, "serve", "program:agent", *SHORT)
    assert done.returncode == 2
    assert "serve: was called while program:agent is imported" in done.stderr
    assert 'if __name__ == "__main__"' in done.stderr


async def test_a_running_loop_is_refused(agent: Agent) -> None:
    with pytest.raises(RuntimeError, match="serve: was called in a running event loop"):
        agent.serve()
    await asyncio.sleep(0)


def test_what_is_served_is_an_agent_or_an_app(agent: Agent) -> None:
    wrong: Any = "booking:agent"
    with pytest.raises(TypeError, match="serve: expected agents or an App, got str"):
        dragoman.serve(wrong)
    for options in ({"store": MemoryStore()}, {"auth": Anonymous()}):
        (name,) = options
        with pytest.raises(TypeError, match=f"serve: give {name} to the App"):
            dragoman.serve(App(agent), **options)


def test_an_import_of_the_library_brings_no_server() -> None:
    code = "import dragoman, sys; print({'uvicorn', 'dragoman.cli', 'argparse'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "set()", done.stderr
