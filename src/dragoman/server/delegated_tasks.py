"""The tasks that a task began at other agents, and how they are canceled with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dragoman.model import clock
from dragoman.model.errors import TaskNotCancelable, TaskNotFound
from dragoman.model.events import Entry, Private
from dragoman.model.remote_task import SEEN, SENT, BegunTask, RemoteTask, SeenTask
from dragoman.stores.store import Head, Store, UnknownEntry
from dragoman.telemetry.logs import logger

if TYPE_CHECKING:
    from dragoman.agent.agent import Agent

LONGEST = 3.0
"""Seconds that the cancels at other agents may take."""

_remote = msgspec.json.Decoder(RemoteTask).decode
begun = msgspec.json.Decoder(BegunTask).decode
"""The task of such an entry's value, with what it takes to attach to it."""


def sent(remote: RemoteTask, name: str = "") -> Private:
    """The private entry for a task of another agent. With a `name`, it is that of the send that
    began the task or went on with it."""
    return Private(kind=SENT, name=name, value=Raw(msgspec.json.encode(remote)), at=clock.now())


def seen(found: SeenTask) -> Entry:
    """The private entry with the state of a task of another agent."""
    event = Private(kind=SEEN, value=Raw(msgspec.json.encode(found)), at=clock.now())
    return Entry(0, event, 0, b"")


def delegated(entries: Iterable[Entry]) -> tuple[RemoteTask, ...]:
    """The tasks that the private entries of a log name, each once."""
    found: dict[RemoteTask, None] = {}
    for entry in entries:
        if isinstance(entry.event, Private) and entry.event.kind == SENT:
            found[_remote(entry.event.value)] = None
    return tuple(found)


async def delegated_by(store: Store, head: Head) -> tuple[RemoteTask, ...]:
    """The tasks that a task began at other agents."""
    if not head.private:
        return ()
    try:
        return delegated(await store.private(head.scope, head.id))
    except UnknownEntry:  # what a newer version wrote, its workers can read
        return ()


async def cancel(agent: Agent, task: str, remotes: Sequence[RemoteTask], seconds: float) -> None:
    """Cancel tasks of other agents, and log those that could not be canceled."""
    limit = min(seconds, LONGEST)
    await asyncio.gather(*(_cancel(agent, task, remote, limit) for remote in remotes))


async def _cancel(agent: Agent, task: str, remote: RemoteTask, seconds: float) -> None:
    from dragoman.client import PAUSE_EXTENSIONS, Client
    from dragoman.client.client import INSIDE

    try:
        async with asyncio.timeout(seconds):
            options = agent.connection(remote.address)
            if remote.address == INSIDE and not options:
                not_canceled(task, [remote], "the agent has no connection for it")
                return
            # an agent may require these of every request
            extensions = (*options.get("extensions", ()), *PAUSE_EXTENSIONS)
            more: Any = {**options, "extensions": extensions}
            async with Client.connect(remote.address, **more) as client:
                await client.task(remote.id).cancel()
    except (TaskNotCancelable, TaskNotFound):
        return  # it has ended
    except (Exception, asyncio.CancelledError) as error:  # also of the author's `connections`
        not_canceled(task, [remote], error)
        if isinstance(error, asyncio.CancelledError):
            raise


async def log_remaining(store: Store, head: Head) -> None:
    """A task was canceled without its worker: log the tasks that nobody has canceled."""
    not_canceled(head.id, await delegated_by(store, head), "no worker was there in time")


def not_canceled(task: str, remotes: Iterable[RemoteTask], why: object) -> None:
    """Log tasks of other agents that may still be running."""
    for remote in remotes:
        logger.warning(
            "a task was canceled, but not task %s at %s, which it began: %s",
            *(remote.id, remote.address, str(why) or type(why).__name__),
            extra={"task": task},
        )
