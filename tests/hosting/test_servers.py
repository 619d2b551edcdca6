"""The same application under real servers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.trust import NOBODY

MODULE = '''
"""What is served."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from dragoman import Agent, App, Turn

HERE = Path(__file__).parent


@asynccontextmanager
async def lifespan(agent):
    (HERE / "begun").write_text("")
    yield "alive"
    (HERE / "ended").write_text("")


agent = Agent("Echo", description="Says it again.", lifespan=lifespan)


@agent.handler
async def answer(turn: Turn):
    yield turn.working()
    for word in turn.text.split():
        if word == "pause":
            while not (HERE / "go").exists():
                await asyncio.sleep(0.01)
        yield turn.write(f"{turn.state} {word};", name="words")


app = App(agent, drain_timeout=0.5)
'''

CARD = "/.well-known/agent-card.json"
SERVERS = {
    "uvicorn": ["uvicorn", "served:app", "--host", "127.0.0.1", "--port", "{port}"],
    "uvicorn-h11": [
        *("uvicorn", "served:app", "--host", "127.0.0.1", "--port", "{port}"),
        *("--http", "h11", "--loop", "asyncio"),
    ],
    "hypercorn": ["hypercorn", "served:app", "--bind", "127.0.0.1:{port}"],
    "granian": [
        *("granian", "--interface", "asgi", "served:app"),
        *("--host", "127.0.0.1", "--port", "{port}"),
    ],
}


@dataclass
class Server:
    """One server process."""

    url: str
    process: subprocess.Popen[bytes]
    here: Path
    log: Path

    def end(self) -> int:
        """Ask it to end, and see it end."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


def free() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


@contextmanager
def running(name: str, here: Path) -> Iterator[Server]:
    """A server of a kind, up and answering; ended at the latest with the block."""
    (here / "served.py").write_text(MODULE)
    url = f"http://127.0.0.1:{(port := free())}"
    command = [part.replace("{port}", str(port)) for part in SERVERS[name]]
    log = here / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(here)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                httpx.get(f"{url}/readyz", verify=NOBODY).raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield Server(url, process, here, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def message(text: str) -> dict[str, Any]:
    """A send."""
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}}


def rpc(method: str, text: str) -> dict[str, Any]:
    """The same as JSON-RPC."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": message(text)}


def texts(artifacts: list[dict[str, Any]]) -> str:
    """What the artifacts say."""
    return "".join(part["text"] for artifact in artifacts for part in artifact["parts"])


@pytest.mark.clause("card.interfaces-true", "http.stream", "rpc.stream")
@pytest.mark.parametrize("name", SERVERS)
def test_served(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path) as server, httpx.Client(timeout=20) as http:
        card = http.get(server.url + CARD)
        assert card.json()["supportedInterfaces"][1]["url"] == server.url
        tag = card.headers["etag"]
        assert http.get(server.url + CARD, headers={"If-None-Match": tag}).status_code == 304
        head = http.head(server.url + CARD)
        assert (head.content, head.headers["etag"]) == (b"", tag)
        assert int(head.headers["content-length"]) == len(card.content)

        sent = http.post(f"{server.url}/message:send", json=message("one two")).json()["task"]
        assert sent["status"]["state"] == "TASK_STATE_COMPLETED"
        assert texts(sent["artifacts"]) == "alive one;alive two;"
        answer = http.post(f"{server.url}/", json=rpc("SendMessage", "three")).json()
        assert texts(answer["result"]["task"]["artifacts"]) == "alive three;"
        note = {k: v for k, v in rpc("SendMessage", "four").items() if k != "id"}
        assert http.post(f"{server.url}/", json=note).status_code == 204
        assert http.get(f"{server.url}/tasks").json()["totalSize"] == 3

        live(server, http)
        leaving(server)
        assert http.get(f"{server.url}/nothing").status_code == 404

        assert (tmp_path / "begun").exists()
        assert not (tmp_path / "ended").exists()
        http.close()
        assert server.end() in (0, -signal.SIGTERM)  # some pass the signal on at the end
        assert (tmp_path / "ended").exists(), "the lifespan was not left"
        log = server.log.read_text()
        assert "Traceback" not in log
        assert "never awaited" not in log


def live(server: Server, http: httpx.Client) -> None:
    """A stream shows what happens while it happens: the agent goes on only when we have seen it."""
    for url, body in (
        ("/message:stream", message("before pause after")),
        ("/", rpc("SendStreamingMessage", "before pause after")),
    ):
        (server.here / "go").unlink(missing_ok=True)
        seen = []
        with http.stream("POST", server.url + url, json=body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line[6:])
                event = event.get("result", event)
                seen.append(next(iter(event)))
                if "before" in line and seen[-1] == "artifactUpdate":
                    (server.here / "go").write_text("")
        assert seen == ["task", "statusUpdate", *["artifactUpdate"] * 3, "statusUpdate"]


def leaving(server: Server) -> None:
    """A reader that goes away is noticed, and disturbs nobody."""
    (server.here / "go").unlink(missing_ok=True)
    with httpx.Client(timeout=20) as http:
        with http.stream("POST", f"{server.url}/message:stream", json=message("pause")) as response:
            task = json.loads(next(line for line in response.iter_lines() if "data" in line)[6:])
        (server.here / "go").write_text("")
        deadline = time.monotonic() + 10
        while True:
            found = http.get(f"{server.url}/tasks/{task['task']['id']}").json()
            if found["status"]["state"] == "TASK_STATE_COMPLETED":
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert texts(found["artifacts"]) == "alive pause;"
