"""A workflow of LlamaIndex: `dragoman serve examples.bridges.llamaindex_agent:guide`."""

from workflows import Workflow, step
from workflows.events import HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent


class Guide(Workflow):
    """Plans trips. Here steps of yours would call a model."""

    @step
    async def ask(self, ev: StartEvent) -> InputRequiredEvent:
        """Ask the user."""
        return InputRequiredEvent(prefix="Where do you want to go?")  # becomes input-required

    @step
    async def plan(self, ev: HumanResponseEvent) -> StopEvent:
        """Answer."""
        return StopEvent(result=f"A trip to {ev.response}")


guide = Guide()
