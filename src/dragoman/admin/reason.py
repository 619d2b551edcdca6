"""Says in a sentence why a task is where it is."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import Struct

from dragoman.admin.delegations import Delegated, delegations
from dragoman.model import clock
from dragoman.model.approvals import request_in
from dragoman.model.events import CancelRequested, Entry, Private, Received, Reply
from dragoman.model.failed_turn import FailedTurn, failed_turn
from dragoman.model.pauses import pause_of
from dragoman.model.task_secret import WAITING
from dragoman.model.types import Task, TaskState, TaskStatusUpdateEvent
from dragoman.stores.task_rows import TaskRow, beginning

POSTPONED = "postponed"
"""The kind of the private entry that says why the code could not continue the task."""


class _Last(Struct):
    """The last entries that matter."""

    received: str = ""
    """When the last message was accepted."""
    status: TaskStatusUpdateEvent | None = None
    canceled: CancelRequested | None = None
    failed: FailedTurn | None = None
    postponed: str = ""
    awaited: str = ""
    """The task of another agent that the handler waits for."""
    delegated: tuple[Delegated, ...] = ()


def reason(row: TaskRow, entries: Iterable[Entry], *, now: float | None = None) -> str:
    """Return one plain sentence that says why the task is where it is: what it waits for, who runs
    it until when, or why it has ended. `entries` are its log, private entries too."""
    now = time.time() if now is None else now
    last = _last(list(entries))
    if row.over:
        return _ended(row, last)
    if row.canceling:
        by = _who(last.canceled)
        if row.holder:
            return f"{by} asked to cancel it, and {row.holder} is stopping it."
        return f"{by} asked to cancel it, and it waits for a worker that undoes its work."
    if row.holder:
        return _held(row, now)
    if row.waits == "writer":
        until = f" until {_when(row.deadline)}" if row.deadline else ""
        return f"It was handed over, and waits{until} for a write from outside."
    if row.due < 0:
        return f"It waits for a free worker since its time has come; its state is {_word(row)}."
    if row.waits == "time":
        return f"It sleeps until {_when(row.due)}."
    if row.waits == "notification":
        return _remote(row, last)
    if row.due > 0 and not row.waits:
        return _again(row, last)
    if row.unread:
        since = last.received or row.changed
        failed = f" The last attempt went wrong: {last.failed.text}." if last.failed else ""
        return f"It is queued since {since}, because no worker has taken it.{failed}"
    return _interrupted(row, last)


def _last(entries: list[Entry]) -> _Last:
    last = _Last(delegated=delegations(entries))
    for entry in entries:
        event = entry.event
        if isinstance(event, Received):
            last.received, last.postponed = event.at, ""
        elif isinstance(event, TaskStatusUpdateEvent):
            last.status = event
        elif isinstance(event, CancelRequested):
            last.canceled = event
        elif isinstance(event, Private):
            last.failed = failed_turn(event) or last.failed
            if event.kind == POSTPONED:
                last.postponed = event.name
            elif event.kind == WAITING:
                last.awaited = event.name
        elif isinstance(event, Reply):
            last.status = None
    return last


def _ended(row: TaskRow, last: _Last) -> str:
    if row.replied:
        return "It has ended, because the agent replied directly, without a task."
    said = f": \u201c{_said(last)}\u201d" if _said(last) else ""
    failed = last.failed
    if row.state is TaskState.FAILED and failed is not None and failed.turn == row.turn:
        worker = f" on {failed.worker}" if failed.worker else ""
        return (
            f"It failed at {row.changed}, because {failed.text} (attempt {failed.attempt}{worker})."
        )
    if row.state is TaskState.CANCELED:
        by = f"{_who(last.canceled)} asked for it" if last.canceled else "the agent canceled it"
        return f"It was canceled at {row.changed}, because {by}{said}."
    what = {
        TaskState.COMPLETED: "It was completed",
        TaskState.FAILED: "It failed",
        TaskState.REJECTED: "It was rejected",
    }[row.state]
    return f"{what} at {row.changed}, because the agent ended it{said}."


def _held(row: TaskRow, now: float) -> str:
    attempt = f" (attempt {row.attempt})" if row.attempt > 1 else ""
    until = _when(row.lease)
    if row.lease < now:
        return (
            f"{row.holder} worked on it{attempt}, but its lease expired at {until}; a server will "
            "take the task from it."
        )
    return f"{row.holder} works on it{attempt}, and holds it until {until}."


def _remote(row: TaskRow, last: _Last) -> str:
    where = next((each for each in last.delegated if each.task == last.awaited), None)
    at = f" at {where.agent or where.address}" if where is not None else ""
    what = f"the remote task {last.awaited}{at}" if last.awaited else "another agent's task"
    again = f"; it looks again at {_when(row.due)}" if row.due > 0 else ""
    return f"It waits for {what}{again}."


def _again(row: TaskRow, last: _Last) -> str:
    until = _when(row.due)
    if last.postponed:
        return f"The code cannot continue it: {last.postponed}; a worker tries again at {until}."
    if last.failed is not None and last.failed.turn == row.turn:
        return f"It runs again at {until}, because {last.failed.text}."
    return f"It runs again at {until}, after an earlier turn of its context."


def _interrupted(row: TaskRow, last: _Last) -> str:
    said, until = _said(last), ""
    if row.due > 0:
        until = f", until {_when(row.due)} at the latest"
    quoted = f" to \u201c{said}\u201d" if said else ""
    asked = request_in(last.status.metadata) if last.status is not None else None
    if row.state.interrupted and asked is not None:
        what = f" of \u201c{said}\u201d" if said else ""
        return f"It waits for the owner's approval{what}, which must come by {asked.expires}."
    if last.status is not None:
        pause = pause_of(Task(id=row.id, context_id="", status=last.status.status))
        if pause is not None and not pause.in_words:
            return f"It waits for its client: {pause.text}{until}."
    if row.state is TaskState.INPUT_REQUIRED:
        return f"It waits for the owner's answer{quoted}{until}."
    if row.state is TaskState.AUTH_REQUIRED:
        what = f": \u201c{said}\u201d" if said else ""
        return f"It waits for the owner to log in{what}."
    if row.waits == "message":
        return f"It waits for a message of the owner{until}."
    return f"Its state is {_word(row)} since {row.changed}, and nothing is left to do for a worker."


def _said(last: _Last) -> str:
    message = last.status.status.message if last.status is not None else None
    return beginning(message.parts) if message is not None else ""


def _who(canceled: CancelRequested | None) -> str:
    if canceled is None:
        return "somebody"
    return canceled.caller.identity or "an anonymous caller"


def _word(row: TaskRow) -> str:
    return row.state.name.lower().replace("_", "-")


def _when(seconds: float) -> str:
    return clock.stamp(seconds)
