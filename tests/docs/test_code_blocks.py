"""What stands in a block of the pages can be pasted: Python runs, commands are understood."""

from __future__ import annotations

import ast
import asyncio
import builtins
import dis
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.cli import _parser
from dragoman.registry import Registry, RegistryApp
from dragoman.security.card_keys import CardKey
from dragoman.server import load_settings, settings, wiring
from dragoman.webhooks.signature import secret
from tests.harness.server import serving

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").glob("*.md"))),
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = {"python", "sh", "toml", "sql", "http", "json", ""}
"""A block without a kind is a drawing."""
SECRETS = ("BILLING_KEY", "ANNS_PASSWORD", "HOOK_TOKEN")
"""Variables that the pages take a secret from."""


@dataclass
class Block:
    """A block of a page."""

    page: Path
    line: int
    kind: str
    text: str

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*kinds: str) -> list[Block]:
    """All blocks of these kinds."""
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for page in PAGES
        for text in (page.read_text(),)
        for found in _BLOCK.finditer(text)
        if found[1] in kinds
    ]


def each(*kinds: str) -> Any:
    """A test for each block of these kinds."""
    return pytest.mark.parametrize("block", blocks(*kinds), ids=lambda block: block.name)


def test_each_block_says_what_it_is() -> None:
    for page in PAGES:
        text = page.read_text()
        found = [match[1] for match in _BLOCK.finditer(text)]
        assert set(found) <= KINDS, page
        assert text.count("```") == 2 * len(found), f"{page}: a block is not closed"
    assert len(blocks("python")) > 20
    assert len(blocks("sh")) > 20


# ---- Python --------------------------------------------------------------------------------


def booking(page: str = "README.md") -> ModuleType:
    """The agent that a page makes, or else that of the README; others import it."""
    files = {b.page.name: b.text for b in blocks("python") if b.text.startswith("# booking.py\n")}
    module = ModuleType("booking")
    exec(files.get(page, files["README.md"]), vars(module))
    return module


def earlier(block: Block) -> dict[str, str]:
    """The files that a page has made before a block: each begins with `# name.py`."""
    files: dict[str, str] = {}
    for one in blocks("python"):
        named = re.match(r"# (\w+)\.py\n", one.text)
        if named and one.page == block.page and one.line < block.line:
            files[named[1]] = one.text
    return files


@pytest.fixture(scope="module")
def url(served: tuple[str, str]) -> str:
    """Where that agent is served."""
    return served[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Where that agent is served, by another thread, and a registry that has approved it."""
    told: list[tuple[str, str]] = []
    ready, done = threading.Event(), threading.Event()
    app = RegistryApp(f"sqlite:///{tmp_path_factory.mktemp('registry')}/agents.db")

    async def serve() -> None:
        async with (
            serving(App(booking().agent)) as here,
            serving(App(mounts={"/": app})) as there,
            Registry(there) as registry,
        ):
            await registry.add(here, approve=True, alias="flight-booking")
            told.append((here, there))
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield told[0]
    done.set()
    thread.join()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a reader of the pages has."""
    monkeypatch.chdir(tmp_path)
    for name in SECRETS:
        monkeypatch.setenv(name, "a secret")
    monkeypatch.setenv("HOOK_KEY", secret().text)
    monkeypatch.delenv("DRAGOMAN_CONFIG", raising=False)
    return tmp_path


def compiled(block: Block, text: str) -> CodeType:
    """Its code; it may await, as in `python -m asyncio`."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(text, block.name, "exec", flags=flags, dont_inherit=True)


def loose(code: CodeType, known: frozenset[str]) -> Iterator[str]:
    """The names that the code uses and nobody defines."""
    told = list(dis.get_instructions(code))
    known |= {one.argval for one in told if one.opname in ("STORE_NAME", "STORE_GLOBAL")}
    for one in told:
        if one.opname in ("LOAD_NAME", "LOAD_GLOBAL") and one.argval not in known:
            yield one.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from loose(constant, known)


@each("python")
def test_python_names_what_it_uses(block: Block) -> None:
    # a builtin may stand where a value of the reader's is meant
    known = frozenset(dir(builtins)) - {"id", "input", "hash"}
    code = compiled(block, block.text)
    assert (
        sorted(loose(code, known | {"__name__", "__module__", "__qualname__", "__annotations__"}))
        == []
    )


@each("python")
def test_python_runs(
    block: Block, here: Path, served: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, registry = served
    monkeypatch.setitem(sys.modules, "booking", booking(block.page.name))
    monkeypatch.syspath_prepend(here)
    for name, text in earlier(block).items():
        (here / f"{name}.py").write_text(text)
        if name != "booking":
            monkeypatch.setitem(sys.modules, name, None)  # so that it is put back in the end
            del sys.modules[name]
    if "pub.pem" in block.text:
        (here / "pub.pem").write_bytes(CardKey.generate().made.as_pem(private=False))
    text = re.sub(r"https://agent\.example|http://127.0.0.1:8000", url, block.text)
    code = compiled(block, text.replace("http://127.0.0.1:8900", registry))
    names: dict[str, Any] = {"__name__": "pasted"}
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)
    assert len(names) > 1, "it defines something"


# ---- commands ------------------------------------------------------------------------------


def lines(text: str) -> Iterator[list[str]]:
    """The words of each command, also of one that spans several lines."""
    pending = ""
    for line in text.splitlines():
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        try:
            words = shlex.split(re.sub(r"\$\([^)]*\)", "told", pending), comments=True)
        except ValueError:  # a quotation that is still open
            pending += "\n"
            continue
        pending = ""
        yield from piped(words)


def piped(words: list[str]) -> Iterator[list[str]]:
    """The single commands of a line, without the variables that are set for them."""
    command: list[str] = []
    for word in (*words, "|"):
        if word in ("|", "&&", "||", ";"):
            while command and re.match(r"\w+=", command[0]):
                del command[0]
            if command:
                yield command
            command = []
        else:
            command.append(word)


def targets() -> set[str]:
    """What make can be asked for."""
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check(words: list[str]) -> None:
    """Fail if a command cannot be what it seems."""
    program, *rest = words
    if program == "opentelemetry-instrument":
        program, *rest = rest
    if ">" in rest:
        del rest[rest.index(">") :]
    if program == "dragoman":
        assert callable(_parser().parse_args(rest).run)
    elif program == "make":
        given = dict(word.split("=", 1) for word in rest if "=" in word)
        (target,) = (word for word in rest if "=" not in word)
        assert target in targets()
        if target == "bench" and importlib.util.find_spec("psutil"):  # which it needs
            from benchmarks.__main__ import arguments

            assert arguments(shlex.split(given.get("ARGS", ""))).rounds
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extras in re.findall(r"dragoman\[([\w,]+)\]", " ".join(rest)):
            assert set(extras.split(",")) <= set(project["optional-dependencies"])
    elif program.endswith("python") and rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None
    elif program.endswith("python") and rest[0].endswith(".py"):
        assert rest[0] == "booking.py" or (ROOT / rest[0]).is_file()
    elif program == "python" and rest[0] == "-c":
        exec(rest[1], {})
    elif program == "curl":
        for body in (body for flag, body in pairwise(rest) if flag == "-d"):
            assert json.loads(body)
    elif program in ("createdb", "pg_dump", "pg_restore", "pg_basebackup"):
        assert "db.example" in " ".join(rest), "it would be that of this machine"
    else:
        assert program in ("kubectl", "uvicorn", "hypercorn", "granian", "grep", "touch", "echo")
    for word in rest:
        if word.startswith("deploy/"):
            assert (ROOT / word).exists(), word


@each("sh")
def test_commands_are_understood(block: Block, here: Path) -> None:
    shell = shutil.which("bash")
    if shell is not None:
        done = subprocess.run(
            [shell, "-n"], input=block.text, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
    if block.text.startswith("#!"):
        return
    found = list(lines(block.text))
    assert found
    for words in found:
        assert "…" not in "".join(words), f"{words}: what should be there?"
        check(words)


ASKED = [
    block
    for block in blocks("sh")
    if re.search(r"curl (-N )?http://127.0.0.1:8000", block.text)
    and "pushNotification" not in block.text  # for which names are looked up
]


@pytest.mark.parametrize("block", ASKED, ids=lambda block: block.name)
def test_what_curl_asks_for_is_answered(block: Block, url: str, tmp_path: Path) -> None:
    shell = shutil.which("bash")
    if shell is None or shutil.which("curl") is None:
        pytest.skip("bash or curl is not installed")
    message = {"messageId": "first", "role": "ROLE_USER", "parts": [{"text": "Lisbon please"}]}
    sent = httpx.post(f"{url}/message:send", json={"message": message}, trust_env=False).json()
    calls = block.text.replace("http://127.0.0.1:8000", url)
    strict = 'set -eu; curl() { command curl -sS --fail --noproxy "*" --max-time 20 "$@"; }\n'
    done = subprocess.run(
        [shell, "-c", strict + calls],
        env={**os.environ, "TASK": sent["task"]["id"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert '"error"' not in done.stdout


def test_the_readme_shows_what_send_prints(url: str, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    command, shown = re.findall(
        r"^```sh\n(dragoman send .*)\n```\n\n```\n(.*?)^```$", text, re.M | re.S
    )[0]
    words = shlex.split(command.replace("http://127.0.0.1:8000", url))[1:]
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    task = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b")
    assert task.sub("ID", done.stdout) == task.sub("ID", shown)


def test_the_quickstart_shows_what_serve_logs(tmp_path: Path) -> None:
    text = (ROOT / "docs/quickstart.md").read_text()
    (shown,) = re.findall(r"^```sh\ndragoman serve .*?\n```\n\n```\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "booking.py").write_text(
        next(b.text for b in blocks("python") if b.page.name == "quickstart.md")
    )
    command = [sys.executable, "-m", "dragoman", "serve", "booking:agent", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        logged = [process.stderr.readline() for _ in shown.splitlines()]
    finally:
        process.kill()
        process.communicate()
    assert [masked(line) for line in logged] == [masked(line) for line in shown.splitlines(True)]


def masked(line: str) -> str:
    """A log line without its time and the port."""
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", re.sub(r"^[\d:]{8} ", "", line))


# ---- settings ------------------------------------------------------------------------------


@each("json")
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


@each("toml")
def test_settings_are_understood(block: Block, here: Path) -> None:
    if block.text.startswith("[project."):  # of a package, and not of ours
        assert tomllib.loads(block.text)["project"]
        return
    (here / "dragoman.toml").write_text(block.text)
    found = load_settings.load(environ={}, checks=wiring.CHECKS)
    assert found != settings.Settings()
    if found.auth:
        assert wiring.authenticator(wiring.auth(found.auth), found)
