"""The desk as an executor that was written for a2a-sdk 0.3."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentSkill,
    Artifact,
    InvalidParamsError,
    Part,
    TaskState,
    TaskStatus,
    TextPart,
    UnsupportedOperationError,
)
from a2a.utils import new_agent_text_message, new_task
from a2a.utils.errors import ServerError

card = AgentCard(
    name="Desk",
    description="Does what it is told.",
    version="2.1.0",
    url="http://127.0.0.1/",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain", "image/*"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="desk", name="Desk", description="Everything", tags=["desk"])],
)


def note(what: str) -> None:
    """Write down that something was done, where the test can see it."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


def part(text: str) -> Part:
    return Part(root=TextPart(text=text))


class Desk(AgentExecutor):
    """Does what the text says."""

    async def execute(self, context: RequestContext, queue: EventQueue) -> None:
        """Answer a message."""
        text = context.get_user_input()
        if text == "say":
            await queue.enqueue_event(new_agent_text_message("just a message"))
            return
        task = context.current_task
        if task is None:
            task = new_task(context.message)
        else:
            note(f"answers {task.status.state.value}")
        await queue.enqueue_event(task)
        updater = TaskUpdater(queue, task.id, task.context_id)
        await updater.submit()
        if text == "refuse":
            raise ServerError(error=InvalidParamsError(message="Which flight?"))
        if text in ("grow", "more"):
            note(f"{len(task.artifacts or ())} artifacts")
            await updater.add_artifact([part(f"{text} ")], artifact_id="log", append=text == "more")
            if text == "more":
                await updater.complete()
                await queue.close()
                await updater.add_artifact([part("too late")])
                return
        if text == "whole":
            done = new_task(context.message)
            done.artifacts = [Artifact(artifact_id="x", parts=[part("as a whole")])]
            done.status = TaskStatus(state=TaskState.completed)
            await queue.enqueue_event(done)
            return
        await updater.start_work(updater.new_agent_message([part("at work")]))
        note(f"execute {text}")
        if text in ("question", "grow"):
            await updater.requires_input(
                updater.new_agent_message([part("Which color?")]), final=True
            )
            return
        if text in ("slow", "stubborn"):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                note(f"{text} is stopped")
                raise
        if text == "fail":
            raise ValueError("secret inside")
        await updater.add_artifact([part("You said ")], artifact_id="random-1", name="a")
        await updater.add_artifact([part(text)], artifact_id="random-1", append=True)
        await updater.complete(updater.new_agent_message([part("done")]))

    async def cancel(self, context: RequestContext, queue: EventQueue) -> None:
        """Say that it is canceled."""
        note("cancel")
        if context.current_task.history[0].parts[0].root.text == "stubborn":
            raise ServerError(error=UnsupportedOperationError())
        updater = TaskUpdater(queue, context.task_id or "", context.context_id or "")
        await updater.cancel(updater.new_agent_message([part("as you wish")]))
