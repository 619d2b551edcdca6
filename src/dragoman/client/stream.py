"""A stream: the events of a task as they arrive, each exactly once, over broken connections."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from dragoman.client.deadline import Limit
from dragoman.client.fold import Event
from dragoman.client.logged_result import once
from dragoman.client.paused_task import MOST
from dragoman.client.result import Result
from dragoman.client.task_events import TaskEvents
from dragoman.client.upload import File
from dragoman.model.types import (
    Artifact,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
)

if TYPE_CHECKING:
    from dragoman.client.client import Client


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
        self._name = name
        """The name of the send, if the turn of the client remembers its sends."""
        self._source = TaskEvents(client, request, key=key, files=files or {}, keep=keep, name=name)
        self._state = self._source.state
        self._until = client._connection.until
        self._whole = None if self._until is None else self._until - time.monotonic()
        self._keep = keep
        answers = client._connection.answerer is not None
        self._events = self._answered() if answers else self._source.run()

    @property
    def task(self) -> Task | None:
        """The task so far; without the content of artifacts if they are not kept."""
        return self._state.folding.task

    @property
    def result(self) -> Result:
        """The result so far."""
        folding = self._state.folding
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
            elif isinstance(event, Task) and (
                event.status.state.terminal or not self._state.follows
            ):
                artifacts = event.artifacts  # a follow-up starts with existing ones
            for artifact in artifacts:
                if text := artifact.text:
                    key = artifact.artifact_id
                    yield text if last in ("", key) else f"\n{text}"
                    last = key
        if not last and (text := self.text):
            yield text

    async def _answered(self) -> AsyncGenerator[Event, None]:
        """Yield the events of this message, and of the answers to the pauses that follow it."""
        first = ""
        for answers in range(MOST + 1):
            async with aclosing(self._source.run()) as events:
                async for event in events:
                    yield event
            request = self._state.request
            first = first or self._state.id
            other = self._state.id != first  # see `Client._answered`
            if isinstance(request, SubscribeToTaskRequest) or answers == MOST or other:
                return
            if (reply := await self._client._reply_to(self.result, request)) is None:
                return
            self._source = TaskEvents(
                self._client, reply.request, key=reply.key, files={}, keep=self._keep, name=""
            )
            self._state = self._source.state

    def __repr__(self) -> str:
        status = self._state.folding.status
        state = f", {status.state}" if status else ""
        return f"Stream(task={self._state.id!r}{state})"

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events if self._until is None else self

    def __anext__(self) -> Awaitable[Event]:
        return self._events.__anext__() if self._until is None else self._timely(self._until)

    async def _timely(self, until: float) -> Event:
        left = max(until - time.monotonic(), 0)
        async with Limit(self._source.progress, left, self._state.id, self._whole):
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
        client, request = self._client, self._state.request
        if (steps := client._sends.steps) is None:
            return await follow()
        name = self._name
        if isinstance(request, SubscribeToTaskRequest):
            name = steps.name(f"{client._connection.recipient}\n{request.id}".encode())
        result = await once(steps, what, name, follow, again=self._drain, fetch=client._fetch)
        if self._source.fresh:
            await self.aclose()
            self._state.folding.restore(result.task, result.message, result.progress)
        return result
