"""The desk as an executor that was written for a2a-sdk 1.x."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard, AgentSkill, Artifact, TaskState, TaskStatus
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError

card = AgentCard(
    name="Desk",
    description="Does what it is told.",
    version="2.1.0",
    default_input_modes=["text/plain", "image/*"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="desk", name="Desk", description="Everything", tags=["desk"])],
)


def note(what: str) -> None:
    """Write down that something was done, where the test can see it."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


class Desk(AgentExecutor):
    """Does what the text says."""

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        """Answer a message."""
        text = context.get_user_input()
        if text == "say":
            await queue.enqueue_event(new_text_message("just a message"))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
        else:
            note(f"answers {TaskState.Name(task.status.state)}")
        await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.submit()
        if text == "refuse":
            raise InvalidParamsError(message="Which flight?")
        if text in ("grow", "more"):
            note(f"{len(task.artifacts or ())} artifacts")
            await updater.add_artifact(
                [new_text_part(f"{text} ")], artifact_id="log", append=text == "more"
            )
            if text == "more":
                await updater.complete()
                await queue.close()
                await updater.add_artifact([new_text_part("too late")])
                return
        if text == "whole":
            done = new_task_from_user_message(context.message)
            done.artifacts.append(Artifact(artifact_id="x", parts=[new_text_part("as a whole")]))
            done.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_COMPLETED))
            await queue.enqueue_event(done)
            return
        await updater.start_work(updater.new_agent_message([new_text_part("at work")]))
        note(f"execute {text}")
        if text in ("question", "grow"):
            await updater.requires_input(updater.new_agent_message([new_text_part("Which color?")]))
            return
        if text in ("slow", "stubborn"):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                note(f"{text} is stopped")
                raise
        if text == "fail":
            raise ValueError("secret inside")
        await updater.add_artifact([new_text_part("You said ")], artifact_id="random-1", name="a")
        await updater.add_artifact([new_text_part(text)], artifact_id="random-1", append=True)
        await updater.complete(updater.new_agent_message([new_text_part("done")]))

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
        """Say that it is canceled."""
        note("cancel")
        if context.current_task.history[0].parts[0].text == "stubborn":
            raise UnsupportedOperationError
        updater = TaskUpdater(queue, context.task_id or "", context.context_id or "")
        await updater.cancel(updater.new_agent_message([new_text_part("as you wish")]))
