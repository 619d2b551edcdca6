"""The `dragoman` command, as a process."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from dragoman import Settings, __version__
from tests.harness.command import (
    AGENTS,
    ServerProcess,
    environment,
    eventually,
    refused,
    run,
    run_anew,
    server_process,
)
from tests.harness.raw_server import Certificate


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with agents in it, and nothing else."""
    (tmp_path / "booking.py").write_text(AGENTS)
    return tmp_path


class Reader(threading.Thread):
    """Reads a stream in the background."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.lines: list[str] = []
        self.fault: Exception | None = None

    def run(self) -> None:
        """Until it ends."""
        try:
            with httpx.stream("GET", self.url, timeout=30) as response:
                for line in response.iter_lines():
                    self.lines.append(line)
        except httpx.HTTPError as error:
            self.fault = error


@contextmanager
def reading(url: str) -> Iterator[Reader]:
    """A stream that is open, and ends in order at the end of the block."""
    reader = Reader(url)
    reader.start()
    eventually(lambda: reader.lines or reader.fault)
    yield reader
    reader.join(10)
    assert not reader.is_alive()
    assert reader.fault is None


# ---- asking it -----------------------------------------------------------------------------


def test_version(here: Path) -> None:
    done = run(here, "--version")
    assert (done.returncode, done.stdout) == (0, f"dragoman {__version__}\n")


def test_help(here: Path) -> None:
    done = run(here, "--help")
    assert done.returncode == 0
    assert {"serve", "config", "--version"} <= set(done.stdout.split())
    done = run(here, "serve", "--help")
    assert done.returncode == 0
    for word in ("module:agent", "--reload", "--port", "--host", "--store", "--set", "--config"):
        assert word in done.stdout


def test_a_worker_has_no_options_of_a_server(here: Path) -> None:
    done = run(here, "worker", "--help")
    assert done.returncode == 0
    for word in ("--store", "--bell", "--log-level", "--set", "--concurrency", "--push"):
        assert word in done.stdout
    for word in ("--host", "--port", "--grpc-port", "--url", "--cert", "--workers", "--access-log"):
        assert word not in done.stdout
    done = run(here, "worker", "booking:agent", "--port", "1")
    assert (done.returncode, "unrecognized arguments: --port" in done.stderr) == (2, True)


def test_without_a_command(here: Path) -> None:
    done = run(here)
    assert done.returncode == 2
    assert "usage: dragoman" in done.stderr


# ---- serving -------------------------------------------------------------------------------


@pytest.mark.clause("card.interfaces-true")
def test_serve(here: Path) -> None:
    with server_process(here, "booking:agent") as served:
        log = served.text()
        assert f"Echo at {served.url}/" in log
        assert f"{served.url}/.well-known/agent-card.json" in log
        assert "tasks are kept in echo.db" in log
        assert "anonymous" in log
        card = httpx.get(f"{served.url}/.well-known/agent-card.json").json()
        assert card["supportedInterfaces"][0]["url"] == f"{served.url}/"
        task = served.send("hello")["id"]
        found = served.until(task, "COMPLETED")
        assert found["artifacts"][0]["parts"] == [{"text": "hello"}]
        assert served.end() == 0
        assert "stopped" in served.text()
        assert "Traceback" not in served.text()
        assert " /message" not in served.text()  # no access log unasked


def test_serve_over_tls(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(Certificate(here, "127.0.0.1").file)
    monkeypatch.setenv("SSL_CERT_FILE", file)
    with server_process(here, "booking:agent", "--cert", file) as served:
        assert served.url.startswith("https://")
        assert f"Echo at {served.url}/" in served.text()
        card = httpx.get(f"{served.url}/.well-known/agent-card.json").json()
        assert card["supportedInterfaces"][0]["url"] == f"{served.url}/"
        served.until(served.send("hello")["id"], "COMPLETED")
        task = served.send("ask")["id"]
        served.until(task, "INPUT_REQUIRED")
        with reading(f"{served.url}/tasks/{task}:subscribe"):
            assert served.end() == 0
        assert "Traceback" not in served.text()


def test_serve_several(here: Path) -> None:
    with server_process(here, "booking:agent", "booking:second") as served:
        log = served.text()
        assert f"Echo at {served.url}/echo/" in log
        assert f"Second One at {served.url}/second-one/" in log
        for key, name in (("echo", "Echo"), ("second-one", "Second One")):
            card = httpx.get(f"{served.url}/{key}/.well-known/agent-card.json").json()
            assert card["name"] == name
            assert f"card {served.url}/{key}/.well-known/agent-card.json" in log
        assert served.end() == 0


def test_serve_under_a_public_url(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    public = ("--url", "https://agents.example/x/", "--port", port)
    with server_process(here, "booking:agent", *public, url=f"http://127.0.0.1:{port}") as served:
        assert "Echo at https://agents.example/x/\n" in served.text()
        assert "card https://agents.example/x/.well-known/agent-card.json" in served.text()
        card = httpx.get(f"{served.url}/.well-known/agent-card.json").json()
        assert card["supportedInterfaces"][1]["url"] == "https://agents.example/x"
        assert served.end() == 0


def test_access_log(here: Path) -> None:
    with server_process(here, "booking:agent", "--access-log") as served:
        httpx.get(f"{served.url}/tasks/unknown")
        eventually(lambda: "/tasks/unknown" in served.text())
        (line,) = [line for line in served.text().splitlines() if "/tasks/unknown" in line]
        words = r"127\.0\.0\.1 GET /tasks/unknown 404 \d+\.\d ms GetTask TASK_NOT_FOUND"
        assert re.search(rf"{words} \[task=unknown\]$", line)
        assert served.end() == 0


# ---- ending --------------------------------------------------------------------------------

SHORT = ("--set", "drain_timeout=0.2", "--set", "cancel_grace=0.2")


def test_an_open_stream_does_not_keep_it(here: Path) -> None:
    with server_process(here, "booking:agent") as served:  # with the usual time to drain
        task = served.send("ask")["id"]
        served.until(task, "INPUT_REQUIRED")
        with reading(f"{served.url}/tasks/{task}:subscribe"):
            assert served.end() == 0
        assert "Traceback" not in served.text()


def test_a_running_turn_is_ended(here: Path) -> None:
    with server_process(here, "booking:agent", *SHORT) as served:
        task = served.send("wait")["id"]
        served.until(task, "WORKING")
        with reading(f"{served.url}/tasks/{task}:subscribe") as reader:
            assert served.end() == 0
        last = json.loads([line for line in reader.lines if line[:6] == "data: "][-1][6:])
        status = last["statusUpdate"]["status"]
        assert status["state"] == "TASK_STATE_FAILED"
        assert "shut down" in status["message"]["parts"][0]["text"]
        assert "Traceback" not in served.text()


def test_a_handler_that_stops_when_asked_is_not_said_to_go_on(here: Path) -> None:
    with server_process(here, "booking:agent", *SHORT) as served:
        task = served.send("wait")["id"]
        served.until(task, "WORKING")
        assert served.end() == 0
        assert "continues" not in served.text()
        assert "WARNING" not in served.text()


@pytest.mark.parametrize(
    ("text", "message", "words"),
    [
        ("swallow", {}, "handler answer, which ignores its cancellation"),
        ("x", {"metadata": {"skill": "block"}}, "stopped"),
    ],
)
def test_a_handler_that_will_not_stop(
    here: Path, text: str, message: dict[str, Any], words: str
) -> None:
    with server_process(here, "booking:agent", *SHORT) as served:
        task = served.send(text, **message)["id"]
        with reading(f"{served.url}/tasks/{task}:subscribe"):
            assert served.end() == 0
        assert words in served.text()


@pytest.mark.parametrize("text", ["wait", "swallow"])
def test_a_second_interrupt_stops_it_now(here: Path, text: str) -> None:
    with server_process(here, "booking:agent", "--set", "drain_timeout=600") as served:
        served.until(served.send(text)["id"], "WORKING")
        served.process.send_signal(signal.SIGINT)
        eventually(lambda: "Ctrl-C again" in served.text())
        served.end(within=5)


def test_terminated(here: Path) -> None:
    with server_process(here, "booking:agent") as served:
        task = served.send("ask")["id"]
        served.until(task, "INPUT_REQUIRED")
        with reading(f"{served.url}/tasks/{task}:subscribe"):
            assert served.end(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert "draining" in served.text()
        assert "Traceback" not in served.text()


# ---- reloading -----------------------------------------------------------------------------


def version(served: ServerProcess) -> str:
    """The version that is served now."""
    try:
        card = httpx.get(f"{served.url}/.well-known/agent-card.json", timeout=2).json()
    except httpx.HTTPError:
        return ""
    return str(card["version"])


def edit(here: Path, text: str, seen: Callable[[], bool], within: float = 20) -> None:
    """Save the module until it is noticed: the watch begins a moment later than the server."""
    saved = 0.0

    def look() -> bool:
        nonlocal saved
        if time.monotonic() > saved + 2:
            (here / "booking.py").write_text(text)
            saved = time.monotonic()
        return seen()

    eventually(look, within)


@pytest.mark.parametrize("more", [[], ["--reload"]], ids=["", "reload"])
def test_who_may_call_is_a_setting(here: Path, more: list[str]) -> None:
    keys = 'keys = { ann = "env:ANNS_KEY" }'
    (here / "dragoman.toml").write_text(f'[[auth]]\nscheme = "key"\nheader = "X-Key"\n{keys}\n')
    with server_process(here, "booking:agent", *more, ANNS_KEY="a-secret-key") as served:
        for key, status in (("", 401), ("wrong", 401), ("a-secret-key", 200)):
            answer = httpx.get(f"{served.url}/tasks", headers={"x-key": key})
            assert answer.status_code == status
        assert "anonymous" not in served.text()
        assert served.end() == 0


def test_the_tables_of_a_file_are_shown_without_their_secrets(here: Path) -> None:
    table = {"scheme": "key", "header": "X-Key", "keys": {"ann": ["a-secret-key"]}}
    shown = run(here, "config", DRAGOMAN_AUTH=json.dumps([table])).stdout
    assert tomllib.loads(shown)["auth"] == [{**table, "keys": {"ann": ["***"]}}]


def test_reload(here: Path) -> None:
    with server_process(here, "booking:agent", "--reload") as served:
        assert version(served) == "1.0.0"
        edit(here, AGENTS.replace("1.0.0", "2.0.0"), lambda: version(served) == "2.0.0")
        served.until(served.send("hello")["id"], "COMPLETED")
        assert served.text().count("press Ctrl-C to stop") >= 2  # each start says where
        assert " /message" not in served.text()  # no access log unasked
        edit(here, "a mistake(", lambda: "SyntaxError" in served.text())
        edit(here, AGENTS.replace("1.0.0", "3.0.0"), lambda: version(served) == "3.0.0")
        assert served.end() == 0


def test_reload_with_an_open_stream(here: Path) -> None:
    with server_process(here, "booking:agent", "--reload", *SHORT) as served:
        task = served.send("ask")["id"]
        served.until(task, "INPUT_REQUIRED")
        with reading(f"{served.url}/tasks/{task}:subscribe"):
            edit(here, AGENTS.replace("1.0.0", "2.0.0"), lambda: version(served) == "2.0.0")
        assert "Traceback" not in served.text()
        assert served.end() == 0


# ---- what cannot be served -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing:agent", ["nothing:agent", "no module 'nothing'"]),
        ("booking.deep:agent", ["no module 'booking.deep'"]),
        ("booking:missing", ["no 'missing'", "it contains: agent, second, broken, empty"]),
        ("booking:agent.missing", ["no 'missing'"]),
        ("booking:number", ["expected an Agent, an App, an executor", "got int"]),
        ("booking:Agent", ["got Agent"]),
        ("booking:empty", ["Empty", "no handler", "@agent.skill"]),
        ("booking", ["module:agent"]),
        (":agent", ["module:agent"]),
        ("booking:", ["module:agent"]),
    ],
)
def test_what_is_no_agent(here: Path, name: str, words: list[str]) -> None:
    said = refused(run(here, "serve", name))
    for word in words:
        assert word in said


def test_two_agents_of_one_key(here: Path) -> None:
    assert "same key" in refused(run(here, "serve", "booking:agent", "booking:agent"))


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("import does_not_exist_anywhere", "No module named 'does_not_exist_anywhere'"),
        (
            "from dragoman import Agent\nagent = Agent('A', description='d', key='/')",
            "cannot be part of a path",
        ),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("a mistake(", "SyntaxError: "),
        ("try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('b')", "ValueError: b"),
    ],
)
def test_a_module_that_fails_shows_its_own_frames(here: Path, text: str, last: str) -> None:
    (here / "failing.py").write_text(text + "\n")
    done = run(here, "serve", "failing:agent")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dragoman: failing:agent: the module cannot be imported\n")
    assert last in done.stderr.splitlines()[-1]
    files = set(re.findall(r'File "([^"]+)"', done.stderr))
    assert files == {str(here / "failing.py")}


def test_a_port_that_is_taken(here: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(run(here, "serve", "booking:agent", "--port", str(port)))
        assert f"cannot listen on 127.0.0.1:{port}" in said
        assert "in use" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "99999"], "99999"),
        (["--store", "nowhere://x"], "nowhere"),
        (["--log-level", "loud"], "log_level"),
        (["--set", "drain_timeout=long"], "drain_timeout"),
        (["--set", "drain_timeout"], "NAME=VALUE"),
        (["--set", "colour=blue"], "colour"),
        (["--config", "missing.toml"], "missing.toml"),
        (["--cert", "missing.pem"], "cert: missing.pem: No such file"),
        (["--cert", "booking.py"], "cert: booking.py: contains no PEM certificate"),
        (["--key", "booking.py"], "key: needs cert"),
    ],
)
def test_settings_that_cannot_be(here: Path, arguments: list[str], words: str) -> None:
    assert words in refused(run(here, "serve", "booking:agent", *arguments))


def test_an_agent_that_cannot_start(here: Path) -> None:
    done = run(here, "serve", "booking:broken", "--port", "0")
    assert done.returncode not in (0, None)
    assert "no database" in done.stderr


# ---- settings ------------------------------------------------------------------------------


def config(here: Path, *arguments: str, run: Any = run, **env: str) -> dict[str, Any]:
    """The settings in force."""
    done = run(here, "config", "--json", *arguments, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return {name: item["value"] for name, item in json.loads(done.stdout).items()}


def test_the_settings_in_force(here: Path) -> None:
    found = config(here)
    assert list(found) == list(Settings.__struct_fields__)
    expected = msgspec.to_builtins(Settings(store="sqlite:"))
    assert found == json.loads(json.dumps(expected))


def test_the_settings_for_people_are_toml(here: Path) -> None:
    arguments = ("--port", "0", "--set", "threads=1", "--access-log", "--log-format", "json")
    done = run(here, "config", *arguments)
    assert done.returncode == 0
    expected = config(here, *arguments)
    for line in done.stdout.splitlines():
        assert re.fullmatch(r"(\w+ = \S.*|# \w+ =|#   \?\w+=\S*) +# \S.*", line)
    (here / "printed.toml").write_text(done.stdout)
    assert config(here, "--config", "printed.toml") == expected
    shown = {line.partition(" = ")[0]: line for line in done.stdout.splitlines()}
    assert shown["port"].startswith("port = 0 ")
    assert shown["threads"].startswith("threads = 1 ")
    assert shown["access_log"].startswith("access_log = true ")
    assert shown["poll"].startswith('poll = "1s" ')
    assert shown["max_body"].startswith('max_body = "16MiB" ')
    assert shown["rate"].startswith("rate = 0.0 ")


def test_config_shows_the_options_of_the_store(here: Path) -> None:
    url = "postgresql://me:hunter2@db/tasks?pool_size=3"
    done = run(here, "config", "--store", url)
    assert "hunter2" not in done.stdout
    options = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("#   ?")]
    assert options == ["?pool_size=3", "?migrate=true", "?prepared=true"]
    found = json.loads(run(here, "config", "--json", "--store", url).stdout)
    assert found["store"]["options"] == {"pool_size": 3, "migrate": True, "prepared": True}
    said = refused(run(here, "config", "--store", "memory:?tasks=3"))
    assert "store?tasks: there is no such option; memory: has max_tasks" in said


def test_who_wins(here: Path) -> None:
    (here / "dragoman.toml").write_text(
        'port = 1\nhost = "toml"\npoll = 1.5\ndrain_timeout = 1.5\n'
    )
    env = {"DRAGOMAN_PORT": "2", "DRAGOMAN_HOST": "variable", "DRAGOMAN_DRAIN_TIMEOUT": "2.5"}
    found = config(here, "--port", "3", "--set", "drain_timeout=3.5", **env)
    assert (found["port"], found["host"]) == (3, "variable")
    assert (found["poll"], found["drain_timeout"]) == (1.5, 3.5)
    other = here / "other.toml"
    other.write_text("port = 4\n")
    assert config(here, "--config", str(other))["port"] == 4
    assert config(here, DRAGOMAN_CONFIG=str(other))["port"] == 4
    assert config(here)["port"] == 1


def test_set(here: Path) -> None:
    found = config(here, "--set", "max-body=5", "--set", "push=true", "--set", "url=http://x?a=b")
    assert (found["max_body"], found["push"], found["url"]) == (5, True, "http://x?a=b")
    found = config(here, "--set", "max-body=5KiB", "--set", "lease=2m")
    assert (found["max_body"], found["lease"]) == (5120, 120)


def test_a_variable_that_is_not_known(here: Path) -> None:
    done = run(here, "config", DRAGOMAN_PROT="5")
    assert done.returncode == 0
    words = "DRAGOMAN_PROT: there is no such setting; did you mean DRAGOMAN_PORT?"
    assert done.stderr == f"dragoman: warning: {words}\n"


def test_where_each_value_comes_from(here: Path) -> None:
    (here / "dragoman.toml").write_text("port = 1\nthreads = 2\nrate = 3\n")
    arguments = ("config", "--set", "rate=4", "--host", "::1")
    done = run(here, *arguments, DRAGOMAN_PORT="2")
    sources = dict(re.findall(r"^(?:# )?(\w+) = ?.*  # \(([\w. ]+)\) ", done.stdout, re.MULTILINE))
    assert list(sources) == list(Settings.__struct_fields__)
    assert {name: source for name, source in sources.items() if source != "default"} == {
        "host": "command line",
        "port": "DRAGOMAN_PORT",
        "threads": "dragoman.toml",
        "rate": "command line",
    }
    told = json.loads(run(here, *arguments, "--json", DRAGOMAN_PORT="2").stdout)
    assert {name: item["source"] for name, item in told.items()} == sources


def test_all_wrong_settings_are_reported(here: Path) -> None:
    (here / "dragoman.toml").write_text('prot = 1\nlease = "x"\n')
    done = run(here, "config", "--set", "max_body=16MB")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "dragoman: dragoman.toml: prot: there is no such setting; did you mean port?",
        "dragoman: dragoman.toml: lease: 'x' is not a duration; use 45s, 90m or 12h",
        "dragoman: max_body: '16MB' is not a size; use 64KiB, 16MiB or 1GiB",
    ]


def test_tables_in_one_pair_of_brackets(here: Path) -> None:
    (here / "dragoman.toml").write_text('[auth]\nscheme = "key"\n')
    said = refused(run(here, "config"))
    assert "auth: is one table, not a list of tables; write [[auth]] with two brackets" in said


def test_a_setting_that_is_not_known(here: Path) -> None:
    assert "colour" in refused(run(here, "config", "--set", "colour=blue"))
    (here / "dragoman.toml").write_text("size = 5\n")
    said = refused(run(here, "config"))
    assert "size" in said
    assert "dragoman.toml" in said


@pytest.mark.clause("logs.no-secrets")
def test_passwords_are_masked(here: Path) -> None:
    store = "postgresql://user:hunter2@db.example/tasks"
    for output in (
        run(here, "config", "--store", store).stdout,
        run(here, "config", "--json", DRAGOMAN_BELL="redis://:hunter2@bell.example/0").stdout,
    ):
        assert "hunter2" not in output
        assert "***" in output
        assert ".example/" in output
    assert "hunter2" not in run(here, "serve", "booking:agent", "--store", store).stderr


@pytest.mark.parametrize(
    ("arguments", "where"),
    [((), "sqlite:///echo.db"), (("--store", "memory:"), "memory:")],
)
def test_turns_that_nobody_could_run_are_not_accepted(
    here: Path, arguments: tuple[str, ...], where: str
) -> None:
    said = refused(run(here, "serve", "booking:agent", "--serve-only", *arguments))
    assert said.startswith("dragoman: serve_only: other processes run the turns")
    assert f"they cannot reach the store {where};" in said
    assert "--store postgresql://" in said


@pytest.mark.parametrize("arguments", [("--workers", "4"), ("--workers",), ("--set", "workers=4")])
def test_what_to_do_in_place_of_workers_is_told(here: Path, arguments: tuple[str, ...]) -> None:
    said = refused(run(here, "serve", "booking:agent", *arguments))
    assert "start `dragoman serve` several times with the same --store postgresql://" in said
    assert "--workers" not in run(here, "serve", "--help").stdout
    said = refused(run(here, "worker", "booking:agent", "--workers", "4"))
    assert "--concurrency" in said


# ---- logs ----------------------------------------------------------------------------------


@pytest.mark.clause("errors.logged")
def test_logs_for_machines(here: Path) -> None:
    arguments = ("--log-format", "json", "--access-log", *SHORT)
    with server_process(here, "booking:agent", *arguments, TZ="Asia/Kathmandu") as served:
        task = served.send("raise")["id"]
        found = served.until(task, "FAILED")
        words = found["status"]["message"]["parts"][0]["text"]
        assert "ValueError" in words
        assert "secret" not in words
        assert served.end() == 0
        lines = [json.loads(line) for line in served.text().splitlines()]
    for line in lines:
        assert {"time", "level", "logger", "message"} <= line.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        told = datetime.datetime.fromisoformat(line["time"])
        assert abs(datetime.datetime.now(datetime.UTC) - told) < datetime.timedelta(minutes=5)
    (raised,) = [line for line in lines if "exception" in line]
    assert (raised["level"], raised["task"]) == ("error", task)
    assert raised["correlation"] in words
    assert "answer" in raised["message"]
    assert "secret inside" in raised["exception"]
    (sent,) = [line for line in lines if line.get("operation") == "SendMessage"]
    assert (sent["task"], sent["status"], sent["outcome"]) == (task, 200, "ok")
    assert (sent["client"], sent["logger"]) == ("127.0.0.1", "dragoman.access")
    assert sent["duration_ms"] > 0


def test_logs_for_people(here: Path) -> None:
    with server_process(here, "booking:agent") as served:
        task = served.send("raise")["id"]
        served.until(task, "FAILED")
        assert served.end() == 0
        assert f"task={task}" in served.text()
        assert "handler answer raised ValueError; correlation id " in served.text()
        assert "ValueError: secret inside" in served.text()


def test_the_log_level(here: Path) -> None:
    done = run(here, "serve", "booking:broken", "--log-level", "error", "--port", "0")
    assert "Ctrl-C" not in done.stderr
    assert "no database" in done.stderr


# ---- what is not installed -----------------------------------------------------------------

BLOCKER = """
import sys


class Blocker:
    names = {names}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
"""


def without(here: Path, *names: str) -> dict[str, str]:
    """The variables of a process in which these cannot be imported."""
    aside = here / "aside"
    aside.mkdir(exist_ok=True)
    (aside / "sitecustomize.py").write_text(BLOCKER.format(names=set(names)))
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(aside), os.environ.get("PYTHONPATH")]))}


def test_without_uvicorn(here: Path) -> None:
    env = without(here, "uvicorn", "uvloop", "httptools", "watchfiles")
    said = refused(run_anew(here, "serve", "booking:agent", **env))
    assert "pip install 'dragoman[serve]'" in said
    assert config(here, **env, run=run_anew)["port"] == 8000
    assert run_anew(here, "--version", **env).returncode == 0


def test_without_uvloop(here: Path) -> None:
    env = without(here, "uvloop", "httptools", "watchfiles")
    probe = "import importlib.util\nimport uvloop"
    blocked = subprocess.run(
        [sys.executable, "-c", probe], env=environment(**env), capture_output=True, check=False
    )
    assert blocked.returncode == 1  # it is not there
    with server_process(
        here, "booking:agent", "--set", "request_timeout=3", anew=True, **env
    ) as served:
        served.until(served.send("hello")["id"], "COMPLETED")
        # the other parser has the same deadline, and a limit
        for sent, status in ((b"GET / HT", 408), (b"GET / HTTP/1.1\r\nA: " + b"x" * 90_000, 400)):
            with socket.create_connection(
                ("127.0.0.1", int(served.url.rpartition(":")[2])), 10
            ) as peer:
                peer.sendall(sent)
                assert peer.recv(12) == b"HTTP/1.1 %d" % status
        task = served.send("ask")["id"]
        served.until(task, "INPUT_REQUIRED")
        with reading(f"{served.url}/tasks/{task}:subscribe"):
            assert served.end() == 0
        assert "Traceback" not in served.text()
