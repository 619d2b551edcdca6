"""Turns entries of a log, and tasks, into the values of the API."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import Message, Part, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.admin import (
    CancelRequested,
    Entry,
    Private,
    Received,
    Reply,
    TaskRow,
    WebhookRow,
    failed_turn,
)
from dragoman.console.shapes import (
    ArtifactView,
    EntryView,
    Folded,
    MessageView,
    PartView,
    TaskView,
    WebhookView,
)

LONGEST_TEXT = 200_000
"""The most characters of one text in an answer."""
LARGEST = 600_000
"""The most characters of all texts of a task in an answer."""
_IMAGES = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""The types that are shown as images, by their first bytes."""


def image_type(content: bytes) -> str:
    """The media type of an image that browsers draw safely; empty if the bytes are not one."""
    for kind, starts in _IMAGES.items():
        if content.startswith(starts) and (kind != "image/webp" or content[8:12] == b"WEBP"):
            return kind
    return ""


def state_name(state: Any) -> str:
    """The state in plain words, such as `input-required`."""
    return str(state.name).lower().replace("_", "-")


def part_view(part: Part, path: str = "", *, whole: bool = False) -> PartView:
    """Show a part. `path` is where its content can be fetched. With `whole`, all of the content is
    in the view."""
    named: Any = {"media_type": part.media_type, "filename": part.filename}
    if part.text is not None:
        text = part.text
        cut = 0 if whole else max(0, len(text) - LONGEST_TEXT)
        return PartView(kind="text", text=text[: len(text) - cut], cut=cut, **named)
    if part.url:
        return PartView(kind="link", url=part.url, **named)
    if part.raw is not None:
        if whole:
            raw = b64encode(part.raw).decode()
            return PartView(kind="file", size=len(part.raw), raw=raw, **named)
        image = bool(image_type(part.raw))
        return PartView(kind="file", size=len(part.raw), path=path, image=image, **named)
    return PartView(kind="data", data=part.data, **named)


def parts_view(
    parts: Iterable[Part], path: str = "", *, whole: bool = False
) -> tuple[PartView, ...]:
    """Show parts. The file at index i is at `path`/i, or in the view, with `whole`."""
    return tuple(
        part_view(part, f"{path}/{index}" if path else "", whole=whole)
        for index, part in enumerate(parts)
    )


def entry_view(entry: Entry, task: str, *, whole: bool = False) -> EntryView:
    """Show an entry of this task's log. With `whole`, everything of it is in the view."""
    event, path = entry.event, f"tasks/{task}/files/{entry.number}"
    base: dict[str, Any] = {"number": entry.number, "turn": entry.turn}
    match event:
        case Received():
            message = event.message
            return EntryView(
                kind="message",
                at=event.at,
                who=_who(event.caller),
                skill=event.skill,
                **_message(message, path, whole),
                **base,
            )
        case TaskStatusUpdateEvent():
            status = event.status
            said = {} if status.message is None else _message(status.message, path, whole)
            said["metadata"] = {**said.get("metadata", {}), **(event.metadata or {})}
            return EntryView(
                kind="status",
                at=status.timestamp or "",
                state=state_name(status.state),
                **said,
                **base,
            )
        case TaskArtifactUpdateEvent():
            artifact = event.artifact
            return EntryView(
                kind="artifact",
                id=artifact.artifact_id,
                name=artifact.name,
                description=artifact.description,
                append=bool(event.append),
                last_chunk=bool(event.last_chunk),
                parts=parts_view(artifact.parts, path, whole=whole),
                metadata={**(artifact.metadata or {}), **(event.metadata or {})},
                **base,
            )
        case Reply():
            return EntryView(kind="reply", **_message(event.message, path, whole), **base)
        case CancelRequested():
            return EntryView(
                kind="cancel",
                at=event.at,
                who=_who(event.caller),
                metadata=event.metadata or {},
                **base,
            )
        case Private():
            failed = failed_turn(event)
            if failed is not None:
                return EntryView(
                    kind="attempt",
                    at=event.at,
                    count=failed.attempt,
                    name=failed.worker,
                    value=msgspec.to_builtins(failed),
                    **base,
                )
            return _private(event, base)
        case _:
            return EntryView(kind="unknown", **base)


def _private(event: Private, base: dict[str, Any]) -> EntryView:
    return EntryView(
        kind="private",
        at=event.at,
        name=f"{event.kind} {event.name}".strip(),
        count=event.count,
        sealed=event.sealed,
        value=None if event.sealed else _bounded(event.value),
        **base,
    )


def _bounded(value: Any) -> Any:
    """A JSON value that is not too large to show."""
    raw = bytes(value)
    if len(raw) > LONGEST_TEXT:
        return f"{len(raw)} bytes"
    try:
        return msgspec.json.decode(raw or b"null")
    except msgspec.DecodeError:
        return raw[:1000].decode("utf-8", "replace")


def _message(message: Message, path: str, whole: bool = False) -> dict[str, Any]:
    return {
        "id": message.message_id,
        "role": state_name(message.role),
        "parts": parts_view(message.parts, path, whole=whole),
        "metadata": message.metadata or {},
    }


def _who(caller: Any) -> str:
    realm = f"{caller.realm}/" if caller.realm else ""
    return f"{realm}{caller.identity}" if caller.identity else "anonymous"


def file_in(entry: Entry, index: int) -> Part | None:
    """The part of an entry that is a file, by its index."""
    event = entry.event
    match event:
        case Received() | Reply():
            parts: Sequence[Part] = event.message.parts
        case TaskStatusUpdateEvent():
            parts = event.status.message.parts if event.status.message else ()
        case TaskArtifactUpdateEvent():
            parts = event.artifact.parts
        case _:
            parts = ()
    if 0 <= index < len(parts) and parts[index].raw is not None:
        return parts[index]
    return None


def folded(task: Task, number: int) -> Folded:
    """Show a task as it was after an entry."""
    path = f"tasks/{task.id}/at/{number}"
    status = task.status.message
    found = Folded(
        number=number,
        state=state_name(task.status.state),
        at=task.status.timestamp or "",
        status=None if status is None else _shown(status, f"{path}/status"),
        history=tuple(
            _shown(message, f"{path}/history/{index}") for index, message in enumerate(task.history)
        ),
        artifacts=tuple(
            ArtifactView(
                id=artifact.artifact_id,
                name=artifact.name,
                description=artifact.description,
                parts=parts_view(artifact.parts, f"{path}/artifacts/{index}"),
                metadata=artifact.metadata or {},
            )
            for index, artifact in enumerate(task.artifacts)
        ),
        metadata=task.metadata or {},
    )
    return _shortened(found)


def folded_file(task: Task, place: str, outer: int, index: int) -> Part | None:
    """The file at a place of a task: `status`, `history` or `artifacts`."""
    parts: Sequence[Part] = ()
    if place == "status" and task.status.message is not None:
        parts = task.status.message.parts
    elif place == "history" and 0 <= outer < len(task.history):
        parts = task.history[outer].parts
    elif place == "artifacts" and 0 <= outer < len(task.artifacts):
        parts = task.artifacts[outer].parts
    if 0 <= index < len(parts) and parts[index].raw is not None:
        return parts[index]
    return None


def _shown(message: Message, path: str) -> MessageView:
    return MessageView(**_message(message, path))


def _shortened(found: Folded) -> Folded:
    """Leave out texts once all of them together are too large. The latest messages stay."""
    left, cut = LARGEST, 0

    def short(parts: Sequence[PartView]) -> tuple[PartView, ...]:
        nonlocal left, cut
        kept = []
        for part in parts:
            gone = max(0, len(part.text) - left)
            if gone:
                part = replace(part, text=part.text[:left], cut=part.cut + gone)
            left -= len(part.text)
            cut += gone
            kept.append(part)
        return tuple(kept)

    artifacts = tuple(replace(each, parts=short(each.parts)) for each in found.artifacts)
    history = [replace(each, parts=short(each.parts)) for each in reversed(found.history[-500:])]
    return replace(found, artifacts=artifacts, history=tuple(reversed(history)), cut=cut)


def row_view(row: TaskRow) -> TaskView:
    """Show a row of the store."""
    return TaskView(
        id=row.id,
        agent=row.agent,
        state="replied" if row.replied else state_name(row.state),
        changed=row.changed,
        created=row.created,
        tenant=row.tenant,
        owner=row.identity,
        realm=row.realm,
        context=row.context,
        skill=row.skill,
        text=row.text,
        last=row.last,
        attempt=row.attempt,
        version=row.version,
        holder=row.holder,
        size=row.size,
        over=row.over,
    )


def webhook_view(row: WebhookRow) -> WebhookView:
    """Show a webhook."""
    return WebhookView(
        task=row.task,
        id=row.id,
        agent=row.agent,
        host=row.url,
        cursor=row.cursor,
        last=row.last,
        attempts=row.attempts,
        due=row.due,
        parked=row.parked,
        reason=row.reason,
    )


def first_message(entries: Sequence[Entry]) -> Any:
    """The message that began a task, as A2A has it; None if the log does not show it."""
    for entry in entries:
        if isinstance(entry.event, Received):
            message = replace(entry.event.message, task_id="", context_id="")
            return msgspec.to_builtins(message)
    return None
