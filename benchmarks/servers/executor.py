"""The echo agent as an executor of a2a-sdk: for the SDK's own server, and for `dragoman serve`."""

from __future__ import annotations

import asyncio

from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill

from benchmarks.servers import script

described = AgentCard(
    name="Echo",
    description="Echoes.",
    version="1.0.0",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="echo", name="echo", description="Echoes.", tags=["echo"])],
)


class Echo(AgentExecutor):
    """The agent, in the SDK's own idiom."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do what the text says."""
        task = context.current_task
        if task is None:
            assert context.message is not None
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        text = context.get_user_input()
        order = script.read(text)
        match order.verb:
            case "stream":
                await self._stream(updater, order)
            case "clock":
                await self._tick(updater, order)
            case "ask":
                question = updater.new_agent_message([new_text_part(script.QUESTION)])
                await updater.requires_input(question)
                return
            case "artifacts":
                for name, part in script.artifacts(order):
                    await updater.add_artifact([new_text_part(part)], name=name)
            case _:
                await updater.add_artifact([new_text_part(text)], name="echo")
        await updater.complete()

    async def _stream(self, updater: TaskUpdater, order: script.Order) -> None:
        for number, chunk in enumerate(script.chunks(order)):
            await updater.add_artifact(
                [new_text_part(chunk)],
                artifact_id="answer",
                append=number > 0,
                last_chunk=number == order.size - 1,
            )
            if order.pause is not None:
                await asyncio.sleep(order.pause)

    async def _tick(self, updater: TaskUpdater, order: script.Order) -> None:
        number = 0
        async for chunk in script.ticks(order):
            await updater.add_artifact(
                [new_text_part(chunk)], artifact_id="answer", append=number > 0
            )
            number += 1

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Never asked for here."""
        raise NotImplementedError
