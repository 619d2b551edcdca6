"""An agent of smolagents: `dragoman serve examples.bridges.smolagents_agent:assistant`."""

from typing import Any

from smolagents import ChatMessage, Model, ToolCallingAgent, tool


class Sunny(Model):
    """Stands for your model, such as `InferenceClientModel()`, so that the example runs offline."""

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        answer = {"name": "final_answer", "arguments": {"answer": "It is sunny."}}
        call = {"id": "1", "type": "function", "function": answer}
        return ChatMessage.from_dict({"role": "assistant", "tool_calls": [call]})


@tool
def forecast(city: str) -> str:
    """Look at the sky over a city.

    Args:
        city: The name of the city.
    """
    return f"sunny in {city}"


assistant = ToolCallingAgent([forecast], Sunny(), name="Weather", description="Knows the weather.")
