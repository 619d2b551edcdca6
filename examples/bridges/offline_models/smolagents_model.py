"""A model of smolagents that needs no network: it always says the same."""

from typing import Any

from smolagents import ChatMessage, Model


class Sunny(Model):
    """Always says the same."""

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        """Answer."""
        answer = {"name": "final_answer", "arguments": {"answer": "It is sunny."}}
        call = {"id": "1", "type": "function", "function": answer}
        return ChatMessage.from_dict({"role": "assistant", "tool_calls": [call]})
