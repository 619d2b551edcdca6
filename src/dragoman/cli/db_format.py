"""Formats tasks, log entries and webhooks for `dragoman db`, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.cli.terminal_format import count, plain, size, table, when, word
from dragoman.model.events import CancelRequested, Entry, Private, Received, Reply
from dragoman.model.failed_turn import FAILED_TURN, failed_turn
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from dragoman.server.replay import POSTPONED, SAVED
from dragoman.stores.admin import SavedValue, WebhookRow
from dragoman.stores.task_rows import TaskRow

WIDE = 120
"""The maximum number of characters of a text in one line of a log."""


# -- values


def head(row: TaskRow) -> dict[str, Any]:
    """Return the head of a log as a JSON object."""
    return {
        "id": row.id,
        "state": "replied" if row.replied else word(row.state),
        "changed": row.changed,
        "agent": row.agent,
        "tenant": row.tenant,
        "realm": row.realm,
        "owner": row.identity,
        "context": row.context,
        "skill": row.skill,
        "last": row.last,
        "size": row.size,
        "epoch": row.epoch,
        "holder": row.holder,
        "attempt": row.attempt,
        "due": row.due,
        "deadline": row.deadline,
        "private": row.private,
        "unread": row.unread,
        "canceling": row.canceling,
        "born": row.born,
        "ended": when(row.ended) if row.ended else None,
    }


def webhook(line: WebhookRow) -> dict[str, Any]:
    """Return a webhook and the state of its delivery as a JSON object, without secrets."""
    return {
        "task": line.task,
        "webhook": line.id,
        "url": line.url,
        "cursor": line.cursor,
        "last": line.last,
        "attempts": line.attempts,
        "next": None if line.parked or not line.behind else when(line.due),
        "parked": line.parked,
        "reason": line.reason,
    }


def event(entry: Entry) -> dict[str, Any]:
    """Return an entry of a log as a JSON object."""
    return {
        "number": entry.number,
        "turn": entry.turn,
        "kind": _KINDS[type(entry.event)],
        "event": msgspec.to_builtins(entry.event),
    }


_KINDS: dict[type, str] = {
    Received: "received",
    TaskStatusUpdateEvent: "status",
    TaskArtifactUpdateEvent: "artifact",
    Reply: "reply",
    CancelRequested: "cancel",
    Private: "private",
}


# -- text


def heads(rows: Sequence[TaskRow]) -> str:
    """Format a table of tasks."""
    names = ["task", "state", "changed", "agent", "tenant", "realm", "owner"]
    names += ["context", "entries", "size"]
    cells = [
        [
            *(row.id, word(row.state), row.changed, row.agent, row.tenant),
            *(row.realm, row.identity, row.context, row.last, size(row.size)),
        ]
        for row in rows
    ]
    return table(*_used(names, cells, {"tenant", "realm", "owner"}))


def webhooks(found: Sequence[WebhookRow]) -> str:
    """Format a table of webhooks and their deliveries."""
    names = ["task", "webhook", "url", "delivered", "attempts", "next", "reason"]
    cells = [
        [
            *(line.task, line.id, line.url, f"{line.cursor} of {line.last}"),
            *(line.attempts, _next(line), line.reason),
        ]
        for line in found
    ]
    return table(names, cells)


def text(
    row: TaskRow,
    task: Task,
    lines: Sequence[WebhookRow],
    saved: SavedValue | None,
    postponed: str = "",
) -> Iterator[str]:
    """Format a task, line by line."""
    state = "replied (there is no task)" if row.replied else word(row.state)
    facts: list[tuple[str, object]] = [
        ("task", row.id),
        ("state", f"{state} since {row.changed}"),
        ("agent", row.agent),
        ("skill", row.skill),
        ("tenant", row.tenant),
        ("realm", row.realm),
        ("owner", row.identity or "anonymous"),
        ("context", row.context),
        ("value", f"{size(saved.size)}, saved by {saved.saver}" if saved else ""),
        ("log", f"{row.last} entries, {size(row.size)}"),
        ("epoch", row.epoch),
        ("holder", f"{row.holder}, attempt {row.attempt}" if row.holder else "nobody"),
        ("waits", _waits(row)),
        ("because", postponed),
        ("private", f"{row.private} of the entries" if row.private else ""),
        ("unread", count(row.unread, "message")),
        ("cancel", "requested" if row.canceling else ""),
        ("ended", when(row.ended) if row.ended else ""),
    ]
    if not row.born:
        facts.insert(2, ("born", "not yet: the agent may reply without a task"))
    for name, value in facts:
        if value != "":
            yield f"{name:9}{plain(value)}"
    yield ""
    for message in task.history:
        yield from _message(message)
    if task.status.message is not None:
        yield from _message(task.status.message)
    for artifact in task.artifacts:
        yield from _artifact(artifact)
    if lines:
        yield ""
        yield webhooks(lines)


def saved(entries: Iterable[Entry]) -> Any:
    """Return the value that the handler saved last, such as the plan of an orchestrator; None if it
    saved none."""
    found = None
    for each in entries:
        if isinstance(each.event, Private) and each.event.kind == SAVED:
            found = each.event.value
    return None if found is None else msgspec.json.decode(found)


def postponed(row: TaskRow, entries: Sequence[Entry]) -> str:
    """Return why the turn that waits for another attempt could not continue; empty if no reason is
    known."""
    private = [each.event for each in entries if isinstance(each.event, Private)]
    if row.over or row.due <= 0 or not private or private[-1].kind != POSTPONED:
        return ""
    return private[-1].name


def failed_turns(entries: Iterable[Entry]) -> list[Private]:
    """Return the entries of turns that failed, were lost or ran again."""
    return [
        each.event
        for each in entries
        if isinstance(each.event, Private) and each.event.kind == FAILED_TURN
    ]


def failed_value(event: Private) -> dict[str, Any]:
    """Return how a turn went wrong as a JSON object; without the key, only when."""
    found = failed_turn(event)
    about = {} if found is None else msgspec.to_builtins(found)
    return {"at": event.at, "sealed": found is None, **about}


def failed_text(events: Iterable[Private]) -> Iterator[str]:
    """Format how turns went wrong, line by line."""
    for event in events:
        yield ""
        found = failed_turn(event)
        if found is None:
            yield f"{'failed':9}{event.at} (encrypted; set encryption_keys as the server has it)"
            continue
        what = f"{found.text} (attempt {found.attempt} of the turn {found.turn}"
        worker = f" on {found.worker}" if found.worker else ""
        yield f"{'failed':9}{event.at} {plain(what + worker)})"
        for line in found.traceback.splitlines():
            yield f"{'':9}{plain(line)}".rstrip()


def saved_text(value: Any) -> str:
    """Format what the handler saved."""
    first, *others = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    return "\n".join(["", f"saved    {plain(first)}", *(f"{'':9}{plain(each)}" for each in others)])


_AWAITED = {
    "time": "its time",
    "message": "a message",
    "notification": "another agent's task",
    "writer": "the writer that it was handed over to",
}


def _waits(row: TaskRow) -> str:
    """Describe what a suspended handler waits for; empty if it does not wait."""
    if row.over or not (row.waits or row.due):
        return ""
    what = _AWAITED.get(row.waits, "another attempt")
    until = ", which has come" if row.due < 0 else ""
    if row.due > 0:
        until = f", until {when(row.due)}"
    limit = f"; it must end by {when(row.deadline)}" if row.deadline else ""
    return f"for {what}{until}{limit}"


def entry(found: Entry) -> str:
    """Format an entry in one line."""
    at, kind, what = _summary(found)
    return f"{found.number:>6}  {at:24}  {kind:14}  {plain(_cut(what))}".rstrip()


def _summary(entry: Entry) -> tuple[str, str, str]:
    """Return the time, the kind and the content of an entry."""
    event = entry.event
    if isinstance(event, Received):
        return event.at, "received", _parts(event.message.parts)
    if isinstance(event, CancelRequested):
        return event.at, "cancel", "requested"
    if isinstance(event, Private):
        if (failed := failed_turn(event)) is not None:
            return event.at, event.kind, f"attempt {failed.attempt}: {failed.text}"
        number = f" ({event.count + 1})" if event.count else ""
        return event.at, event.kind, f"{event.name}{number}"
    if isinstance(event, Reply):
        return "", "reply", _parts(event.message.parts)
    if isinstance(event, TaskArtifactUpdateEvent):
        name = event.artifact.name or event.artifact.artifact_id
        more = "+ " if event.append else ""
        return "", "artifact", f"{name}: {more}{_parts(event.artifact.parts)}"
    assert isinstance(event, TaskStatusUpdateEvent)
    status = event.status
    text = _parts(status.message.parts) if status.message else ""
    return status.timestamp or "", word(status.state), text


def _message(message: Message) -> Iterator[str]:
    sender = "user" if message.role is Role.USER else "agent"
    yield from _block(sender, message.parts)


def _artifact(artifact: Artifact) -> Iterator[str]:
    yield ""
    yield f"artifact {plain(artifact.name or artifact.artifact_id)}"
    yield from _block("", artifact.parts)


def _block(label: str, parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        for line in _part(part).splitlines() or [""]:
            yield f"{label:9}{plain(line)}".rstrip()
            label = ""


def _parts(parts: Sequence[Part]) -> str:
    return " ".join(map(_part, parts))


def _part(part: Part) -> str:
    if part.text is not None:
        return part.text
    if part.data is not UNSET:
        return msgspec.json.encode(part.data).decode()
    name = f"{part.filename} " if part.filename else ""
    kind = f" {part.media_type}" if part.media_type else ""
    if part.url is not None:
        return f"<{name}{part.url}{kind}>"
    return f"<{name}{size(len(part.raw or b''))}{kind}>"


def _cut(text: str) -> str:
    return text if len(text) <= WIDE else f"{text[: WIDE - 1]}…"


def _next(line: WebhookRow) -> str:
    if line.parked:
        return "parked"
    return when(line.due) if line.behind else "nothing is waiting"


def _used(
    names: list[str], rows: list[list[Any]], optional: set[str]
) -> tuple[list[str], list[list[Any]]]:
    """Remove the optional columns that are empty in every row."""
    keep = [
        place
        for place, name in enumerate(names)
        if name not in optional or any(row[place] for row in rows)
    ]
    return [names[place] for place in keep], [[row[place] for place in keep] for row in rows]
