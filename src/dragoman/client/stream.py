"""A stream: the events of a task as they arrive, each exactly once, over broken connections."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.client.address_rules import NotAllowed
from dragoman.client.binding import Expired, Order
from dragoman.client.deadline import Limit, Progress
from dragoman.client.fold import Event, Folding, progress_since
from dragoman.client.limits import Meter, TooLarge
from dragoman.client.logged_result import once
from dragoman.client.result import Result
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
    Artifact,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
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


class Stream:
    """The events that follow a message, or the events of a task.

    If the agent numbers its events (our extension), a broken stream resumes after the last number.
    With other agents, the client subscribes again and turns the changes of the task into events. If
    the agent offers no subscription, or an unreliable one, the client polls the task. `task` is the
    task so far.
    """

    def __init__(
        self,
        client: Client,
        request: SendMessageRequest | SubscribeToTaskRequest,
        *,
        key: str = "",
        files: Mapping[str, File] | None = None,
        keep: bool = True,
        name: str = "",
    ) -> None:
        self._client = client
        self._request = request
        self._key = key
        self._name = name
        """The name of the send, if the turn of the client remembers its sends."""
        self._known = client._sends.known(name) if name else None
        """The task that the send has begun in an earlier run of the turn."""
        self._files = files or {}
        self._folding = Folding(keep=keep)
        self._count = 0
        """The number of events received."""
        self._most = client._connection.limits.events if keep else math.inf
        self._meter = Meter()
        self._weigh_at = client._connection.limits.task // EXPANSION
        """The bytes that must arrive before it is worth measuring the task."""
        self._strays = 0
        self._ending: TaskStatusUpdateEvent | None = None
        """The end of another task, if that was the last event."""
        """The number of events of other tasks."""
        self._number = 0
        """The number of the last event, where the agent numbers events."""
        self._fresh = True
        """Whether no event has arrived yet."""
        self._broken = False
        """Whether a connection has failed."""
        self._last: Event | None = None
        """The last event of the latest connection."""
        joining = isinstance(request, SubscribeToTaskRequest)
        # A subscription that starts late may lack earlier events.
        self._compares = joining and not client._connection.resumes
        """Whether the events must be compared with the task at the end."""
        self._polls = not (
            client._connection.joins if joining else client.card.capabilities.streaming
        )
        """Whether the agent cannot stream this, so that the client polls."""
        self._before: TaskStatus | None = None
        """The status that a follow-up message answers, if it had to be fetched."""
        self._asked: TaskStatus | None = None
        """The same, if it was fetched for later runs of the turn."""
        self._reported: set[str] = set()
        """The texts of progress that was found in the history."""
        self._items: AsyncGenerator[StreamResponse, None] | None = None
        """The events of the current connection."""
        self._until = client._connection.until
        self._whole = None if self._until is None else self._until - time.monotonic()
        self._progress = Progress.of(client._connection)
        self._events = self._run()

    @property
    def task(self) -> Task | None:
        """The task so far; without the content of artifacts if they are not kept."""
        return self._folding.task

    @property
    def result(self) -> Result:
        """The result so far."""
        folding = self._folding
        return Result(folding.task, folding.message, frozenset(folding.progress))

    @property
    def text(self) -> str:
        """The text so far, see `Result.text`; without the text of artifacts if they are not
        kept."""
        return self.result.text

    async def iter_text(self) -> AsyncIterator[str]:
        """Yield the text as it arrives: the chunks of artifacts, with a line break between two
        artifacts. If the artifacts have no text, yield `text` at the end."""
        last = ""
        async for event in self:
            artifacts: Sequence[Artifact] = ()
            if isinstance(event, TaskArtifactUpdateEvent):
                artifacts = (event.artifact,)
            elif isinstance(event, Task) and (event.status.state.terminal or not self._follows):
                artifacts = event.artifacts  # a follow-up starts with existing ones
            for artifact in artifacts:
                if text := artifact.text:
                    key = artifact.artifact_id
                    yield text if last in ("", key) else f"\n{text}"
                    last = key
        if not last and (text := self.text):
            yield text

    def __repr__(self) -> str:
        status = self._folding.status
        state = f", {status.state}" if status else ""
        return f"Stream(task={self._id!r}{state})"

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events if self._until is None else self

    def __anext__(self) -> Awaitable[Event]:
        return self._events.__anext__() if self._until is None else self._timely(self._until)

    async def _timely(self, until: float) -> Event:
        left = max(until - time.monotonic(), 0)
        async with Limit(self._progress, left, self._id, self._whole):
            return await self._events.__anext__()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop following. The task continues."""
        await self._events.aclose()

    async def _drain(self) -> Result:
        """Follow it to its end."""
        async with self:
            async for _ in self:
                pass
        return self.result

    async def _once(self, what: str, follow: Callable[[], Awaitable[Result]]) -> Result:
        """Follow it to its end. In a turn that remembers its sends this is a step: if it was done
        in an earlier run, its result is returned, and nothing is sent."""
        client, request = self._client, self._request
        if (steps := client._sends.steps) is None:
            return await follow()
        name = self._name
        if isinstance(request, SubscribeToTaskRequest):
            name = steps.name(f"{client._connection.recipient}\n{request.id}".encode())
        result = await once(steps, what, name, follow, again=self._drain, fetch=client._fetch)
        if self._fresh:
            await self.aclose()
            self._folding.restore(result.task, result.message, result.progress)
        return result

    # -- connections

    async def _run(self) -> AsyncGenerator[Event, None]:
        pauses = Pauses(self._client._connection.attempts)
        if self._client._connection.remembered:
            await self._client._connection.renew_card()
        while True:
            began, asked = time.monotonic(), self._client.interface
            try:
                async for event in self._attempt():
                    pauses.reset()
                    self._progress.error = None
                    yield event
                if not self._complete():
                    raise Unreachable("the stream ended before the task did")
                break
            except TooLarge as error:
                raise self._with_task_id(error) from None
            except NotAllowed as error:
                if not self._client._connection.doubtful(error):
                    raise
                self._client._connection.rotate(asked, error)
            except (A2AError, Unreachable) as error:
                self._client._connection.explain(error, self._id)
                self._progress.failed(error)
                passing = isinstance(error, PASSING) and not (self._polls or self._gives_up(error))
                if passing and self._final():
                    break
                # The next connection gets a new credential; the agent did not fail.
                expired = isinstance(error, Expired) and not self._fresh
                if not passing and not expired and not self._client._connection.doubtful(error):
                    raise
                self._broken = True
                if time.monotonic() - began > LASTING:
                    pauses.reset()
                # A silent agent may be working.
                if not expired and (self._fresh or not isinstance(error, Silent)):
                    self._client._connection.rotate(asked, error)
                await pauses.after(error)
            finally:
                if self._items is not None:  # now, not at garbage collection
                    await self._items.aclose()
        if self._compares:
            for event in await self._correct():
                yield event
        elif self._folding.empty and not (self._client._connection.resumes or self._polls):
            await self._recall()
        self._client._sends.settled(self._folding.id)

    def _gives_up(self, error: BaseException) -> bool:
        """Whether not to retry. The agent may just be slow; one that does not deduplicate would
        start the task again."""
        sending = self._fresh and isinstance(self._request, SendMessageRequest)
        return sending and isinstance(error, Silent) and not self._client._connection.resumes

    def _attempt(self) -> AsyncIterator[Event]:
        """Yield the events of one connection."""
        if self._fresh:
            if self._known is not None:
                return self._attached(self._known)
            return self._poll_after_send() if self._polls else self._first()
        if self._can_resume:
            return self._resumed()
        self._polls = self._polls or not self._client._connection.joins
        return self._polled() if self._polls else self._resubscribe()

    async def _first(self) -> AsyncIterator[Event]:
        """Yield the events of the first request."""
        request = self._request
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
        """Look what the message answers, if the turn may have to tell the answer from it later. (An
        agent that numbers its events shows no question that is answered, or sends it first.)"""
        if (
            self._name
            and self._follows
            and not self._client._connection.resumes
            and self._asked is None
        ):
            assert isinstance(self._request, SendMessageRequest)
            task = await self._client.task(self._request.message.task_id).get(history=0)
            self._asked = task.status

    async def _poll_after_send(self) -> AsyncIterator[Event]:
        """Yield events by polling, for an agent that does not stream: its response, and then the
        changes of the task."""
        if isinstance(self._request, SubscribeToTaskRequest):
            task = await self._get(self._request.id)
            self._take(task)
            yield task
        else:
            for event in self._begin(await self._sent(self._request)):
                yield event
        if not self._complete():
            async for event in self._polled():
                yield event

    async def _sent(self, request: SendMessageRequest) -> Event:
        if request.message.task_id:
            before = await self._client.task(request.message.task_id).get(history=0)
            self._before = before.status
        assert request.configuration is not None
        configuration = replace(request.configuration, return_immediately=True)
        request = replace(request, configuration=configuration)
        headers = {"idempotency-key": self._key}
        answer = await self._client._connection.call("send", request, headers, self._files)
        return _event(StreamResponse(task=answer.task, message=answer.message))

    async def _attached(self, known: BegunTask) -> AsyncIterator[Event]:
        """Yield the task that the send has begun in an earlier run of the turn, with the progress
        that was reported since, and then what follows. Nothing is sent again."""
        for event in self._begin(await self._get(known.id)):
            yield event
        if self._complete():
            return
        self._polls = self._polls or not self._client._connection.joins
        if self._polls or not self._client._connection.resumes:
            async for event in self._polled() if self._polls else self._resubscribe():
                yield event
            return
        try:
            async for event in self._new_events("subscribe", self._subscription()):
                yield event
                if self._asks():
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
        if not self._name or not isinstance(self._request, SendMessageRequest):
            return []
        found = progress_since(task, self._request.message.message_id)
        missed: list[Event] = []
        for said in found:
            # Some agents make a new id each time.
            if said.message_id not in self._folding.progress and said.text not in self._reported:
                missed.append(_progress(task, said))
            self._folding.progress.add(said.message_id)
            self._reported.add(said.text)
        return missed

    async def _resumed(self) -> AsyncIterator[Event]:
        """Yield exactly the events after the last number. If the task asks for input, the client
        repeats the send, because a subscription would stay open until the task ends."""
        if not self._asks():
            headers = {"last-event-id": self._place}
            async for event in self._new_events("subscribe", self._subscription(), headers):
                yield event
                if self._asks():
                    break
        if self._asks() and self._known is None:
            headers = {"idempotency-key": self._key, "last-event-id": self._place}
            async for event in self._new_events("stream", self._request, headers):
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
                    self._last = news
                    yield news
                if self._final() or self._needs_login():
                    return
        except (UnsupportedOperation, TaskNotFound, MethodNotFound):
            # The task has ended, or the agent allows no second subscription.
            self._polls = True
            async for event in self._polled():
                yield event

    async def _polled(self) -> AsyncIterator[Event]:
        """Poll the task until it ends."""
        pause = POLL
        while True:
            gained = await self._correct()
            for event in gained:
                yield event
            if self._complete():
                return
            pause = POLL if gained else min(pause * 1.5, LONGEST_POLL)
            await asyncio.sleep(pause)

    async def _correct(self) -> list[Event]:
        """Yield what the task has and the events did not. Without numbers, the task and the stream
        may both contain an event; the task counts."""
        task = await self._get(self._folding.id)
        self._compares = False
        return self._catch_up(task)

    async def _recall(self) -> None:
        """Fetch the history if no event could be the result: some agents put it only there."""
        order = Order(
            call="get",
            request=GetTaskRequest(id=self._folding.id),
            headers=self._client._connection.headers(),
        )
        with suppress(A2AError, Unreachable, TimeoutError):  # then there is no result
            async with asyncio.timeout(RECALL):
                task: Task = await self._client._connection.binding.call(order)
            status = self._folding.status
            if task.id == self._folding.id and status and task.status.state is status.state:
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
        self._last = None
        folding, meter = self._folding, self._meter
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
                        number <= self._number
                        and not mark.get("reset")
                        and _task_of(event) == self._folding.id
                    ):
                        continue  # seen before: a fresh start may go further back
                    self._number = number
                event = replace(event, metadata=metadata or None)
                if type(event) is Task and not self._fresh:  # a new start: yield only what is new
                    for news in self._catch_up(event):
                        self._last = news
                        yield news
                    self._ending = None
                    continue
            if self._fresh:
                for news in self._begin(event)[:-1]:
                    yield news
            else:
                folding.take(event)
                if meter.bytes > self._weigh_at:
                    self._check_size()
            self._last = event
            self._ending = None
            yield event
        if self._ending is not None and folding.id and not self._complete():
            # Some agents report the failure of a task under another id and then end the stream.
            event = replace(self._ending, task_id=folding.id)
            self._take(event)
            self._last = event
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
                self._id,
            )
        return True

    @property
    def _id(self) -> str:
        """The id of the task; empty until it is known."""
        if self._folding.id:
            return self._folding.id
        request = self._request
        if isinstance(request, SubscribeToTaskRequest):
            return request.id
        return request.message.task_id

    def _stray(self, event: Event) -> bool:
        """Whether the event belongs to another task. The first event decides: an agent may answer a
        message to one task with another task."""
        id, expected = _task_of(event), self._id
        if not id or not expected or id == expected:
            return False
        sending = isinstance(self._request, SendMessageRequest)
        return not (sending and not self._folding.id and isinstance(event, Task | Message))

    def _listen(
        self,
        call: str,
        request: SendMessageRequest | SubscribeToTaskRequest,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[StreamResponse]:
        self._ending = None
        found, spans = self._client._connection.headers(headers), self._client._connection.spans
        span = None
        if spans is not None:
            span = spans.begin(
                "CLIENT", BY_CALL[call].name, *self._client._connection.about(call, request)
            )
            found["traceparent"] = otel.parent(span)
        order = Order(
            call=call,
            request=request,
            headers=found,
            files=self._files if call == "stream" else {},
            patience=self._client._connection.patience,
            meter=self._meter,
        )
        items = self._client._connection.binding.stream(order)
        self._items = items if spans is None or span is None else spans.around(span, items)
        return self._items

    def _catch_up(self, task: Task) -> list[Event]:
        gained = [*self._missed(task), *self._folding.catch_up(task)]
        self._check_size()
        return gained

    def _check_size(self) -> None:
        """Measure the task. To do so for each event would cost more than to apply it."""
        most, size = self._client._connection.limits.task, self._folding.weigh()
        if size > most:
            words = f"the task of the stream is larger than {most} bytes"
            raise TooLarge.of(words, "task", most, ", or stream with keep=False")
        self._weigh_at = self._meter.bytes + max((most - size) // EXPANSION, 4096)

    def _with_task_id(self, error: TooLarge) -> TooLarge:
        """Return the same error with the id of the task."""
        if self._id and not error.task:
            error.task = self._id
            error.message = f"task {error.task}: {error.message}"
            error.args = (error.message,)
        return error

    def _take(self, event: Event) -> None:
        self._folding.take(event)
        if self._meter.bytes > self._weigh_at:
            self._check_size()
        if self._fresh:
            self._fresh = False
            self._client._connection.answered()
            self._progress.task = self._folding.id
            if isinstance(self._request, SendMessageRequest):
                self._client._sends.began(self._folding.id)
                if self._name:
                    self._client._sends.log(self._name, self._folding.id, self._question(event))

    def _question(self, event: Event) -> TaskStatus | None:
        """The status that the message answers, if the agent still shows it."""
        before = self._before or self._asked
        if before is None and self._follows and isinstance(event, Task):
            before = event.status
        return before if before is not None and before.state.interrupted else None

    @property
    def _follows(self) -> bool:
        """Whether the message goes to an existing task."""
        request = self._request
        return isinstance(request, SendMessageRequest) and bool(request.message.task_id)

    @property
    def _can_resume(self) -> bool:
        """Whether the agent can send exactly the events after the last one."""
        return self._client._connection.resumes and self._number > 0

    @property
    def _place(self) -> str:
        return f"{self._folding.id}:{self._number}"

    def _subscription(self) -> SubscribeToTaskRequest:
        return SubscribeToTaskRequest(id=self._folding.id)

    # -- state

    def _asks(self) -> bool:
        """Whether the agent asks the sender for input."""
        status = self._folding.status
        sent = isinstance(self._request, SendMessageRequest)
        return sent and status is not None and status.state.interrupted

    def _answered(self) -> bool:
        """Whether the last event was a question: the next turn is another stream."""
        last = self._last
        asked = isinstance(last, TaskStatusUpdateEvent) and last.status.state
        return self._asks() and asked is TaskState.INPUT_REQUIRED

    def _needs_login(self) -> bool:
        """Whether a person must log in first. A subscription would be silent until then."""
        status = self._folding.status
        login = status is not None and status.state is TaskState.AUTH_REQUIRED
        return login and self._asks() and not self._unread()

    def _final(self) -> bool:
        """Whether nothing more can follow, even if the connection broke."""
        status = self._folding.status
        if status is None:
            return self._folding.message is not None
        # A follow-up may first receive the question that it answers.
        return status.state.terminal or (
            self._answered() and not (self._follows and self._can_resume)
        )

    def _complete(self) -> bool:
        """Whether a connection that ended normally has brought everything."""
        if self._final() or self._answered():
            return True
        # A follow-up starts with the task as it was when the message arrived, and after
        # auth-required the agent may continue. If the agent numbers events, the client asks once
        # more and gets nothing.
        return (
            self._asks()
            and not self._unread()
            and (
                self._last is None or self._polls or not self._can_resume or self._known is not None
            )
        )

    def _unread(self) -> bool:
        """Whether the agent has only received the follow-up: the status is still the one before
        it."""
        before, status = self._before, self._folding.status
        if self._known is not None and self._known.answers is not None and status is not None:
            timestamp, question = self._known.answers
            said = status.message.message_id if status.message is not None else question
            return bool(timestamp) and (status.timestamp, said) == self._known.answers
        if before is None or status is None:
            return False
        same = status.timestamp is not None and status.timestamp == before.timestamp
        return same and status.message in (None, before.message)


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
