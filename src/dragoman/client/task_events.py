"""The events of a task as a client gets them from an agent, each exactly once: by streams that it
resumes, by further subscriptions, or by polling."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.client.address_rules import NotAllowed
from dragoman.client.answer_state import AnswerState
from dragoman.client.bindings import Expired, Order
from dragoman.client.deadline import Progress
from dragoman.client.fold import Event, progress_since
from dragoman.client.limits import Meter, TooLarge
from dragoman.client.retry_pauses import PASSING, Pauses
from dragoman.client.transport import Silent, Unreachable
from dragoman.client.upload import File
from dragoman.model.errors import (
    A2AError,
    InvalidAgentResponse,
    MethodNotFound,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model.events import RESUME
from dragoman.model.operations import BY_CALL
from dragoman.model.remote_task import BegunTask
from dragoman.model.types import (
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.telemetry import otel
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.client.client import Client

POLL, LONGEST_POLL = 0.5, 5.0
EXPANSION = 32
"""A byte on the wire takes at most about this many bytes in memory: `[],` takes 64."""
RECALL = 5.0
"""The time limit for reading the history, in seconds."""
LASTING = 5.0
"""A connection that lasted this many seconds is not a failure, even if it brought nothing."""


class TaskEvents:
    """The events that follow a message, or the events of a task, over as many connections as it
    takes."""

    def __init__(
        self,
        client: Client,
        request: SendMessageRequest | SubscribeToTaskRequest,
        *,
        key: str,
        files: Mapping[str, File],
        keep: bool,
        name: str,
    ) -> None:
        connection = client._connection
        joining = isinstance(request, SubscribeToTaskRequest)
        streams = connection.joins if joining else connection.card.capabilities.streaming
        known = client._sends.known(name) if name else None
        self.state = AnswerState(request, connection, known, polls=not streams, keep=keep)
        self.progress = Progress.of(connection)
        self.fresh = True
        """Whether no event has arrived yet."""
        self._client = client
        self._connection = connection
        self._key = key
        self._name = name
        """The name of the send, if the turn of the client remembers its sends."""
        self._files = files
        self._count = 0
        """The number of events received."""
        self._most = connection.limits.events if keep else math.inf
        self._meter = Meter()
        self._weigh_at = connection.limits.task // EXPANSION
        """The bytes that must arrive before it is worth measuring the task."""
        self._strays = 0
        """The number of events of other tasks."""
        self._ending: TaskStatusUpdateEvent | None = None
        """The end of another task, if that was the last event."""
        self._broken = False
        """Whether a connection has failed."""
        # A subscription that starts late may lack earlier events.
        self._compares = joining and not connection.resumes
        """Whether the events must be compared with the task at the end."""
        self._reported: set[str] = set()
        """The texts of progress that was found in the history."""
        self._items: AsyncGenerator[StreamResponse, None] | None = None
        """The events of the current connection."""

    async def run(self) -> AsyncGenerator[Event, None]:
        """Yield the events until nothing more can follow, over as many connections as it takes."""
        pauses = Pauses(self._connection.attempts)
        if self._connection.remembered:
            await self._connection.renew_card()
        while True:
            began, asked = time.monotonic(), self._client.interface
            try:
                async for event in self._attempt():
                    pauses.reset()
                    self.progress.error = None
                    yield event
                if not self.state.complete():
                    raise Unreachable("the stream ended before the task did")
                break
            except TooLarge as error:
                raise self._with_task_id(error) from None
            except NotAllowed as error:
                if not self._connection.doubtful(error):
                    raise
                self._connection.rotate(asked, error)
            except (A2AError, Unreachable) as error:
                self._connection.explain(error, self.state.id)
                self.progress.failed(error)
                passing = isinstance(error, PASSING) and not (
                    self.state.polls or self._gives_up(error)
                )
                if passing and self.state.final():
                    break
                # The next connection gets a new credential; the agent did not fail.
                expired = isinstance(error, Expired) and not self.fresh
                if not passing and not expired and not self._connection.doubtful(error):
                    raise
                self._broken = True
                if time.monotonic() - began > LASTING:
                    pauses.reset()
                # A silent agent may be working.
                if not expired and (self.fresh or not isinstance(error, Silent)):
                    self._connection.rotate(asked, error)
                await pauses.after(error)
            finally:
                if self._items is not None:  # now, not at garbage collection
                    await self._items.aclose()
        if self._compares:
            for event in await self._correct():
                yield event
        elif self.state.folding.empty and not (self._connection.resumes or self.state.polls):
            await self._recall()
        self._client._sends.settled(self.state.folding.id)
        if (status := self.state.folding.status) is not None:
            self._client._sends.seen(self.state.folding.id, status.state)

    def _gives_up(self, error: BaseException) -> bool:
        """Whether not to retry. The agent may just be slow; one that does not deduplicate would
        start the task again."""
        sending = self.fresh and isinstance(self.state.request, SendMessageRequest)
        return sending and isinstance(error, Silent) and not self._connection.resumes

    def _attempt(self) -> AsyncIterator[Event]:
        """Yield the events of one connection."""
        if self.fresh:
            if self.state.known is not None:
                return self._attached(self.state.known)
            return self._poll_after_send() if self.state.polls else self._first()
        if self.state.can_resume:
            return self._resumed()
        self.state.polls = self.state.polls or not self._connection.joins
        return self._polled() if self.state.polls else self._resubscribe()

    async def _first(self) -> AsyncIterator[Event]:
        """Yield the events of the first request."""
        request = self.state.request
        try:
            if isinstance(request, SubscribeToTaskRequest):
                heard = self._new_events("subscribe", request)
            else:
                await self._look_before()
                heard = self._new_events("stream", request, {"idempotency-key": self._key})
            async for event in heard:
                yield event
        except UnsupportedOperation:
            if not self._broken or not isinstance(request, SubscribeToTaskRequest):
                raise
            async for event in self._poll_after_send():  # it has ended in the meantime
                yield event

    async def _look_before(self) -> None:
        """Read the question that the message answers, if the stream may have to distinguish it
        from the answer later. (An agent that numbers its events does not send a question that is
        already answered, or sends it first.)"""
        if (
            self._name
            and self.state.follows
            and not self._connection.resumes
            and self.state.asked is None
        ):
            assert isinstance(self.state.request, SendMessageRequest)
            task = await self._client.task(self.state.request.message.task_id).get(history=0)
            self.state.asked = task.status

    async def _poll_after_send(self) -> AsyncIterator[Event]:
        """Yield events by polling, for an agent that does not stream: its response, and then the
        changes of the task."""
        if isinstance(self.state.request, SubscribeToTaskRequest):
            task = await self._get(self.state.request.id)
            self._take(task)
            yield task
        else:
            for event in self._begin(await self._sent(self.state.request)):
                yield event
        if not self.state.complete():
            async for event in self._polled():
                yield event

    async def _sent(self, request: SendMessageRequest) -> Event:
        if request.message.task_id:
            before = await self._client.task(request.message.task_id).get(history=0)
            self.state.before = before.status
        assert request.configuration is not None
        configuration = replace(request.configuration, return_immediately=True)
        request = replace(request, configuration=configuration)
        headers = {"idempotency-key": self._key}
        answer = await self._connection.call("send", request, headers, self._files)
        return _event(StreamResponse(task=answer.task, message=answer.message))

    async def _attached(self, known: BegunTask) -> AsyncIterator[Event]:
        """Yield the task that the send has begun in an earlier run of the turn, with the progress
        that was reported since, and then what follows. Nothing is sent again."""
        for event in self._begin(await self._get(known.id)):
            yield event
        if self.state.complete():
            return
        self.state.polls = self.state.polls or not self._connection.joins
        if self.state.polls or not self._connection.resumes:
            async for event in self._polled() if self.state.polls else self._resubscribe():
                yield event
            return
        try:
            async for event in self._new_events("subscribe", self._subscription()):
                yield event
                if self.state.asks():
                    return
        except (UnsupportedOperation, TaskNotFound):  # it has ended in the meantime
            async for event in self._polled():
                yield event

    def _begin(self, event: Event) -> list[Event]:
        """Take the first event. If the turn may have sent the message before, the task may be on
        its way already: the progress that it has reported comes first."""
        found: list[Event] = []
        if self._name and isinstance(event, Task):
            found = self._missed(event)
            if event.status.message is not None and not event.status.state.settled:
                found.append(_progress(event, event.status.message))
        self._take(event)
        return [*found, event]

    def _missed(self, task: Task) -> list[Event]:
        """The progress that the agent has reported since this message while no stream was open, as
        far as the task's history shows it."""
        if not self._name or not isinstance(self.state.request, SendMessageRequest):
            return []
        found = progress_since(task, self.state.request.message.message_id)
        missed: list[Event] = []
        for said in found:
            # Some agents make a new id each time.
            if (
                said.message_id not in self.state.folding.progress
                and said.text not in self._reported
            ):
                missed.append(_progress(task, said))
            self.state.folding.progress.add(said.message_id)
            self._reported.add(said.text)
        return missed

    async def _resumed(self) -> AsyncIterator[Event]:
        """Yield exactly the events after the last number. If the task asks for input, the client
        repeats the send, because a subscription would stay open until the task ends."""
        if not self.state.asks():
            headers = {"last-event-id": self.state.place}
            async for event in self._new_events("subscribe", self._subscription(), headers):
                yield event
                if self.state.asks():
                    break
        if self.state.asks() and self.state.known is None:
            headers = {"idempotency-key": self._key, "last-event-id": self.state.place}
            async for event in self._new_events("stream", self.state.request, headers):
                yield event

    async def _resubscribe(self) -> AsyncIterator[Event]:
        """Subscribe again and yield what the task has gained in the meantime."""
        first = self._compares = True
        try:
            async for item in self._listen("subscribe", self._subscription()):
                event = _event(item)
                self._count += 1
                if self._skips(event):
                    continue
                if first and isinstance(event, Task):
                    gained = self._catch_up(event)
                else:
                    self._take(event)
                    gained = [event]
                first = False
                for news in gained:
                    self.state.last = news
                    yield news
                if self.state.final() or self.state.needs_login():
                    return
        except (UnsupportedOperation, TaskNotFound, MethodNotFound):
            # The task has ended, or the agent allows no second subscription.
            self.state.polls = True
            async for event in self._polled():
                yield event

    async def _polled(self) -> AsyncIterator[Event]:
        """Poll the task until it ends."""
        pause = POLL
        while True:
            gained = await self._correct()
            for event in gained:
                yield event
            if self.state.complete():
                return
            pause = POLL if gained else min(pause * 1.5, LONGEST_POLL)
            await asyncio.sleep(pause)

    async def _correct(self) -> list[Event]:
        """Yield what the task has and the events did not. Without numbers, the task and the stream
        may both contain an event; the task counts."""
        task = await self._get(self.state.folding.id)
        self._compares = False
        return self._catch_up(task)

    async def _recall(self) -> None:
        """Fetch the history if no event could be the result: some agents put it only there."""
        order = Order(
            call="get",
            request=GetTaskRequest(id=self.state.folding.id),
            headers=self._connection.headers(),
        )
        with suppress(A2AError, Unreachable, TimeoutError):  # then there is no result
            async with asyncio.timeout(RECALL):
                task: Task = await self._connection.binding.call(order)
            status = self.state.folding.status
            if task.id == self.state.folding.id and status and task.status.state is status.state:
                self._catch_up(task)

    async def _get(self, id: str) -> Task:
        task = await self._client.task(id).get()
        if task.id != id:
            raise InvalidAgentResponse(
                f"the client asked for task {id}, but the agent sent task {task.id}"
            )
        return task

    # -- private

    async def _new_events(
        self,
        call: str,
        request: SendMessageRequest | SubscribeToTaskRequest,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Event]:
        """Yield the events of one connection that are new."""
        self.state.last = None
        folding, meter = self.state.folding, self._meter
        async for item in self._listen(call, request, headers):
            event = _event(item)
            self._count += 1
            # Inlined, because it runs for each event.
            id = event.id if type(event) is Task else event.task_id  # type: ignore[union-attr]
            if (id != folding.id or self._count > self._most) and self._skips(event):
                continue
            metadata = event.metadata
            if metadata and RESUME in metadata:  # handled here, not shown
                mark = metadata.pop(RESUME)
                number = mark.get("place") if type(mark) is dict else None
                if type(number) is int:
                    if (
                        number <= self.state.number
                        and not mark.get("reset")
                        and _task_of(event) == self.state.folding.id
                    ):
                        continue  # seen before: a fresh start may go further back
                    self.state.number = number
                event = replace(event, metadata=metadata or None)
                if type(event) is Task and not self.fresh:  # a new start: yield only what is new
                    for news in self._catch_up(event):
                        self.state.last = news
                        yield news
                    self._ending = None
                    continue
            if self.fresh:
                for news in self._begin(event)[:-1]:
                    yield news
            else:
                folding.take(event)
                if meter.bytes > self._weigh_at:
                    self._check_size()
            self.state.last = event
            self._ending = None
            yield event
        if self._ending is not None and folding.id and not self.state.complete():
            # Some agents report the failure of a task under another id and then end the stream.
            event = replace(self._ending, task_id=folding.id)
            self._take(event)
            self.state.last = event
            yield event

    def _skips(self, event: Event) -> bool:
        """Whether the event belongs to another task. Raises TooLarge after too many of them."""
        if self._count > self._most:
            words = f"the stream has more than {self._most} events"
            also = ", or stream with keep=False"
            raise TooLarge.of(words, "events", int(self._most), also)
        if not self._stray(event):
            return False
        self._strays += 1
        ended = isinstance(event, TaskStatusUpdateEvent) and event.status.state.terminal
        self._ending = event if ended else None  # type: ignore[assignment]
        if self._strays == 1:  # such an agent may do so often
            logger.warning(
                "the agent sent an event of another task on the stream of task %s; the "
                "client skips such events",
                self.state.id,
            )
        return True

    def _stray(self, event: Event) -> bool:
        """Whether the event belongs to another task. The first event decides: an agent may answer a
        message to one task with another task."""
        id, expected = _task_of(event), self.state.id
        if not id or not expected or id == expected:
            return False
        sending = isinstance(self.state.request, SendMessageRequest)
        return not (sending and not self.state.folding.id and isinstance(event, Task | Message))

    def _listen(
        self,
        call: str,
        request: SendMessageRequest | SubscribeToTaskRequest,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[StreamResponse]:
        self._ending = None
        found, spans = self._connection.headers(headers), self._connection.spans
        span = None
        if spans is not None:
            span = spans.begin("CLIENT", BY_CALL[call].name, *self._connection.about(call, request))
            found["traceparent"] = otel.parent(span)
        order = Order(
            call=call,
            request=request,
            headers=found,
            files=self._files if call == "stream" else {},
            patience=self._connection.patience,
            meter=self._meter,
        )
        items = self._connection.binding.stream(order)
        self._items = items if spans is None or span is None else spans.around(span, items)
        return self._items

    def _catch_up(self, task: Task) -> list[Event]:
        gained = [*self._missed(task), *self.state.folding.catch_up(task)]
        self._check_size()
        return gained

    def _check_size(self) -> None:
        """Measure the task. To do so for each event would cost more than to apply it."""
        most, size = self._connection.limits.task, self.state.folding.weigh()
        if size > most:
            words = f"the task of the stream is larger than {most} bytes"
            raise TooLarge.of(words, "task", most, ", or stream with keep=False")
        self._weigh_at = self._meter.bytes + max((most - size) // EXPANSION, 4096)

    def _with_task_id(self, error: TooLarge) -> TooLarge:
        """Return the same error with the id of the task."""
        if self.state.id and not error.task:
            error.task = self.state.id
            error.message = f"task {error.task}: {error.message}"
            error.args = (error.message,)
        return error

    def _take(self, event: Event) -> None:
        self.state.folding.take(event)
        if self._meter.bytes > self._weigh_at:
            self._check_size()
        if self.fresh:
            self.fresh = False
            self._connection.answered()
            self.progress.task = self.state.folding.id
            if isinstance(self.state.request, SendMessageRequest):
                self._client._sends.began(self.state.folding.id)
                if self._name:
                    self._client._sends.log(
                        self._name, self.state.folding.id, self.state.question(event)
                    )

    def _subscription(self) -> SubscribeToTaskRequest:
        return SubscribeToTaskRequest(id=self.state.folding.id)


def _event(item: StreamResponse) -> Event:
    found = item.artifact_update or item.status_update or item.task or item.message
    if found is None:
        raise InvalidAgentResponse("an event contains neither a task, a message nor an update")
    return found


def _progress(task: Task, said: Message) -> TaskStatusUpdateEvent:
    """The event with which an agent has reported progress."""
    status = TaskStatus(state=TaskState.WORKING, message=said)
    return TaskStatusUpdateEvent(task_id=task.id, context_id=task.context_id, status=status)


def _task_of(event: Event) -> str:
    """Return the task id of an event; empty if it has none."""
    return event.id if isinstance(event, Task) else event.task_id
