"""An agent of OpenAI Agents: `dragoman serve examples.bridges.openai_agents_agent:assistant`."""

from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message

from dragoman.bridges.openai_agents import ask_client

model = ScriptedModel([[assistant_message("It is sunny.")]] * 100)  # your model, such as "gpt-5"


@function_tool(needs_approval=True)  # the task becomes auth-required
def warn(city: str) -> str:
    """Warn a city of bad weather."""
    return f"{city} is warned"


assistant = Agent("Weather", "Knows the weather.", tools=[warn, ask_client], model=model)
