"""An agent of CrewAI: `dragoman serve examples.bridges.crewai_agent:assistant`."""

from typing import Any

from crewai import Agent, BaseLLM


class Model(BaseLLM):
    """A model of yours, such as `llm="openai/gpt-5"`, would be here."""

    def call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        """Answer."""
        return "It is sunny."


assistant = Agent(
    role="Weather", goal="Know the weather.", backstory="It looks up.", llm=Model(model="mine")
)
