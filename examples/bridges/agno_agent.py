"""An agent of Agno: `dragoman serve examples.bridges.agno_agent:assistant`."""

from agno.agent import Agent
from agno.tools import tool

from examples.bridges.offline_models.agno_model import Sunny

model = Sunny("sunny")  # your model, such as OpenAIChat(id="gpt-5")


@tool(requires_confirmation=True)  # the task becomes auth-required
def warn(city: str) -> str:
    """Warn a city of bad weather."""
    return f"{city} is warned"


assistant = Agent(name="Weather", description="Knows the weather.", model=model, tools=[warn])
assistant.telemetry = False  # it would say to Agno that it runs
