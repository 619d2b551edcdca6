"""The connections of `ChatModel`, its arguments and its secrets; the server of the tests."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.orchestrator import ChatModel, ModelFailed, chat_model
from tests.harness.trust import NOBODY
from tests.products.orchestrator.asking import KEY, USER, Ask
from tests.products.orchestrator.chat_server import (
    ChatServer,
    Request,
    Step,
    body,
    call,
    cut,
    events,
    hang,
    say,
    serving,
    status,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    """A server that says hello."""
    async with serving(lambda request: "Hello.") as server:
        yield server


@contextmanager
def apart() -> Iterator[ChatServer]:
    """The same in a thread of its own, which outlives the loops of a test."""
    ready: list[tuple[ChatServer, asyncio.AbstractEventLoop, asyncio.Event]] = []
    begun = threading.Event()

    async def run() -> None:
        end = asyncio.Event()
        async with serving(lambda request: "Hello.") as server:
            ready.append((server, asyncio.get_running_loop(), end))
            begun.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert begun.wait(10)
    server, loop, end = ready[0]
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(10)


# ---- connections ---------------------------------------------------------------------------


async def test_connections_are_used_again(server: ChatServer) -> None:
    model = ChatModel(server.url, "m")
    for streamed in (True, False, True):
        assert (await Ask(streamed)(model)).text == "Hello."
    assert (len(server.requests), server.connections) == (3, 1)
    await model.close()
    await server.until(lambda server: server.gone == 1)
    await model.close()
    assert (await Ask(False)(model)).text == "Hello."
    assert server.connections == 2


async def test_a_block_closes_them(server: ChatServer) -> None:
    async with ChatModel(server.url, "m") as model:
        await asyncio.gather(*(Ask(n % 2 == 0)(model) for n in range(4)))
    await server.until(lambda server: server.gone == server.connections > 0)


async def test_a_model_that_is_forgotten_closes_them(server: ChatServer) -> None:
    await Ask(True)(ChatModel(server.url, "m"))
    await server.until(lambda server: server.gone == 1)


@pytest.mark.parametrize("uvloop", [False, True])
def test_one_loop_after_the_other(uvloop: bool) -> None:
    """A model at module level is used by loops that end without closing it."""
    factory: Any = asyncio.new_event_loop
    if uvloop:
        factory = pytest.importorskip("uvloop").new_event_loop
    with apart() as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ChatModel(server.url, "m")
        for number in range(3):
            with asyncio.Runner(loop_factory=factory) as runner:
                for streamed in (True, False):
                    assert runner.run(Ask(streamed)(model)).text == "Hello."
            gc.collect()  # an open session would warn now
            assert server.connections == number + 1


def test_two_loops_at_once() -> None:
    with apart() as server:
        model = ChatModel(server.url, "m")
        found: list[str] = []

        async def ask() -> None:
            found.extend([(await Ask(True)(model)).text for _ in range(5)])

        threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert found == ["Hello."] * 15


def test_a_process_that_ends_without_closing(tmp_path: Path) -> None:
    """It prints no warning of a session that was not closed."""
    script = tmp_path / "desk.py"
    script.write_text(
        "import asyncio, sys\n"
        "from dragoman.orchestrator import ChatModel, ModelMessage\n"
        "model = ChatModel(sys.argv[1], 'm')\n"
        "async def main():\n"
        "    return await model.answer([ModelMessage(role='user', text='Hi')], [])\n"
        "print(asyncio.run(main()).text)\n"
    )
    with apart() as server:
        command = (sys.executable, "-X", "dev", str(script), server.url)
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "Hello.\n"
    assert "Unclosed" not in done.stderr
    assert "ResourceWarning" not in done.stderr


async def test_a_proxy(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the environment is used, but not for this machine."""
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    with pytest.raises(ModelFailed, match="does not know"):  # it is no proxy, so it says 404
        await Ask(False)(ChatModel("http://model.invalid/other", "m", attempts=1))
    assert (server.connections, len(server.requests)) == (1, 0)
    assert (await Ask(False)(ChatModel(server.url, "m"))).text == "Hello."


# ---- arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "model.example/v1"}, "must begin with http"),
        ({"url": "grpc://model.example"}, "must begin with http"),
        ({"url": "http://"}, "must begin with http"),
        ({"url": "http://a:b@model.example"}, "must not contain credentials"),
        ({"url": "http://[::1"}, "must begin with http"),
        ({"timeout": 0}, "greater than 0"),
        ({"idle": -1}, "greater than 0"),
        ({"attempts": 0}, "greater than 0"),
        ({"options": {"stream": True, "n": 2}}, "options cannot set stream"),
        ({"key": "env:NOT_SET"}, "key: the variable NOT_SET is not set"),
        ({"key": "file:/not/there"}, "key: /not/there: No such file"),
        ({"key": "a\r\nb"}, "characters that a header cannot contain"),
        ({"headers": {"x-key": "env:NOT_SET"}}, "x-key: the variable NOT_SET is not set"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], words: str) -> None:
    given = {"url": "http://model.example/v1", **options}
    with pytest.raises(ValueError, match=words) as failed:
        ChatModel(given.pop("url"), "m", **given)
    assert "a:b" not in str(failed.value)


async def test_keys(server: ChatServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    (tmp_path / "key").write_text(f"{KEY}\n")
    for key in (KEY, "env:MODEL_KEY", f"file:{tmp_path / 'key'}"):
        await Ask(False)(ChatModel(server.url, "m", key=key))
        assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    await Ask(False)(ChatModel(server.url, "m", headers={"Api-Key": "env:MODEL_KEY"}))
    assert server.requests[-1].headers["api-key"] == KEY
    assert "authorization" not in server.requests[-1].headers


def test_without_aiohttp() -> None:
    script = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "import asyncio\n"
        "from dragoman.orchestrator import ChatModel, ModelMessage\n"
        "model = ChatModel('http://127.0.0.1:9/v1', 'm')\n"
        "asyncio.run(model.answer([ModelMessage(role='user', text='Hi')], []))\n"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True)
    assert "pip install 'dragoman[client]'" in done.stderr.splitlines()[-1]


def test_importing_it_is_light() -> None:
    script = (
        "import sys, dragoman.orchestrator\n"
        "loaded = {'aiohttp', 'pydantic_ai', 'dragoman.client', 'asyncio'} & set(sys.modules)\n"
        "print(sorted(loaded))\n"
        "from dragoman.orchestrator import *\n"
        "print('aiohttp' in sys.modules, 'pydantic_ai' in sys.modules, ChatModel.__name__)\n"
    )
    done = subprocess.run((sys.executable, "-c", script), capture_output=True, text=True)
    before, after = done.stdout.splitlines()
    assert "aiohttp" not in before
    assert "pydantic_ai" not in before
    assert after == "False False ChatModel"


# ---- secrets -------------------------------------------------------------------------------


def chatty(code: int) -> Step:
    """An error that repeats what came."""

    async def step(request: Request, visit: Any) -> None:
        said = f"{request.headers['authorization']} {request.headers['x-other']}"
        padding = "p" * (2000 - len(said) + 5)  # the end of the excerpt is within the secret
        await status(code, f"{said} sk-test-\u200b1234567890 {padding}{said}")(request, visit)

    return step


SAYING = f'{{"key": "Bearer {KEY} other-secret-9876"'
ATTACKS: dict[str, Step] = {
    "400": chatty(400),
    "401": chatty(401),
    "429": chatty(429),
    "500": chatty(500),
    "not JSON": body(SAYING),
    "HTML": body(f"<html>{KEY}", "text/html"),
    "error": body(f'{{"error": {SAYING}}}}}'),
    "wrong type": body(f'{{"choices": "{KEY}"}}'),
    "stream": events(f'{{"error": {SAYING}}}}}'),
    "cut": cut(KEY),
    "length": say(KEY, reason="length"),
    "hang": hang(),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_secrets_are_shown_nowhere(
    server: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    streamed: bool,
) -> None:
    monkeypatch.setattr(chat_model, "FIRST", 0.01)
    caplog.set_level(logging.DEBUG)
    server.script = lambda request: ATTACKS[name]
    other = "other-secret-9876"
    model = ChatModel(server.url, "m", key=KEY, timeout=1.0, headers={"X-Other": other})
    with pytest.raises(ModelFailed) as failed:
        await Ask(streamed)(model)
    shown = "".join(traceback.format_exception(failed.value)) + repr(failed.value) + repr(model)
    assert failed.value.__context__ is None
    assert failed.value.__cause__ is None
    assert [record for record in caplog.records if record.name == "dragoman"]
    logged = "".join(record.getMessage() for record in caplog.records)
    for secret in (KEY, other, KEY[:14], other[:14]):
        assert secret not in shown
        assert secret not in logged
    assert "127.0.0.1" not in str(failed.value)


async def test_the_log_says_what_the_server_said(
    server: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [status(400, "context too long\nWARNING: \x1b[31mforged")]
    with pytest.raises(ModelFailed):
        await Ask(False)(ChatModel(server.url, "m"))
    (record,) = [record for record in caplog.records if record.name == "dragoman"]
    said = record.getMessage()
    assert "model m: The model's server refused the request. 400: context too long" in said
    assert "\n" not in said
    assert "\x1b" not in said


# ---- the server of the tests ---------------------------------------------------------------


async def test_the_server_as_a_process() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.products.orchestrator.chat_server"),
        *("--script", "every-tool"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with ChatModel(url, "m", key=KEY) as model:
            assert (await model.answer(USER, [])).text == "Rome, please"
        async with httpx.AsyncClient(verify=NOBODY) as client:
            found = (await client.get(url.removesuffix("/v1") + "/requests")).json()
        assert [each["body"]["model"] for each in found] == ["m"]
        assert found[0]["headers"]["authorization"] == f"Bearer {KEY}"
    finally:
        process.terminate()
        await process.wait()


async def test_a_script_that_is_over(server: ChatServer) -> None:
    server.script = [call("book")]
    model = ChatModel(server.url, "m")
    assert (await model.answer(USER, [])).calls[0].name == "book"
    with pytest.raises(ModelFailed, match="refused the request"):
        await model.answer(USER, [])
