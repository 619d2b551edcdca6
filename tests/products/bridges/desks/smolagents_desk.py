"""The desk as an agent of smolagents, with a model that follows a script."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from script import note, times, unreadable
from smolagents import (
    ActionStep,
    AgentImage,
    ChatMessage,
    ChatMessageStreamDelta,
    Model,
    TokenUsage,
    Tool,
    ToolCallingAgent,
    UserInputTool,
    agglomerate_stream_deltas,
    tool,
)
from smolagents.models import ChatMessageToolCallFunction, ChatMessageToolCallStreamDelta

from dragoman.bridges import smolagents

CALLS = {
    "weather": ("weather", {"city": "Rome"}),
    "question": ("user_input", {"question": "Which color?"}),
    "delete": ("delete", {"path": "/tmp/x"}),
    "slow": ("slow", {}),
    "picture": ("paint", {}),
}


class Script(Model):
    """A model that streams what the script says."""

    def generate(self, messages: list[Any], **options: Any) -> ChatMessage:
        """Say it at once."""
        return agglomerate_stream_deltas(list(self.generate_stream(messages, **options)))

    def generate_stream(self, messages: list[Any], **_: Any) -> Iterator[ChatMessageStreamDelta]:
        """Call a tool, which may be the one that gives the answer."""
        note("model")
        texts = [block.get("text", "") for message in messages for block in message.content]
        users = sum(text.startswith("New task:") for text in texts)
        name, pieces = call(texts[-1], users)
        for number, piece in enumerate(pieces):
            function = ChatMessageToolCallFunction(piece, "" if number else name)
            id = f"{name}-{len(messages)}"
            delta = ChatMessageToolCallStreamDelta(0, id, "function", function)
            yield ChatMessageStreamDelta(tool_calls=[delta])
            if "half" in texts[-1] and number == 0 and not times("half"):
                note("half")
                time.sleep(60)
        yield ChatMessageStreamDelta(token_usage=TokenUsage(7, 3))


def call(said: str, users: int) -> tuple[str, list[str]]:
    """The tool that the model calls, and the pieces of its arguments."""
    _, _, text = said.partition("\n")
    if said.startswith("Observation:") and text == "again":
        return "slow", ["{}"]
    if said.startswith("Observation:"):
        prefix = "" if " bytes of " in text else "The tool says: "
        return "final_answer", ['{"answer": "', prefix, f'{text}"}}']
    if text in CALLS:
        name, arguments = CALLS[text]
        return name, [json.dumps(arguments)]
    if text == "structured":
        return "final_answer", [json.dumps({"answer": {"city": "Rome", "degrees": 21}})]
    if text == "fail":
        raise ValueError("secret inside")
    if "The variable " in text:
        name = text.partition("The variable ")[2].split()[0]
        return "measure", [json.dumps({"file": name})]
    quoted = json.dumps(text)[1:-1]
    return "final_answer", ['{"answer": "You said ', quoted, f' as message {users}"}}']


@tool
def weather(city: str) -> str:
    """Look at the sky.

    Args:
        city: A city.
    """
    note("weather")
    return f"sunny in {city}"


@tool
def delete(path: str) -> str:
    """Delete a file.

    Args:
        path: Its path.
    """
    note("delete")
    return f"deleted {path}"


@tool
def slow() -> str:
    """Take more than a second."""
    note("slow begins")
    time.sleep(1.5)
    return "again"


class Measure(Tool):
    """Measures a file."""

    name = "measure"
    description = "Measure a file."
    inputs = {"file": {"type": "any", "description": "The file."}}  # noqa: RUF012
    output_type = "string"

    def forward(self, file: Any) -> str:
        """Say how long it is."""
        return f"{len(file)} bytes of image/png"


class Paint(Tool):
    """Paints a picture."""

    name = "paint"
    description = "Paint a picture."
    inputs: dict[str, Any] = {}  # noqa: RUF012
    output_type = "image"

    def forward(self) -> Any:
        """Paint it into a file."""
        file = Path(os.environ["EFFECTS"]).parent / "picture.png"
        file.write_bytes(b"pixels")
        return AgentImage(str(file))


def ended(step: ActionStep, agent: ToolCallingAgent) -> None:
    """A step of the agent has ended."""
    if agent.interrupt_switch:
        note("slow is stopped")


agent = ToolCallingAgent(
    [weather, delete, slow, Measure(), Paint(), UserInputTool()],
    Script(model_id="script"),
    name="Desk",
    description="Does what it is told.",
    instructions="A secret prompt that no card shows.",
    step_callbacks=[ended],
)
desk = smolagents.serve(agent, approve=("delete",))
by_words = smolagents.serve(agent, approve=("delete",), approvals="text")
unreadable = unreadable("smolagents")
