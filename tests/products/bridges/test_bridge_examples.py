"""The examples of the bridges are served and answer; what is no agent is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dragoman import TaskState, bridges
from dragoman.client import Client
from tests.harness.command import run
from tests.harness.forks import ROOT
from tests.interop.peers import FULL
from tests.interop.peers.environments import OTHERS, Absent
from tests.products.bridges.desk import Desk, Framework

C = TaskState.COMPLETED
EXAMPLES = {  # by environment: the module, the object, the name on the card, the answer
    "pydantic-ai": ("pydantic_ai_agent", "assistant", "Weather", "It is sunny."),
    "langgraph": ("langgraph_agent", "graph", "Planner", "A trip to Rome"),
    "adk": ("adk_agent", "assistant", "Weather", "It is sunny."),
    "openai-agents": ("openai_agents_agent", "assistant", "Weather", "It is sunny."),
    "strands": ("strands_agent", "assistant", "Weather", "It is sunny."),
    "smolagents": ("smolagents_agent", "assistant", "Weather", "It is sunny."),
    "llamaindex": ("llamaindex_agent", "guide", "Guide", "A trip to Rome"),
    "agno": ("agno_agent", "assistant", "Weather", "It is sunny."),
    "microsoft": ("microsoft_agent", "assistant", "Weather", "It is sunny."),
    "crewai": ("crewai_agent", "assistant", "Assistant", "It is sunny."),
    "": ("executor", "Echo", "Echo", "Rome"),
}


@pytest.mark.parametrize("environment", [name for name in EXAMPLES if FULL or name not in OTHERS])
async def test_an_example_is_served(environment: str, tmp_path: Path) -> None:
    module, served, name, answer = EXAMPLES[environment]
    desk = Desk(Framework(environment, f"examples.bridges.{module}", served), tmp_path)
    try:
        await asyncio.to_thread(desk.start)
    except Absent as absent:
        pytest.skip(f"{environment}: {absent}")
    try:
        async with asyncio.timeout(30), Client.connect(desk.url) as client:
            assert client.card.name == name
            result = await client.send("Rome")
            if result.state is TaskState.INPUT_REQUIRED and result.task is not None:
                result = await client.send("Rome", task=result.task.id)
            assert result.text == answer
    finally:
        desk.stop()


@pytest.mark.parametrize("module", [module for module, *_ in EXAMPLES.values()])
def test_an_example_is_short(module: str) -> None:
    lines = (ROOT / "examples" / "bridges" / f"{module}.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 15


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("agent = 5", "got int"),
        ("agent = object", "got object"),
        (
            "from a2a.server.agent_execution import AgentExecutor\n"
            "class agent(AgentExecutor):\n"
            "    async def execute(self, context, queue): ...\n"
            "    async def cancel(self, context, queue): ...\n",
            "an executor needs its card",
        ),
    ],
)
def test_what_is_no_agent_is_refused(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    found = run(tmp_path, "serve", "mine:agent", "--port", "0")
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def foreign(module: str, name: str, *parents: type) -> Any:
    """A class as another package has it."""
    return type(name, parents, {"__module__": module})


def test_a_class_is_refused_with_what_was_expected() -> None:
    kind = foreign("pydantic_ai.agent", "AbstractAgent")
    mine = type("Mine", (kind,), {})
    with pytest.raises(ValueError, match="an agent of Pydantic AI, got the class Mine; make an"):
        bridges.adopt(mine, "Mine", None)


def test_an_executor_is_one_whatever_else_it_is() -> None:
    executor = foreign("a2a.server.agent_execution", "AgentExecutor")
    agent = foreign("agents.agent", "Agent")
    with pytest.raises(ValueError, match="an executor needs its card"):
        bridges.adopt(type("Both", (agent, executor), {})(), "both", ModuleType("mine"))


def test_a_graph_that_is_not_compiled_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class StateGraph: ...\nbuilder = StateGraph()\n")
    found = run(tmp_path, "serve", "mine:builder", "--port", "0")
    assert found.returncode == 2
    assert "expected a compiled graph; write builder.compile()" in found.stderr
