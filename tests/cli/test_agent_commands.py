"""`dragoman card`, `send` and `task` against a server in this process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Caller, Request, Turn, cli
from dragoman.cli.terminal_output import Screen
from dragoman.client import Result
from dragoman.model.errors import Unavailable
from dragoman.model.types import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from tests.harness import trust
from tests.harness.forked_command import forked
from tests.harness.server import serving


def agent() -> Agent:
    """Echoes, asks, fails."""
    made = Agent("Echo", description="Says it again.", version="1.2.3", input_modes=["*/*"])

    @made.skill(tags=["x"], examples=["Hello"])
    async def echo(turn: Turn) -> AsyncIterator[Any]:
        """Say it again."""
        yield turn.working("on it")
        if turn.approval or turn.text == "pay":
            if turn.approval and not turn.approval.approved:
                yield turn.reject("Then not")
            elif await turn.granted({"pay": 5}):
                yield turn.artifact("paid")
            else:
                yield turn.require_auth("May I?", operation={"pay": 5})
        elif turn.text == "ask":
            yield turn.ask("What?")
        elif turn.text == "fail":
            yield turn.fail("I cannot")
        elif turn.text == "who":
            yield turn.artifact(turn.caller.identity)
        elif turn.text:
            for word in turn.text.split():
                yield turn.write(f"{word} ")
        else:
            yield turn.artifact(list(turn.message.parts))

    return made


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Where it is served."""

    def identify(request: Request) -> Caller:
        return Caller(identity=request.headers.get("authorization", "").removeprefix("Bearer "))

    async with serving(App(agent(), identify=identify)) as url:
        yield url


async def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """The command in a process of its own: status, output, errors."""
    known = {**trust.ENVIRONMENT, **os.environ}
    return await forked(*arguments, stdin=stdin, environment=known)


async def test_card(url: str) -> None:
    status, out, _ = await run("card", url)
    assert status == 0
    for words in ("Echo 1.2.3", "JSONRPC 1.0", "(used here)", "skill echo", "example: Hello"):
        assert words in out
    for form in ("--json", "--raw"):
        _, out, _ = await run("card", f"{url}/.well-known/agent-card.json", form)
        assert json.loads(out)["name"] == "Echo"
        assert ("\n" in out) == (form == "--json")


async def test_send(url: str) -> None:
    status, out, err = await run("send", url, "hello world")
    assert (status, out) == (0, "hello world \n")
    assert "[completed] task " in err
    status, out, _ = await run("send", url, "-", "--json", stdin="from a pipe")
    assert json.loads(out)["status"]["state"] == "TASK_STATE_COMPLETED"
    status, _, err = await run("send", url, "fail")
    assert status == 1
    assert "[failed]" in err


async def test_send_files_and_data(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\x01")
    status, out, _ = await run("send", url, f"@{tmp_path}/a.bin", "--data", '{"n": 1}')
    assert (status, out) == (0, '<a.bin, 2 B>\n{"n":1}\n')


async def test_stream_and_tasks(url: str) -> None:
    status, out, err = await run("send", url, "a b", "--stream")
    assert (status, out) == (0, "a b \n")
    assert [line.partition("]")[0][1:] for line in err.splitlines()] == [
        *("submitted", "working", "completed")
    ]
    status, out, err = await run("send", url, "ask", "--stream")
    assert (status, out) == (4, "What?\n")
    assert "[input-required] task " in err
    _, out, _ = await run("send", url, "ask", "--stream", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    task = events[0]["task"]["id"]
    status, out, _ = await run("task", "list", url, "--state", "input-required")
    assert task in out
    status, out, err = await run("task", "get", url, task)
    assert (status, out) == (4, "What?\n")
    status, out, _ = await run("send", url, "this", "--task", task)
    assert (status, out) == (0, "this \n")
    status, _, _ = await run("task", "watch", url, task)
    assert status == 0
    status, _, err = await run("task", "cancel", url, task)
    assert status == 1
    assert "already ended" in err


async def test_approvals(url: str) -> None:
    for verb, status, words in (("approve", 0, "paid"), ("decline", 1, "Then not")):
        found, out, _ = await run("send", url, "pay", "--json")
        task = json.loads(out)["id"]
        assert found != 0  # it is not done
        found, out, err = await run("task", verb, url, task)
        assert found == status
        assert words in out + err
        assert '{"pay": 5}' in err
        found, _, err = await run("task", verb, url, task)
        assert (found, "does not ask for an approval" in err) == (2, True)


async def test_who_asks(url: str) -> None:
    _, out, _ = await run("send", url, "who", "--bearer", "ann")
    assert out == "ann\n"
    _, out, _ = await run("send", url, "who", "-H", "Authorization: Bearer bob")
    assert out == "bob\n"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["send", "URL"], 2, "nothing to send"),
        (["send", "URL", "x", "--data", "{"], 2, "not valid JSON"),
        (["send", "URL", "@/no/such/file"], 2, "No such file"),
        (["send", "URL", "x", "-H", "oops"], 2, "NAME: VALUE"),
        (["task", "get", "URL", "unknown"], 1, "Task not found: unknown"),
        (["send", "URL", "x", "--no-wait", "--stream"], 2, "not allowed with argument"),
        (["card", "URL/nowhere"], 1, "no agent card"),
        (["card", ""], 2, "empty"),
        (["card", "/no/such/card.json"], 2, "no such file"),
        (["card", "ftp://a/b"], 2, "https:// or http://"),
        (["send", "URL", "x", "-H", "Bad Name: x"], 2, "NAME: VALUE"),
        (["send", "URL", "x", "--user", "ann"], 2, "NAME:PASSWORD"),
        (["send", "URL", "x", "--trust", "nowhere"], 2, "--trust"),
        (["send", "URL", "x", "--timeout", "0"], 2, "--timeout"),
        (["send", "URL", "x", "--data", '{"a": NaN}'], 2, "NaN"),
        (["task", "list", "URL", "--limit", "0"], 2, "greater than 0"),
        (["card", "http://127.0.0.1:1"], 3, "http://127.0.0.1:1: Connection refused"),
    ],
)
async def test_mistakes(url: str, arguments: list[str], status: int, words: str) -> None:
    found, _, err = await run(*(item.replace("URL", url) for item in arguments))
    assert (found, words in err) == (status, True), err
    assert "Traceback" not in err


async def test_what_an_agent_says_does_not_steer_the_terminal(url: str) -> None:
    _, out, _ = await run("send", url, "red\x1b[31m")
    assert "\x1b" not in out
    assert "red\\x1b[31m" in out


STEERING = "a\x9b31m\x7fb\u202e\u2066c\u2028d\x1b[1m\U000e0041é漢😀"


@pytest.mark.parametrize("more", [(), ("--stream",)])
async def test_what_an_agent_says_does_not_steer_the_terminal_as_json(
    url: str, more: tuple[str, ...]
) -> None:
    status, out, _ = await run("send", url, STEERING, "--json", *more)
    assert status == 0
    assert all(mark == "\n" or mark.isprintable() for mark in out)
    assert "é漢😀" in out
    said = "".join(str(json.loads(line)) for line in out.splitlines())
    assert repr(STEERING)[1:-1] in said  # it means the same
    _, out, _ = await run("task", "list", url, "--json")
    assert all(mark == "\n" or mark.isprintable() for mark in out)


# ---- when the time is over -----------------------------------------------------------------


class Down:
    """An agent whose database is down."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("method") != "POST":
            return await self.app(scope, receive, send)
        head = {"type": "http.response.start", "status": 503}
        await send(head | {"headers": [(b"content-type", b"application/json")]})
        error = {"jsonrpc": "2.0", "id": 1, "error": Unavailable("The store is away").to_rpc()}
        return await send({"type": "http.response.body", "body": json.dumps(error).encode()})


async def test_the_reason_is_told_when_the_time_is_over() -> None:
    async with serving(Down(App(agent()))) as url:
        status, out, err = await run("send", url, "hi", "--timeout", "1.5", "--binding", "jsonrpc")
    words = f"{url}: no answer within 1.5 s; the last error: The store is away"
    assert (status, out, err) == (3, "", f"dragoman: {words}\n")


async def test_the_task_is_told_when_the_time_is_over() -> None:
    slow = Agent("Slow", description="Takes its time.")
    gate = asyncio.Event()

    @slow.handler
    async def wait(turn: Turn) -> str:
        await gate.wait()
        return "done"

    async with serving(App(slow, drain_timeout=0.0)) as url:
        status, _, err = await run("send", url, "hi", "--timeout", "1.5")
        found = re.search(r"no answer within 1\.5 s; task (\S+) continues", err)
        assert (status, bool(found)) == (3, True), err
        gate.set()
        status, out, _ = await run("task", "watch", url, found[1] if found else "")
        assert (status, out) == (0, "done\n")


# ---- how it is reached ---------------------------------------------------------------------


@pytest.mark.parametrize("command", [["card"], ["card", "--check"], ["send", "hi"]])
async def test_the_root_of_several_agents(command: list[str]) -> None:
    other = Agent("Other", description="Is beside it.")
    other.handler(lambda turn: turn.text)
    async with serving(App(agent(), other)) as url:
        status, out, err = await run(command[0], url, *command[1:])
        assert (status, out) == (1, "")
        assert f"the agents are at {url}/echo, {url}/other\n" in err


async def test_the_bytes_on_the_wire_without_the_secrets(url: str) -> None:
    status, out, err = await run("send", url, "hello", "--bearer", "sesame", "--trace", "--stream")
    assert (status, out) == (0, "hello \n")
    assert "> POST / HTTP/1.1\n" in err
    assert "> authorization: ***\n" in err
    assert '"method":"SendStreamingMessage"' in err
    assert "< content-type: text/event-stream\n" in err
    assert '< data: {"jsonrpc":"2.0"' in err
    assert "sesame" not in err


async def test_what_a_card_may_lead_to_is_checked(url: str) -> None:
    assert (await run("send", url, "hi", "--allow", "10.0.0.0/8", "--allow", "*.a.example"))[0] == 0
    status, _, err = await run("send", url, "hi", "--allow", "10.0.0.0/99")
    assert (status, "--allow: '10.0.0.0/99' cannot be allowed" in err) == (2, True)


async def test_a_secret_from_a_file(url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ann\n")
    assert (await run("send", url, "who", "--bearer", f"@{tmp_path}/token"))[1] == "ann\n"


@pytest.mark.parametrize("binding", ["JSONRPC", "http+json"])
async def test_the_binding_can_be_chosen(url: str, binding: str) -> None:
    _, out, err = await run("send", url, "hi", "--binding", binding, "--trace")
    assert out == "hi \n"
    assert ("> POST /message:stream" in err) == (binding == "http+json")
    status, _, err = await run("send", url, "hi", "--binding", "smoke")
    assert (status, "JSONRPC, HTTP+JSON" in err) == (2, True)


async def test_credentials_do_not_go_over_plain_http(tmp_path: Path, url: str) -> None:
    _, out, _ = await run("card", url, "--json")
    card = json.loads(out)
    for interface in card["supportedInterfaces"]:
        interface["url"] = "http://agent.invalid/"
    (tmp_path / "card.json").write_text(json.dumps(card))
    status, _, err = await run("send", f"{tmp_path}/card.json", "hi", "--bearer", "sesame")
    assert (status, "plain HTTP" in err, "--insecure-http" in err) == (1, True, True)
    status, _, err = await run(
        *("send", f"{tmp_path}/card.json", "hi", "--bearer", "sesame", "--insecure-http"),
        *("--timeout", "1s"),
    )
    assert (status, "agent.invalid" in err) == (3, True)


async def test_files_are_saved_and_never_written_over(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\x01")
    folder = tmp_path / "out"
    for number, name in enumerate(("a.bin", "a-1.bin")):
        _, out, _ = await run("send", url, f"@{tmp_path}/a.bin", "-o", str(folder))
        assert out == f"<a.bin, 2 B, saved as {folder}/{name}>\n", number
        assert (folder / name).read_bytes() == b"\x00\x01"


def ended(state: TaskState) -> Result:
    """The result of a task in this state."""
    return Result(Task(id="t", context_id="c", status=TaskStatus(state=state)))


async def test_a_file_that_cannot_be_saved_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = f"{'ü' * 300}.tar.pdf"
    names = [
        long,
        long,
        "../../evil",
        "..\\..\\evil",
        "..",
        "a/NUL.txt",
        f"x.{'y' * 300}",
        "",
        "ok",
    ]
    folder = tmp_path / "out"
    screen = Screen(folder=str(folder))
    screen.parts([Part(raw=b"content", filename=name) for name in names])
    found = {path.name for path in folder.iterdir()}
    assert len(found) == len(names)
    shortened = next(name for name in found if name.endswith("ü.pdf"))
    assert 150 < len(shortened.encode()) <= 255
    assert f"{shortened.removesuffix('.pdf')}-1.pdf" in found
    assert {"evil", "evil-1", "_NUL.txt", "file", "file-1", "ok"} <= found
    assert screen.exit_status(ended(TaskState.COMPLETED)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]

    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "full").symlink_to("/dev/full")
    monkeypatch.setattr(
        "dragoman.client.save_files.LONGEST_NAME", 300
    )  # as on a smaller file system
    screen = Screen(folder=str(folder))
    parts = [Part(raw=b"more", filename=name) for name in ("link", "full", "x" * 270, "last")]
    screen.parts(parts)
    assert not (tmp_path / "elsewhere").exists()
    assert (folder / "last").read_bytes() == (folder / "full-1").read_bytes() == b"more"
    assert (screen.unsaved, screen.exit_status(ended(TaskState.COMPLETED))) == (1, 1)
    assert screen.exit_status(ended(TaskState.INPUT_REQUIRED)) == 4
    out, err = capsys.readouterr()
    assert out.count("not saved: File name too long") == 1
    assert f"{'x' * 270} was not saved: File name too long" in err


async def test_the_command_says_that_a_file_was_not_saved(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00")
    (tmp_path / "taken").write_bytes(b"")
    for more in ((), ("--stream",)):
        status, out, err = await run(
            "send", url, f"@{tmp_path}/a.bin", "-o", f"{tmp_path}/taken", *more
        )
        assert (status, "not saved" in out, "a.bin was not saved: " in err) == (1, True, True)


async def test_words_that_stand_together_are_one_text(url: str) -> None:
    status, out, _ = await run("send", url, "hello", "to", "you")
    assert (status, out) == (0, "hello to you \n")


async def test_options_may_stand_between_url_and_words(url: str) -> None:
    status, out, _ = await run("send", "--timeout", "20", url, "--stream", "two", "words")
    assert (status, out) == (0, "two words \n")
    status, out, _ = await run("send", url, "two", "--context", "", "words", "--timeout", "20")
    assert (status, out) == (0, "two words \n")
    assert "unrecognized arguments: --nonsense" in (await run("send", url, "--nonsense", "x"))[2]


async def test_a_reader_that_has_read_enough(url: str) -> None:
    command = f"{sys.executable} -m dragoman send {url} 'a b c' --stream --json | head -1"
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert "task" in json.loads(out)
    assert err == b""


def test_every_command_prints_json_in_the_same_way() -> None:
    """`json_text` is the only way to standard output."""
    direct = re.compile(r"print\(\s*(json\.dumps|v1_0\.|msgspec\.json)")
    for path in Path(cli.__file__).parent.glob("*.py"):
        assert not direct.search(path.read_text()), path


HISTORY = (
    Message(message_id="u", role=Role.USER, parts=(Part(text="question"),)),
    Message(message_id="a", role=Role.AGENT, parts=(Part(text="told before"),)),
)
CHUNKS = (Artifact(artifact_id="a", parts=(Part(text="made"),)),)


@pytest.mark.parametrize(
    ("state", "message", "more", "out"),
    [
        (TaskState.COMPLETED, "", {"history": HISTORY}, "told before\n"),
        (TaskState.COMPLETED, "done", {"history": HISTORY}, "done\n"),
        (TaskState.COMPLETED, "done", {"artifacts": CHUNKS, "history": HISTORY}, "made\ndone\n"),
        (TaskState.INPUT_REQUIRED, "which?", {"artifacts": CHUNKS}, "made\nwhich?\n"),
        (TaskState.WORKING, "looking", {"artifacts": CHUNKS}, "made\n"),
        (TaskState.WORKING, "looking", {"history": HISTORY}, ""),
    ],
)
def test_the_answer_is_shown_wherever_it_is(
    state: TaskState,
    message: str,
    more: dict[str, Any],
    out: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = (
        Message(message_id="s", role=Role.AGENT, parts=(Part(text=message),)) if message else None
    )
    status = TaskStatus(state=state, message=words)
    Screen().result(Result(Task(id="t", context_id="c", status=status, **more)))
    shown = capsys.readouterr()
    assert shown.out == out
    assert "task t" in shown.err
    assert ("looking" in shown.err) is (state is TaskState.WORKING)  # progress is no content
