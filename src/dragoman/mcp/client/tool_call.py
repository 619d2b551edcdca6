"""A call of a tool as a durable turn.

A step reaches from the start, or from an answer, to the result or the next question. On protocol
2026-07-28 the log then has all that the server needs to continue. With older protocols, the call
waits in its connection for the answer; if the connection is lost, a tool that may be repeated is
called again and gets the logged answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from mcp import MCPError
from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace
from pydantic import ValidationError

from dragoman import StepUncertain, Turn, UserError
from dragoman.mcp.client.call_step import CHECK, ROUNDS, CallSettings, CallStep, Outcome
from dragoman.mcp.client.connection import Connection, ServerUnavailable
from dragoman.mcp.client.connection_pool import ConnectionPool
from dragoman.mcp.client.tool_definitions import ToolDefinition
from dragoman.mcp.client.tool_questions import NotUnderstood, Question, Reply, reply

logger = logging.getLogger("dragoman")

TRIES = 5
"""How often a question is asked again if the answer does not fit."""
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""Seconds between two reads of a task that continues; each pause is twice the last. In between it
needs no worker."""
CANCEL_TASK = "cancel_task"
"""The tool of a server of dragoman that cancels a task."""


class BegunTask(Struct, frozen=True):
    """The task at a server that a call has become. It is saved with ours, so that it can be
    canceled."""

    server: str
    id: str
    extension: bool


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
        try:
            outcome = await self._stretch(Outcome())
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

    async def _stretch(
        self, before: Outcome, replies: Mapping[str, Reply] | None = None
    ) -> Outcome:
        async def call() -> Outcome:
            try:
                found = await CallStep(
                    *(self._turn, self._tool, self._arguments, self._pool, self._settings),
                    key=self._key,
                    answered=self._answered,
                    before=before,
                    replies=replies or {},
                ).run()
            except UserError as error:
                return Outcome(failed=error.text)
            if found.task and not before.task:
                begun = BegunTask(self._pool.server.name, found.task, found.extension)
                await self._turn.save(to_builtins(begun))
            return found

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
    """Seconds before the next read of a task that continues; none before the first."""
    return min(FIRST_PAUSE * 2.0 ** min(looks - 1, 20), LONGEST_PAUSE) if looks else 0.0


async def cancel(turn: Turn, pools: Mapping[str, ConnectionPool]) -> None:
    """The client has canceled the task: have the server cancel the one that the call has become, if
    there is one."""
    if turn.saved is None:
        return
    begun = convert(turn.saved, BegunTask)
    pool = pools[begun.server]
    try:
        async with asyncio.timeout(CHECK):
            connection = await pool.take(turn.caller.owner, tasks=begun.extension)
            try:
                await _cancel(connection, begun)
            finally:
                await pool.give_back(connection)
    except (MCPError, ValidationError, ServerUnavailable, TimeoutError) as error:
        logger.warning("%s: cannot cancel %s: %s", begun.server, begun.id, error)


async def _cancel(connection: Connection, begun: BegunTask) -> None:
    if begun.extension:
        await connection.cancel_task(begun.id)
    else:
        await connection.call(CANCEL_TASK, {"task_id": begun.id}, progress=_ignore)


async def _ignore(progress: float, total: float | None, message: str | None) -> None:
    """Do nothing with progress."""
