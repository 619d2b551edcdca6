"""An agent of smolagents: `dragoman serve examples.bridges.smolagents_agent:assistant`."""

from smolagents import ToolCallingAgent, tool

from examples.bridges.offline_models.smolagents_model import Sunny

model = Sunny()  # your model, such as InferenceClientModel()


@tool
def forecast(city: str) -> str:
    """Look at the sky over a city.

    Args:
        city: The name of the city.
    """
    return f"sunny in {city}"


assistant = ToolCallingAgent([forecast], model, name="Weather", description="Knows the weather.")
