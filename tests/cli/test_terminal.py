"""The command as a person sees it: chat, Ctrl-C, narrow windows, colours and pipes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.client.sync import Client
from dragoman.dialects import v1_0
from tests.cli.terminal import Terminal
from tests.client.transports import card, interface
from tests.harness.server import serving


def desk() -> Agent:
    """Does what the text says."""
    agent = Agent("Desk", description="Does what you say.", input_modes=["*/*"])

    @agent.skill(tags=["x"], examples=["count 3"])
    async def work(turn: Turn) -> AsyncIterator[Any]:
        """Work."""
        yield turn.working("on it")
        if turn.approval or turn.text == "pay":
            if turn.approval and not turn.approval.approved:
                yield turn.reject("Then not")
            elif await turn.granted({"pay": 5}):
                yield turn.artifact("paid")
            else:
                yield turn.require_auth("May I?", operation={"pay": 5})
        elif turn.text == "ask":
            yield turn.ask("Which one?")
        elif turn.text == "wait":
            await asyncio.sleep(600)
        elif turn.text.startswith("count"):
            for number in range(int(turn.text.split()[1])):
                yield turn.write(f"{number} ")
                await asyncio.sleep(0)
        elif turn.files:
            yield turn.artifact(f"{turn.files[0].filename}: {len(turn.files[0].raw or b'')} bytes")
        else:
            yield turn.artifact(f"you said {turn.text}")

    return agent


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server in a thread of its own, since the tests block."""
    found: list[str] = []
    up, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(App(desk(), drain_timeout=0.0)) as url:
            found.append(url)
            up.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert up.wait(20)
    yield found[0]
    over.set()
    thread.join()


def test_a_conversation(url: str, tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("12345")
    with Terminal("chat", url, home=tmp_path) as terminal:
        terminal.expect("Desk")
        terminal.expect("count 3")
        terminal.expect("you> ")
        terminal.line("hello")
        terminal.expect("[working] on it")
        terminal.expect("you said hello\n")
        terminal.expect("[completed]")
        terminal.expect("you> ")
        terminal.line("ask")
        terminal.expect("[input-required] Which one?")
        terminal.expect("answer> ")
        terminal.line("that one")
        terminal.expect("you said that one")
        terminal.expect("you> ")
        terminal.line("/history")
        history = terminal.expect("you> ")
        assert [line.split(maxsplit=1) for line in history.strip().splitlines()[1:]] == [
            ["you", "ask"],
            ["agent", "on it"],
            ["agent", "Which one?"],
            ["you", "that one"],
            ["agent", "on it"],
            ["agent", "you said that one"],
        ]
        terminal.line("count 3")
        terminal.expect("you> ")
        terminal.line("/history")
        assert "agent  0 1 2" in terminal.expect("you> ")
        terminal.line(f"/attach '{tmp_path}/a b.txt' /no/such/file")
        terminal.expect("/no/such/file: no such file; no file was attached")
        terminal.line(f"/attach '{tmp_path}/a b.txt'")
        terminal.expect("1 attached")
        terminal.line("")
        terminal.expect("a b.txt: 5 bytes")
        terminal.expect("you> ")
        terminal.line("/attach /no/such/file")
        terminal.expect("no such file")
        terminal.line("/frob")
        terminal.expect("unknown command /frob")
        terminal.line("one\\")
        terminal.expect("...> ")
        terminal.line("two")
        terminal.expect("you said one\ntwo")
        terminal.expect("you> ")
        terminal.line("/quit")
        assert terminal.ended() == 0
        assert "\x1b[" in terminal.raw


def test_a_canceled_question_is_not_answered(url: str, tmp_path: Path) -> None:
    with Terminal("chat", url, home=tmp_path) as terminal:
        terminal.expect("you> ")
        terminal.line("ask")
        terminal.expect("answer> ")
        terminal.line("/cancel")
        terminal.expect("[canceled]")
        terminal.expect("you> ")
        terminal.line("hello")
        terminal.expect("you said hello")


def test_approvals_in_a_chat(url: str, tmp_path: Path) -> None:
    with Terminal("chat", url, home=tmp_path) as terminal:
        terminal.expect("you> ")
        terminal.line("/approve")
        terminal.expect("the agent does not ask for an approval")
        terminal.line("pay")
        terminal.expect('the agent asks for approval: {"pay": 5}')
        terminal.expect("answer> ")
        terminal.line("/approve")
        terminal.expect("paid")
        terminal.expect("you> ")
        terminal.line("pay")
        terminal.expect("/approve or /decline")
        terminal.line("/decline")
        terminal.expect("Then not")
        terminal.line("/quit")
        assert terminal.ended() == 0


def test_what_was_typed_is_remembered(url: str, tmp_path: Path) -> None:
    with Terminal("chat", url, home=tmp_path) as terminal:
        terminal.expect("you> ")
        terminal.line("hello again")
        terminal.expect("you said hello again")
        terminal.expect("you> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
    assert (tmp_path / "dragoman" / "history").stat().st_mode & 0o077 == 0
    with Terminal("chat", url, home=tmp_path) as terminal:
        terminal.expect("you> ")
        terminal.type("\x1b[A\r")  # the key "up"
        terminal.expect("you said hello again")


def test_ctrl_c_ends_the_turn_and_not_the_chat(url: str, tmp_path: Path) -> None:
    with Terminal("chat", url, home=tmp_path) as terminal, Client.connect(url) as agent:
        terminal.expect("you> ")
        terminal.interrupt("Ctrl-D or /quit to leave")
        terminal.expect("you> ")
        terminal.line("wait")
        terminal.expect("[working] on it")
        terminal.type("\x03")
        terminal.expect("[canceled]")
        terminal.expect("you> ")
        newest = next(agent.list())
        assert newest.status.state is TaskState.CANCELED
        terminal.line("hello")
        terminal.expect("you said hello")
        terminal.expect("you> ")
        terminal.type("\x04")
        assert terminal.ended() == 0


@pytest.mark.parametrize("more", [[], ["--stream"]], ids=["", "stream"])
def test_ctrl_c_ends_a_send_and_leaves_the_task(url: str, tmp_path: Path, more: list[str]) -> None:
    with Client.connect(url) as agent:
        with Terminal("send", url, "wait", *more, home=tmp_path) as terminal:
            terminal.expect("[working] on it" if more else "waiting for the answer: 1 s")
            terminal.type("\x03")
            assert terminal.ended() == 130
            assert "Traceback" not in terminal.text
        newest = next(agent.list())
        assert newest.status.state is TaskState.WORKING
        told = (
            f"task {newest.id} continues; follow it with: dragoman task watch {url} {newest.id}\n"
        )
        assert told in terminal.text
        with Terminal("task", "watch", url, newest.id, home=tmp_path) as terminal:
            terminal.expect("[working] on it")
            terminal.type("\x03")
            assert terminal.ended() == 130
            assert told in terminal.text
        agent.task(newest.id).cancel()


class Silent(BaseHTTPRequestHandler):
    """An agent that does not stream, shows its card, and then says nothing until it is told to."""

    card = b""
    over = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.card)

    def do_POST(self) -> None:
        self.over.wait(20)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_ctrl_c_before_a_task_was_named(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"http://127.0.0.1:{server.server_port}"
        Silent.card = v1_0.encode(card(interface(where), streaming=False))
        with Terminal("send", where, "hi", home=tmp_path) as terminal:
            terminal.expect("waiting for the answer: 1 s")
            terminal.type("\x03")
            assert terminal.ended() == 130
        assert "has not sent a task id yet; --stream shows the id immediately\n" in terminal.text
        Silent.over.set()
        server.shutdown()


def test_a_send_that_takes_long_says_so(url: str, tmp_path: Path) -> None:
    with Client.connect(url) as agent, Terminal("send", url, "wait", home=tmp_path) as terminal:
        terminal.expect("waiting for the answer: 1 s")
        newest = next(agent.list())
        agent.task(newest.id).cancel()
        assert terminal.ended() == 1
        assert "[canceled]" in terminal.text


def test_a_card_that_takes_long_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        commands = (["card"], ["card", "--check"], ["chat"], ["task", "list"])
        terminals = [
            stack.enter_context(Terminal(*command, where, home=tmp_path)) for command in commands
        ]
        for terminal in terminals:
            terminal.expect("fetching the card: 1 s")


def test_a_narrow_terminal(url: str, tmp_path: Path) -> None:
    with Terminal("send", url, "hello", home=tmp_path, columns=30) as terminal:
        assert terminal.ended() == 0
    with Terminal("task", "list", url, "--limit", "2", home=tmp_path, columns=30) as terminal:
        assert terminal.ended() == 0
    names = [line.split()[0] for line in terminal.text.splitlines() if line.strip()]
    assert names[:4] == ["task", "state", "changed", "context"]
    with Terminal("task", "list", url, home=tmp_path, columns=200) as terminal:
        assert terminal.ended() == 0
    assert terminal.text.splitlines()[0].split() == ["task", "state", "changed", "context"]


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_for_terminals_that_want_them(
    url: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    with Terminal("send", url, "hello", home=tmp_path, environment=environment) as terminal:
        assert terminal.ended() == 0
    assert ("\x1b[" in terminal.raw) == (not environment)


def test_no_colour_in_a_pipe(url: str, tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("w") as out,
        Terminal("card", url, home=tmp_path, stdout=out) as terminal,
    ):
        assert terminal.ended() == 0
    shown = (tmp_path / "out").read_text()
    assert "skill work" in shown
    assert "\x1b[" not in shown


def test_listening_ends_with_ctrl_c(tmp_path: Path) -> None:
    with Terminal("listen", "--port", "0", home=tmp_path) as terminal:
        terminal.expect("listening at http://127.0.0.1:")
        terminal.expect("--token ")
        terminal.type("\x03")
        assert terminal.ended() == 0
        assert "Traceback" not in terminal.text
