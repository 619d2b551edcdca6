"""Functions, and models of Pydantic AI, as models."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dragoman.orchestrator import (
    FunctionModel,
    Model,
    ModelAnswer,
    ModelFailed,
    ModelMessage,
    PydanticModel,
    Tool,
    ToolCall,
    Usage,
)
from tests.interop.peers import environments
from tests.interop.peers.environments import Absent
from tests.products.orchestrator.asking import USER, Ask

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PATIENCE = 60.0
TOOL = Tool("book", "Books.", {"type": "object"})
Messages = Sequence[ModelMessage]
Tools = Sequence[Tool]


@pytest.fixture(params=[False, True], ids=["plain", "streamed"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Asks in one piece, and as a stream."""
    return Ask(request.param)


# ---- functions -----------------------------------------------------------------------------


def echo(messages: Messages, tools: Tools) -> str:
    return f"{messages[-1].text} {[tool.name for tool in tools]}"


async def slowly(messages: Messages, tools: Tools) -> str:
    await asyncio.sleep(0)
    return echo(messages, tools)


class Object:
    async def __call__(self, messages: Messages, tools: Tools) -> str:
        return echo(messages, tools)


@pytest.mark.parametrize(
    "function", [echo, slowly, Object(), partial(slowly), lambda m, t: slowly(m, t)]
)
async def test_functions_that_return_text(ask: Ask, function: Any) -> None:
    model: Model = FunctionModel(function)
    found = await ask(model, USER, [TOOL])
    assert found == ModelAnswer(text="Rome, please ['book']")
    assert ask.pieces == ([found.text] if ask.streamed else [])


async def test_a_function_that_returns_an_answer(ask: Ask) -> None:
    wanted = ModelAnswer(calls=(ToolCall("a", "book", "{}"),), usage=Usage(1, 2))
    assert await ask(FunctionModel(lambda messages, tools: wanted)) == wanted
    assert ask.pieces == []


async def test_a_blocking_function_does_not_stop_the_loop() -> None:
    release = threading.Event()

    def wait(messages: Messages, tools: Tools) -> str:
        return "released" if release.wait(5) else "stuck"

    running = asyncio.create_task(FunctionModel(wait).answer(USER, []))
    await asyncio.sleep(0)
    release.set()
    assert (await running).text == "released"


def raises(messages: Messages, tools: Tools) -> str:
    raise RuntimeError("internal")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (raises, "The function of the model failed."),
        (lambda messages, tools: 5, "The function of the model returned no answer."),
        (lambda messages, tools: None, "The function of the model returned no answer."),
        (lambda messages, tools: " ", "The model gave an empty answer."),
        (lambda messages, tools: ModelAnswer(), "The model gave an empty answer."),
    ],
)
async def test_functions_that_fail(
    ask: Ask, function: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ModelFailed) as failed:
        await ask(FunctionModel(function))
    assert str(failed.value) == words
    if function is raises:
        assert "RuntimeError: internal" in caplog.text


async def test_a_function_may_say_that_it_failed(ask: Ask) -> None:
    def fails(messages: Messages, tools: Tools) -> str:
        raise ModelFailed("Out of ideas.")

    with pytest.raises(ModelFailed, match="Out of ideas"):
        await ask(FunctionModel(fails))


def test_names() -> None:
    assert FunctionModel(echo).name == "echo"
    assert FunctionModel(echo, name="desk").name == "desk"
    assert FunctionModel(Object()).name == "function"
    assert repr(FunctionModel(echo)) == "FunctionModel('echo')"


# ---- Pydantic AI ---------------------------------------------------------------------------


def test_without_pydantic_ai() -> None:
    with pytest.raises(ModuleNotFoundError, match="pip install pydantic-ai-slim"):
        PydanticModel("test")


async def test_models_of_pydantic_ai() -> None:
    try:
        python = await asyncio.to_thread(environments.python, "pydantic-ai")
    except Absent as absent:
        pytest.skip(f"pydantic-ai cannot be installed: {absent}")
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-W", "ignore", str(HERE / "pydantic_scenes.py")),
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()[-3000:]
    found = json.loads(said)

    tested = found["test model"]["answer"]
    assert [call["name"] for call in tested["calls"]] == ["book", "look"]
    assert json.loads(tested["calls"][0]["arguments"]) == {"city": "a"}
    assert tested["usage"]["input_tokens"] > 0
    assert found["test model"]["name"] == "test"

    assert found["test text"]["answer"]["text"] == "hello you"
    assert found["test text"]["pieces"] == ["hello ", "you"]

    plain = found["plain"]["answer"]
    assert plain["calls"] == [
        {"id": "a", "name": "book", "arguments": '{"city": "Romē"}'},
        {"id": "b", "name": "look", "arguments": "{bad"},
    ]
    sees(json.loads(plain["text"]))

    assert found["streamed"]["pieces"] == ["I ", "book."]
    assert found["streamed"]["answer"]["text"] == "I book."
    assert found["streamed"]["answer"]["calls"] == [
        {"id": "a", "name": "book", "arguments": '{"city":"Rome"}'}
    ]
    assert found["streamed"]["answer"]["usage"]["output_tokens"] > 0

    assert found["raises"]["failed"] == "The model failed."
    assert "reached the limit" in found["short"]["failed"]
    assert found["empty"]["failed"] == "The model gave an empty answer."
    assert found["throwing"] == "the client is gone"


def sees(seen: dict[str, Any]) -> None:
    """What their model got."""
    first, said, result = [
        [(part["part_kind"], part.get("content", part.get("args"))) for part in message["parts"]]
        for message in seen["messages"]
    ]
    assert first == [("system-prompt", "You book."), ("user-prompt", "Rome, please")]
    assert said == [("text", "I book."), ("tool-call", "{broken")]
    assert result == [("tool-return", "not JSON")]
    assert seen["messages"][2]["parts"][0]["tool_name"] == "book"
    assert [tool[0] for tool in seen["tools"]] == ["book", "look"]
    assert seen["tools"][0][2]["required"] == ["city"]
