"""An executor that was written for a2a-sdk: `dragoman serve examples.bridges.executor:Echo`."""

from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import AgentCard

card = AgentCard(name="Echo", description="Says it again.", version="1.0.0")


class Echo(AgentExecutor):
    """Says it again."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer with the same text."""
        await event_queue.enqueue_event(new_text_message(context.get_user_input()))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """There is nothing to cancel."""
