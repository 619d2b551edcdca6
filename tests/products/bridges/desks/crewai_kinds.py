"""Crews of CrewAI, with a model that does what its task says, and an agent that calls two tools."""

from __future__ import annotations

import re
import time
from typing import Any

from crewai import Agent, Crew, Task
from crewai.tools import tool
from crewai_desk import Script, note, question, slow, times

from dragoman.bridges import crewai


class Worker(Script):
    """A model that says what its task is, word for word."""

    def call(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Do the task."""
        about = {name: kwargs.get(name) for name in ("from_task", "from_agent")}
        users = [str(message["content"]) for message in messages if message["role"] == "user"]
        task = re.search(r"Current Task: (.*)", users[0])
        text = task[1] if task else users[-1]
        if feedback := re.search(r"User feedback: (.*)", users[-1]):
            text = f"{text}, {feedback[1]}"
        note(f"model: {text}")
        if text.endswith("fail"):
            raise ValueError("secret inside")
        if text.startswith("slow") and messages[-1]["role"] != "tool":
            function = {"name": "slow", "arguments": "{}"}
            return [{"id": "slow-1", "type": "function", "function": function}]
        if text.startswith("hang") and times(f"model: {text}") == 1:
            time.sleep(60)
        words = ("Done: ", text)
        for word in words:
            self._emit_stream_chunk_event(word, **about)
        return "".join(words)


class Reader(Script):
    """A model that reads, asks, and says what it has."""

    def call(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Call the next tool."""
        results = [message["content"] for message in messages if message["role"] == "tool"]
        names = ("read", "question")
        if len(results) == len(names):
            return f"{len(results[0])} characters, {results[1]}"
        name = names[len(results)]
        function = {"name": name, "arguments": "{}"}
        return [{"id": f"{name}-1", "type": "function", "function": function}]


@tool("read")
def read() -> str:
    """Read a long page."""
    note("read")
    return "x" * 400_000


def worker(role: str) -> Agent:
    """An agent of a crew."""
    return Agent(
        role=role, goal="Work.", backstory="A secret prompt.", llm=Worker(model="w"), tools=[slow]
    )


def task(description: str, **options: Any) -> Task:
    """A task of a crew."""
    return Task(description=description, expected_output="An answer.", **options)


one = worker("One")
single = Crew(agents=[one], tasks=[task("{message}", agent=one)])
reviewed = Crew(agents=[one], tasks=[task("{message}", agent=one, human_input=True)])
early = Crew(
    agents=[one],
    tasks=[
        task("plan {message}", agent=one, human_input=True),
        task("make {message}", agent=one),
    ],
)
left, right = worker("Left"), worker("Right")
first = task("first {message}", agent=left, async_execution=True)
both = Crew(
    name="Both", agents=[left, right], tasks=[first, task("{way}", agent=right, context=[first])]
)
reader = crewai.serve(
    Agent(role="Reader", goal="Read.", backstory="?", llm=Reader(model="r"), tools=[read, question])
)
