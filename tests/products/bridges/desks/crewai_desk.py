"""The desk as an agent of CrewAI, with a model that follows a script."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
os.environ["CREWAI_DISABLE_TRACKING"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"
os.environ["CREWAI_STORAGE_DIR"] = str(Path(os.environ["EFFECTS"]).parent)

from crewai import Agent, BaseLLM, Crew, Task
from crewai.events.types.llm_events import LLMCallType
from crewai.tools import tool
from pydantic import BaseModel
from script import note, times, unreadable

from dragoman.bridges import crewai


class Weather(BaseModel):
    """A forecast."""

    city: str
    degrees: int


CALLS = {
    "weather": {"city": "Rome"},
    "question": {},
    "delete": {"path": "/tmp/x"},
    "slow": {},
}


class Script(BaseLLM):
    """A model that streams what the script says."""

    def supports_function_calling(self) -> bool:
        """It calls tools."""
        return True

    def call(self, messages: Any, tools: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Follow the script."""
        about = {name: kwargs.get(name) for name in ("from_task", "from_agent")}
        if about["from_agent"] is None:
            return "no forecast"  # asked to make a forecast of an answer
        note("model")
        last = messages[-1]
        text = str(last["content"]).replace("Current Task:", "").strip()
        users = sum(message["role"] == "user" for message in messages)
        files = list((last.get("files") or {}).values())
        value: Any = None
        words = ["You said ", text, f" as message {users}"]
        if last["role"] == "tool":
            words = ["The tool says: ", text]
        elif files:
            words = [f"{len(files[0].read())} bytes of {files[0].content_type}"]
        elif text in CALLS:
            function = {"name": text, "arguments": json.dumps(CALLS[text])}
            value = [{"id": f"{text}-{users}", "type": "function", "function": function}]
        elif text == "structured":
            value = Weather(city="Rome", degrees=21)
        elif text == "fail":
            raise ValueError("secret inside")
        if value is None:
            for number, word in enumerate(words):
                self._emit_stream_chunk_event(word, **about)
                if text == "half" and number == 1:
                    note("half")
                    if times("half") == 1:
                        time.sleep(60)
            value = "".join(words)
        usage = {"prompt_tokens": 5, "completion_tokens": 3}
        self._emit_call_completed_event("", LLMCallType.LLM_CALL, usage=usage, **about)
        return value


@tool("weather")
def weather(city: str) -> str:
    """Look at the sky."""
    note("weather")
    return f"sunny in {city}"


@tool("question")
def question() -> str:
    """Ask the user."""
    return crewai.ask("Which color?")


@tool("delete")
def delete(path: str) -> str:
    """Delete a file."""
    note("delete")
    return f"deleted {path}"


@tool("slow")
async def slow() -> str:
    """Take a minute."""
    note("slow begins")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("slow is stopped")
        raise
    return "done"


agent = Agent(
    role="Desk",
    goal="Do what it is told.",
    backstory="A secret prompt that no card shows.",
    llm=Script(model="script"),
    tools=[weather, question, delete, slow],
)
options: Any = {
    "approve": ["delete"],
    "output": Weather,
    "description": "Does what it is told.",
}
desk = crewai.serve(agent, **options)
by_words = crewai.serve(agent, approvals="text", **options)
unreadable = unreadable("crewai")
task = Task(description="{message}", expected_output="An answer.", agent=agent, human_input=True)
crew = Crew(agents=[agent], tasks=[task])
