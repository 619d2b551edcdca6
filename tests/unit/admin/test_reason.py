"""Why a task is where it is, in a sentence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from dragoman import TaskState
from dragoman.admin import CancelRequested, Entry, Event, Private, Received, TaskRow, reason
from dragoman.model.approvals import GRANT, issue
from dragoman.model.caller import Caller
from dragoman.model.failed_turn import FailedTurn, failed_turn_entry
from dragoman.model.remote_task import SENT, SentTask
from dragoman.model.types import (
    Message,
    Part,
    Role,
    TaskStatus,
    TaskStatusUpdateEvent,
)

AT = "2026-01-31T12:00:00.000Z"
NOON = 1769860800.0
LATER = "2026-01-31T13:00:00.000Z"
HOUR = NOON + 3600
S = TaskState


def row(state: TaskState = S.WORKING, **more: Any) -> TaskRow:
    """A row of the table."""
    usual: dict[str, Any] = {
        **dict.fromkeys(("agent", "tenant", "owner", "context", "skill", "text", "holder"), ""),
        **dict.fromkeys(("version", "size", "private", "epoch", "unread"), 0),
        "lease": 0.0,
        "due": 0.0,
        "deadline": 0.0,
        "ended": 0.0,
        "waits": "",
        **dict.fromkeys(("replied", "canceling", "hooked"), False),
        "id": "t",
        "state": state,
        "born": True,
        "created": AT,
        "changed": AT,
        "last": 2,
        "turn": 1,
        "attempt": 1,
    }
    return TaskRow(**{**usual, **more})


def log(*events: Event) -> list[Entry]:
    """A log that begins with a message."""
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="hello"),))
    first = Received(message=message, caller=Caller(identity="ann"), at=AT)
    return [Entry(number, event, 1) for number, event in enumerate((first, *events), start=1)]


def said(state: TaskState, text: str = "", metadata: Any = None) -> TaskStatusUpdateEvent:
    """A status with a text."""
    message = Message(message_id="s", role=Role.AGENT, parts=(Part(text=text),)) if text else None
    return TaskStatusUpdateEvent(
        task_id="t",
        context_id="c",
        status=TaskStatus(state=state, message=message, timestamp=AT),
        metadata=metadata,
    )


def failed(cause: str = "lost", text: str = "the worker stopped") -> Private:
    """A turn that failed."""
    return failed_turn_entry(
        FailedTurn(turn=1, attempt=2, worker="worker:1", reason=cause, text=text)
    )


def sent(agent: str = "Helper") -> Private:
    """A task at another agent."""
    value = msgspec.json.encode(SentTask("https://x.example", "r1", agent=agent))
    return Private(kind=SENT, value=Raw(value))


CANCEL = CancelRequested(caller=Caller(identity="bob"), at=AT)
GRANTED = msgspec.to_builtins(issue("t", {"pay": 3}, 600))
CASES: list[tuple[TaskRow, list[Entry], str]] = [
    (
        row(S.SUBMITTED, unread=1),
        log(),
        f"It is queued since {AT}, because no worker has taken it.",
    ),
    (
        row(unread=1),
        log(failed()),
        f"It is queued since {AT}, because no worker has taken it. "
        "The last attempt went wrong: the worker stopped.",
    ),
    (
        row(holder="worker:1", lease=HOUR),
        log(),
        f"worker:1 works on it, and holds it until {LATER}.",
    ),
    (
        row(holder="worker:1", lease=HOUR, attempt=2),
        log(),
        f"worker:1 works on it (attempt 2), and holds it until {LATER}.",
    ),
    (
        row(holder="worker:1", lease=NOON - 60),
        log(),
        "worker:1 worked on it, but its lease expired at 2026-01-31T11:59:00.000Z; a server will "
        "take the task from it.",
    ),
    (row(waits="time", due=HOUR), log(), f"It sleeps until {LATER}."),
    (
        row(waits="time", due=-1.0),
        log(),
        "It waits for a free worker since its time has come; its state is working.",
    ),
    (
        row(S.INPUT_REQUIRED),
        log(said(S.INPUT_REQUIRED, "Which dates?")),
        "It waits for the owner's answer to “Which dates?”.",
    ),
    (
        row(S.INPUT_REQUIRED, waits="message", due=HOUR),
        log(said(S.INPUT_REQUIRED, "Which dates?")),
        f"It waits for the owner's answer to “Which dates?”, until {LATER} at the latest.",
    ),
    (row(waits="message"), log(), "It waits for a message of the owner."),
    (
        row(S.AUTH_REQUIRED),
        log(said(S.AUTH_REQUIRED, "Log in at x")),
        "It waits for the owner to log in: “Log in at x”.",
    ),
    (
        row(S.INPUT_REQUIRED),
        log(said(S.INPUT_REQUIRED, "Pay 3?", {GRANT: GRANTED})),
        f"It waits for the owner's approval of “Pay 3?”, which must come by {GRANTED['expires']}.",
    ),
    (
        row(waits="notification", due=HOUR),
        log(sent(), Private(kind="waiting", name="r1")),
        f"It waits for the remote task r1 at Helper; it looks again at {LATER}.",
    ),
    (
        row(waits="notification"),
        log(sent(""), Private(kind="waiting", name="r1")),
        "It waits for the remote task r1 at https://x.example.",
    ),
    (
        row(waits="writer", deadline=HOUR),
        log(),
        f"It was handed over, and waits until {LATER} for a write from outside.",
    ),
    (
        row(due=HOUR, unread=1),
        log(failed()),
        f"It runs again at {LATER}, because the worker stopped.",
    ),
    (
        row(due=HOUR, unread=1),
        log(Private(kind="postponed", name="the log has step 'a'")),
        f"The code cannot continue it: the log has step 'a'; a worker tries again at {LATER}.",
    ),
    (
        row(due=HOUR, unread=1),
        log(),
        f"It runs again at {LATER}, after an earlier turn of its context.",
    ),
    (
        row(canceling=True, holder="worker:1", lease=HOUR),
        log(CANCEL),
        "bob asked to cancel it, and worker:1 is stopping it.",
    ),
    (
        row(canceling=True),
        log(CANCEL),
        "bob asked to cancel it, and it waits for a worker that undoes its work.",
    ),
    (
        row(S.COMPLETED),
        log(said(S.COMPLETED)),
        f"It was completed at {AT}, because the agent ended it.",
    ),
    (
        row(S.REJECTED),
        log(said(S.REJECTED, "No")),
        f"It was rejected at {AT}, because the agent ended it: “No”.",
    ),
    (
        row(S.FAILED),
        log(said(S.FAILED, "No seats")),
        f"It failed at {AT}, because the agent ended it: “No seats”.",
    ),
    (
        row(S.FAILED),
        log(failed("error", "the handler raised ValueError"), said(S.FAILED, "The agent failed")),
        f"It failed at {AT}, because the handler raised ValueError (attempt 2 on worker:1).",
    ),
    (
        row(S.CANCELED),
        log(CANCEL, said(S.CANCELED)),
        f"It was canceled at {AT}, because bob asked for it.",
    ),
    (
        row(S.CANCELED),
        log(said(S.CANCELED)),
        f"It was canceled at {AT}, because the agent canceled it.",
    ),
    (
        row(replied=True),
        log(),
        "It has ended, because the agent replied directly, without a task.",
    ),
    (
        row(),
        log(),
        f"Its state is working since {AT}, and nothing is left to do for a worker.",
    ),
]


@pytest.mark.parametrize(("row", "entries", "expected"), CASES, ids=map(str, range(len(CASES))))
def test_every_reason(row: TaskRow, entries: list[Entry], expected: str) -> None:
    assert reason(row, entries, now=NOON) == expected
