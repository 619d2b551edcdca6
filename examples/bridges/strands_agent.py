"""An agent of Strands: `dragoman serve examples.bridges.strands_agent:assistant`."""

from strands import Agent, tool

from examples.bridges.offline_models.strands_model import Sunny

model = Sunny()  # your model, such as BedrockModel()


@tool
def forecast(city: str) -> str:
    """Look at the sky over a city."""
    return f"sunny in {city}"


assistant = Agent(model, name="Weather", description="Knows the weather.", tools=[forecast])
