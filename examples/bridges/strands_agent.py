"""An agent of Strands: `dragoman serve examples.bridges.strands_agent:assistant`."""

from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, tool
from strands.models import Model


class Sunny(Model):
    """Stands for your model, such as `BedrockModel()`, so that the example runs offline."""

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": "It is sunny."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}

    update_config = get_config = structured_output = lambda *_, **__: None


@tool
def forecast(city: str) -> str:
    """Look at the sky over a city."""
    return f"sunny in {city}"


assistant = Agent(Sunny(), name="Weather", description="Knows the weather.", tools=[forecast])
