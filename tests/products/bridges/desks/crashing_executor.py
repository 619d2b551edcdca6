"""An executor whose process dies in the middle, served so that its turns run again."""

from __future__ import annotations

import asyncio

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard, TaskState
from script import note, times

from dragoman.bridges import sdk

card = AgentCard(name="Twice", description="Does it again.", version="1.0.0")


class Twice(AgentExecutor):
    """Appends to what the task has, and makes artifacts with random ids and one with its own."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer a message; die for the first time of each text that begins with `die`."""
        text = context.get_user_input()
        if text == "say":
            await event_queue.enqueue_event(new_text_message("just a message"))
            return
        task = context.current_task
        note(f"{text}: {TaskState.Name(task.status.state) if task else None}")
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        grows = context.message.message_id != task.history[0].message_id
        await updater.add_artifact([new_text_part(f"{text} ")], artifact_id="log", append=grows)
        await updater.add_artifact([new_text_part("first")], name="first")
        await updater.add_artifact([new_text_part("second: ")], artifact_id=f"2 {text}")
        if text.startswith("die") and times(text) == 0:
            note(text)
            await asyncio.sleep(60)
        await updater.add_artifact([new_text_part("done")], artifact_id=f"2 {text}", append=True)
        await updater.add_artifact([new_text_part("third")], name="third")
        if grows:
            await updater.complete()
        else:
            await updater.requires_input(updater.new_agent_message([new_text_part("More?")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Never asked for here."""


twice = sdk.serve(Twice, card, retries=1)
