"""A stream: the events of a task as they come, each once, whatever the network does."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.client.address_rules import NotAllowed
from dragoman.client.binding import Expired, Order
from dragoman.client.deadline import Limit, Progress
from dragoman.client.fold import Event, Folding
from dragoman.client.limits import Meter, TooLarge
from dragoman.client.result import Result
from dragoman.client.retry import PASSING, Pauses
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
"""A byte on the wire takes at most about so many in memory: `[],` takes 64."""
RECALL = 5.0
"""How long a look at the history may take."""
LASTING = 5.0
"""A connection that held so long was no failure, even if it brought nothing."""


class Stream:
    """What comes of a message, or happens to a task.

    Where the agent tells places (our extension), a broken stream is resumed after the last one;
    elsewhere it is subscribed to again, and what the task has gained is told as events; where that
    is not offered, or not to be relied on, the task is looked at again and again. `task` is the
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
    ) -> None:
        self._client = client
        self._request = request
        self._key = key
        self._files = files or {}
        self._folding = Folding(keep=keep)
        self._count = 0
        """How many events have come."""
        self._most = client._limits.events if keep else math.inf
        self._meter = Meter()
        self._weigh_at = client._limits.task // EXPANSION
        """The bytes that must have come before it is worth while to weigh the task."""
        self._strays = 0
        self._ending: TaskStatusUpdateEvent | None = None
        """The end of another task, if that was told last."""
        """How many of them were of other tasks."""
        self._number = 0
        """The last place that the agent told."""
        self._fresh = True
        """The first event has not come."""
        self._broken = False
        """A connection has failed."""
        self._last: Event | None = None
        """What the latest connection told last."""
        joining = isinstance(request, SubscribeToTaskRequest)
        # a stream that is joined late may lack what came before
        self._patched = joining and not client._resumes
        """What was told must be compared with the task in the end."""
        self._deaf = not (client._joins if joining else client.card.capabilities.streaming)
        """The agent does not offer to be listened to."""
        self._before: TaskStatus | None = None
        """What a message that follows up answers, where it had to be looked for."""
        self._items: AsyncGenerator[StreamResponse, None] | None = None
        """The connection."""
        self._until = client._until
        self._whole = None if self._until is None else self._until - time.monotonic()
        self._progress = Progress.of(client)
        self._events = self._run()

    @property
    def task(self) -> Task | None:
        """The task so far; without the content of artifacts if that is not kept."""
        return self._folding.task

    @property
    def result(self) -> Result:
        """What it has come to so far."""
        folding = self._folding
        return Result(folding.task, folding.message, frozenset(folding.progress))

    @property
    def text(self) -> str:
        """The text so far, see `Result.text`; without that of artifacts if they are not kept."""
        return self.result.text

    async def iter_text(self) -> AsyncIterator[str]:
        """The text as it comes: the pieces of artifacts, with a line end between two artifacts; or,
        if there is none in them, `text` once all has come."""
        last = ""
        async for event in self:
            artifacts: Sequence[Artifact] = ()
            if isinstance(event, TaskArtifactUpdateEvent):
                artifacts = (event.artifact,)
            elif isinstance(event, Task) and (event.status.state.terminal or not self._follows):
                artifacts = event.artifacts  # a follow-up begins with what was there before
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
        """Follow no more. The task goes on."""
        await self._events.aclose()

    # -- one connection after the other

    async def _run(self) -> AsyncGenerator[Event, None]:
        pauses = Pauses(self._client._attempts)
        while True:
            began, asked = time.monotonic(), self._client.interface
            try:
                async for event in self._attempt():
                    pauses.reset()
                    self._progress.error = None
                    yield event
                if not self._over():
                    raise Unreachable("the stream ended before the task did")
                break
            except TooLarge as error:
                raise self._much(error) from None
            except NotAllowed as error:
                if not self._client._doubtful(error):
                    raise
                self._client._rotate(asked, error)
            except (A2AError, Unreachable) as error:
                self._client._explain(error, self._id)
                self._progress.failed(error)
                passing = isinstance(error, PASSING) and not (self._deaf or self._once(error))
                if passing and self._final():
                    break
                # the next connection asks for a new credential; nothing is wrong with the agent
                expired = isinstance(error, Expired) and not self._fresh
                if not passing and not expired and not self._client._doubtful(error):
                    raise
                self._broken = True
                if time.monotonic() - began > LASTING:
                    pauses.reset()
                # (a quiet one may be at work)
                if not expired and (self._fresh or not isinstance(error, Silent)):
                    self._client._rotate(asked, error)
                await pauses.after(error)
            finally:
                if self._items is not None:  # now, and not when the collector comes by
                    await self._items.aclose()
        if self._patched:
            for event in await self._correct():
                yield event
        elif self._folding.empty and not (self._client._resumes or self._deaf):
            await self._recall()
        self._client._settled(self._folding.id)

    def _once(self, error: BaseException) -> bool:
        """Whether to leave it at that. An agent may simply take long; one that keeps no receipts
        would begin again."""
        sending = self._fresh and isinstance(self._request, SendMessageRequest)
        return sending and isinstance(error, Silent) and not self._client._resumes

    def _attempt(self) -> AsyncIterator[Event]:
        """The events of one connection."""
        if self._fresh:
            return self._looked() if self._deaf else self._first()
        if self._placed:
            return self._resumed()
        self._deaf = self._deaf or not self._client._joins
        return self._polled() if self._deaf else self._again()

    async def _first(self) -> AsyncIterator[Event]:
        """What the agent tells when it is asked for the first time."""
        request = self._request
        try:
            if isinstance(request, SubscribeToTaskRequest):
                heard = self._heard("subscribe", request)
            else:
                heard = self._heard("stream", request, {"idempotency-key": self._key})
            async for event in heard:
                yield event
        except UnsupportedOperation:
            if not self._broken or not isinstance(request, SubscribeToTaskRequest):
                raise
            async for event in self._looked():  # it has ended meanwhile
                yield event

    async def _looked(self) -> AsyncIterator[Event]:
        """Of an agent that is not listened to: what it answers, and what becomes of the task."""
        if isinstance(self._request, SubscribeToTaskRequest):
            task = await self._get(self._request.id)
            self._take(task)
            yield task
        else:
            yield await self._sent(self._request)
        if not self._over():
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
        answer = await self._client._call("send", request, headers, self._files)
        event = _event(StreamResponse(task=answer.task, message=answer.message))
        self._take(event)
        return event

    async def _resumed(self) -> AsyncIterator[Event]:
        """Exactly what came after the last place. Where the agent asks for something, only the
        same send again tells whether that is all: a subscription goes on to the task's end."""
        if not self._asks():
            headers = {"last-event-id": self._place}
            async for event in self._heard("subscribe", self._subscription(), headers):
                yield event
                if self._asks():
                    break
        if self._asks():
            headers = {"idempotency-key": self._key, "last-event-id": self._place}
            async for event in self._heard("stream", self._request, headers):
                yield event

    async def _again(self) -> AsyncIterator[Event]:
        """Subscribe anew, and tell what the task has gained meanwhile."""
        first = self._patched = True
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
                if self._final() or self._stands():
                    return
        except (UnsupportedOperation, TaskNotFound, MethodNotFound):
            # it has ended, or this agent cannot be listened to again
            self._deaf = True
            async for event in self._polled():
                yield event

    async def _polled(self) -> AsyncIterator[Event]:
        """Look at the task until it is over."""
        pause = POLL
        while True:
            gained = await self._correct()
            for event in gained:
                yield event
            if self._over():
                return
            pause = POLL if gained else min(pause * 1.5, LONGEST_POLL)
            await asyncio.sleep(pause)

    async def _correct(self) -> list[Event]:
        """What the task itself has over what was told. Without places, an event may be told by
        the task and again by the stream; the task is right."""
        task = await self._get(self._folding.id)
        self._patched = False
        return self._catch_up(task)

    async def _recall(self) -> None:
        """Nothing was told that could be the answer: some agents only keep it in the history."""
        order = Order(
            call="get",
            request=GetTaskRequest(id=self._folding.id),
            headers=self._client._headers(),
        )
        with suppress(A2AError, Unreachable, TimeoutError):  # then there is no answer
            async with asyncio.timeout(RECALL):
                task: Task = await self._client._binding.call(order)
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

    # -- inside

    async def _heard(
        self,
        call: str,
        request: SendMessageRequest | SubscribeToTaskRequest,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Event]:
        """What one connection tells, and was not told before."""
        self._last = None
        folding, meter = self._folding, self._meter
        async for item in self._listen(call, request, headers):
            event = _event(item)
            self._count += 1
            # by hand, since it is done for each event
            id = event.id if type(event) is Task else event.task_id  # type: ignore[union-attr]
            if (id != folding.id or self._count > self._most) and self._skips(event):
                continue
            metadata = event.metadata
            if metadata and RESUME in metadata:  # our own business
                mark = metadata.pop(RESUME)
                number = mark.get("place") if type(mark) is dict else None
                if type(number) is int:
                    if (
                        number <= self._number
                        and not mark.get("reset")
                        and _of(event) == self._folding.id
                    ):
                        continue  # it was told before: a fresh start may lie further back
                    self._number = number
                event = replace(event, metadata=metadata or None)
                if type(event) is Task and not self._fresh:  # it starts anew: only news are told
                    for news in self._catch_up(event):
                        self._last = news
                        yield news
                    self._ending = None
                    continue
            if self._fresh:
                self._take(event)
            else:
                folding.take(event)
                if meter.bytes > self._weigh_at:
                    self._bound()
            self._last = event
            self._ending = None
            yield event
        if self._ending is not None and folding.id and not self._over():
            # There are agents that give the failure of a task another id, and then end the stream.
            event = replace(self._ending, task_id=folding.id)
            self._take(event)
            self._last = event
            yield event

    def _skips(self, event: Event) -> bool:
        """Whether it is of another task than the one that is followed; TooLarge if there have been
        too many."""
        if self._count > self._most:
            words = f"the stream has more than {self._most} events"
            also = ", or stream with keep=False"
            raise TooLarge.of(words, "events", int(self._most), also)
        if not self._stray(event):
            return False
        self._strays += 1
        ended = isinstance(event, TaskStatusUpdateEvent) and event.status.state.terminal
        self._ending = event if ended else None  # type: ignore[assignment]
        if self._strays == 1:  # an agent that does so may do so often
            logger.warning(
                "the agent sent an event of another task on the stream of task %s; the "
                "client skips such events",
                self._id,
            )
        return True

    @property
    def _id(self) -> str:
        """The task that is followed; empty while that is not known."""
        if self._folding.id:
            return self._folding.id
        request = self._request
        if isinstance(request, SubscribeToTaskRequest):
            return request.id
        return request.message.task_id

    def _stray(self, event: Event) -> bool:
        """Whether it is of another task. What a message begins says the first event: a message to
        a task may be answered with another one."""
        id, known = _of(event), self._id
        if not id or not known or id == known:
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
        found, spans = self._client._headers(headers), self._client._spans
        span = None
        if spans is not None:
            span = spans.begin("CLIENT", BY_CALL[call].name, *self._client._about(call, request))
            found["traceparent"] = otel.parent(span)
        order = Order(
            call=call,
            request=request,
            headers=found,
            files=self._files if call == "stream" else {},
            patience=self._client._patience,
            meter=self._meter,
        )
        items = self._client._binding.stream(order)
        self._items = items if spans is None or span is None else spans.around(span, items)
        return self._items

    def _catch_up(self, task: Task) -> list[Event]:
        gained = self._folding.catch_up(task)
        self._bound()
        return gained

    def _bound(self) -> None:
        """Weigh the task. To do so at each event would cost more than to take it."""
        most, size = self._client._limits.task, self._folding.weigh()
        if size > most:
            words = f"the task of the stream is larger than {most} bytes"
            raise TooLarge.of(words, "task", most, ", or stream with keep=False")
        self._weigh_at = self._meter.bytes + max((most - size) // EXPANSION, 4096)

    def _much(self, error: TooLarge) -> TooLarge:
        """The same error, with the id of the task."""
        if self._id and not error.task:
            error.task = self._id
            error.message = f"task {error.task}: {error.message}"
            error.args = (error.message,)
        return error

    def _take(self, event: Event) -> None:
        self._folding.take(event)
        if self._meter.bytes > self._weigh_at:
            self._bound()
        if self._fresh:
            self._fresh = False
            self._client._answered()
            self._progress.task = self._folding.id
            if isinstance(self._request, SendMessageRequest):
                self._client._begun(self._folding.id)

    @property
    def _follows(self) -> bool:
        """Whether it is a message to a task that was there before."""
        request = self._request
        return isinstance(request, SendMessageRequest) and bool(request.message.task_id)

    @property
    def _placed(self) -> bool:
        """Whether the agent can tell exactly what comes after what was told."""
        return self._client._resumes and self._number > 0

    @property
    def _place(self) -> str:
        return f"{self._folding.id}:{self._number}"

    def _subscription(self) -> SubscribeToTaskRequest:
        return SubscribeToTaskRequest(id=self._folding.id)

    # -- how far it is

    def _asks(self) -> bool:
        """Whether the agent wants something from whoever sent the message."""
        status = self._folding.status
        sent = isinstance(self._request, SendMessageRequest)
        return sent and status is not None and status.state.interrupted

    def _answered(self) -> bool:
        """Whether the last event was a question: the next turn is another stream."""
        last = self._last
        asked = isinstance(last, TaskStatusUpdateEvent) and last.status.state
        return self._asks() and asked is TaskState.INPUT_REQUIRED

    def _stands(self) -> bool:
        """Whether somebody must log in first. A subscription would tell nothing until then."""
        status = self._folding.status
        return self._asks() and status is not None and status.state is TaskState.AUTH_REQUIRED

    def _final(self) -> bool:
        """Whether nothing more can come, even if the connection broke."""
        status = self._folding.status
        if status is None:
            return self._folding.message is not None
        # one that follows up may be told the question that it answers
        return status.state.terminal or (self._answered() and not (self._follows and self._placed))

    def _over(self) -> bool:
        """Whether a connection that ended properly has told all that was left."""
        if self._final() or self._answered():
            return True
        # A follow-up begins with the task as it was when the message came, and at auth-required
        # the agent may go on. Where there are places, it is asked once more, and tells nothing.
        return (
            self._asks()
            and not self._unread()
            and (self._last is None or self._deaf or not self._placed)
        )

    def _unread(self) -> bool:
        """Whether a follow-up has only been received: the task still stands as it was before."""
        before, status = self._before, self._folding.status
        if before is None or status is None:
            return False
        same = status.timestamp is not None and status.timestamp == before.timestamp
        return same and status.message in (None, before.message)


def _event(item: StreamResponse) -> Event:
    found = item.artifact_update or item.status_update or item.task or item.message
    if found is None:
        raise InvalidAgentResponse("an event contains neither a task, a message nor an update")
    return found


def _of(event: Event) -> str:
    """The task that an event is of; empty if it says none."""
    return event.id if isinstance(event, Task) else event.task_id
