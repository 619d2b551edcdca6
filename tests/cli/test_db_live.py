"""`dragoman db` beside a running server, as processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.cli.filled_stores import BOTH, QUICK, follow_up, line, seed, sound, total, write
from tests.harness.command import environment, eventually, run, server_process


@contextmanager
def following(here: Path, task: str) -> Iterator[subprocess.Popen[str]]:
    """`dragoman db follow`; one that never ends is ended."""
    with subprocess.Popen(
        [sys.executable, "-m", "dragoman", "db", "follow", task],
        cwd=here,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        timer = threading.Timer(10, process.kill)
        timer.start()
        yield process
        process.wait()
        timer.cancel()


@BOTH
def test_looking_beside_a_server(here: Path) -> None:
    with server_process(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        said = served.send("hello")["id"]
        served.until(said, "COMPLETED")

        listed = run(here, "db", "list", "--json")  # the only store that is here
        assert [item["id"] for item in json.loads(listed.stdout)] == [said, asked]
        shown = run(here, "db", "show", said)
        assert shown.returncode == 0
        assert "completed" in shown.stdout and "hello" in shown.stdout

        with following(here, asked) as follower:
            assert follower.stdout is not None
            first = [follower.stdout.readline() for _ in range(3)]
            assert "input-required" in first[2]
            follow_up(served, asked, "now")
            rest = follower.stdout.read().splitlines()  # it ends with the task
        assert follower.returncode == 0
        numbers = [int(text.split()[0]) for text in [*first, *rest]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert rest[-1].split()[2] == "completed"

        sound(here)
        assert served.end() == 0
        assert "Traceback" not in served.text()


def test_backup_beside_a_server(here: Path) -> None:
    with server_process(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        assert run(here, "db", "backup", "copy.db").returncode == 0
        assert run(here, "db", "list").returncode == 0
        follow_up(served, asked, "after the backup")
        served.until(asked, "COMPLETED")
        assert served.end() == 0
    sound(here, "copy.db")
    with server_process(here, "booking:agent", "--store", "sqlite:///copy.db") as served:
        assert total(served) == 1
        assert served.until(asked, "INPUT_REQUIRED")["id"] == asked


@BOTH
def test_leaving_what_is_followed(here: Path) -> None:
    seed(here, line("t", "WORKING"))
    with following(here, "t") as follower:
        assert follower.stdout is not None and follower.stderr is not None
        follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait(5) == 0
        assert follower.stderr.read() == ""


@BOTH
def test_pruning_beside_a_server(here: Path) -> None:
    with server_process(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        said = [served.send("hello")["id"] for _ in range(3)]
        for task in said:
            served.until(task, "COMPLETED")
        assert total(served) == 4
        done = run(here, "db", "prune", "--older", "0s")
        assert done.returncode == 0 and done.stdout.startswith("3 tasks deleted, ")

        # the server notices when it looks at the file again, which is often
        eventually(lambda: httpx.get(f"{served.url}/tasks/{said[0]}").status_code == 404, 5)
        assert total(served) == 1
        more = served.send("hello again")["id"]
        assert served.until(more, "COMPLETED")["artifacts"][0]["parts"] == [{"text": "hello again"}]
        follow_up(served, asked, "go on")
        assert len(served.until(asked, "COMPLETED")["history"]) == 3
        assert total(served) == 2
        assert httpx.get(f"{served.url}/tasks/{said[2]}").status_code == 404
        assert httpx.get(f"{served.url}/tasks/{said[2]}:subscribe").status_code == 404
        sound(here)
        assert served.end() == 0
        assert "Traceback" not in served.text()


@BOTH
def test_importing_beside_a_server(here: Path) -> None:
    with server_process(here, "booking:agent", *QUICK) as served:
        asked = served.send("ask")["id"]
        served.until(asked, "INPUT_REQUIRED")
        write(
            here / "more.jsonl",
            line("done"),
            line("fresh", "SUBMITTED", text="imported"),
            line("held", "WORKING", holder="dead", inbox=[1], attempt=1),
        )
        assert run(here, "db", "import", "more.jsonl").returncode == 0
        found = served.until("fresh", "COMPLETED")  # nobody told the server but the file
        assert found["artifacts"][0]["parts"] == [{"text": "imported"}]
        served.until("held", "FAILED")  # its worker is not here; this agent is not run twice
        assert total(served) == 4
        follow_up(served, asked, "go on")
        served.until(asked, "COMPLETED")
        served.until(served.send("hello")["id"], "COMPLETED")
        assert total(served) == 5

        # one that the server knows is replaced by what it was before
        assert run(here, "db", "export", "all.jsonl").returncode == 0
        write(here / "less.jsonl", line(asked, "INPUT_REQUIRED", context="c"))
        refused = run(here, "db", "import", "less.jsonl")
        assert refused.returncode == 1 and asked in refused.stderr
        served.until(asked, "COMPLETED")
        assert run(here, "db", "import", "less.jsonl", "--replace").returncode == 0
        served.until(asked, "INPUT_REQUIRED")
        # it is shown at once, but a message gets the context that the server remembers until it
        # looks again, and nothing says that it has
        time.sleep(0.3)
        follow_up(served, asked, "once more")
        assert served.until(asked, "COMPLETED")["history"][-1]["parts"] == [{"text": "once more"}]
        assert total(served) == 5
        sound(here)
        assert served.end() == 0
        assert "Traceback" not in served.text()


@contextmanager
def receiver(answers: list[int], got: list[str]) -> Iterator[str]:
    """A webhook's receiver that answers with the first of the statuses."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if answers[0] == 200:
                got.append(next(iter(body)))
            self.send_response(answers[0])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/hidden"
        server.shutdown()


@BOTH
def test_redriving_beside_a_server(here: Path) -> None:
    answers, got = [410], []
    options = ("--push", "--set", "egress_allow=127.0.0.1", *QUICK)
    with receiver(answers, got) as url, server_process(here, "booking:agent", *options) as served:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        configuration = {"taskPushNotificationConfig": {"url": url, "token": "s3cret"}}
        body = {"message": message, "configuration": configuration}
        task = httpx.post(f"{served.url}/message:send", json=body).json()["task"]["id"]

        def parked() -> list[dict[str, Any]]:
            done = run(here, "db", "webhooks", "--parked", "--json")
            found: list[dict[str, Any]] = json.loads(done.stdout)
            return found

        (waiting,) = eventually(parked)
        assert waiting["task"] == task and waiting["reason"] == "answered 410"
        assert "hidden" not in json.dumps(waiting)
        kept = run(here, "db", "prune", "--older", "0s", "--dry-run")
        assert kept.stdout.startswith("1 task would be")  # parked: nothing waits for it
        answers[:] = [200]
        done = run(here, "db", "redrive", "--task", task)
        assert (done.returncode, done.stdout) == (0, "1 webhook redriven\n")
        eventually(lambda: len(got) == 3)
        assert got == ["statusUpdate", "artifactUpdate", "statusUpdate"]
        assert eventually(lambda: not parked())
        sound(here)
        assert served.end() == 0
