"""What the shell offers at Tab: by the function, and in real shells on a terminal."""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.cli import _parser
from dragoman.cli.completion import SCRIPTS, complete, split

PATIENCE = 30.0
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
EVAL = {"fish": "dragoman completion fish | source"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a few files, and a `dragoman` that completes, and otherwise only says what
    it was called with."""
    inside = tmp_path / "here"
    (inside / "sub").mkdir(parents=True)
    for name in ("card.json", "my file.json", "photo.png", ".hidden.json", "sub/deep.json"):
        (inside / name).touch()
    command = tmp_path / "bin" / "dragoman"
    command.parent.mkdir()
    command.write_text(
        f"""#!/bin/sh
case "$1" in
    --complete|completion) exec "{sys.executable}" -m dragoman "$@" ;;
esac
printf '<ran'
printf '[%s]' "$@"
printf '>\\n'
"""
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.chdir(inside)
    return inside


# ---- the function --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["comp"], ["completion"]),
        (["-"], ["-h", "--help", "--version"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["completion", "z"], ["zsh"]),
        (["completion", "zsh", "--h"], ["--help"]),
        (["db", "ex"], ["export"]),
        (["nonsense", ""], []),
        (["db", "nonsense", "-"], []),
        (["task", "list", "--st"], ["--state"]),
        (["task", "list", "--state", "f"], ["failed"]),
        (["task", "list", "--sta", "f"], ["failed"]),
        (["task", "list", "--state=f"], ["--state=failed"]),
        (["task", "list", "--json", "--js"], []),
        (["task", "list", "--js", "--js"], []),
        (["card", "http://x", "-H", "a: b", "--hea"], ["--header"]),
        (["card", "http://x", "--timeout", "--ch"], []),
        (["card", "http://x", "--timeout", "5", "--ch"], ["--check"]),
        (["card", "http://x", "--timeout=5", "--ch"], ["--check"]),
        (
            ["card", ""],
            ["keygen", "sign", "verify", "trust", "card.json", "my file.json", "sub/"],
        ),
        (["card", "ht"], []),
        (["card", "my"], ["my file.json"]),
        (["card", "."], [".hidden.json"]),
        (["card", "sub/"], ["sub/deep.json"]),
        (["card", "./s"], ["./sub/"]),
        (["card", "nowhere/x"], []),
        (["card", "~nobody-of-this-name/x"], []),
        (["card", "--", "--c"], []),
        (["card", "x", "--issuer", "c"], []),
        (["card", "x", "--bearer", "@p"], ["@photo.png"]),
        (["send", "x", "-o", ""], ["sub/"]),
        (["db", "export", "p"], ["photo.png"]),
        (["db", "export", "a", "p"], []),
        (["db", "backup", "p"], ["photo.png"]),
        (["serve", "a:b", "--config", "ph"], ["photo.png"]),
        (["serve", "a:b", "--config=ph"], ["--config=photo.png"]),
        (["serve", "a:b", "--set", "log_f"], ["log_format="]),
        (["serve", "a:b", "--set", "log_format=j"], ["log_format=json"]),
        (["serve", "a:b", "--set", "push=t"], ["push=true"]),
        (["serve", "a:b", "--log-level", "d"], ["debug"]),
        (["serve", "a:b", "--url", ""], []),
        (["send", "http://x", ""], []),
        (["send", "http://x", "hello", "@ph"], ["@photo.png"]),
        (["send", "http://x", "@sub/"], ["@sub/deep.json"]),
    ],
)
def test_complete(here: Path, words: list[str], expected: list[str]) -> None:
    assert complete(_parser(), words) == expected


def test_commands() -> None:
    found = complete(_parser(), [""])
    assert {"serve", "card", "task", "db", "completion"} <= set(found)
    assert complete(_parser(), []) == found


def test_options_come_when_nothing_else_can() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--new")
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    assert complete(parser, [""]) == ["--new"]
    assert complete(parser, ["--new", "x", ""]) == []
    parser.add_argument("name")
    assert complete(parser, [""]) == []
    assert complete(parser, ["x", ""]) == ["--new"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", ([""], "")),
        ("a b", (["a", "b"], "")),
        ("a b ", (["a", "b", ""], "")),
        ("a 'b c", (["a", "b c"], "'")),
        ("a \"it's ", (["a", "it's "], '"')),
        ("a b\\ c", (["a", "b c"], "")),
        ("a b\\", (["a", "b"], "")),
        ("a 'b' '", (["a", "b", ""], "'")),
    ],
)
def test_lines(line: str, expected: tuple[list[str], str]) -> None:
    assert split(line) == expected


def test_it_does_not_wait_for_the_client() -> None:
    """Somebody sits there and has pressed Tab."""
    code = """
import sys
from dragoman.cli import main
assert main(["--complete", "fish", "db", "ex"]) == 0
print(*(name for name in ("aiohttp", "uvicorn", "dragoman.client") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "export\n\n"


def test_how_to_install(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["completion", "--help"])
    shown = capfd.readouterr().out
    assert 'eval "$(dragoman completion bash)"' in shown
    assert "dragoman completion fish | source" in shown


# ---- bash, without a terminal --------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "word", "expected"),
    [
        ("dragoman db ex", "ex", ["export"]),
        ("dragoman task list http://a:1 --state=in", "in", ["input-required"]),
        ("dragoman task list http://a:1 --state=", "", None),
        ("dragoman serve a:b --set log_f", "log_f", ["log_format="]),
        ("dragoman send http://x @ph", "@ph", ["@photo.png"]),
        ("dragoman send http://x @ph", "ph", ["photo.png"]),
        ("dragoman card m", "m", [r"my\ file.json"]),
        ("dragoman card 'm", "m", ["my file.json"]),
        ('dragoman card "m', '"m', ["my file.json"]),
        (r"dragoman card my\ f", r"my\ f", [r"my\ file.json"]),
        ("dragoman nonsense x", "x", []),
    ],
)
def test_bash(here: Path, line: str, word: str, expected: list[str] | None) -> None:
    script = f"""
{SCRIPTS["bash"]}
COMP_LINE=$1 COMP_POINT=${{#1}}
_dragoman dragoman "$2"
for found in "${{COMPREPLY[@]}}"; do printf '%s\\n' "$found"; done
"""
    done = subprocess.run(
        ["bash", "-c", script, "bash", line, word],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    found = done.stdout.splitlines()
    if expected is None:
        assert {"working", "failed", "input-required"} <= set(found)
    else:
        assert found == expected


# ---- all of them, on a terminal ------------------------------------------------------------


class Terminal:
    """A shell with somebody at its keyboard."""

    def __init__(self, argv: list[str], home: Path) -> None:
        self.home = home
        self.shown = ""
        self._fd, inner = pty.openpty()
        self.process = subprocess.Popen(
            argv,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=os.environ | {"HOME": str(home), "ZDOTDIR": str(home), "TERM": "dumb"},
        )
        os.close(inner)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._fd, keys.encode())

    def until(self, words: str) -> None:
        """Wait until the screen has shown this."""
        deadline = time.monotonic() + PATIENCE
        while words not in self.shown:
            assert time.monotonic() < deadline, f"no {words!r} in {self.shown!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.shown += os.read(self._fd, 65536).decode(errors="replace")

    def close(self) -> None:
        """Leave."""
        self.process.kill()
        self.process.wait()
        os.close(self._fd)


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest, here: Path, tmp_path: Path) -> Iterator[Terminal]:
    """Each shell that there is, set up as the help says."""
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".zshrc").touch()  # without one, it asks how to begin
    (home / "home card.json").touch()
    found = Terminal(SHELLS[name], home)
    try:
        found.type(EVAL.get(name, f'eval "$(dragoman completion {name})"') + "\r")
        found.type("dragoman 'set' up\r")
        found.until("<ran[set][up]>")
        yield found
    finally:
        found.close()


def test_shells(terminal: Terminal) -> None:
    """What is typed, with Tab where there is more to come, and what the command is run with."""
    for keys, ran in (
        ("dragoman db ex\tmy\t", "[db][export][my file.json]"),
        ("dragoman card 'my\t", "[card][my file.json]"),
        ("dragoman task list http://a:1 --state=fa\t", "[task][list][http://a:1][--state=failed]"),
        ("dragoman send http://x @pho\t--str\t", "[send][http://x][@photo.png][--stream]"),
        ("dragoman card su\tde\t--ch\t", "[card][sub/deep.json][--check]"),
        ("dragoman card ~/ho\t", f"[card][{terminal.home}/home card.json]"),
    ):
        terminal.type(f"{keys}\r")
        terminal.until(f"<ran{ran}>")
