"""A stream: the events of a task as they come, each once, whatever the network does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.client.binding import Order, Seen
from dragoman.client.engine import Unreachable
from dragoman.client.folding import Event, Folding
from dragoman.client.result import Result
from dragoman.client.retry import PASSING, Pauses
from dragoman.client.upload import File
from dragoman.errors import InvalidAgentResponse, MethodNotFound, TaskNotFound, UnsupportedOperation
from dragoman.events import RESUME
from dragoman.types import SendMessageRequest, StreamResponse, SubscribeToTaskRequest, Task

if TYPE_CHECKING:
    from dragoman.client.client import Client

POLL, LONGEST_POLL = 0.5, 5.0
LASTING = 5.0
"""A connection that held so long was no failure, even if it brought nothing."""


class Stream:
    """What comes of a message, or happens to a task.

    Where the agent tells places (our extension), a broken stream is resumed after the last one;
    elsewhere it is subscribed to again, and what the task has gained is told as events; where that
    is not offered, the task is looked at again and again. `task` is the task so far.
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
        self._place = ""
        self._fresh = True
        """The first event has not come."""
        self._more = False
        """More than the first event has come."""
        # a stream that is joined late may lack what came before
        self._patched = isinstance(request, SubscribeToTaskRequest) and not client.resumes
        """What was told must be compared with the task in the end."""
        self._deaf = not client.card.capabilities.streaming
        """The agent does not offer to be listened to."""
        self._until = client.until
        self._events = self._run()

    @property
    def task(self) -> Task | None:
        """The task so far; without the content of artifacts if that is not kept."""
        return self._folding.task

    @property
    def result(self) -> Result:
        """What it has come to so far."""
        return Result(self._folding.task, self._folding.message)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    def __anext__(self) -> Awaitable[Event]:
        return self._events.__anext__() if self._until is None else self._timely(self._until)

    async def _timely(self, until: float) -> Event:
        async with asyncio.timeout(max(until - time.monotonic(), 0)):
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
        pauses = Pauses(self._client.attempts)
        while True:
            began = time.monotonic()
            try:
                async for event in self._attempt():
                    pauses.reset()
                    yield event
                if not self._over():
                    raise Unreachable("the stream ended before the task did")
                break
            except PASSING as error:
                if time.monotonic() - began > LASTING:
                    pauses.reset()
                if isinstance(error, Unreachable):
                    self._client.rotate()
                await pauses.after(error)
        if self._patched:
            for event in await self._correct():
                yield event
        self._client.settled(self._folding.id)

    def _attempt(self) -> AsyncIterator[Event]:
        """The events of one connection."""
        if self._fresh:
            return self._first()
        if self._client.resumes and self._place:
            return self._resumed()
        return self._polled() if self._deaf else self._again()

    async def _first(self) -> AsyncIterator[Event]:
        if isinstance(self._request, SubscribeToTaskRequest):
            if self._deaf:
                self._folding.take(await self._client.task(self._request.id).get())
                self._fresh = False
                task = self._folding.task
                assert task is not None
                yield task
                return
            order = self._order("subscribe", self._request)
        elif self._deaf:
            configuration = self._request.configuration
            assert configuration is not None
            asked = replace(
                self._request, configuration=replace(configuration, return_immediately=True)
            )
            answer = await self._client.call(
                "send", asked, {"idempotency-key": self._key}, self._files
            )
            self._fresh = False
            yield self._taken(Seen("", StreamResponse(task=answer.task, message=answer.message)))
            return
        else:
            order = self._order("stream", self._request, {"idempotency-key": self._key})
            order = replace(order, files=self._files)
        async for item in self._client.binding.stream(order):
            self._more, self._fresh = not self._fresh, False
            yield self._taken(item)

    async def _resumed(self) -> AsyncIterator[Event]:
        """Exactly what came after the last place."""
        order = self._order("subscribe", self._subscription(), {"last-event-id": self._place})
        async for item in self._client.binding.stream(order):
            self._more = True
            yield self._taken(item)

    async def _again(self) -> AsyncIterator[Event]:
        """Subscribe anew, and tell what the task has gained meanwhile."""
        first = self._patched = True
        try:
            async for item in self._client.binding.stream(
                self._order("subscribe", self._subscription())
            ):
                event = _event(item.event)
                if first and isinstance(event, Task):
                    for gained in self._folding.catch_up(event):
                        yield gained
                else:
                    yield self._taken(item)
                first, self._more = False, True
        except (UnsupportedOperation, TaskNotFound, MethodNotFound):
            # it has ended, or this agent cannot be listened to again
            async for event in self._polled():
                yield event

    async def _polled(self) -> AsyncIterator[Event]:
        """Look at the task until it is over."""
        pause = POLL
        self._more = True
        while True:
            for event in await self._correct():
                yield event
            if self._over():
                return
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_POLL)

    async def _correct(self) -> list[Event]:
        """What the task itself has over what was told. Without places, an event may be told by
        the task and again by the stream; the task is right."""
        task = await self._client.task(self._folding.id).get()
        self._patched = False
        return self._folding.catch_up(task)

    # -- inside

    def _order(
        self,
        call: str,
        request: SendMessageRequest | SubscribeToTaskRequest,
        headers: Mapping[str, str] | None = None,
    ) -> Order:
        return Order(
            call=call,
            request=request,
            headers=self._client.headers(headers),
            patience=self._client.patience,
        )

    def _subscription(self) -> SubscribeToTaskRequest:
        return SubscribeToTaskRequest(id=self._folding.id)

    def _taken(self, item: Seen) -> Event:
        event = _event(item.event)
        metadata = event.metadata
        if metadata and RESUME in metadata:  # our own business
            rest = {key: value for key, value in metadata.items() if key != RESUME}
            event = replace(event, metadata=rest or None)
        if not self._folding.id:
            self._folding.take(event)
            self._client.begun(self._folding.id)
        else:
            self._folding.take(event)
        self._place = item.place or self._place
        return event

    def _over(self) -> bool:
        if self._folding.message is not None and not self._folding.id:
            return True
        status = self._folding.status
        if status is None:
            return False
        if status.state.terminal or isinstance(self._request, SubscribeToTaskRequest):
            return status.state.terminal
        # the first event of a follow-up is the task as it was when the message came
        before = self._request.message.task_id and self._client.resumes and not self._more
        return status.state.interrupted and not before


def _event(item: StreamResponse) -> Event:
    found = item.task or item.message or item.status_update or item.artifact_update
    if found is None:
        raise InvalidAgentResponse("an event has neither a task, a message nor an update")
    return found
