"""What the older forms can carry, stated once, and values for their tests."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.dialects.v0_3.common import CARRIED, WRAPPED
from dragoman.model import types
from dragoman.model.types import WireStruct
from tests.harness import wire_values as wire

ASKED: tuple[type[WireStruct], ...] = (
    types.SendMessageRequest,
    types.GetTaskRequest,
    types.CancelTaskRequest,
    types.SubscribeToTaskRequest,
    types.TaskPushNotificationConfig,
    types.GetTaskPushNotificationConfigRequest,
    types.ListTaskPushNotificationConfigsRequest,
    types.DeleteTaskPushNotificationConfigRequest,
    types.GetExtendedAgentCardRequest,
)
"""What can be asked in every form of 0.3."""
TOLD: tuple[type[WireStruct], ...] = (
    types.SendMessageResponse,
    types.StreamResponse,
    types.Task,
    types.TaskPushNotificationConfig,
    types.ListTaskPushNotificationConfigsResponse,
)
"""What can be answered in every form of 0.3; the card has tests of its own."""
EVENTS: tuple[type[WireStruct], ...] = (
    types.Message,
    types.TaskStatusUpdateEvent,
    types.TaskArtifactUpdateEvent,
)
"""What else a stream brings."""


def possible(value: Any) -> bool:
    """Whether a value can be said at all: an answer is something, webhooks belong to a task, names
    have no slashes in their ids, and our own marks in metadata are ours alone."""
    if isinstance(value, types.SendMessageResponse | types.StreamResponse):
        if not any(getattr(value, name) for name in value.__struct_fields__):
            return False
    elif isinstance(value, types.TaskPushNotificationConfig):
        if not value.task_id:
            return False
    elif isinstance(value, dict):
        return CARRIED not in value and WRAPPED not in value
    if isinstance(value, tuple):
        return all(possible(item) for item in value)
    if not isinstance(value, WireStruct):
        return True
    if not isinstance(value, types.Message | types.Artifact) and any(
        "/" in getattr(value, name, "") for name in ("id", "task_id")
    ):
        return False
    return all(possible(getattr(value, name)) for name in value.__struct_fields__)


def values(kind: type[WireStruct]) -> st.SearchStrategy[Any]:
    """Any value of a type that can be said."""
    found = wire.values(kind)
    if kind is types.ListTaskPushNotificationConfigsResponse:
        hooks = st.lists(values(types.TaskPushNotificationConfig), max_size=2).map(tuple)
        return st.builds(kind, configs=hooks, next_page_token=wire.TEXT)
    if kind is types.TaskPushNotificationConfig:
        names = st.text(
            st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=8
        )
        found = st.builds(replace, found, task_id=names.filter(bool), id=names)
    return found.filter(possible)


def carried(value: Any, *, proto: bool) -> Any:
    """The value without what 0.3 cannot say, as JSON-RPC has it or as its proto has it."""
    if isinstance(value, tuple):
        return tuple(carried(item, proto=proto) for item in value)
    if not isinstance(value, WireStruct):
        return value
    inner = {name: getattr(value, name) for name in value.__struct_fields__}
    found: Any = replace(value, **{n: carried(v, proto=proto) for n, v in inner.items()})
    if "tenant" in inner:
        found = replace(found, tenant="")
    match found:
        case types.SendMessageConfiguration():
            hook = found.task_push_notification_config
            if hook is not None:  # it belongs to the task of the message
                hook = replace(hook, task_id="", id=inner["task_push_notification_config"].id)
                found = replace(found, task_push_notification_config=hook)
            if proto:
                found = replace(found, history_length=found.history_length or None)
        case types.GetTaskRequest() if proto:
            found = replace(found, history_length=found.history_length or None)
        case types.CancelTaskRequest() if proto:
            found = replace(found, metadata=None)
        case types.TaskPushNotificationConfig():
            found = replace(found, id=found.id or found.task_id)
        case types.ListTaskPushNotificationConfigsRequest() if not proto:
            found = replace(found, page_size=0, page_token="")
        case types.ListTaskPushNotificationConfigsResponse() if not proto:
            found = replace(found, next_page_token="")
        case types.Part(metadata={}) if not found.metadata and _beside(found):
            found = replace(found, metadata=None)  # nothing but our own was in it
        case types.Message(metadata={}) if not found.metadata and found.reference_task_ids:
            found = replace(found, metadata=None) if proto else found
    return found


def _beside(part: types.Part) -> bool:
    """Whether something of a part is carried in its metadata."""
    if part.text is not None:
        return bool(part.media_type or part.filename)
    if part.data is msgspec.UNSET:
        return False
    return bool(part.media_type or part.filename) or not isinstance(part.data, dict)
