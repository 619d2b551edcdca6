"""The stored form of a log's contents, which is the same in every database."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from dragoman.dialects import v1_0
from dragoman.model.events import CancelRequested, Entry, Private, Received, Reply
from dragoman.model.types import (
    ENUM_NUMBERS,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatusUpdateEvent,
)
from dragoman.stores.store import UnknownEntry, Webhook

RECEIVED, STATUS, ARTIFACT, REPLY, CANCEL, PRIVATE = range(1, 7)
KINDS: dict[type, int] = {
    Received: RECEIVED,
    TaskStatusUpdateEvent: STATUS,
    TaskArtifactUpdateEvent: ARTIFACT,
    Reply: REPLY,
    CancelRequested: CANCEL,
    Private: PRIVATE,
}
STATES: Any = ENUM_NUMBERS[TaskState]

encode = msgspec.json.Encoder().encode
_received = msgspec.json.Decoder(Received).decode
_streamed = msgspec.json.Decoder(StreamResponse).decode
_private = msgspec.json.Decoder(Private).decode
_request = msgspec.json.Decoder(CancelRequested).decode
decode_canceled = msgspec.json.Decoder(TaskStatusUpdateEvent).decode
decode_task = msgspec.json.Decoder(Task).decode
decode_webhook = msgspec.json.Decoder(Webhook).decode


class _Accepted(Struct):
    at: str


_accepted = msgspec.json.Decoder(_Accepted).decode


def accepted_at(body: bytes) -> str:
    """Return when the message in these bytes was accepted; empty if they are not readable."""
    try:
        return _accepted(body).at
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


NOTHING = Raw(b"null")
HIDDEN = Private(kind="hidden")
"""Stands for a private entry whose content was not requested."""


def body(entry: Entry) -> tuple[int, bytes]:
    """Return an entry's kind and its bytes. An event is stored in the form in which it is
    streamed."""
    event = entry.event
    kind = KINDS[type(event)]
    if kind == PRIVATE:
        return kind, encode(stripped(event))  # type: ignore[arg-type]
    if kind in (RECEIVED, CANCEL):
        return kind, encode(event)
    return kind, v1_0.streamed(entry)


def entry(number: int, turn: int, kind: int, body: bytes) -> Entry:
    """Decode the entry of these columns."""
    if kind == RECEIVED:
        return Entry(number, _received(body), turn, b"")
    if kind == CANCEL:
        return Entry(number, _request(body), turn, b"")
    if kind >= PRIVATE:  # an unknown kind of a newer version is also private
        known = kind == PRIVATE and body
        return Entry(number, _private(body) if known else HIDDEN, turn, b"")
    streamed = _streamed(body)
    event: Any = streamed.artifact_update or streamed.status_update
    if event is None:
        assert streamed.message is not None
        event = Reply(streamed.message)
    return Entry(number, event, turn, body)


def private_value(entry: Entry) -> Raw | bytes:
    """Return the value of a private entry; empty for other entries."""
    event = entry.event
    return event.value if type(event) is Private else b""


def stripped(event: Private) -> Private:
    """Return a private entry without the value that is stored beside the log."""
    return replace(event, value=NOTHING) if event.beside else event


def with_value(entry: Entry, value: bytes | None) -> Entry:
    """Return a private entry with the value that is stored beside the log, if there is one."""
    if value is not None:
        entry.event = replace(entry.event, value=Raw(value))
    return entry


def private(number: int, turn: int, kind: int, body: bytes) -> Entry:
    """Decode the private entry of these columns. Raises UnknownEntry."""
    if kind != PRIVATE:
        raise UnknownEntry(f"entry {number} is of the unknown kind {kind}")
    return entry(number, turn, kind, body)


FORM = 2
"""The version of a snapshot. It changes when the fold has other results, because an older snapshot
cannot be continued then."""


class Snapshot(Struct, frozen=True):
    """The stored form of a task. (A snapshot of the first version is the task alone.)"""

    form: int
    task: Task


_snapshot = msgspec.json.Decoder(Snapshot).decode


class Outdated(ValueError):
    """The snapshot has an older form. This is not an error, because the log has the same
    content."""


def keep(task: Task) -> bytes:
    """Encode a task as a snapshot."""
    return encode(Snapshot(FORM, task))


def snapshot(data: bytes, id: str, number: int, last: int) -> Task:
    """Decode the task of a snapshot. Raises Outdated, or ValueError if it cannot belong to this
    log."""
    try:
        kept = _snapshot(data)
    except msgspec.ValidationError:
        kept = Snapshot(1, decode_task(data))
    task = kept.task
    if kept.form != FORM:
        raise Outdated(f"its format is {kept.form}, not {FORM}")
    if task.id != id or not 0 < number <= last:
        raise ValueError("it does not belong to this log")
    return task


def webhook_of(data: bytes, id: str, task: str) -> Webhook:
    """Decode the webhook of a row. Raises ValueError if the row belongs to another one."""
    webhook = decode_webhook(data)
    if (webhook.config.id, webhook.config.task_id) != (id, task):
        raise ValueError("its configuration belongs to another webhook")
    return webhook


def stub(id: str, task: str) -> Webhook:
    """Return a placeholder for a webhook that is not readable."""
    return Webhook(TaskPushNotificationConfig(id=id, task_id=task, url=""))


def secrets(webhook: Webhook, change: Callable[[str, str], str]) -> Webhook:
    """Return the webhook with its secrets encrypted or decrypted."""
    config = webhook.config
    about = f"{config.task_id}:{config.id}"
    token = change(config.token, about) if config.token else config.token
    authentication = config.authentication
    if authentication is not None and authentication.credentials:
        credentials = change(authentication.credentials, about)
        authentication = replace(authentication, credentials=credentials)
    return replace(webhook, config=replace(config, token=token, authentication=authentication))


def digested(name: str) -> bytes:
    """Return the digest of a receipt's name, which callers choose."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
