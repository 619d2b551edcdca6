"""`dragoman serve module:app`: an application made in code, with the server of the command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.cli import Options, UsageError, serve, worker
from tests.cli.test_signals import working
from tests.harness.command import AGENTS, refused, run, server_process
from tests.harness.stores import database

CODE = (
    AGENTS
    + """

from dragoman import App, Caller
from dragoman.model.errors import Unauthenticated
from dragoman.stores.memory import MemoryStore


def identify(request):
    name = request.headers.get("x-user")
    if name is None:
        raise Unauthenticated
    return Caller(identity=name)


def policy(access):
    return access.caller.identity == "boss"


app = App(agent, identify=identify, policy=policy, max_body=8000, log_level="warning",
          drain_timeout=1.0)
stored = App(agent, second, store=MemoryStore())
"""
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with applications in it, that can be imported from here."""
    (tmp_path / "hosted.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(serve, "configure", lambda level, form: None)  # of this process
    yield tmp_path
    sys.modules.pop("hosted", None)


def options(*texts: str, **given: Any) -> Options:
    """What a command line says, with `--set` as NAME=VALUE."""
    return Options(given, dict(text.split("=", 1) for text in texts))


def test_it_has_the_server_of_the_command(here: Path) -> None:
    """`identify` and `policy` are in force, what the command line says comes before what the code
    says, and tasks are kept in a file."""
    with server_process(here, "hosted:app", "--log-level", "info") as served:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        ann, boss = {"x-user": "ann"}, {"x-user": "boss"}
        with httpx.Client(base_url=served.url) as http:
            assert http.post("/message:send", json={"message": message}).status_code == 401
            sent = http.post("/message:send", json={"message": message}, headers=ann)
            task = sent.json()["task"]["id"]
            assert http.get(f"/tasks/{task}", headers=boss).status_code == 200
            assert http.get(f"/tasks/{task}", headers={"x-user": "eve"}).status_code == 404
            large = message | {"parts": [{"text": "x" * 8000}]}
            assert (
                http.post("/message:send", json={"message": large}, headers=ann).status_code == 413
            )
            # what only our own server sees to
            assert http.get("/tasks", headers=ann | {"x-long": "x" * 70_000}).status_code == 431
        assert "press Ctrl-C to stop" in served.text()
        assert served.end() == 0
    assert (here / "echo.db").exists()


def test_it_is_the_same_object(here: Path) -> None:
    """So that code of the module which uses it sees what is served."""
    hosted = importlib.import_module("hosted")
    made = serve.build(["hosted:app"], options())
    assert made is hosted.app
    assert isinstance(made, App)


def test_which_settings_are_in_force(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "other.toml").write_text("max_body = 3\nthreads = 33\nmax_running = 3\nport = 3333\n")
    monkeypatch.setenv("DRAGOMAN_MAX_BODY", "4")
    monkeypatch.setenv("DRAGOMAN_MAX_RUNNING", "4")
    given = {"port": 1234, "host": None}
    found = serve.build(
        ["hosted:app"], Options(given, {"drain_timeout": "2"}, "other.toml")
    ).settings
    assert (found.max_body, found.drain_timeout, found.port) == (8000, 2.0, 1234)
    assert (found.max_running, found.threads, found.poll) == (4, 33, 1.0)
    assert (found.log_level, found.store) == ("warning", "sqlite:///echo.db")


def test_a_store_of_its_own_stays(here: Path) -> None:
    hosted = importlib.import_module("hosted")
    store = hosted.stored.store
    assert serve.build(["hosted:stored"], options()).store is store
    with pytest.raises(UsageError, match=r"^store: cannot be changed here"):
        serve.build(["hosted:stored"], options(store="sqlite:///x.db"))


async def test_its_settings_stay_once_it_has_started(here: Path) -> None:
    hosted = importlib.import_module("hosted")
    async with hosted.stored as app:
        with pytest.raises(RuntimeError, match="after the start"):
            app.reconfigure(app.settings)


@pytest.mark.parametrize(
    "names", [["hosted:app", "hosted:second"], ["hosted:app", "hosted:stored"]]
)
def test_an_app_is_served_alone(here: Path, names: list[str]) -> None:
    with pytest.raises(UsageError, match="give agents, or one App"):
        serve.build(names, options())


def test_a_setting_that_does_not_fit_is_told_in_a_line(here: Path) -> None:
    said = refused(run(here, "serve", "hosted:app", "--set", "bindings=GRPC"))
    assert "bindings: GRPC needs grpc_port" in said
    assert "no 'missing'; it contains: agent, second, broken, empty, app, stored" in refused(
        run(here, "serve", "hosted:missing")
    )


@pytest.mark.parametrize("name", ["hosted:app", "hosted:stored"])
def test_a_worker_needs_a_store_that_is_shared(
    here: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "hang_up", lambda: None)
    with pytest.raises(UsageError, match="they cannot reach"):
        worker.run([name], options())


def test_a_worker_takes_it_too(here: Path) -> None:
    store, name = database(), "hosted:app"
    flags = ("--log-level", "info")
    with (
        working(here, store, *flags, name=name),
        server_process(here, name, "--store", store, "--serve-only", *flags) as served,
    ):
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        body, ann = {"message": message}, {"x-user": "ann"}
        sent = httpx.post(f"{served.url}/message:send", json=body, headers=ann, timeout=20)
        assert sent.json()["task"]["artifacts"][0]["parts"] == [{"text": "hello"}]
        assert served.end() == 0


def test_the_process_that_a_reload_starts_has_it(here: Path) -> None:
    with server_process(here, "hosted:app", "--reload", "--log-level", "info") as served:
        headers = {"x-user": "ann"}
        assert httpx.get(f"{served.url}/tasks", headers=headers).status_code == 200
        assert httpx.get(f"{served.url}/tasks").status_code == 401
        assert served.end() == 0


def test_a_key_that_is_not_there_is_told_in_a_line(here: Path) -> None:
    """Not by a traceback, and by the name of the setting."""
    done = run(here, "serve", "hosted:agent", "--port", "0", "--set", "card_keys=no.pem")
    assert done.returncode != 0
    assert "card_keys: no.pem: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
