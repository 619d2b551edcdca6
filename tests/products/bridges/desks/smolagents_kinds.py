"""An agent of smolagents that writes code, with a model that writes what the message says."""

from __future__ import annotations

import time
from typing import Any

from script import note
from smolagents import ChatMessage, CodeAgent, Model, UserInputTool, tool


class Coder(Model):
    """A model that writes the lines of the message, one in each step."""

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        """Write the next line."""
        note("model")
        texts = [block["text"] for message in messages for block in message.content]
        last = max(n for n, text in enumerate(texts) if text.startswith("New task:"))
        lines = texts[last].split("\n")[1:]
        done = sum(text.startswith("Observation:") for text in texts[last:])
        code = f"<code>\n{lines[done]}\n</code>"
        return ChatMessage(role="assistant", content=code)


@tool
def work(what: str) -> str:
    """Work.

    Args:
        what: What to do.
    """
    note(what)
    time.sleep(0.5)
    return f"{what} is done"


agent = CodeAgent([work, UserInputTool()], Coder(model_id="script"), name="Coder")
