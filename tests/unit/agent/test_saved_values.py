"""Values that a handler saves come back as what they were, and are never too large to be kept."""

from __future__ import annotations

import array
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from dragoman import Agent, TaskState, Turn
from dragoman.agent.saved_values import BYTES, decode_saved, encode_saved
from dragoman.agent.step_results import LARGEST
from dragoman.testing import run_handler, turn

NESTED: Any = "x"
for _ in range(5):
    NESTED = {BYTES: NESTED}


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -1.5, "", "text", [], {}, [1, [2]], {"a": {"b": None}}),
        *(b"", b"\0", bytes(range(256)), b'{"a":1}'),
        *({BYTES: "aGVsbG8="}, {BYTES: b"".hex()}, {BYTES: None}, {BYTES: {}}, {BYTES: [1]}),
        *({BYTES: {BYTES: "eA=="}}, {BYTES: "x", "b": 1}, {"a": 1, BYTES: "x"}, NESTED),
        *([{BYTES: "eA=="}], {"a": {BYTES: "eA=="}}, BYTES),
    ],
    ids=repr,
)
def test_a_value_comes_back(value: Any) -> None:
    data = encode_saved(value, "save")
    msgspec.json.decode(data)  # it is JSON
    found = decode_saved(data)
    assert found == value and type(found) is type(value)


@dataclass
class Likes:
    """A value of the author's."""

    drink: str


def test_other_values_become_json() -> None:
    assert decode_saved(encode_saved(Likes("tea"), "save")) == {"drink": "tea"}
    assert decode_saved(encode_saved(bytearray(b"x"), "save")) == b"x"
    numbers = array.array("H", [1, 2])
    assert decode_saved(encode_saved(memoryview(numbers), "save")) == numbers.tobytes()
    assert decode_saved(b'{"' + BYTES.encode() + b'":5}') == {BYTES: 5}, "one from before"


@pytest.mark.parametrize("make", [bytes, bytearray, lambda n: "x" * (n - 2)])
def test_the_largest_value(make: Any) -> None:
    assert len(decode_saved(encode_saved(make(LARGEST), "save"))) >= LARGEST - 2
    with pytest.raises(ValueError, match=f"save: the value has {LARGEST + 1} bytes; at most"):
        encode_saved(make(LARGEST + 1), "save")


def test_what_is_no_json_is_refused() -> None:
    for value in (object(), {"a": object()}, {object(): 1}):
        with pytest.raises(TypeError, match="save: the value cannot be stored as JSON"):
            encode_saved(value, "save")


async def test_values_of_a_context_without_a_server() -> None:
    agent = Agent("Counter", description="Counts.")

    @agent.handler
    async def count(turn: Turn) -> Any:
        number = (await turn.context_saved() or 0) + 1
        await turn.save_context(number)
        await turn.save(str(number).encode())
        return turn.ask(f"{number} {turn.saved!r}")

    done = await run_handler(agent, "a", "b", "c", strict=True)
    assert done.state is TaskState.INPUT_REQUIRED
    assert done.text == "3 b'3'"


async def test_a_turn_that_does_not_run_has_no_value() -> None:
    idle = turn("hello")
    assert await idle.context_saved() is None
    for method in (idle.save_context, idle.save):
        with pytest.raises(RuntimeError, match="this turn is not running"):
            await method(1)
