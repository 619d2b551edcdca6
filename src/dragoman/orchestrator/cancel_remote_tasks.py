"""Cancels tasks of other agents when nobody waits for them any more. A separate durable task does
it over restarts, for at most a day, until each agent has ended its task or refused."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman import A2AError, Agent, RemoteTask, Turn
from dragoman.client import PAUSE_EXTENSIONS, Client

logger = logging.getLogger("dragoman")

DAY = 86400.0
FIRST_PAUSE, LAST_PAUSE = 2.0, 900.0
LIMIT = 10.0
"""Seconds for one cancel."""
ENDED = (-32001, -32002)
"""The codes of agents that have no such task, or have ended it."""


def canceler(options: Callable[[str], Mapping[str, Any]], *, key: str) -> Agent:
    """The agent that cancels. `options` are those of a client for an address."""
    agent = Agent("Canceler", key=key, description="Cancels tasks of other agents.")

    @agent.skill(durable=True, timeout=DAY + 3600)
    async def cancel(turn: Turn, tasks: list[RemoteTask], of: str) -> None:
        """Cancel these tasks."""
        began, pause = turn.now(), FIRST_PAUSE
        left = list(tasks)
        while left:

            async def attempt(now: list[RemoteTask] = left) -> list[RemoteTask]:
                return [task for task in now if not await _canceled(task, options(task.address))]

            left = await turn.step("cancel", attempt)
            if not left or (turn.now() - began).total_seconds() > DAY:
                break
            await turn.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
        for task in left:
            logger.warning(
                "task %s at %s was not canceled in a day", task.id, task.address, extra={"task": of}
            )
            await turn.emit(turn.write(f"not canceled: {task.id} at {task.address}\n"))

    return agent


async def cancel_later(client: Client, tasks: Sequence[RemoteTask], of: str) -> None:
    """Have the agent behind this client cancel these tasks, once."""
    listed = [{"address": task.address, "id": task.id} for task in tasks]
    key = hashlib.sha256(msgspec.json.encode((of, listed))).hexdigest()[:32]
    await client.send({"tasks": listed, "of": of}, wait=False, key=key)


async def _canceled(task: RemoteTask, options: Mapping[str, Any]) -> bool:
    """Whether a task has ended: it was canceled, or had ended, or its agent refuses."""
    extensions = (*options.get("extensions", ()), *PAUSE_EXTENSIONS)
    more = {"deadline": LIMIT, **options, "extensions": extensions}
    try:
        async with Client.connect(task.address, **more) as client:
            await client.task(task.id).cancel()
    except A2AError as error:
        if error.rpc in ENDED or error.http in (400, 401, 403, 404, 409):
            logger.info("task %s at %s was not canceled: %s", task.id, task.address, error)
            return True
        return False
    except (OSError, TimeoutError):
        return False
    return True
