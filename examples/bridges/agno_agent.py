"""An agent of Agno: `dragoman serve examples.bridges.agno_agent:assistant`."""

from typing import Any

from agno.agent import Agent
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.tools import tool


class Sunny(Model):
    """Always says the same. Take a model of Agno, such as `OpenAIChat(id="gpt-5")`."""

    async def ainvoke_stream(self, *_: Any, **__: Any) -> Any:
        """Stream an answer."""
        yield ModelResponse(content="It is sunny.")

    ainvoke = invoke = invoke_stream = ainvoke_stream
    _parse_provider_response = _parse_provider_response_delta = None


@tool(requires_confirmation=True)  # the task becomes auth-required
def warn(city: str) -> str:
    """Warn a city of bad weather."""
    return f"{city} is warned"


assistant = Agent(
    name="Weather",
    description="Knows the weather.",
    model=Sunny("sunny"),
    tools=[warn],
    telemetry=False,  # it would say to Agno that it runs
)
