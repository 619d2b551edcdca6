"""Flows of CrewAI."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM
from crewai.flow import Flow, human_feedback, listen, persist, start
from crewai.flow.persistence import FlowPersistence
from crewai_desk import Script, note
from pydantic import BaseModel

from dragoman.bridges import crewai


class Judge(BaseLLM):
    """A model that says what an answer means."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        """Judge the answer."""
        note("judge")
        said = str(messages[-1]["content"]).lower()
        return json.dumps({"outcome": "approved" if "very well" in said else "changed"})


class Draft(BaseModel):
    """What a writer knows."""

    topic: str = ""
    drafts: int = 0


def review(method: Any) -> Any:
    """Have a human look at the output of a method."""
    found = human_feedback("Is this right?", emit=["approved", "changed"], llm=Judge(model="j"))
    return found(method)


class Writer(Flow[Draft]):
    """Writes about a topic."""

    @start()
    @review
    def draft(self) -> str:
        note("draft")
        self.state.drafts += 1
        return f"About {self.state.topic}"

    @listen("changed")
    @review
    def change(self, result: Any) -> str:
        note("change")
        self.state.drafts += 1
        return f"{result.output}, {result.feedback}"

    @listen("approved")
    def publish(self, result: Any) -> dict[str, Any]:
        note("publish")
        return {"text": result.output, "drafts": self.state.drafts, "id": self.state.id}


class Painter(Flow[dict[str, Any]]):
    """Asks in the middle of a method."""

    @start()
    def paint(self) -> str:
        note("paint")
        note(self.state["id"])
        first = self.ask("Which color?")
        second = self.ask("Which frame?")
        return f"{self.state['message']} in {first} with {second}, {self.state['id']}"


class Helped(Flow[dict[str, Any]]):
    """Has an agent with a tool."""

    @start()
    async def look(self) -> Any:
        from crewai_desk import weather

        agent = Agent(
            role="Looker", goal="Look.", backstory="?", llm=Script(model="s"), tools=[weather]
        )
        return await agent.kickoff_async(self.state["message"])


class Files(FlowPersistence):
    """Keeps the state of flows in files."""

    persistence_type: str = "Files"

    def _file(self, id: str) -> Path:
        return Path(os.environ["EFFECTS"]).with_name(f"flow-{id}")

    def init_db(self) -> None:
        """Nothing is needed."""

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        """Write the state."""
        found = state_data if isinstance(state_data, dict) else state_data.model_dump()
        self._file(flow_uuid).write_text(json.dumps(found))

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """Read the state."""
        note(f"session {flow_uuid}")
        file = self._file(flow_uuid)
        return dict(json.loads(file.read_text())) if file.exists() else None


@persist(Files())
class Stored(Flow[Draft]):
    """A writer with a store of its own."""

    @start()
    @review
    def draft(self) -> str:
        self.state.drafts += 1
        return f"About {self.state.topic}"

    @listen("approved")
    def publish(self, result: Any) -> dict[str, Any]:
        return {"text": result.output, "drafts": self.state.drafts, "id": self.state.id}


class Slow(Flow[dict[str, Any]]):
    """Takes a minute."""

    @start()
    async def sleep(self) -> str:
        note("slow begins")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("slow is stopped")
            raise
        return "done"

    @listen(sleep)
    def after(self) -> None:
        note("after")


class Heir(Writer):
    """Has no methods of its own, and CrewAI does not see those of its parent."""


class Chat(Flow[dict[str, Any]]):
    """Talks."""

    conversational = True


instance = Writer()
narrow = crewai.serve(Writer, inputs=["topic"])
