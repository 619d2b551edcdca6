"""What executors of a2a-sdk 1.x do: the patterns of its samples, and what is met elsewhere."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from a2a.helpers import (
    new_data_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentProvider,
    Artifact,
    Message,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

EXTENSION = "https://example.com/currencies"
card = AgentCard(
    name="Patterns",
    description="Does what executors do.",
    version="1.0.0",
    provider=AgentProvider(organization="Example", url="https://example.com"),
    documentation_url="https://example.com/docs",
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    capabilities=AgentCapabilities(
        streaming=True, extensions=[AgentExtension(uri=EXTENSION, description="Currencies.")]
    ),
)


def note(what: str) -> None:
    """Write down that something was done, where the test can see it."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


def said(updater: TaskUpdater, text: str) -> Message:
    """A message of the agent."""
    return updater.new_agent_message([new_text_part(text)])


class Patterns(AgentExecutor):
    """Has a method for each first word of a message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do what the message says; of a task, what its first message said."""
        task = context.current_task
        first = task.history[0] if task is not None and task.history else context.message
        verb = first.parts[0].text.split()[0]
        if verb in ("hello", "say", "refuse", "append_first"):
            await getattr(self, verb)(context, event_queue)
            return
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await getattr(self, verb)(context, updater)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task, or say that this cannot be done."""
        note(f"cancel {context.current_task.history[0].parts[0].text} {context.get_user_input()!r}")
        if context.current_task.history[0].parts[0].text == "stubborn":
            raise UnsupportedOperationError
        if context.current_task.history[0].parts[0].text == "tidy":
            return
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    # -- the patterns of the samples

    async def hello(self, context: RequestContext, queue: EventQueue) -> None:
        """The hello-world: a message, and no task."""
        await queue.enqueue_event(new_text_message("Hello World"))

    async def say(self, context: RequestContext, queue: EventQueue) -> None:
        """The same in the task's context."""
        await queue.enqueue_event(
            new_text_message("Hello World", context_id=context.context_id, task_id=context.task_id)
        )

    async def report(self, context: RequestContext, updater: TaskUpdater) -> None:
        """An artifact in chunks."""
        await updater.submit()
        await updater.start_work(said(updater, "at work"))
        await updater.start_work()
        for number in range(3):
            await updater.add_artifact(
                [new_text_part(f"chunk {number} ")],
                artifact_id="report",
                name="report" if number == 0 else None,
                append=number > 0,
                last_chunk=number == 2,
                metadata={"number": number},
            )
        await updater.add_artifact([new_data_part({"chunks": 3})], name="summary")
        await updater.complete(said(updater, "done"))

    async def convert(self, context: RequestContext, updater: TaskUpdater) -> None:
        """The currency agent: it works, and asks if it must."""
        await updater.start_work(said(updater, "Looking up the exchange rates..."))
        await updater.start_work(said(updater, "Processing the exchange rates.."))
        words = context.get_user_input().split()
        if len(words) < 2:
            await updater.requires_input(said(updater, "To which currency?"))
            return
        await updater.add_artifact([new_text_part("1 EUR = 1.1 USD")], name="conversion_result")
        await updater.complete()

    async def again(self, context: RequestContext, updater: TaskUpdater) -> None:
        """One that enqueues the task at the beginning of each turn, and appends to what it has."""
        await updater.event_queue.enqueue_event(
            context.current_task or new_task_from_user_message(context.message)
        )
        await updater.submit()
        more = context.current_task is not None
        text = context.get_user_input()
        await updater.add_artifact([new_text_part(f"{text} ")], artifact_id="log", append=more)
        if more:
            await updater.complete()
        else:
            await updater.requires_input(said(updater, "What else?"))

    # -- ends

    async def reject(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It rejects the task."""
        await updater.reject(said(updater, "No."))

    async def fail(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It fails the task itself."""
        await updater.start_work()
        await updater.failed(said(updater, "It did not work."))

    async def give_up(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It cancels the task itself."""
        await updater.cancel(said(updater, "Never mind."))

    async def auth(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It needs credentials, which come by the next message."""
        if context.get_user_input() == "auth":
            await updater.requires_auth(said(updater, "Log in."))
        else:
            await updater.complete(said(updater, "Welcome."))

    async def auth_elsewhere(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It needs credentials, and waits for them."""
        await updater.requires_auth(said(updater, "Log in."))
        await asyncio.sleep(0.1)
        await updater.start_work()
        await updater.complete(said(updater, "Welcome."))

    async def close(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It closes its queue."""
        await updater.complete(said(updater, "done"))
        await updater.event_queue.close()

    async def late(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It goes on after the end."""
        await updater.complete(said(updater, "done"))
        await updater.add_artifact([new_text_part("too late")])

    async def afterwards(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It leaves work behind that goes on."""
        ids = {"task_id": context.task_id, "context_id": context.context_id}
        status = TaskStatus(state=TaskState.TASK_STATE_INPUT_REQUIRED)

        async def later() -> None:
            await asyncio.sleep(0.2)
            await updater.event_queue.enqueue_event(TaskStatusUpdateEvent(status=status, **ids))
            note("afterwards")

        self.later = asyncio.create_task(later())

    async def silent(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It says nothing more."""
        await updater.start_work()

    async def raises(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It raises an error with a secret."""
        raise ValueError("secret inside")

    async def refuse(self, context: RequestContext, queue: EventQueue) -> None:
        """It raises an error for the client."""
        raise InvalidParamsError(message="Which flight?")

    async def append_first(self, context: RequestContext, queue: EventQueue) -> None:
        """It enqueues no task, and appends to what does not exist."""
        updater = TaskUpdater(queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([new_text_part("hello")], artifact_id="a", append=True)
        await updater.complete()

    # -- whole tasks and bare events

    async def whole(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It enqueues the task again, with its result."""
        task = new_task_from_user_message(context.message)
        task.artifacts.append(Artifact(artifact_id="x", parts=[new_text_part("as a whole")]))
        task.metadata.update({"price": 3})
        task.status.CopyFrom(TaskStatus(state=TaskState.TASK_STATE_COMPLETED))
        await updater.event_queue.enqueue_event(task)

    async def bare(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It makes its events itself."""
        ids: dict[str, Any] = {"task_id": context.task_id, "context_id": context.context_id}
        queue = updater.event_queue
        await queue.enqueue_event(
            TaskStatusUpdateEvent(
                status=TaskStatus(state=TaskState.TASK_STATE_WORKING), metadata={"step": 1}, **ids
            )
        )
        await queue.enqueue_event(
            TaskArtifactUpdateEvent(
                artifact=Artifact(artifact_id="x", parts=[new_text_part("bare")]),
                last_chunk=True,
                metadata={"step": 2},
                **ids,
            )
        )
        await queue.enqueue_event(
            TaskStatusUpdateEvent(status=TaskStatus(state=TaskState.TASK_STATE_COMPLETED), **ids)
        )

    # -- what it gets

    async def context(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It tells what it got."""
        await updater.start_work(said(updater, "Which?"))
        task, call = context.current_task, context.call_context
        seen = {
            "text": context.get_user_input(),
            "message": MessageToDict(context.message),
            "task": None if task is None else MessageToDict(task),
            "configuration": MessageToDict(context.configuration),
            "metadata": context.metadata,
            "related": len(context.related_tasks),
            "extensions": sorted(context.requested_extensions),
            "tenant": context.tenant,
            "user": [call.user.is_authenticated, call.user.user_name],
            "headers": isinstance(call.state["headers"], dict),
        }
        await updater.add_artifact([new_data_part(seen)], name="seen")
        if task is None:
            await updater.requires_input(said(updater, "What else?"))
        else:
            await updater.complete()

    # -- cancel

    async def _wait(self, context: RequestContext, updater: TaskUpdater) -> None:
        await updater.start_work(said(updater, "waiting"))
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("execute is canceled")
            raise

    slow = stubborn = tidy = _wait

    async def swallow(self, context: RequestContext, updater: TaskUpdater) -> None:
        """It takes a cancel for its own matter."""
        await updater.start_work()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await updater.failed(said(updater, "I was canceled."))
