"""A call of a tool as a durable turn.

Each stretch from the start, or from an answer, to the result or the next question is a step. On
protocol 2026-07-28 the log then has all that the server needs to go on. Before it, the call waits
in its connection for the answer; if that is gone, a tool that may be repeated is called again and
gets the logged answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mcp.types as mcp
from mcp import MCPError
from msgspec import Struct
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from dragoman import StepUncertain, Turn, UserError
from dragoman.mcp.client.connection import Connection, Sample, ServerUnavailable
from dragoman.mcp.client.connection_pool import ConnectionPool
from dragoman.mcp.client.held_calls import HeldCalls
from dragoman.mcp.client.running_call import Progress, Result, RunningCall, TimedOut, words
from dragoman.mcp.client.sampling import REFUSED
from dragoman.mcp.client.tool_definitions import ToolDefinition
from dragoman.mcp.client.tool_questions import NotUnderstood, Question, Reply, question, reply
from dragoman.mcp.client.tool_results import continued_task, emit_result

logger = logging.getLogger("dragoman")

PROGRESS = "urn:dragoman:mcp-progress:v1"
"""The key of the metadata of a progress report: `progress` and, if it is known, `total`."""
ROUNDS = 50
"""The most questions of a call, and the most rounds without one."""
TRIES = 5
"""How often a question is asked again if the answer does not fit."""
REPEATS = 2
"""How often a tool that may be repeated is called again because the server has ended."""
CHECK = 5.0
"""Seconds in which a server must answer after a call has timed out."""
WAIT = 30.0
"""Seconds for which a server is asked to wait for the end of a task."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds between two looks at a task that goes on; each pause is twice the last. In between it
needs no worker."""
GET_TASK, CANCEL_TASK = "get_task", "cancel_task"
_RESPONSES: TypeAdapter[dict[str, mcp.InputResponse]] = TypeAdapter(dict[str, mcp.InputResponse])


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stretch of a call ended: with questions, or for good."""

    questions: dict[str, Question] = {}
    """What the tool asks, by the keys that the server gave; none: the result is in the task."""
    given: dict[str, Any] = {}
    """What was answered without the client."""
    state: str | None = None
    """What the server needs to go on."""
    held: bool = False
    """The call waits in its connection."""
    task: str = ""
    """The task at the server that the call has become, if it goes on: see `continued_task`."""
    failed: str = ""
    """Why the call has failed; empty if it has not."""
    refused: bool = False
    """The server has not begun: it is called again when the client has done what it asks."""


class CallSettings(Struct, frozen=True):
    """What the calls of an agent have in common."""

    timeout: float
    """Seconds without a sign of the tool."""
    connect_timeout: float
    held: HeldCalls
    sample: Sample | None
    allow: tuple[str, ...] = ()
    refusal: Callable[[ToolDefinition], str] = lambda tool: ""
    """Why a tool must not be called, as its server describes it now; empty if it may."""


class ToolCall:
    """One call, in one turn."""

    def __init__(
        self,
        turn: Turn,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        pool: ConnectionPool,
        settings: CallSettings,
    ) -> None:
        self._turn, self._tool, self._arguments = turn, tool, arguments
        self._pool, self._settings = pool, settings
        self._key = turn.idempotency_key
        self._answered: list[tuple[Question, Reply]] = []

    async def run(self) -> None:
        """Call the tool, and ask the client what it asks."""
        outcome = Outcome()
        try:
            outcome = await self._stretch(outcome)
            looks = 0
            while outcome.questions or outcome.task:
                if not outcome.questions:
                    await self._turn.sleep(pause(looks))
                    looks += 1
                replies = {key: await self._ask(each) for key, each in outcome.questions.items()}
                self._answered += [(outcome.questions[key], replies[key]) for key in replies]
                if len(self._answered) > ROUNDS:
                    raise UserError(f"The tool {self._tool.name} asks too much")
                outcome = await self._stretch(outcome, replies)
        except (asyncio.CancelledError, UserError):
            self._settings.held.drop(self._key)
            if outcome.task:
                await self._cancel_task(outcome.task)
            raise
        if outcome.failed:
            await self._turn.emit(self._turn.fail(outcome.failed))

    async def _ask(self, asked: Question) -> Reply:
        parts = asked.parts()
        for _ in range(TRIES):
            ask = self._turn.require_auth if asked.url else self._turn.ask
            said = await self._turn.ask_for(ask(list(parts)))
            try:
                return reply(asked, said)
            except NotUnderstood as error:
                text = f"That does not fit: {error}\n\n{asked.text}"
                parts = replace(asked, text=text).parts()
        raise UserError("The question of the tool was not answered")

    async def _cancel_task(self, task: str) -> None:
        """Have the server cancel the task that the call has become."""
        try:
            connection = await self._pool.take(self._turn.caller.owner)
        except ServerUnavailable as error:
            logger.warning("%s: cannot cancel %s: %s", self._pool.server.name, task, error)
            return
        try:
            async with asyncio.timeout(CHECK):
                await connection.call(CANCEL_TASK, {"task_id": task}, progress=_ignore)
        except (MCPError, ValidationError, ServerUnavailable, TimeoutError) as error:
            logger.warning("%s: cannot cancel %s: %s", self._pool.server.name, task, error)
        finally:
            await self._pool.give_back(connection)

    async def _stretch(
        self, before: Outcome, replies: Mapping[str, Reply] | None = None
    ) -> Outcome:
        async def call() -> Outcome:
            try:
                return await _Stretch(self, before, replies or {}).run()
            except UserError as error:
                return Outcome(failed=error.text)

        try:
            outcome: Outcome = await self._turn.step(
                "call", call, returns=Outcome, once=not (self._tool.repeatable or before.task)
            )
        except StepUncertain:
            raise UserError(
                f"The process ended while the tool {self._tool.name} was running: it is not known "
                "whether the tool has done its work"
            ) from None
        return outcome


def pause(looks: int) -> float:
    """Seconds before the next look at a task that goes on; none before the first."""
    return min(FIRST_PAUSE * 2.0 ** min(looks - 1, 20), LONGEST_PAUSE) if looks else 0.0


class _Stretch:
    """What is done in one step."""

    def __init__(self, call: ToolCall, before: Outcome, replies: Mapping[str, Reply]) -> None:
        self._turn, self._tool = call._turn, call._tool
        self._arguments, self._key = call._arguments, call._key
        self._pool, self._settings = call._pool, call._settings
        self._answered = call._answered
        self._before, self._replies = before, replies
        self._name, self._repeatable = self._tool.name, self._tool.repeatable
        if before.task:
            wait = min(WAIT, self._settings.timeout / 2)
            self._name, self._repeatable = GET_TASK, True
            self._arguments = {"task_id": before.task, "wait": wait}

    async def run(self) -> Outcome:
        before, replies = self._before, self._replies
        if not before.questions or before.refused:
            return await self._called((), {}, None)
        if not before.held:
            given = {
                **before.given,
                **{key: _plain(each.result()) for key, each in replies.items()},
            }
            try:
                return await self._called((), given, before.state)
            except _StateRefused:
                if not self._repeatable:
                    raise
                return await self._called(self._answered, {}, None)
        held = self._settings.held.take(self._key)
        if held is not None:
            (answer,) = replies.values()
            await held.answer(answer.result())
            return await self._followed(held, deque())
        if not self._repeatable:
            raise UserError(
                f"The connection in which the tool {self._tool.name} waited for the answer has "
                "ended; the tool is not marked as idempotent or read-only, so it is not called "
                "again. Send the request again"
            )
        return await self._called(self._answered, {}, None)

    async def _called(
        self, answered: Iterable[tuple[Question, Reply]], given: dict[str, Any], state: str | None
    ) -> Outcome:
        """Call the tool: from the beginning, with the answers that there are, or with what it needs
        to go on."""
        repeats = REPEATS if self._repeatable else 0
        for attempt in range(repeats + 1):
            try:
                return await self._rounds(deque(answered), given, state)
            except _ServerEnded:
                if attempt == repeats:
                    raise
        raise AssertionError("unreachable")

    async def _rounds(
        self, answered: deque[tuple[Question, Reply]], given: dict[str, Any], state: str | None
    ) -> Outcome:
        for _ in range(ROUNDS):
            responses = _RESPONSES.validate_python(given, by_name=False) or None
            call = await self._start(responses, state or None)
            outcome = await self._followed(call, answered, resumed=bool(state))
            if outcome.questions or outcome.state is None:
                return outcome
            given, state = outcome.given, outcome.state  # it needs nothing of the client
        raise UserError(f"The tool {self._tool.name} asks too much")

    async def _start(
        self, responses: dict[str, mcp.InputResponse] | None, state: str | None
    ) -> RunningCall:
        try:
            connection = await self._pool.take(self._turn.caller.owner)
        except ServerUnavailable as error:
            raise UserError(str(error)) from error
        call = RunningCall(connection, self._settings.timeout)
        try:
            await connection.tools(self._settings.connect_timeout)  # it may have changed
            if why := self._settings.refusal(self._tool):
                raise UserError(why)
            await call.start(self._name, self._arguments, responses=responses, state=state)
        except BaseException as error:
            await self._pool.give_back(connection)
            if isinstance(error, ServerUnavailable):
                raise UserError(str(error)) from error
            raise
        return call

    async def _followed(
        self,
        call: RunningCall,
        answered: deque[tuple[Question, Reply]],
        *,
        resumed: bool = False,
    ) -> Outcome:
        """Follow a call to its result or to a question for the client."""
        keep = False
        try:
            while True:
                found = await call.follow(self._report)
                if isinstance(found, mcp.CallToolResult | mcp.InputRequiredResult):
                    return await self._finished(found, call.connection, answered)
                asked = question(found)
                if answered and answered[0][0] == asked:
                    await call.answer(answered.popleft()[1].result())
                    continue
                answered.clear()
                self._settings.held.keep(self._key, call, self._pool)
                keep = True
                return Outcome(questions={"": asked}, held=True, task=self._before.task)
        except TimedOut:
            await call.cancel()
            await self._check_server(call.connection)
            raise UserError(
                f"The tool {self._tool.name} gave no sign for {self._settings.timeout:g} seconds"
            ) from None
        except MCPError as error:
            if error.error.code == mcp.URL_ELICITATION_REQUIRED:
                return _sent_to_url(error)
            raise self._failure(error, call.connection, resumed) from error
        except (ServerUnavailable, ValidationError) as error:
            if isinstance(error, ServerUnavailable):
                raise _ServerEnded(self._ended()) from error
            raise UserError(
                f"The result of the tool {self._tool.name} is not what MCP says"
            ) from error
        except ValueError as error:  # a question that must not be passed on
            raise UserError(str(error)) from error
        finally:
            if not keep:
                await call.cancel()
                await self._pool.give_back(call.connection)

    async def _finished(
        self, found: Result, connection: Connection, answered: deque[tuple[Question, Reply]]
    ) -> Outcome:
        if isinstance(found, mcp.CallToolResult):
            if task := continued_task(found):
                return Outcome(task=task)
            await emit_result(self._turn, self._tool, found, connection, self._settings.allow)
            return Outcome()
        questions: dict[str, Question] = {}
        given: dict[str, Any] = {}
        for key, each in (found.input_requests or {}).items():
            if isinstance(each, mcp.ElicitRequest):
                asked = question(each.params)
                if answered and answered[0][0] == asked:
                    given[key] = _plain(answered.popleft()[1].result())
                else:
                    questions[key] = asked
            elif isinstance(each, mcp.CreateMessageRequest):
                given[key] = _plain(await self._sampled(each.params))
            else:
                given[key] = _plain(mcp.ListRootsResult(roots=[]))
        if questions:
            answered.clear()
        elif not given:
            await asyncio.sleep(1.0)  # the server wants to be asked again later
        return Outcome(
            questions=questions,
            given=given,
            state=found.request_state or "",
            task=self._before.task,
        )

    async def _sampled(self, params: mcp.CreateMessageRequestParams) -> mcp.CreateMessageResult:
        if self._settings.sample is None:
            raise ValueError(REFUSED)
        return await self._settings.sample(params)

    async def _report(self, progress: Progress) -> None:
        about: dict[str, Any] = {"progress": progress.done}
        if progress.total is not None:
            about["total"] = progress.total
        await self._turn.emit(self._turn.working(progress.text, metadata={PROGRESS: about}))

    async def _check_server(self, connection: Connection) -> None:
        """A server that does not respond any more is replaced."""
        if not await connection.responds(CHECK):
            await self._pool.replace(connection)

    def _failure(self, error: MCPError, connection: Connection, resumed: bool) -> UserError:
        # a server may use the code as well
        if error.error.code == mcp.CONNECTION_CLOSED and connection.lost(error):
            return _ServerEnded(self._ended())
        said = words(error) or "The tool failed"
        return _StateRefused(said) if resumed else UserError(said)

    def _ended(self) -> str:
        return (
            f"The MCP server {self._pool.server.name} ended during the call of {self._tool.name}: "
            "it is not known whether the tool has done its work"
        )


class _ServerEnded(UserError):
    """The server has ended during a call."""


class _StateRefused(UserError):
    """The server does not take the state that it gave."""


def _plain(response: mcp.InputResponse) -> dict[str, Any]:
    """An answer as JSON."""
    return response.model_dump(mode="json", by_alias=True, exclude_none=True)


def _sent_to_url(error: MCPError) -> Outcome:
    """The client is sent to a URL before the tool begins."""
    data = mcp.ElicitationRequiredErrorData.model_validate(error.error.data)
    questions = {str(number): question(each) for number, each in enumerate(data.elicitations)}
    return Outcome(questions=questions, refused=True)


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    """Do nothing with progress."""
