"""One step of a call: it calls the tool, or continues a call, until the result or the next
question."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mcp.types as mcp
from mcp import MCPError
from msgspec import Struct
from pydantic import TypeAdapter, ValidationError

from dragoman import Turn, UserError
from dragoman.mcp.client.connection import Connection, Sample, ServerUnavailable
from dragoman.mcp.client.connection_pool import ConnectionPool
from dragoman.mcp.client.held_calls import HeldCalls
from dragoman.mcp.client.running_call import Progress, RunningCall, TimedOut, words
from dragoman.mcp.client.sampling import REFUSED
from dragoman.mcp.client.server_tasks import GOING_ON, TaskBegun, TaskState, needs_tasks
from dragoman.mcp.client.tool_definitions import ToolDefinition
from dragoman.mcp.client.tool_questions import Question, Reply, question
from dragoman.mcp.client.tool_results import continued_task, emit_result
from dragoman.prompt_safety import clean

PROGRESS = "urn:dragoman:mcp-progress:v1"
"""The key of the metadata of a progress report: `progress` and, if it is known, `total`."""
ROUNDS = 50
"""The most questions of a call, and the most rounds without one."""
REPEATS = 2
"""How often a tool that may be repeated is called again because the server has ended."""
CHECK = 5.0
"""Seconds in which a server must answer after a call has timed out."""
WAIT = 30.0
"""Seconds for which a step follows a task of the server."""
FIRST_LOOK = 0.1
"""Seconds between the first two looks at a task of the extension."""
ANSWERED = 5.0
"""Seconds for which a task may still ask what was answered."""
GET_TASK = "get_task"
"""The tool of a server of dragoman that waits for the end of a task."""
_RESPONSES: TypeAdapter[dict[str, mcp.InputResponse]] = TypeAdapter(dict[str, mcp.InputResponse])


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stretch of a call ended: with questions, or for good."""

    questions: dict[str, Question] = {}
    """What the tool asks, by the keys that the server gave; none: the result is in the task."""
    given: dict[str, Any] = {}
    """What was answered without the client."""
    state: str | None = None
    """What the server needs to continue."""
    held: bool = False
    """The call waits in its connection."""
    task: str = ""
    """The task at the server that the call has become, if it continues."""
    extension: bool = False
    """It is one of MCP's extension for tasks, and not of the tools of a server of dragoman."""
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


class CallStep:
    """What is done in one step of a call."""

    def __init__(
        self,
        turn: Turn,
        tool: ToolDefinition,
        arguments: Mapping[str, Any],
        pool: ConnectionPool,
        settings: CallSettings,
        *,
        key: str,
        answered: Sequence[tuple[Question, Reply]],
        before: Outcome,
        replies: Mapping[str, Reply],
    ) -> None:
        """`before` is how the step before ended, `replies` are the client's to its questions, and
        `answered` has all that were answered so far. `key` names the turn."""
        self._turn, self._tool, self._arguments = turn, tool, arguments
        self._pool, self._settings = pool, settings
        self._key, self._answered = key, answered
        self._before, self._replies = before, replies
        self._name, self._repeatable = self._tool.name, self._tool.repeatable
        if before.task and not before.extension:
            wait = min(WAIT, self._settings.timeout / 2)
            self._name, self._repeatable = GET_TASK, True
            self._arguments = {"task_id": before.task, "wait": wait}

    async def run(self) -> Outcome:
        before, replies = self._before, self._replies
        if before.extension:
            return await self._task()
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
        """Call the tool: from the beginning, with the answers so far, or with what it needs to
        continue."""
        ends = 0
        while True:
            try:
                return await self._rounds(deque(answered), given, state)
            except _ServerEnded:
                ends += 1
                if ends > REPEATS or not self._repeatable:
                    raise
            except _NeedsTasks:
                continue

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
            tasks = self._tool.name in self._pool.task_tools
            connection = await self._pool.take(self._turn.caller.owner, tasks=tasks)
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
                if isinstance(found, TaskBegun):
                    return Outcome(task=found.task_id, extension=True)
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
            if needs_tasks(error) and not call.connection.tasks:
                self._pool.task_tools.add(self._tool.name)
                raise _NeedsTasks(words(error)) from error
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
        self,
        found: mcp.CallToolResult | mcp.InputRequiredResult,
        connection: Connection,
        answered: deque[tuple[Question, Reply]],
    ) -> Outcome:
        if isinstance(found, mcp.CallToolResult):
            if task := continued_task(found):
                return Outcome(task=task)
            await emit_result(self._turn, self._tool, found, connection, self._settings.allow)
            return Outcome()
        questions, given = await self._requests(found.input_requests or {}, answered)
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

    async def _requests(
        self, requests: mcp.InputRequests, answered: deque[tuple[Question, Reply]]
    ) -> tuple[dict[str, Question], dict[str, Any]]:
        """What the client must answer, and the answers to everything else."""
        questions: dict[str, Question] = {}
        given: dict[str, Any] = {}
        for key, each in requests.items():
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
        return questions, given

    async def _task(self) -> Outcome:
        """Follow the task of the server for a while."""
        for attempt in range(REPEATS + 1):
            try:
                connection = await self._pool.take(self._turn.caller.owner, tasks=True)
            except ServerUnavailable as error:
                raise UserError(str(error)) from error
            try:
                return await self._followed_task(connection)
            except MCPError as error:
                if attempt == REPEATS or not connection.lost(error):
                    raise UserError(words(error) or "The tool failed") from error
            except (ValidationError, ServerUnavailable) as error:
                raise UserError(f"The task of the tool {self._tool.name} is lost") from error
            except ValueError as error:  # a question that must not be passed on
                raise UserError(str(error)) from error
            finally:
                await self._pool.give_back(connection)
        raise AssertionError("unreachable")

    async def _followed_task(self, connection: Connection) -> Outcome:
        id = self._before.task
        answers = {key: _plain(each.result()) for key, each in self._replies.items()}
        responses = _RESPONSES.validate_python({**self._before.given, **answers}, by_name=False)
        if responses:
            await connection.update_task(id, responses)
        began, pause, said = time.monotonic(), FIRST_LOOK, ""
        while True:
            task = await connection.task(id)
            if task.status_message and task.status_message != said:
                said = task.status_message
                text = Progress(0, message=said).text
                await self._turn.emit(self._turn.working(text))
            if task.status not in GOING_ON:
                return await self._ended_task(task, connection)
            passed = time.monotonic() - began
            if requests := task.input_requests or {}:
                questions, given = await self._requests(requests, deque())
                # it may take a moment until what was answered is asked no more
                same = questions == self._before.questions and passed < ANSWERED
                if questions and not same:
                    return Outcome(questions=questions, given=given, task=id, extension=True)
                if given and not questions:
                    answered = _RESPONSES.validate_python(given, by_name=False)
                    await connection.update_task(id, answered)
            if passed > WAIT:
                return Outcome(task=id, extension=True)
            await asyncio.sleep(pause)
            pause = min(2 * pause, max((task.poll_interval_ms or 1000) / 1000, FIRST_LOOK), WAIT)

    async def _ended_task(self, task: TaskState, connection: Connection) -> Outcome:
        if task.status == "completed":
            result = mcp.CallToolResult.model_validate(task.result or {}, by_name=False)
            await emit_result(self._turn, self._tool, result, connection, self._settings.allow)
            return Outcome()
        why = task.error.message if task.error is not None else task.status_message
        raise UserError(clean(why or f"The task of the tool is {task.status}", 2000))

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


class _NeedsTasks(UserError):
    """The server runs this tool only as a task of its own."""


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
