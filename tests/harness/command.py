"""Runs the `dragoman` command as a process, with agents for it to serve."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import trust
from tests.harness.forks import COMMAND, SERVERS, Forked
from tests.harness.trust import trusted

AGENTS = '''
"""Agents to serve."""

import asyncio
import time
from contextlib import asynccontextmanager, suppress

from dragoman import Agent, Turn

agent = Agent("Echo", description="Says it again.", version="1.0.0")


@agent.handler
async def answer(turn: Turn):
    yield turn.working()
    if turn.text == "ask":
        yield turn.ask("What?")
    elif turn.text == "raise":
        raise ValueError("secret inside")
    elif turn.text == "wait":
        await asyncio.sleep(3600)
    elif turn.text == "swallow":
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
    else:
        yield turn.artifact(turn.text)


@agent.skill
def block(turn: Turn) -> str:
    """Block a thread."""
    time.sleep(3600)
    return "never"


second = Agent("Second One", description="Another.")


@second.handler
async def reply(turn: Turn) -> str:
    return "second"


@asynccontextmanager
async def no_database(agent):
    raise RuntimeError("no database")
    yield


broken = Agent("Broken", description="Cannot start.", lifespan=no_database)


@broken.handler
async def never(turn: Turn) -> str:
    return ""


empty = Agent("Empty", description="Has no handler.")
number = 5
'''


def environment(**more: str) -> dict[str, str]:
    """Return environment variables without dragoman's settings, except the given ones."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")}
    return trust.ENVIRONMENT | known | {"PYTHONDONTWRITEBYTECODE": "1"} | more


def run(here: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in a forked process."""
    with ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile("w+b")) for _ in range(2))
        process = SERVERS.start(
            *(COMMAND, *arguments),
            folder=here,
            environment=environment(**env),
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            status = process.wait(30)
        except TimeoutError:
            process.kill()
            process.wait()
            raise
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
        return subprocess.CompletedProcess(arguments, status, *said)


def run_anew(here: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        cwd=here,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a failed command, which must be one line without a traceback."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.startswith("dragoman: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@dataclass
class ServerProcess:
    """A running `dragoman serve`."""

    process: subprocess.Popen[bytes] | Forked
    log: Path
    url: str = ""

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text()

    def send(self, text: str, **message: Any) -> dict[str, Any]:
        """Start a task without waiting for its end."""
        known = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}], **message}
        body = {"message": known, "configuration": {"returnImmediately": True}}
        response = httpx.post(
            f"{self.url}/message:send", json=body, timeout=20, verify=trusted(self.url)
        )
        found: dict[str, Any] = response.raise_for_status().json()["task"]
        return found

    def until(self, task: str, *states: str) -> dict[str, Any]:
        """Wait until a task is in a state, and return it."""

        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = httpx.get(
                f"{self.url}/tasks/{task}", verify=trusted(self.url)
            ).json()
            return found if found["status"]["state"].endswith(states) else None

        return eventually(look)

    def end(self, *signals: signal.Signals, within: float = 10) -> int:
        """Interrupt the process, and return its exit status."""
        for number in signals or (signal.SIGINT,):
            self.process.send_signal(number)
        try:
            return self.process.wait(within)
        except (subprocess.TimeoutExpired, TimeoutError):
            pytest.fail(f"still there after {within} s:\n{self.text()}")


def eventually(look: Callable[[], Any], within: float = 20) -> Any:
    """Call a function until it returns a value, and return that."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


SERVE = ("-m", "dragoman", "serve", "--port", "0")


@contextmanager
def server_process(
    here: Path,
    *arguments: str,
    url: str = "",
    command: tuple[str, ...] = SERVE,
    anew: bool = False,
    **env: str,
) -> Iterator[ServerProcess]:
    """Start `dragoman serve`, on a free port or at a URL, and wait until it is ready: in a forked
    process, or in a new interpreter if the test is of that, or of child processes."""
    anew = anew or command != SERVE or "--reload" in arguments
    log, written = here / "log", here / "stdout"
    process: subprocess.Popen[bytes] | Forked
    with log.open("wb") as output, written.open("wb") as stdout:
        if anew:
            process = subprocess.Popen(
                [sys.executable, *command, *arguments],
                cwd=here,
                env=environment(**env),
                stdout=stdout,
                stderr=output,
                start_new_session=True,
            )
        else:
            process = SERVERS.start(
                *(COMMAND, *command[2:], *arguments),
                folder=here,
                environment=environment(**env),
                stdout=stdout.fileno(),
                stderr=output.fileno(),
            )
    found = ServerProcess(process, log, url)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        if match := re.search(r"card (https?://127\.0\.0\.1:\d+)", log.read_text()):
            found.url = match[1]
        if not found.url:
            return False
        try:
            address = f"{found.url}/readyz"
            return httpx.get(address, verify=trusted(address)).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        eventually(ready)
        yield found
    finally:
        if process.poll() is None:
            # with the child processes of --reload, which share its session
            (os.killpg if anew else os.kill)(process.pid, signal.SIGKILL)
            process.wait()
        assert written.read_bytes() == b"", "logs belong on stderr"
