"""What docs/recipes.md has, tried."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.model.errors import InvalidParams
from tests.harness.server import serving

PAGE = (Path(__file__).resolve().parents[2] / "docs/recipes.md").read_text()
BLOCKS = re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)


def recipe(title: str) -> dict[str, Any]:
    """The names that a recipe defines."""
    (code,) = [code for name, code in BLOCKS if name.startswith(title)]
    found: dict[str, Any] = {}
    exec(code, found)
    return found


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """An agent that repeats, asks and counts."""
    agent = Agent("Repeater", description="Repeats.")
    runs: list[str] = []

    @agent.handler
    async def repeat(turn: Turn) -> AsyncIterator[Any]:
        runs.append(turn.text)
        if turn.text.startswith("ask") and len(turn.history) < 4:
            yield turn.ask("More?")
        elif turn.text.startswith("count"):
            for number in range(int(turn.text.split()[1])):
                yield turn.write(f"{number} ".encode())
        else:
            yield turn.artifact(f"{turn.text} ({len(runs)})")

    async with serving(App(agent, drain_timeout=0.0)) as url:
        yield url


async def test_ask_several(url: str) -> None:
    first = recipe("Ask several agents")["first"]
    assert await first(["http://127.0.0.1:1", url], "hello") == "hello (1)"
    with pytest.raises(LookupError):
        await first([], "hello")


async def test_answer_in_a_loop(url: str) -> None:
    result = await recipe("Answer an agent")["converse"](
        url, "ask", lambda question: f"ask {question}"
    )
    assert result.state is TaskState.COMPLETED
    assert result.text == "ask More? (3)"


async def test_start_now_fetch_later(url: str) -> None:
    names = recipe("Start now")
    assert await names["fetch"](url, await names["begin"](url, "hello")) == "hello (1)"


async def test_save_a_large_answer(url: str, tmp_path: Path) -> None:
    await recipe("Save a large answer")["download"](url, "count 50", tmp_path / "out")
    assert (tmp_path / "out").read_text().split() == [str(number) for number in range(50)]


async def test_the_same_order_runs_once(url: str) -> None:
    order = recipe("Repeat a send safely")["order"]
    assert await order(url, "7", "a book") == await order(url, "7", "a book") == "a book (1)"
    with pytest.raises(InvalidParams):
        await order(url, "7", "another book")


def test_every_recipe_is_tried() -> None:
    tried = Path(__file__).read_text()
    for title, _ in BLOCKS:
        assert any(title.startswith(name) for name in re.findall(r"recipe\(\"(.+?)\"\)", tried)), (
            title
        )
