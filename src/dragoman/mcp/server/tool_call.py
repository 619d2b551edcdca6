"""One call of a tool: the message to the agent, progress, patience, questions, the result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import mcp.types as mcp
from mcp import MCPError
from mcp.server.context import HandlerResult

from dragoman import (
    A2AError,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.client import Client, Result, Stream
from dragoman.mcp.server import results
from dragoman.mcp.server.exchange import AT_ONCE, LAST_WORD, Exchange, InFlight, digest
from dragoman.mcp.server.exposed_agents import FAILURES, ExposedAgent
from dragoman.mcp.server.questions import Question, deliver, question_of, unpaid
from dragoman.mcp.server.task_extension import created
from dragoman.mcp.server.tools import SkillTool
from dragoman.prompt_safety import clean

ANSWER = "answer"
"""The name of the only question in a result that asks."""
WORDS = 2000
"""The most characters of an error."""
UNSUPPORTED = -32004
"""The code of an agent's error when a task has ended and cannot be subscribed to."""
KEPT = 5.0
"""Seconds for which a canceled call is remembered, so that a notification finds it."""


Begin = Callable[[Client], Awaitable[Stream | None]]
"""Sends what a call has to send. It returns the stream of a new task, or None if the task is
known."""


async def call_skill(
    exchange: Exchange, found: SkillTool, arguments: Mapping[str, Any]
) -> HandlerResult:
    """Call a skill, and return the result of the tool, a question, or a task."""
    try:
        parts = found.parts(arguments)
    except (A2AError, ValueError, TypeError) as error:
        return failure(str(error))
    key = exchange.key(found.tool.name, arguments)

    async def begin(client: Client) -> Stream:
        return await send_to_skill(client, parts, skill=found.skill.id, key=key)

    schema = found.tool.output_schema is not None
    return await Call(exchange, found.agent, schema=schema).run(begin)


async def continue_call(
    exchange: Exchange,
    found: SkillTool,
    state: str,
    responses: Mapping[str, Any] | None,
) -> HandlerResult:
    """Go on with a call that has asked: `state` is what its result has given to the client."""
    task, asked = json.loads(state)
    response = (responses or {}).get(ANSWER)

    async def begin(client: Client) -> Stream | None:
        question = question_of(await client.task(task).get())
        if question is None or question.id != asked:
            return None  # it was answered
        if not isinstance(response, mcp.ElicitResult) or response.action == "cancel":
            raise _Unanswered(question)
        return await _resume(client, question, response)

    schema = found.tool.output_schema is not None
    return await Call(exchange, found.agent, task=task, schema=schema).run(begin, before=asked)


async def _resume(client: Client, question: Question, response: mcp.ElicitResult) -> Stream | None:
    """Send the answer to a question. Who has only opened a page of login has not logged in yet:
    nothing is sent then."""
    if question.url and response.action == "accept":
        return None
    key = digest(ANSWER, question.task.id, question.id)
    return await deliver(client, question, response, key)


async def send_to_skill(client: Client, content: Any, *, skill: str, key: str) -> Stream:
    """Send a message. An agent that does not stream names the task at once, so that it is known
    while the agent works."""
    if client.card.capabilities.streaming:
        return client.stream(content, skill=skill, key=key)
    result = await client.send(content, wait=False, skill=skill, key=key)
    if result.task is None:
        raise _Replied(result)
    return client.task(result.task.id).subscribe()


class _Unanswered(Exception):
    """The user has not answered."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.message)
        self.question = question


class _Replied(Exception):
    """The agent has replied directly."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.text)
        self.result = result


class Call:
    """A call that is being answered."""

    def __init__(
        self,
        exchange: Exchange,
        agent: ExposedAgent,
        *,
        task: str = "",
        schema: bool = False,
        limit: float | None = None,
        cancels: bool = True,
    ) -> None:
        self._exchange = exchange
        self._agent = agent
        self._schema = schema
        """Whether the tool promises structured content."""
        self._limit = exchange.state.patience if limit is None else limit
        self._cancels = cancels
        """Whether to cancel the call cancels its task."""
        self._task = task
        """The id of the task at the agent, once it is known."""
        self._begun = asyncio.Event()
        """Set when it is known."""
        if task:
            self._begun.set()

    async def run(self, begin: Begin, *, before: str = "") -> HandlerResult:
        """Answer the call. If the client cancels it, its task is canceled. `begin` sends what is to
        be sent; `before` is the question that was answered last."""
        state, place = self._exchange.state, self._exchange.place
        state.in_flight[place] = flight = InFlight(self._cancel)
        try:
            result = await self._run(begin, before)
        except asyncio.CancelledError:
            if self._exchange.closed_by_cancel and not state.closing.is_set():
                flight.cancel()
            # elsewhere the notification arrives just after
            asyncio.get_running_loop().call_later(KEPT, _forget, state.in_flight, place, flight)
            raise
        _forget(state.in_flight, place, flight)
        return result

    async def _run(self, begin: Begin, before: str) -> HandlerResult:
        try:
            async with self._agent.connect() as client:
                return await self._answer(client, await begin(client), before)
        except _Unanswered as error:
            return results.asks(self._agent, error.question, schema=self._schema)
        except _Replied as error:
            return self._result(error.result)
        except FAILURES as error:
            return failure(str(error) or "the agent did not answer in time")

    async def _answer(self, client: Client, stream: Stream | None, before: str) -> HandlerResult:
        while True:
            result = await self._followed(client, stream, before)
            if result.task is None:
                return self._result(result)
            if self._exchange.takes_tasks:
                return created(self._agent, result.task)
            if result.task.status.state.terminal or unpaid(result.task):
                return self._result(result)
            question = question_of(result.task)
            if question is None:
                return results.still_working(self._agent, result, schema=self._schema)
            if question.id == before or not self._exchange.can_ask(question):
                return results.asks(self._agent, question, schema=self._schema)
            if self._exchange.modern:
                return mcp.InputRequiredResult(
                    input_requests={ANSWER: question.request},
                    request_state=json.dumps([question.task.id, question.id]),
                )
            try:
                response = await self._exchange.ask(question)
            except MCPError:  # the client has said that it can, and cannot
                return results.asks(self._agent, question, schema=self._schema)
            if response.action == "cancel":
                return results.asks(self._agent, question, schema=self._schema)
            stream = await _resume(client, question, response)
            before = question.id

    def _result(self, result: Result) -> mcp.CallToolResult:
        modern = self._exchange.modern
        return results.tool_result(self._agent, result, schema=self._schema, modern=modern)

    async def _followed(self, client: Client, stream: Stream | None, before: str) -> Result:
        """Follow the task until it ends, asks, or lasts too long, and return it as it is then.
        Before its task is known, a call cannot last too long: nothing could be said about it."""
        exchange = self._exchange
        limit = AT_ONCE if exchange.takes_tasks else self._limit
        following = asyncio.create_task(self._follow(client, stream, before))
        closing = asyncio.create_task(exchange.state.closing.wait())
        begun = asyncio.create_task(self._begun.wait())
        try:
            await asyncio.wait(
                {following, closing}, timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            await asyncio.wait({following, begun}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return await following
        finally:
            for task in (following, closing, begun):
                task.cancel()
            await asyncio.gather(following, closing, begun, return_exceptions=True)
        return Result(task=await client.task(self._task).get())

    async def _follow(self, client: Client, stream: Stream | None, before: str) -> Result:
        """Follow the task until it ends or asks something else than `before`."""
        handle = client.task(self._task) if self._task else None
        sends = stream is not None
        if stream is None and handle is not None:
            current = await handle.get()
            if unpaid(current):
                return await handle.answer_pause()
            if current.status.state.terminal:
                return Result(task=current)
            stream = handle.subscribe()
        assert stream is not None
        try:
            async with stream:
                async for event in stream:
                    task = stream.task
                    if task is not None:
                        self._task = task.id
                        self._begun.set()
                    if words := _progress(event):
                        await self._exchange.report(words)
                    if task is not None and task.status.state.settled:
                        if unpaid(task) and sends:
                            continue  # the stream has it paid, or ends
                        question = question_of(task)
                        if question is None or question.id != before:
                            break  # a subscription continues after a question
        except A2AError as error:
            if error.rpc != UNSUPPORTED or handle is None:
                raise
            return Result(task=await handle.get())  # it has just ended
        found = stream.result
        if found.task is not None and unpaid(found.task):
            return await client.task(found.task.id).answer_pause()
        return found

    def _cancel(self) -> None:
        """Begin to cancel the task."""
        if self._task and self._cancels:
            self._exchange.state.begin(_canceled(self._agent, self._task))


def failure(text: str) -> mcp.CallToolResult:
    """The result of a call that could not be made."""
    return mcp.CallToolResult(content=[mcp.TextContent(text=clean(text, WORDS))], is_error=True)


def _progress(event: Any) -> str:
    """What an event says about the progress; empty if nothing."""
    if isinstance(event, TaskStatusUpdateEvent) and event.status.state is TaskState.WORKING:
        return event.text
    if isinstance(event, TaskArtifactUpdateEvent):
        return event.text or event.artifact.name or "a part of the result"
    if isinstance(event, Task) and event.status.state is TaskState.WORKING:
        return event.status.text
    return ""


def _forget(found: dict[Any, InFlight], place: Any, flight: InFlight) -> None:
    if found.get(place) is flight:
        del found[place]


async def _canceled(agent: ExposedAgent, task: str) -> None:
    with suppress(*FAILURES):  # it may have ended
        async with asyncio.timeout(LAST_WORD), agent.connect() as client:
            await client.task(task).cancel()
