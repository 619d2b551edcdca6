"""The client: calls an agent, whoever made it.

It finds the card, picks the interface by the agent's order, and speaks. Reads are repeated when the
network fails, and so are sends, which carry the same `messageId` and `Idempotency-Key` each time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from dragoman import clock, content
from dragoman.client.binding import BINDINGS, Binding, Seen
from dragoman.client.discovery import Cards, interfaces
from dragoman.client.engine import Engine, Inside, Sockets, Unreachable
from dragoman.client.folding import Event, Folding, news
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    LimitExceeded,
    TaskNotFound,
    Unavailable,
    UnsupportedOperation,
)
from dragoman.events import RESUME
from dragoman.types import (
    AgentCard,
    AgentInterface,
    Artifact,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    Wire,
)

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0


class Result(Struct, frozen=True):
    """What a send came to: a task, or a direct message."""

    task: Task | None = None
    message: Message | None = None

    @property
    def state(self) -> TaskState | None:
        """The task's state; None for a direct message."""
        return self.task.status.state if self.task else None

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """What the task has produced."""
        return self.task.artifacts if self.task else ()

    @property
    def parts(self) -> Sequence[Part]:
        """The content: of the direct message; else of the artifacts, or, without any, of what the
        agent said last."""
        if self.message is not None:
            return self.message.parts
        if self.task is None:
            return ()
        if self.artifacts:
            return [part for artifact in self.artifacts for part in artifact.parts]
        said = self.task.status.message
        return said.parts if said else ()

    @property
    def text(self) -> str:
        """The text of the content; the pieces of one artifact are one text."""
        if self.artifacts:
            texts = ("".join(p.text or "" for p in item.parts) for item in self.artifacts)
            return "\n".join(text for text in texts if text)
        return "\n".join(part.text for part in self.parts if part.text is not None)

    @property
    def data(self) -> Any:
        """The first structured part of the content, or None."""
        return next((part.data for part in self.parts if part.data is not UNSET), None)

    @property
    def files(self) -> list[Part]:
        """The parts of the content that are files, by content (`raw`) or by `url`."""
        return [part for part in self.parts if part.raw is not None or part.url is not None]


class Client:
    """An agent to talk to: `async with Client.connect("https://agent.example") as agent: …`."""

    card: AgentCard
    interface: AgentInterface

    def __init__(
        self,
        target: str | AgentCard,
        *,
        engine: Engine,
        headers: Mapping[str, str] | None = None,
        extensions: Sequence[str] = (),
        bindings: Sequence[str] = tuple(BINDINGS),
        timeout: float = 60.0,
        attempts: int = 5,
    ) -> None:
        self._target = target
        self._engine = engine
        self._headers = dict(headers or {})
        self._extensions = tuple(extensions)
        self._bindings = [name.upper() for name in bindings]
        self._binding: Binding
        self.timeout = timeout
        """How long one call may take, without the pauses between attempts."""
        self.attempts = attempts
        self.cards = Cards(engine)

    @classmethod
    def connect(
        cls,
        target: str | AgentCard = "",
        *,
        app: Any = None,
        engine: Engine | None = None,
        **options: Any,
    ) -> Client:
        """A client of the agent at a URL, of a card (its address, file or object), or of an ASGI
        application in this process. Nothing is dialled yet."""
        if app is not None:
            engine = engine or Inside(app)
            target = target or "http://inside"
        if not target:
            raise ValueError("connect: give a URL, a card, or app=…")
        return cls(target, engine=engine or Sockets(), **options)

    async def __aenter__(self) -> Client:
        try:
            if isinstance(self._target, AgentCard):
                self.card = self._target
            else:
                target = self._target
                self.card = await self._repeat(lambda: self.cards.find(target))
            self._choose()
        except BaseException:
            await self._engine.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._engine.close()

    def _choose(self) -> None:
        """Take the agent's first interface that is spoken here, and our extension if it has it."""
        self.interface = interfaces(self.card, self._bindings)[0]
        speak = BINDINGS[self.interface.protocol_binding.upper()]
        self._binding = speak(self._engine, self.interface.url)
        offered = {item.uri for item in self.card.capabilities.extensions}
        self.resumes = RESUME in offered
        if self.resumes and RESUME not in self._extensions:
            self._extensions = (*self._extensions, RESUME)

    # -- messages

    async def send(
        self,
        said: Any,
        *,
        task: str = "",
        context: str = "",
        wait: bool = True,
        **options: Any,
    ) -> Result:
        """Send a message and wait for its answer; `wait=False` only until the task exists."""
        request, key = self._request(said, task, context, wait=wait, **options)
        headers = {"idempotency-key": key}
        answer = await self._call("send", request, headers)
        return Result(answer.task, answer.message)

    def stream(self, said: Any, *, task: str = "", context: str = "", **options: Any) -> Stream:
        """Send a message and follow what comes of it, over broken connections."""
        request, key = self._request(said, task, context, **options)
        return Stream(self, "stream", request, {"idempotency-key": key})

    def task(self, id: str) -> Remote:
        """A handle on a task."""
        return Remote(self, id)

    async def list(
        self,
        *,
        context: str = "",
        state: TaskState | None = None,
        since: str | None = None,
        history: int | None = None,
        artifacts: bool | None = None,
        page: int | None = None,
    ) -> AsyncIterator[Task]:
        """All tasks that fit, the latest first, page by page."""
        token = ""
        while True:
            request = ListTasksRequest(
                tenant=self.interface.tenant,
                context_id=context,
                status=state,
                status_timestamp_after=since,
                history_length=history,
                include_artifacts=artifacts,
                page_size=page,
                page_token=token,
            )
            answer = await self._call("list", request)
            for found in answer.tasks:
                yield found
            if not answer.next_page_token or answer.next_page_token == token:
                return
            token = answer.next_page_token

    async def extended_card(self) -> AgentCard:
        """The card for those who are known to the agent."""
        request = GetExtendedAgentCardRequest(tenant=self.interface.tenant)
        card: AgentCard = await self._call("extended_card", request)
        return card

    # -- inside

    def _request(
        self,
        said: Any,
        task: str,
        context: str,
        *,
        wait: bool = True,
        skill: str = "",
        modes: Sequence[str] = (),
        metadata: dict[str, Any] | None = None,
        history: int | None = None,
        webhook: TaskPushNotificationConfig | None = None,
        key: str = "",
    ) -> tuple[SendMessageRequest, str]:
        if isinstance(said, Message):
            message = said
        else:
            message = Message(
                message_id=clock.uuid7(), role=Role.USER, parts=tuple(content.parts(said))
            )
        message = replace(
            message, task_id=task or message.task_id, context_id=context or message.context_id
        )
        if skill:
            message = replace(message, metadata={**(message.metadata or {}), "skill": skill})
        request = SendMessageRequest(
            tenant=self.interface.tenant,
            message=message,
            configuration=SendMessageConfiguration(
                accepted_output_modes=tuple(modes),
                history_length=history,
                return_immediately=not wait,
                task_push_notification_config=webhook,
            ),
            metadata=metadata,
        )
        return request, key or clock.uuid7()

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What every request carries."""
        found = {"a2a-version": "1.0", **self._headers}
        if self._extensions:
            found["a2a-extensions"] = ", ".join(self._extensions)
        return {**found, **(more or {})}

    async def _call(
        self, call: str, request: Wire, headers: Mapping[str, str] | None = None
    ) -> Any:
        async def once() -> Any:
            async with asyncio.timeout(self.timeout):
                return await self._binding.call(call, request, self.headers(headers))

        return await (self._repeat(once) if call not in _ONCE else once())

    async def _repeat(self, once: Callable[[], Awaitable[T]]) -> T:
        """Try until it succeeds, or has failed too often; only for what may be done twice."""
        pauses = Pauses(self.attempts)
        while True:
            try:
                return await once()
            except (Unreachable, TimeoutError, Unavailable, LimitExceeded) as error:
                await pauses.after(error)


_ONCE = {"cancel"}
"""Done twice, these are answered otherwise."""


class Pauses:
    """Longer and longer pauses between attempts, with some chance in them."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self._failed = 0

    def reset(self) -> None:
        """There was progress."""
        self._failed = 0

    async def after(self, error: BaseException) -> None:
        """Wait before the next attempt, as long as the agent asks for; raise it after the last."""
        self._failed += 1
        if self._failed >= self._attempts:
            raise error
        pause = min(FIRST_PAUSE * 2 ** (self._failed - 1), LONGEST_PAUSE) * random.uniform(0.5, 1)
        if isinstance(error, A2AError):
            wish = error.headers.get("retry-after", "")
            if error.http in (408, 413):
                raise error
            if wish.isascii() and wish.isdigit():
                pause = max(pause, min(float(wish), 60.0))
        await asyncio.sleep(pause)


class Remote:
    """A task at the agent."""

    def __init__(self, client: Client, id: str) -> None:
        self._client = client
        self.id = id

    async def get(self, *, history: int | None = None) -> Task:
        """The task as it is now."""
        tenant = self._client.interface.tenant
        request = GetTaskRequest(tenant=tenant, id=self.id, history_length=history)
        task: Task = await self._client._call("get", request)
        return task

    async def cancel(self, *, metadata: dict[str, Any] | None = None) -> Task:
        """Ask the agent to end it."""
        tenant = self._client.interface.tenant
        request = CancelTaskRequest(tenant=tenant, id=self.id, metadata=metadata)
        task: Task = await self._client._call("cancel", request)
        return task

    def subscribe(self) -> Stream:
        """The task as it is now, and then what happens to it."""
        request = SubscribeToTaskRequest(tenant=self._client.interface.tenant, id=self.id)
        return Stream(self._client, "subscribe", request, {})

    async def reply(self, said: Any, **options: Any) -> Result:
        """Send the next message of this task."""
        return await self._client.send(said, task=self.id, **options)

    async def wait(self, *, poll: float = 1.0) -> Task:
        """The task once it has ended or asks for something."""
        task = await self.get()
        while not _settled(task.status.state):
            if self._client.card.capabilities.streaming:
                try:
                    async with self.subscribe() as stream:
                        async for _ in stream:
                            if stream.task and _settled(stream.task.status.state):
                                return stream.task
                except UnsupportedOperation:
                    pass  # it ended meanwhile, or does not stream after all
            else:
                await asyncio.sleep(poll)
            task = await self.get()
        return task

    # -- webhooks

    async def add_webhook(self, url: str, **fields: Any) -> TaskPushNotificationConfig:
        """Have this task's events posted somewhere."""
        request = TaskPushNotificationConfig(
            tenant=self._client.interface.tenant, task_id=self.id, url=url, **fields
        )
        config: TaskPushNotificationConfig = await self._client._call("create_webhook", request)
        return config

    async def webhook(self, id: str) -> TaskPushNotificationConfig:
        """One of its webhooks."""
        request = GetTaskPushNotificationConfigRequest(
            tenant=self._client.interface.tenant, task_id=self.id, id=id
        )
        config: TaskPushNotificationConfig = await self._client._call("get_webhook", request)
        return config

    async def webhooks(self) -> AsyncIterator[TaskPushNotificationConfig]:
        """All of its webhooks."""
        token = ""
        while True:
            request = ListTaskPushNotificationConfigsRequest(
                tenant=self._client.interface.tenant, task_id=self.id, page_token=token
            )
            answer = await self._client._call("list_webhooks", request)
            for config in answer.configs:
                yield config
            if not answer.next_page_token or answer.next_page_token == token:
                return
            token = answer.next_page_token

    async def delete_webhook(self, id: str) -> None:
        """Have no more events posted there."""
        request = DeleteTaskPushNotificationConfigRequest(
            tenant=self._client.interface.tenant, task_id=self.id, id=id
        )
        await self._client._call("delete_webhook", request)


class Stream:
    """The events of a task as they come, each once, whatever the network does.

    Where the agent tells places (our extension), a broken stream is resumed after the last one;
    elsewhere it is subscribed to again, and what the task has gained is told as events. `task` is
    the task so far.
    """

    def __init__(
        self, client: Client, call: str, request: Wire, headers: Mapping[str, str]
    ) -> None:
        self._client = client
        self._call = call
        self._request = request
        self._headers = headers
        self._folding = Folding()
        self._place = ""
        self._patched = False
        self._events = self._run()

    @property
    def task(self) -> Task | None:
        """The task so far."""
        return self._folding.task

    @property
    def result(self) -> Result:
        """What it has come to so far."""
        return Result(self._folding.task, self._folding.message)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Follow no more. The task goes on."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[Event, None]:
        pauses = Pauses(self._client.attempts)
        fresh = True
        while True:
            try:
                async for event in self._attempt(fresh):
                    pauses.reset()
                    yield event
                if not self._over():
                    raise Unreachable("the stream ended before the task did")
                if self._patched:
                    async for event in self._corrected():
                        yield event
                return
            except (Unreachable, Unavailable, LimitExceeded) as error:
                await pauses.after(error)
                fresh = not self._folding.id

    async def _attempt(self, fresh: bool) -> AsyncIterator[Event]:
        """The events of one connection."""
        if fresh:
            seen = self._open(self._call, self._request, self._headers)
        elif self._client.resumes and self._place:
            seen = self._open("subscribe", self._subscription(), {"last-event-id": self._place})
        else:
            async for event in self._again():
                yield event
            return
        async for item in seen:
            yield self._taken(item)

    async def _again(self) -> AsyncIterator[Event]:
        """Subscribe anew, and tell what the task has gained meanwhile."""
        first = self._patched = True
        try:
            async for item in self._open("subscribe", self._subscription(), {}):
                event = _event(item.event)
                if first and isinstance(event, Task):
                    for gained in news(self._folding.task, event):
                        yield gained
                    self._folding.take(event)
                else:
                    yield self._taken(item)
                first = False
        except (UnsupportedOperation, TaskNotFound):
            async for event in self._corrected():  # it has ended
                yield event

    async def _corrected(self) -> AsyncIterator[Event]:
        """What the task itself has over what was told. Without places, an event may be told by
        the task and again by the stream; the task is right."""
        task = await self._client.task(self._folding.id).get()
        for gained in news(self._folding.task, task):
            yield gained
        self._folding.take(task)
        self._patched = False

    def _open(self, call: str, request: Wire, headers: Mapping[str, str]) -> AsyncIterator[Seen]:
        return self._client._binding.stream(call, request, self._client.headers(headers))

    def _subscription(self) -> SubscribeToTaskRequest:
        return SubscribeToTaskRequest(tenant=self._client.interface.tenant, id=self._folding.id)

    def _taken(self, item: Seen) -> Event:
        event = _event(item.event)
        metadata = event.metadata
        if metadata and RESUME in metadata:  # our own business
            rest = {key: value for key, value in metadata.items() if key != RESUME}
            event = replace(event, metadata=rest or None)
        self._folding.take(event)
        self._place = item.place or self._place
        return event

    def _over(self) -> bool:
        if self._folding.message is not None and not self._folding.id:
            return True
        status = self._folding.status
        if status is None:
            return False
        return status.state.terminal or (self._call == "stream" and status.state.interrupted)


def _event(item: StreamResponse) -> Event:
    found = item.task or item.message or item.status_update or item.artifact_update
    if found is None:
        raise InvalidAgentResponse("an event has neither a task, a message nor an update")
    return found


def _settled(state: TaskState) -> bool:
    return state.terminal or state.interrupted
