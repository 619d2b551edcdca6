"""`dragoman serve` and `dragoman console` as commands: where they print the address."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.harness.command import AGENTS, environment, eventually, refused, run

ADDRESS = re.compile(r"console: (http://\S+/console/\?token=(\S+))")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "booking.py").write_text(AGENTS)
    return tmp_path


class Printed:
    """A process whose standard output is a terminal, and whose log is a file."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, log: Path) -> None:
        self._process, self._terminal, self._log = process, terminal, log
        self._text = ""

    def output(self) -> str:
        """What the terminal has shown so far."""
        os.set_blocking(self._terminal, False)
        try:
            while more := os.read(self._terminal, 65536):
                self._text += more.decode()
        except (BlockingIOError, OSError):
            pass
        return self._text

    def log(self) -> str:
        """The log so far."""
        assert self._process.poll() is None, self._log.read_text()
        return self._log.read_text()

    def address(self) -> tuple[str, str]:
        """The address that was printed, and its token."""
        found: re.Match[str] = eventually(lambda: self.log() and ADDRESS.search(self.output()))
        return found[1], found[2]


@contextmanager
def printing(here: Path, *arguments: str) -> Iterator[Printed]:
    """Run the command with a terminal for its output."""
    terminal, slave = pty.openpty()
    log = here / "log"
    output: IO[bytes]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dragoman", *arguments],
            cwd=here,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=output,
        )
    os.close(slave)
    try:
        yield Printed(process, terminal, log)
    finally:
        process.terminate()
        process.wait(20)
        os.close(terminal)


def test_serve_prints_the_address_on_the_terminal_and_never_in_the_log(here: Path) -> None:
    options = ("--port", "0", "--access-log", "--set", "audit=true")
    with printing(here, "serve", "booking:agent", *options) as served:
        address, token = served.address()
        with httpx.Client() as http:
            assert http.get(address).status_code == 303
            base = address.partition("/console/")[0]
            assert http.get(f"{base}/console/api/session").json()["name"] == "local operator"
        eventually(lambda: "/console/api/session" in served.log())
        assert token not in served.log()


@pytest.mark.parametrize("more", [("--set", "console=off"), ("--host", "0.0.0.0")])
def test_without_a_terminal_on_this_machine_there_is_no_console(
    here: Path, more: tuple[str, ...]
) -> None:
    with printing(here, "serve", "booking:agent", "--port", "0", *more) as served:
        eventually(lambda: "press Ctrl-C" in served.log())
        base = re.search(r"card http://[\d.]+:(\d+)", served.log())
        assert base is not None
        url = f"http://127.0.0.1:{base[1]}/console/"
        assert httpx.get(url, headers={"accept": "text/html"}).status_code == 404
        assert served.output() == ""


@pytest.mark.parametrize(("more", "status"), [((), 200), (("--set", "agent_page=false"), 405)])
def test_a_browser_gets_the_page_of_the_agent(
    here: Path, more: tuple[str, ...], status: int
) -> None:
    with printing(here, "serve", "booking:agent", "--port", "0", *more) as served:
        base = served.address()[0].partition("/console/")[0]
        assert httpx.get(base, headers={"accept": "text/html"}).status_code == status


def test_the_option_needs_auth(here: Path) -> None:
    told = refused(run(here, "serve", "booking:agent", "--console"))
    assert told.startswith("dragoman: console: needs auth")


def test_a_store_is_shown_on_the_terminal(here: Path) -> None:
    with printing(here, "serve", "booking:agent", "--port", "0") as served:
        base = served.address()[0].partition("/console/")[0]
        body = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Rome"}]}
        headers = {"a2a-version": "1.0"}
        sent = httpx.post(f"{base}/message:send", json={"message": body}, headers=headers)
        task = sent.json()["task"]["id"]
        stores = [file.name for file in here.glob("*.db")]
        assert stores
        store = ("console", "--store", f"sqlite:///{stores[0]}", "--port", "0")
        with printing(here, *store) as shown, httpx.Client() as http:
            address = shown.address()[0]
            http.get(address)
            rows = http.get(address.partition("?")[0] + "api/tasks").json()["rows"]
            assert [row["id"] for row in rows] == [task]
    assert "none.db" in refused(run(here, "console", "--store", "sqlite:///none.db"))


def test_an_agent_is_inspected_on_the_terminal(here: Path) -> None:
    """Over gRPC, and with a key from the command line that nothing shows."""
    options = ("--port", "0", "--grpc-port", "0", "--set", "bindings=JSONRPC,GRPC")
    with printing(here, "serve", "booking:agent", *options) as served:
        base = served.address()[0].partition("/console/")[0]
        card = httpx.get(f"{base}/.well-known/agent-card.json").json()
        ways = {each["protocolBinding"]: each["url"] for each in card["supportedInterfaces"]}
        trust = ("--trust", f"grpc://{ways['GRPC'].rpartition('/')[2]}")
        more = ("--port", "0", "--binding", "GRPC", "--header", "X-Key: sesame", *trust)
        with (
            printing(here, "console", base, *more) as shown,
            httpx.Client(timeout=20) as http,
        ):
            address = shown.address()[0]
            assert http.get(address).status_code == 303
            api = address.partition("?")[0] + "api/"
            session = http.get(f"{api}session").json()
            assert session["source"] == "agent"
            body = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Rome"}]}
            call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": body}}
            url = address.partition("?")[0] + session["agents"][0]["path"] + "/"
            answer = http.post(url, json=call, headers={"x-dragoman-console": "1"})
            assert "result" in answer.json(), answer.text
            (sent,) = (e for e in http.get(f"{api}wire").json()["exchanges"] if e.get("call"))
            assert sent["method"] == "gRPC"
            wire = http.get(f"{api}wire/{sent['number']}").text
            assert "Rome" in wire
            assert "sesame" not in wire


def test_the_inspector_needs_one_thing_to_show(here: Path) -> None:
    assert "give the URL of an agent" in refused(run(here, "console"))
