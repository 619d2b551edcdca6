"""The client: calls an A2A agent, built with any framework.

It fetches the card, picks the first interface that it supports, in the agent's order of preference,
and sends requests. It retries reads when the network fails. It retries sends, too: each attempt has
the same `messageId` and `Idempotency-Key`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar, Unpack, overload

from msgspec import UNSET

from dragoman.client import skills
from dragoman.client.agent_connection import AgentConnection
from dragoman.client.approved_card import AgentReference
from dragoman.client.bindings import Order
from dragoman.client.credentials import ANYWHERE
from dragoman.client.delegated_sends import DelegatedSends
from dragoman.client.logged_result import once
from dragoman.client.options import CallOptions, Options, SendOptions
from dragoman.client.outgoing_message import OutgoingMessage, answer_to, outgoing_message
from dragoman.client.paused_task import MOST, PausedTask
from dragoman.client.result import Result
from dragoman.client.skills import RemoteSkill
from dragoman.client.stream import Stream
from dragoman.client.task_handle import TaskHandle
from dragoman.client.transport import ASGITransport, HTTPTransport, Transport
from dragoman.model import clock
from dragoman.model.errors import A2AError, InvalidAgentResponse
from dragoman.model.types import (
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    ListTasksRequest,
    SendMessageRequest,
    Task,
    TaskState,
)

T = TypeVar("T")

INSIDE = "http://inside"
"""The address of an application in this process."""
LAST_WORD = 3.0
"""Seconds that the client may spend on canceling tasks before it closes."""


class Client:
    """A client for one agent: `async with Client.connect("https://agent.example") as agent: …`, or
    `agent = await Client.connect(…).open()` and later `await agent.close()`."""

    def __init__(
        self,
        target: str | AgentCard | AgentReference,
        *,
        transport: Transport,
        **options: Unpack[Options],
    ) -> None:
        self._connection = AgentConnection(target, transport, options)
        self._sends = DelegatedSends(options.get("delegation"), self._connection)
        self._inbox = options.get("inbox")

    @classmethod
    def connect(
        cls,
        target: str | AgentCard | AgentReference = "",
        *,
        app: Any = None,
        transport: Transport | None = None,
        **options: Unpack[Options],
    ) -> Client:
        """Make a client for the agent at a URL, for a card (its URL, file or object), for an agent
        that a registry names, or for an ASGI application in this process. It does not connect yet.
        The client closes the transport."""
        if app is not None:
            transport = transport or ASGITransport(app)
            target = target or INSIDE
            options = {**options, "trust": [ANYWHERE], "insecure": True}
        if not target:
            raise ValueError("connect: give a URL, a card, or app=…")
        return cls(target, transport=transport or HTTPTransport(), **options)

    async def open(self) -> Client:
        """Fetch the card. `async with` does this, too. Opening an open client has no effect."""
        await self._connection.open()
        return self

    async def close(self) -> None:
        """Close all connections. `async with` does this, too. Closing a closed client has no
        effect."""
        if self._sends.canceled:
            # Shielded, because a second cancellation may arrive.
            await asyncio.shield(asyncio.ensure_future(self._cancel_all()))
        else:
            await self._connection.close()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        connection = self._connection
        if connection.is_open:
            used = f"{self.interface.protocol_binding} {self.interface.protocol_version}"
            return f"Client({self.card.name!r} at {self.interface.url}, {used})"
        target = connection.target if isinstance(connection.target, str) else connection.target.name
        return f"Client({target or connection.reference!r}, not open)"

    @property
    def card(self) -> AgentCard:
        """The card of the agent."""
        return self._connection.card

    @property
    def interface(self) -> AgentInterface:
        """The interface on the card that the client uses now."""
        return self._connection.interface

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that the caller asked for and the agent offers."""
        return self._connection.extensions

    # -- messages

    async def send(
        self,
        content: Any,
        *,
        task: str = "",
        context: str = "",
        wait: bool = True,
        **options: Unpack[SendOptions],
    ) -> Result:
        """Send a message and wait for the result. With `wait=False`, wait only until the task
        exists."""
        if wait and self._follows(options):
            stream = self.stream(content, task=task, context=context, **options)
            result = await stream._once("send", stream._drain)
            return Result(result.task, result.message)
        sends, sent = self._sends, self._outgoing(content, task, context, wait, options)

        async def send() -> Result:
            if (known := sends.known(sent.name)) is not None:
                sends.began(known.id)
                result = Result(await self.task(known.id).get())
            else:
                result = await self._deliver(sent, wait)
            return await self._answered(result, sent.request) if wait else result

        if (steps := sends.steps) is None:
            return await send()
        result = await once(steps, "send", sent.name, send, again=send, fetch=self._fetch)
        if result.task is not None and not result.task.status.state.settled:
            sends.open.add(result.task.id)
        return result

    async def _answered(
        self, result: Result, before: SendMessageRequest | None, wait: bool = True
    ) -> Result:
        """The result after this client's answerer has answered the pauses. If the agent answers
        with another task, its pauses are left to the caller: limits of an answerer may be those of
        one task."""
        first = result.task.id if result.task is not None else ""
        for _ in range(MOST):
            if result.task is None or result.task.id != first:
                break
            reply = await self._reply_to(result, before)
            if reply is None:
                break
            result = await self._deliver(reply, wait)
            if not wait:
                break
        return result

    async def _deliver(self, sent: OutgoingMessage, wait: bool) -> Result:
        async with self._connection.limit():
            answer = await self._connection.call(
                "send", sent.request, {"idempotency-key": sent.key}, sent.files
            )
            found: Task | None = answer.task
            if found is not None:
                self._sends.began(found.id)
                if sent.name:
                    self._sends.log(sent.name, found.id)
                if wait and not found.status.state.settled:  # agents may return early
                    found = await self.task(found.id).wait()
                self._sends.seen(found.id, found.status.state)
            elif answer.message is None:
                raise InvalidAgentResponse(
                    "the response of SendMessage is neither a task nor a message"
                )
        return Result(found, answer.message)

    def stream(
        self,
        content: Any,
        *,
        task: str = "",
        context: str = "",
        keep: bool = True,
        **options: Unpack[SendOptions],
    ) -> Stream:
        """Send a message and follow its task; the stream reconnects when the connection breaks.
        With `keep=False`, only the events have the content of artifacts, so memory stays bounded.
        """
        sent = self._outgoing(content, task, context, True, options)
        return Stream(self, sent.request, key=sent.key, files=sent.files, keep=keep, name=sent.name)

    @property
    def skills(self) -> Mapping[str, RemoteSkill]:
        """The skills on the card, by id, with the schemas of their parameters and results."""
        return skills.skills(self.card)

    @overload
    async def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        options: CallOptions | None = None,
        **named: Any,
    ) -> T: ...
    @overload
    async def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = ...,
        options: CallOptions | None = None,
        **named: Any,
    ) -> Any: ...
    async def call_skill(
        self,
        skill: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = UNSET,
        options: CallOptions | None = None,
        **named: Any,
    ) -> Any:
        """Call a skill with arguments, by name or as a mapping, and return its result as the type
        `returns`; without a type, the data or the text. Raises InvalidParams before anything is
        sent, if the arguments do not fit the skill's schema, and SkillNotCompleted if there is no
        result. With `returns=Result`, return the result as `send` does."""
        found = skills.find(self.card, skill)
        given = {**(arguments or {}), **named}
        sending: CallOptions = {**(options or {}), "skill": skill}
        found.check(given, partial=bool(sending.get("task")))
        result = await self.send(found.parts(given), **sending)
        return skills.typed(found, result, returns)

    def task(self, id: str) -> TaskHandle:
        """Return a handle on a task."""
        return TaskHandle(self, id)

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
        """Iterate over all matching tasks, newest first; the client fetches page after page."""
        token = ""
        while True:
            request = ListTasksRequest(
                context_id=context,
                status=state,
                status_timestamp_after=since,
                history_length=history,
                include_artifacts=artifacts,
                page_size=page,
                page_token=token,
            )
            answer = await self._connection.call("list", request)
            for found in answer.tasks:
                yield found
            if not answer.next_page_token or answer.next_page_token == token:
                return
            token = answer.next_page_token

    async def extended_card(self) -> AgentCard:
        """Fetch the extended card, which the agent shows to authenticated callers."""
        found = await self._connection.call("extended_card", GetExtendedAgentCardRequest())
        return await self._connection.cards.extended(found, self._connection.card_url)

    # -- private

    def _outgoing(
        self, content: Any, task: str, context: str, wait: bool, options: SendOptions
    ) -> OutgoingMessage:
        sends = self._sends
        return outgoing_message(content, sends, task=task, context=context, wait=wait, **options)

    async def _reply_to(
        self, result: Result, before: SendMessageRequest | None
    ) -> OutgoingMessage | None:
        """The answer of this client's answerer to a task that waits; None if it does not answer."""
        connection, task = self._connection, result.task
        if connection.answerer is None or task is None or not task.status.state.interrupted:
            return None
        delegation = self._sends.delegation
        own = delegation.path[-1].task if delegation is not None and delegation.path else ""
        paused = PausedTask(task, self.card, self.interface.url, connection.verified, own)
        message = await connection.answerer.answer(paused)
        if message is None:
            return None
        return answer_to(message, task, before, delegation.metadata() if delegation else None)

    async def _fetch(self, task: str) -> Task:
        return await self.task(task).get()

    def _follows(self, options: SendOptions) -> bool:
        """Whether to send as a stream, so that the client knows the task's id before the task ends:
        it may have to cancel the task, or name it when the deadline passes. (With agents that do
        not deduplicate, a stream is less reliable than a plain send.)"""
        if self._sends.delegation is not None:
            return True
        streams = self._connection.resumes and bool(self.card.capabilities.streaming)
        return self._connection.deadline is not None and streams and "history" not in options

    async def _cancel_all(self) -> None:
        """Cancel the tasks that this client started for the turn, and close the connections."""

        async def cancel(task: str) -> None:
            with suppress(A2AError, ConnectionError, TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await self._connection.binding.call(
                        Order(
                            call="cancel",
                            request=CancelTaskRequest(id=task),
                            headers=self._connection.headers({"idempotency-key": clock.uuid7()}),
                        )
                    )

        try:
            await asyncio.gather(*(cancel(task) for task in self._sends.open))
        finally:
            await self._connection.close()
