"""A message on its way: the request of a send, made from what the caller gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from dragoman.client.delegated_sends import DelegatedSends
from dragoman.client.logged_result import digest
from dragoman.client.upload import File
from dragoman.model import clock, to_parts
from dragoman.model.types import (
    Message,
    Metadata,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    Task,
    TaskPushNotificationConfig,
)


class OutgoingMessage(NamedTuple):
    """The request of a send, and what belongs to it."""

    request: SendMessageRequest
    key: str
    """The idempotency key: the same in each attempt."""
    files: Mapping[str, File]
    """The files, by the placeholders in the parts."""
    name: str
    """The name of the send; empty if no turn remembers it."""


def outgoing_message(
    content: Any,
    sends: DelegatedSends,
    *,
    task: str,
    context: str,
    wait: bool,
    skill: str = "",
    modes: Sequence[str] = (),
    metadata: dict[str, Any] | None = None,
    history: int | None = None,
    webhook: TaskPushNotificationConfig | str | None = None,
    references: Sequence[str] = (),
    key: str = "",
) -> OutgoingMessage:
    """Make the request of a send. The options are those of `SendOptions`."""
    files: dict[str, File] = {}
    own = not isinstance(content, Message)
    message = (
        content
        if isinstance(content, Message)
        else Message(message_id=clock.uuid7(), role=Role.USER, parts=_parts(content, files))
    )
    message = replace(
        message,
        task_id=task or message.task_id,
        context_id=context or message.context_id,
        reference_task_ids=(*message.reference_task_ids, *references),
    )
    if skill:
        message = replace(message, metadata={**(message.metadata or {}), "skill": skill})
    name = ""
    if (delegation := sends.delegation) is not None:
        metadata = {**(metadata or {}), **delegation.metadata()}
        name = sends.name(message, files, key)
        if not key and not files:  # only file names would count
            if name:
                key = name if own else digest(f"{name}:{message.message_id}".encode())
            else:
                key = delegation.key(replace(message, message_id="") if own else message)
    if key and own:  # the same key means the same message
        message = replace(message, message_id=key)
    request = SendMessageRequest(
        message=message,
        configuration=SendMessageConfiguration(
            accepted_output_modes=tuple(modes),
            history_length=history,
            return_immediately=not wait,
            task_push_notification_config=_webhook(webhook),
        ),
        metadata=metadata,
    )
    return OutgoingMessage(request, key or clock.uuid7(), files, name)


def answer_to(
    message: Message, task: Task, before: SendMessageRequest | None, metadata: Metadata | None
) -> OutgoingMessage:
    """The request that carries an answer, with the options of the send before it."""
    configuration = (before and before.configuration) or SendMessageConfiguration()
    request = SendMessageRequest(
        message=replace(message, task_id=task.id, context_id=task.context_id),
        configuration=replace(configuration, task_push_notification_config=None),
        metadata=metadata,
    )
    return OutgoingMessage(request, message.message_id, {}, "")


def _webhook(given: Any) -> TaskPushNotificationConfig | None:
    """Return the webhook configuration; a URL alone is enough."""
    if isinstance(given, str):
        return TaskPushNotificationConfig(url=given)
    if given is None or isinstance(given, TaskPushNotificationConfig):
        return given
    kind = type(given).__name__
    raise TypeError(f"webhook: expected a URL or a TaskPushNotificationConfig, got {kind}")


def _parts(content: Any, files: dict[str, File]) -> tuple[Part, ...]:
    """Convert content to parts. Files go to `files`, with a placeholder in the part."""
    items = content if isinstance(content, list | tuple) else [content]
    if not any(isinstance(item, File) for item in items):
        return to_parts.parts(content)
    found: list[Part] = []
    for item in items:
        if isinstance(item, File):
            files[item.sign] = item
            found.append(item.part())
        else:
            found += to_parts.parts(item)
    return tuple(found)
