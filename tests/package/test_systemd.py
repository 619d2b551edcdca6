"""The units of systemd: what systemd says of them, and what they run."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dragoman.server import load_settings
from tests.harness.services import free
from tests.package.deploy_files import DEPLOY, UNITS, units

ROOT = DEPLOY.parent
HARDENED = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "DynamicUser": "yes"}
STORE = "postgresql://dragoman@db.example/dragoman"
AGENT = """
from dragoman import Agent

agent = Agent("Booking", description="Books.")
agent.handler(lambda turn: "done")
"""


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_them(path: Path, tmp_path: Path) -> None:
    found = dict(units(path))
    assert found.items() >= HARDENED.items()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / path.name.replace("@", "@booking")
    shutil.copy(path, unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if path.name.split("@")[0] in line]
    assert not said


class Machine:
    """A folder that stands for the root of a machine, for the instance `booking`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("etc/dragoman", "srv/dragoman/booking", "var/lib/dragoman/booking"):
            (root / folder).mkdir(parents=True)
        for file in (DEPLOY / "systemd").glob("*.env"):
            shutil.copy(file, root / "etc/dragoman")

    def configure(self, name: str, *lines: str) -> None:
        """Add lines to an environment file."""
        with (self.root / "etc/dragoman" / name).open("a") as file:
            file.write("\n".join((*lines, "")))

    def expand(self, text: str) -> str:
        """What systemd makes of a value, below this root."""
        text = text.replace("%i", "booking").replace("%S", f"{self.root}/var/lib")
        for folder in ("/etc/dragoman", "/srv/dragoman"):
            text = text.replace(folder, f"{self.root}{folder}")
        return text

    def environment(self, unit: str) -> dict[str, str]:
        """The variables that a unit gives its process; those of files come later."""
        found: dict[str, str] = {}
        given = units(DEPLOY / "systemd" / unit)
        for name, value in given:
            if name == "Environment":
                key, _, word = self.expand(value).partition("=")
                found[key] = word
        for name, value in given:
            if name == "EnvironmentFile":
                file = Path(self.expand(value.removeprefix("-")))
                if file.exists() or not value.startswith("-"):
                    found |= dict(units(file))
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """With our environment files as they are."""
    return Machine(tmp_path)


def test_a_server_and_a_worker_run_beside_each_other(machine: Machine) -> None:
    machine.configure("booking.env", f"DRAGOMAN_STORE={STORE}")
    serve, worker = (
        load_settings.load(
            environ=machine.environment(f"dragoman-{name}@.service"), file="/dev/null"
        )
        for name in ("serve", "worker")
    )
    assert serve.store == worker.store == STORE
    assert None not in (serve.metrics_address, worker.metrics_address)
    assert serve.metrics_address != worker.metrics_address, "the second one could not start"
    assert serve.serve_only


def test_a_server_may_run_turns_itself(machine: Machine) -> None:
    machine.configure("booking.env", f"DRAGOMAN_STORE={STORE}")
    machine.configure("booking.serve.env", "DRAGOMAN_SERVE_ONLY=false")
    found = machine.environment("dragoman-serve@.service")
    assert not load_settings.load(environ=found, file="/dev/null").serve_only
    for path in UNITS:
        assert "--" not in dict(units(path))["ExecStart"], "no file could say otherwise"


def test_one_process_with_a_file(machine: Machine) -> None:
    """It runs the dragoman of the agents' own environment, and writes to the state directory."""
    home = machine.root / "srv/dragoman/booking"
    (home / "booking.py").write_text(AGENT)
    (home / ".venv").symlink_to(sys.prefix)
    number = free()
    machine.configure("booking.env", f"DRAGOMAN_PORT={number}")
    given = dict(units(DEPLOY / "systemd/dragoman@.service"))
    assert given["StateDirectory"] == "dragoman/%i"
    environ = machine.environment("dragoman@.service")
    agents = environ.pop("AGENTS")
    words = shlex.split(given["ExecStart"].replace("$AGENTS", agents))
    before = {path.name for path in home.iterdir()}
    process = subprocess.Popen(
        words,
        cwd=machine.expand(given["WorkingDirectory"]),
        # these sources, wherever the installed ones are
        env={**environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        answers(process, f"http://127.0.0.1:{number}/readyz")
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert (machine.root / "var/lib/dragoman/booking/tasks.db").exists()
    assert {path.name for path in home.iterdir()} == before, "it cannot be written there"


def answers(process: subprocess.Popen[str], url: str) -> None:
    """Wait until there is an answer."""
    until = time.monotonic() + 30
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, "it has ended"
            assert time.monotonic() < until, "it does not answer"
            time.sleep(0.05)


def test_the_environment_files_are_for_units() -> None:
    read = {
        Path(value).name.replace("%i", "booking")
        for path in UNITS
        for name, value in units(path)
        if name == "EnvironmentFile"
    }
    assert read == {path.name for path in (DEPLOY / "systemd").glob("*.env")}
    assert os.sep not in "".join(read)
