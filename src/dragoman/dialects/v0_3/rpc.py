"""A2A 0.3 over JSON-RPC: objects have a `kind`, and responses are not wrapped.

`old` and `new` convert single objects, `encode` and `decode` whole responses and parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field
from msgspec.structs import replace

from dragoman.dialects import protojson
from dragoman.dialects.v0_3 import card, common
from dragoman.dialects.v0_3.common import CONFIG, Conversion, Pair, PushNotificationConfig
from dragoman.dialects.v0_3.schemes import always
from dragoman.model import types
from dragoman.model.errors import A2AError, InvalidParams
from dragoman.model.events import Reply
from dragoman.model.types import LenientTimestamp, Metadata, Required, WireStruct

W = TypeVar("W", bound=WireStruct)

FORM = "0.3"


class State(Enum):
    """The task states by their 0.3 names."""

    SUBMITTED = "submitted"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    INPUT_REQUIRED = "input-required"
    REJECTED = "rejected"
    AUTH_REQUIRED = "auth-required"
    UNKNOWN = "unknown"


class Role(Enum):
    """The sender of a message."""

    USER = "user"
    AGENT = "agent"


class File(WireStruct, frozen=True, kw_only=True):
    """A file: its content or its URI."""

    raw: bytes | None = field(default=None, name="bytes")
    uri: str | None = None
    name: str = ""
    mime_type: str = ""

    def __post_init__(self) -> None:
        if (self.raw is None) == (self.uri is None):
            raise ValueError("a file must have either bytes or a uri")


class Part(WireStruct, frozen=True, kw_only=True):
    """A part of one kind. 0.1 calls the kind `type`. A part without a kind may have the fields of
    1.0, because fasta2a's client mixes the versions."""

    kind: str = ""
    type: str = ""
    text: str | None = None
    file: File | None = None
    data: Any | UnsetType = UNSET
    metadata: Metadata | None = None
    raw: bytes | None = None
    url: str | None = None
    filename: str = ""
    media_type: str = ""

    def __post_init__(self) -> None:
        kind = self.kind or self.type
        other = self.text is not None or self.file is not None
        held = [
            name
            for name, there in (
                ("text", self.text is not None),
                ("file", self.file is not None),
                # next to other content, a null is not data
                ("data", self.data is not UNSET and not (other and self.data is None)),
                ("raw", self.raw is not None and not kind),
                ("url", self.url is not None and not kind),
            )
            if there
        ]
        if len(held) != 1 or kind not in ("", held[0]):
            raise ValueError(
                "a part must be of kind text, file or data, and have the field of that name"
            )


Parts = Annotated[tuple[Part, ...], Meta(min_length=1)]


class Message(WireStruct, frozen=True, kw_only=True):
    """See `types.Message`. Some clients send no id; then the service creates one."""

    kind: str = ""
    message_id: str = always("")
    context_id: str = ""
    task_id: str = ""
    role: Role
    parts: Parts
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()


class Artifact(WireStruct, frozen=True, kw_only=True):
    """See `types.Artifact`."""

    artifact_id: Required
    name: str = ""
    description: str = ""
    parts: Parts
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()


class TaskStatus(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskStatus`."""

    state: State
    message: Message | None = None
    timestamp: LenientTimestamp | None = None


class Task(WireStruct, frozen=True, kw_only=True):
    """See `types.Task`."""

    kind: str = ""
    id: Required
    context_id: str = always("")
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskStatusUpdateEvent`."""

    kind: str = ""
    task_id: Required
    context_id: Required
    status: TaskStatus
    final: bool = always(False)
    """Whether it is the last event of the stream."""
    metadata: Metadata | None = None


class TaskArtifactUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskArtifactUpdateEvent`."""

    kind: str = ""
    task_id: Required
    context_id: Required
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None


class TaskPushNotificationConfig(WireStruct, frozen=True, kw_only=True):
    """A webhook of a task."""

    task_id: Required
    push_notification_config: PushNotificationConfig
    metadata: Metadata | None = None


class MessageSendConfiguration(WireStruct, frozen=True, kw_only=True):
    """Options of a send."""

    accepted_output_modes: tuple[str, ...] = ()
    push_notification_config: PushNotificationConfig | None = None
    history_length: int | None = None
    blocking: bool | None = None


class MessageSendParams(WireStruct, frozen=True, kw_only=True):
    """A message to an agent. Some clients put the ids of task and context next to the message."""

    message: Message
    task_id: str = ""
    context_id: str = ""
    configuration: MessageSendConfiguration | None = None
    metadata: Metadata | None = None


class TaskQueryParams(WireStruct, frozen=True, kw_only=True):
    """Names a task and the length of its history."""

    id: Required
    history_length: int | None = None
    metadata: Metadata | None = None


class TaskIdParams(WireStruct, frozen=True, kw_only=True):
    """Names a task."""

    id: Required
    metadata: Metadata | None = None


class PushParams(WireStruct, frozen=True, kw_only=True):
    """Names a webhook of a task."""

    id: Required
    push_notification_config_id: str = ""
    metadata: Metadata | None = None


class NoParams(WireStruct, frozen=True, kw_only=True):
    """Empty parameters."""


# ---- single objects ------------------------------------------------------------------------

_STATES = {state: State[state.name] for state in types.TaskState}
_NEW_STATES = {old: new for new, old in _STATES.items()} | {
    State.UNKNOWN: types.TaskState.SUBMITTED
}
_ROLES = {role: Role[role.name] for role in types.Role}
_NEW_ROLES = {old: new for new, old in _ROLES.items()}


def old_part(part: types.Part) -> Part:
    """Convert a part to 0.3."""
    if part.text is not None:
        return Part(kind="text", text=part.text, metadata=common.part_metadata(part))
    if part.data is not UNSET:
        data, metadata = common.wrap_data(part)
        return Part(kind="data", data=data, metadata=metadata)
    file = File(raw=part.raw, uri=part.url, name=part.filename, mime_type=part.media_type)
    return Part(kind="file", file=file, metadata=part.metadata)


def new_part(part: Part) -> types.Part:
    """Convert a part of 0.3 to 1.0."""
    if part.text is not None:
        return common.text_part(part.text, part.metadata)
    file = part.file
    if file is None and part.data is not UNSET:
        return common.unwrap_data(part.data, part.metadata)
    if file is None:
        return types.Part(
            raw=part.raw,
            url=part.url,
            filename=part.filename,
            media_type=part.media_type,
            metadata=part.metadata,
        )
    return types.Part(
        raw=file.raw,
        url=file.uri,
        filename=file.name,
        media_type=file.mime_type,
        metadata=part.metadata,
    )


PARTS = common.for_each(old_part, new_part)
STATE = Conversion(_STATES.__getitem__, _NEW_STATES.__getitem__)
MESSAGE = Pair(
    types.Message,
    Message,
    kind="message",
    role=Conversion(_ROLES.__getitem__, _NEW_ROLES.__getitem__),
    parts=PARTS,
)
ARTIFACT = Pair(types.Artifact, Artifact, parts=PARTS)
STATUS = Pair(types.TaskStatus, TaskStatus, state=STATE, message=MESSAGE.one())
TASK = Pair(
    types.Task,
    Task,
    kind="task",
    status=STATUS.one(),
    artifacts=ARTIFACT.each(),
    history=MESSAGE.each(),
)
UPDATE = Pair(
    types.TaskStatusUpdateEvent, TaskStatusUpdateEvent, kind="status-update", status=STATUS.one()
)
CHUNK = Pair(
    types.TaskArtifactUpdateEvent,
    TaskArtifactUpdateEvent,
    kind="artifact-update",
    artifact=ARTIFACT.one(),
)
CONFIGURATION = Pair(
    types.SendMessageConfiguration,
    MessageSendConfiguration,
    task_push_notification_config=CONFIG.one("push_notification_config"),
)
SEND = Pair(types.SendMessageRequest, MessageSendParams, message=MESSAGE.one())
CANCEL = Pair(types.CancelTaskRequest, TaskIdParams)
GET = Pair(types.GetTaskRequest, TaskQueryParams)
SUBSCRIBE = Pair(types.SubscribeToTaskRequest, TaskIdParams)


# ---- requests ------------------------------------------------------------------------------


def _old_send(request: types.SendMessageRequest) -> MessageSendParams:
    options = request.configuration
    if options is None:
        return SEND.old(request)  # type: ignore[no-any-return]
    configuration = CONFIGURATION.old(options, blocking=not options.return_immediately)
    return SEND.old(request, configuration=configuration)  # type: ignore[no-any-return]


def _new_send(params: MessageSendParams) -> types.SendMessageRequest:
    options, message = params.configuration, params.message
    if params.task_id or params.context_id:
        message = replace(
            message,
            task_id=message.task_id or params.task_id,
            context_id=message.context_id or params.context_id,
        )
        params = replace(params, message=message)
    if options is None:
        return SEND.new(params)  # type: ignore[no-any-return]
    configuration = CONFIGURATION.new(options, return_immediately=options.blocking is False)
    return SEND.new(params, configuration=configuration)  # type: ignore[no-any-return]


def _new_webhook(params: TaskPushNotificationConfig) -> types.TaskPushNotificationConfig:
    # a webhook without an id gets the id of its task
    config = params.push_notification_config
    found: types.TaskPushNotificationConfig = CONFIG.new(
        config, id=config.id or params.task_id, task_id=params.task_id
    )
    return found


def _old_webhook(config: types.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(
        task_id=config.task_id, push_notification_config=CONFIG.old(config)
    )


def _old_webhooks(
    answer: types.ListTaskPushNotificationConfigsResponse,
) -> list[TaskPushNotificationConfig]:
    return [_old_webhook(config) for config in answer.configs]


def _new_delete(params: PushParams) -> types.DeleteTaskPushNotificationConfigRequest:
    if not params.push_notification_config_id:
        raise InvalidParams.at("pushNotificationConfigId", "is required")
    return types.DeleteTaskPushNotificationConfigRequest(
        task_id=params.id, id=params.push_notification_config_id
    )


READ: dict[type[WireStruct], tuple[type[WireStruct], Callable[[Any], Any]]] = {
    types.SendMessageRequest: (MessageSendParams, _new_send),
    types.GetTaskRequest: (TaskQueryParams, GET.new),
    types.CancelTaskRequest: (TaskIdParams, CANCEL.new),
    types.SubscribeToTaskRequest: (TaskIdParams, SUBSCRIBE.new),
    types.TaskPushNotificationConfig: (TaskPushNotificationConfig, _new_webhook),
    types.GetTaskPushNotificationConfigRequest: (
        PushParams,
        lambda p: types.GetTaskPushNotificationConfigRequest(
            task_id=p.id, id=p.push_notification_config_id
        ),
    ),
    types.ListTaskPushNotificationConfigsRequest: (
        PushParams,
        lambda p: types.ListTaskPushNotificationConfigsRequest(task_id=p.id),
    ),
    types.DeleteTaskPushNotificationConfigRequest: (PushParams, _new_delete),
    types.GetExtendedAgentCardRequest: (
        NoParams,
        lambda _: types.GetExtendedAgentCardRequest(),
    ),
    types.Task: (Task, TASK.new),
    types.Message: (Message, MESSAGE.new),
    types.TaskStatusUpdateEvent: (TaskStatusUpdateEvent, UPDATE.new),
    types.TaskArtifactUpdateEvent: (TaskArtifactUpdateEvent, CHUNK.new),
    types.AgentCard: (card.AgentCard, card.new),
}
"""For each type of 1.0: the struct of 0.3, and the function that converts it to 1.0."""

WRITE: dict[type, Callable[[Any], Any]] = {
    types.SendMessageRequest: _old_send,
    types.GetTaskRequest: GET.old,
    types.CancelTaskRequest: CANCEL.old,
    types.SubscribeToTaskRequest: SUBSCRIBE.old,
    types.TaskPushNotificationConfig: _old_webhook,
    types.GetTaskPushNotificationConfigRequest: lambda r: PushParams(
        id=r.task_id, push_notification_config_id=r.id
    ),
    types.ListTaskPushNotificationConfigsRequest: lambda r: PushParams(id=r.task_id),
    types.DeleteTaskPushNotificationConfigRequest: lambda r: PushParams(
        id=r.task_id, push_notification_config_id=r.id
    ),
    types.GetExtendedAgentCardRequest: lambda _: NoParams(),
    types.Task: TASK.old,
    types.Message: MESSAGE.old,
    types.TaskStatusUpdateEvent: lambda e: UPDATE.old(e, final=e.status.state.terminal),
    types.TaskArtifactUpdateEvent: CHUNK.old,
    types.SendMessageResponse: lambda a: old(a.task if a.message is None else a.message),
    types.StreamResponse: lambda a: old(
        a.task or a.message or a.status_update or a.artifact_update
    ),
    types.ListTaskPushNotificationConfigsResponse: _old_webhooks,
    types.AgentCard: card.old,
}
"""For each type of 1.0: the function that converts it to 0.3."""


def old(value: Any) -> Any:
    """Convert a value of 1.0 to 0.3."""
    return WRITE[type(value)](value)


# ---- whole documents -----------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Encode the result of an operation, or its parameters."""
    return _encode(old(value))


def encode_request(request: WireStruct) -> bytes:
    """Encode the parameters of an operation, for the client."""
    return encode(common.with_history(request))


def decode(kind: type[W], body: bytes) -> W:
    """Decode the parameters of an operation, or its result. Raises InvalidParams, which names the
    wrong field."""
    if kind not in READ:
        return convert(kind, protojson.parse(body))
    shape, new = READ[kind]
    found: W = new(protojson.decode(shape, body))
    return found


def convert(kind: type[W], document: Any) -> W:
    """Like `decode`, for a parsed document."""
    if kind in READ:
        shape, new = READ[kind]
        found: Any = new(protojson.convert(shape, document))
    elif kind is types.ListTaskPushNotificationConfigsResponse:
        items = document if isinstance(document, list) else [document]
        webhooks = tuple(convert(types.TaskPushNotificationConfig, item) for item in items)
        found = types.ListTaskPushNotificationConfigsResponse(configs=webhooks)
    else:  # a task, a message, or one of the updates
        name, member = _member(kind, document)
        found = kind(**{name: convert(member, document)})
    return found  # type: ignore[no-any-return]


_MEMBERS: dict[str, tuple[str, type[WireStruct]]] = {
    "task": ("task", types.Task),
    "message": ("message", types.Message),
    "status-update": ("status_update", types.TaskStatusUpdateEvent),
    "artifact-update": ("artifact_update", types.TaskArtifactUpdateEvent),
}


def _member(answer: type[WireStruct], document: Any) -> tuple[str, type[WireStruct]]:
    """Return the type of a response by its kind or, if that is missing, by its fields."""
    fields = document if isinstance(document, dict) else {}
    kind = fields.get("kind")
    if kind is None:
        if "parts" in fields:
            kind = "message"
        elif "artifact" in fields:
            kind = "artifact-update"
        else:
            kind = "task" if {"taskId", "task_id"}.isdisjoint(fields) else "status-update"
    known = [each for each in _MEMBERS if _MEMBERS[each][0] in answer.__struct_fields__]
    if kind not in known:
        raise InvalidParams.at("kind", f"expected one of {', '.join(known)}")
    return _MEMBERS[kind]


def response(event: Any, last: bool = False) -> bytes:
    """See `Dialect.response`."""
    if type(event) is types.TaskArtifactUpdateEvent:
        wire = _encode(CHUNK.old(event))
    elif type(event) is types.TaskStatusUpdateEvent:
        wire = _encode(UPDATE.old(event, final=last))
    elif isinstance(event, types.Task):
        wire = _encode(TASK.old(event))
    elif isinstance(event, Reply):
        wire = _encode(MESSAGE.old(event.message))
    else:
        return b""
    return protojson.escape_line_ends(wire)


def problem(error: A2AError) -> dict[str, Any]:
    """Return the error object of a response. Codes that 0.3 lacks become internal errors."""
    return {**error.to_rpc(), "code": error.rpc if error.rpc not in (-32008, -32009) else -32603}
