"""An agent of Pydantic AI: `dragoman serve examples.bridges.pydantic_ai_agent:assistant`."""

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

model = TestModel(custom_output_text="It is sunny.")  # your model, such as "openai:gpt-5"
assistant = Agent(model, name="Weather", description="Knows the weather.")


@assistant.tool_plain
def forecast(city: str) -> str:
    """Look at the sky over a city."""
    return f"sunny in {city}"
