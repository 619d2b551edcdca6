"""A2A 0.3 in its proto form: over HTTP+JSON and gRPC.

Older clients are strict, so the responses contain only fields of the proto. The Python SDK of 0.3
writes base64 text into the bytes field of a file, and reads nothing else; the JavaScript SDK writes
the bytes themselves. Requests may have either: bytes that are valid base64 are decoded as such.
Responses have base64 text. Only for clients that are known to run on Node, requests and responses
have the bytes themselves (`RAW`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from dragoman.dialects import protojson
from dragoman.dialects.v0_3 import card, card_proto, common
from dragoman.dialects.v0_3.common import CONFIG, Conversion, Pair
from dragoman.dialects.v0_3.proto_structs import (
    Artifact,
    CancelTaskRequest,
    CreateTaskPushNotificationConfigRequest,
    DataPart,
    DeleteTaskPushNotificationConfigRequest,
    FilePart,
    GetAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Part,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    TaskSubscriptionRequest,
)
from dragoman.model import types
from dragoman.model.errors import A2AError, InvalidParams
from dragoman.model.events import Reply
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)


# ---- single objects ------------------------------------------------------------------------


def old_part(part: types.Part) -> Part:
    """Convert a part to 0.3."""
    if part.text is not None:
        return Part(text=part.text, metadata=common.part_metadata(part))
    if part.data is not UNSET:
        data, metadata = common.wrap_data(part)
        return Part(data=DataPart(data=data), metadata=metadata)
    file = FilePart(
        file_with_uri=part.url,
        file_with_bytes=None if part.raw is None else base64.b64encode(part.raw),
        name=part.filename,
        mime_type=part.media_type,
    )
    return Part(file=file, metadata=part.metadata)


def new_part(part: Part) -> types.Part:
    """Convert a part of 0.3 to 1.0."""
    if part.text is not None:
        return common.text_part(part.text, part.metadata)
    if part.data is not None:
        return common.unwrap_data(part.data.data, part.metadata)
    file = part.file
    assert file is not None
    return types.Part(
        raw=None if file.file_with_bytes is None else _bytes(file.file_with_bytes),
        url=file.file_with_uri,
        filename=file.name,
        media_type=file.mime_type,
        metadata=part.metadata,
    )


def _bytes(value: bytes) -> bytes:
    """Decode the bytes of a file if they are base64 text."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value


def old_message(message: types.Message) -> Message:
    """Convert a message to 0.3."""
    found: Message = _MESSAGE.old(message)
    if message.reference_task_ids:
        references = list(message.reference_task_ids)
        metadata = common.carry(message.metadata, referenceTaskIds=references)
        return replace(found, metadata=metadata)
    return found


def new_message(message: Message) -> types.Message:
    """Convert a message of 0.3 to 1.0."""
    metadata, extras = common.carried(message.metadata)
    references = extras.get("referenceTaskIds")
    if not isinstance(references, list) or not all(isinstance(r, str) for r in references):
        references, metadata = [], message.metadata
    found: types.Message = _MESSAGE.new(
        message, metadata=metadata, reference_task_ids=tuple(references)
    )
    return found


PARTS = common.for_each(old_part, new_part)
_MESSAGE = Pair(types.Message, Message, parts=common.for_each(old_part, new_part, "content"))
STATE = Conversion(
    lambda state: TaskState[state.name],
    lambda state: types.TaskState[state.name],
)
ARTIFACT = Pair(types.Artifact, Artifact, parts=PARTS)
_STATUS = Pair(
    types.TaskStatus,
    TaskStatus,
    state=STATE,
    message=Conversion(old_message, new_message, "update"),
)


def _new_status(status: TaskStatus) -> types.TaskStatus:
    more = {} if status.state else {"state": types.TaskState.SUBMITTED}
    found: types.TaskStatus = _STATUS.new(status, **more)
    return found


STATUS = Conversion(_STATUS.old, _new_status)
TASK = Pair(
    types.Task,
    Task,
    status=STATUS,
    artifacts=ARTIFACT.each(),
    history=common.for_each(old_message, new_message),
)
UPDATE = Pair(types.TaskStatusUpdateEvent, TaskStatusUpdateEvent, status=STATUS)
CHUNK = Pair(types.TaskArtifactUpdateEvent, TaskArtifactUpdateEvent, artifact=ARTIFACT.one())
REPLY = Conversion(old_message, new_message, "msg")
SENT = Pair(types.SendMessageResponse, SendMessageResponse, task=TASK.one(), message=REPLY)
EVENT = Pair(
    types.StreamResponse,
    StreamResponse,
    task=TASK.one(),
    message=REPLY,
    status_update=UPDATE.one(),
    artifact_update=CHUNK.one(),
)


class FileEncoding(Struct, frozen=True):
    """How a client writes the bytes of files. `read` converts its files to base64 text, `write`
    converts them from base64 text."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


BASE64 = FileEncoding(lambda value: value, lambda value: value)
RAW = FileEncoding(
    lambda value: _convert_files(value, base64.b64encode),
    lambda value: _convert_files(value, base64.b64decode),
)


def _convert_files(value: Any, change: Callable[[bytes], bytes]) -> Any:
    def changed(file: FilePart) -> FilePart:
        raw = file.file_with_bytes
        return file if raw is None else replace(file, file_with_bytes=change(raw))

    return common.mapped(value, FilePart, changed)


# ---- names ---------------------------------------------------------------------------------

_NAME = re.compile(r"(?s)tasks/([^/]+)(?:/pushNotificationConfigs(?:/(.*))?)?")


def resource_name(task: str, config: str = "") -> str:
    """Return the resource name of a task or of one of its webhooks."""
    return f"tasks/{task}/pushNotificationConfigs/{config}" if config else f"tasks/{task}"


def ids(name: str, field: str = "name") -> tuple[str, str]:
    """Return the ids of the task and the webhook in a resource name; the latter may be empty."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidParams.at(field, "expected tasks/{id}")
    return match[1], match[2] or ""


def task_of(name: str, field: str = "name") -> str:
    """Return the task id of a resource name that names only a task."""
    task, _ = ids(name, field)
    if name != resource_name(task):
        raise InvalidParams.at(field, "expected tasks/{id}")
    return task


# ---- requests ------------------------------------------------------------------------------

_CONFIGURATION = Pair(
    types.SendMessageConfiguration,
    SendMessageConfiguration,
    task_push_notification_config=CONFIG.one("push_notification"),
)
_SEND = Pair(
    types.SendMessageRequest,
    SendMessageRequest,
    message=Conversion(old_message, new_message, "request"),
)


def _old_send(request: types.SendMessageRequest) -> SendMessageRequest:
    options = request.configuration
    if options is None:
        return _SEND.old(request)  # type: ignore[no-any-return]
    configuration = _CONFIGURATION.old(
        options, history_length=options.history_length or 0, blocking=not options.return_immediately
    )
    return _SEND.old(request, configuration=configuration)  # type: ignore[no-any-return]


def _new_send(request: SendMessageRequest) -> types.SendMessageRequest:
    options = request.configuration
    if options is None:
        return _SEND.new(request)  # type: ignore[no-any-return]
    configuration = _CONFIGURATION.new(
        options,
        history_length=options.history_length or None,
        return_immediately=not options.blocking,
    )
    return _SEND.new(request, configuration=configuration)  # type: ignore[no-any-return]


def _new_get(request: GetTaskRequest) -> types.GetTaskRequest:
    length = request.history_length or None
    return types.GetTaskRequest(id=task_of(request.name), history_length=length)


def _old_create(
    config: types.TaskPushNotificationConfig,
) -> CreateTaskPushNotificationConfigRequest:
    return CreateTaskPushNotificationConfigRequest(
        parent=resource_name(config.task_id), config_id=config.id, config=_old_webhook(config)
    )


def _new_create(
    request: CreateTaskPushNotificationConfigRequest,
) -> types.TaskPushNotificationConfig:
    known = request.parent or not request.config.name
    task = task_of(request.parent, "parent") if known else ""
    return _new_webhook(request.config, task, request.config_id, "config.name")


def _old_webhook(config: types.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(
        name=resource_name(config.task_id, config.id), push_notification_config=CONFIG.old(config)
    )


def _new_webhook(
    webhook: TaskPushNotificationConfig, task: str = "", id: str = "", field: str = "name"
) -> types.TaskPushNotificationConfig:
    """Convert a webhook to 1.0. The request may name its task and id, too; a webhook without an id
    gets the id of its task."""
    owner, given = ids(webhook.name or resource_name(task), field)
    config = webhook.push_notification_config
    task = task or owner
    id = config.id or id or (given if given != "None" else "") or task  # a2a-sdk 0.3 sends "None"
    found: types.TaskPushNotificationConfig = CONFIG.new(config, id=id, task_id=task)
    return found


def _new_get_webhook(
    request: GetTaskPushNotificationConfigRequest,
) -> types.GetTaskPushNotificationConfigRequest:
    task, config = ids(request.name)
    config = config if config != "None" else ""  # a2a-sdk 0.3 sends "None"
    return types.GetTaskPushNotificationConfigRequest(task_id=task, id=config)


def _new_delete(
    request: DeleteTaskPushNotificationConfigRequest,
) -> types.DeleteTaskPushNotificationConfigRequest:
    task, config = ids(request.name)
    return types.DeleteTaskPushNotificationConfigRequest(task_id=task, id=config or task)


def _new_list(
    request: ListTaskPushNotificationConfigRequest,
) -> types.ListTaskPushNotificationConfigsRequest:
    task = task_of(request.parent, "parent")
    return types.ListTaskPushNotificationConfigsRequest(
        task_id=task, page_size=request.page_size, page_token=request.page_token
    )


def _old_list(
    request: types.ListTaskPushNotificationConfigsRequest,
) -> ListTaskPushNotificationConfigRequest:
    return ListTaskPushNotificationConfigRequest(
        parent=resource_name(request.task_id),
        page_size=request.page_size,
        page_token=request.page_token,
    )


_WEBHOOKS = Pair(
    types.ListTaskPushNotificationConfigsResponse,
    ListTaskPushNotificationConfigResponse,
    configs=common.for_each(_old_webhook, _new_webhook),
)
_LIST = Pair(types.ListTasksRequest, ListTasksRequest, status=STATE)
_TASKS = Pair(types.ListTasksResponse, ListTasksResponse, tasks=TASK.each())

REQUESTS: dict[
    type[WireStruct], tuple[type[WireStruct], Callable[[Any], Any], Callable[[Any], Any]]
] = {
    types.SendMessageRequest: (SendMessageRequest, _new_send, _old_send),
    types.GetTaskRequest: (
        GetTaskRequest,
        _new_get,
        lambda r: GetTaskRequest(name=resource_name(r.id), history_length=r.history_length or 0),
    ),
    types.ListTasksRequest: (ListTasksRequest, _LIST.new, _LIST.old),
    types.CancelTaskRequest: (
        CancelTaskRequest,
        lambda r: types.CancelTaskRequest(id=task_of(r.name)),
        lambda r: CancelTaskRequest(name=resource_name(r.id)),
    ),
    types.SubscribeToTaskRequest: (
        TaskSubscriptionRequest,
        lambda r: types.SubscribeToTaskRequest(id=task_of(r.name)),
        lambda r: TaskSubscriptionRequest(name=resource_name(r.id)),
    ),
    types.TaskPushNotificationConfig: (
        CreateTaskPushNotificationConfigRequest,
        _new_create,
        _old_create,
    ),
    types.GetTaskPushNotificationConfigRequest: (
        GetTaskPushNotificationConfigRequest,
        _new_get_webhook,
        lambda r: GetTaskPushNotificationConfigRequest(name=resource_name(r.task_id, r.id)),
    ),
    types.ListTaskPushNotificationConfigsRequest: (
        ListTaskPushNotificationConfigRequest,
        _new_list,
        _old_list,
    ),
    types.DeleteTaskPushNotificationConfigRequest: (
        DeleteTaskPushNotificationConfigRequest,
        _new_delete,
        lambda r: DeleteTaskPushNotificationConfigRequest(name=resource_name(r.task_id, r.id)),
    ),
    types.GetExtendedAgentCardRequest: (
        GetAgentCardRequest,
        lambda _: types.GetExtendedAgentCardRequest(),
        lambda _: GetAgentCardRequest(),
    ),
}
"""For each request of 1.0: the struct of 0.3, and the functions that convert from and to 0.3."""

RESPONSES: dict[
    type[WireStruct], tuple[type[WireStruct], Callable[[Any], Any], Callable[[Any], Any]]
] = {
    types.SendMessageResponse: (SendMessageResponse, SENT.new, SENT.old),
    types.StreamResponse: (StreamResponse, EVENT.new, EVENT.old),
    types.Task: (Task, TASK.new, TASK.old),
    types.ListTasksResponse: (ListTasksResponse, _TASKS.new, _TASKS.old),
    types.TaskPushNotificationConfig: (TaskPushNotificationConfig, _new_webhook, _old_webhook),
    types.ListTaskPushNotificationConfigsResponse: (
        ListTaskPushNotificationConfigResponse,
        _WEBHOOKS.new,
        _WEBHOOKS.old,
    ),
    types.AgentCard: (card_proto.AgentCard, card_proto.new, card_proto.old),
}
"""The same for each response."""


def event(event: Any, last: bool = False) -> StreamResponse | None:
    """Convert an event of a stream; None if it is not for clients."""
    if type(event) is types.TaskArtifactUpdateEvent:
        return StreamResponse(artifact_update=CHUNK.old(event))
    if type(event) is types.TaskStatusUpdateEvent:
        return StreamResponse(status_update=UPDATE.old(event, final=last))
    if isinstance(event, types.Task):
        return StreamResponse(task=TASK.old(event))
    if isinstance(event, Reply):
        return StreamResponse(msg=old_message(event.message))
    return None


# ---- whole documents -----------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode


class Json:
    """Encodes and decodes 0.3 over HTTP+JSON; see `Paths`."""

    def __init__(self, form: str, files: FileEncoding = BASE64) -> None:
        self.FORM = form
        self._files = files

    def convert(self, kind: type[W], document: Any, *, text: bool = False) -> W:
        """See `Paths.convert`."""
        if kind is types.TaskPushNotificationConfig and isinstance(document, dict):
            document = _enclosed(document)
        shape, new, _ = REQUESTS[kind]
        found: W = new(self._files.read(protojson.convert(shape, document, text=text)))
        return found

    def encode(self, answer: WireStruct) -> bytes:
        """See `Paths.encode`. The card has the JSON-RPC form here, too."""
        if isinstance(answer, types.AgentCard):
            return _encode(card.old(answer))
        found = RESPONSES[type(answer)][2](answer)
        return _encode(self._files.write(found))

    def response(self, event_: Any, last: bool = False) -> bytes:
        """See `Paths.response`."""
        found = event(event_, last)
        if found is None:
            return b""
        return protojson.escape_line_ends(_encode(self._files.write(found)))


JSON = Json("0.3 proto")
RAW_FILES = Json("0.3 bare", RAW)


def encode_request(request: WireStruct) -> bytes:
    """Encode a request, for the client."""
    return _encode(REQUESTS[type(request)][2](request))


def _enclosed(document: dict[str, Any]) -> dict[str, Any]:
    """Put a webhook into `config`. Some clients send it as in a response, at the top level."""
    inner = ("pushNotificationConfig", "push_notification_config")
    if "config" in document or not any(name in document for name in inner):
        return document
    rest = {name: value for name, value in document.items() if name not in ("name", *inner)}
    return {**rest, "config": {k: v for k, v in document.items() if k in ("name", *inner)}}


def decode_response(kind: type[W], document: Any) -> W:
    """Decode a response from a parsed document, for the client."""
    shape, new, _ = RESPONSES[kind]
    found: W = new(protojson.convert(shape, document))
    return found


def problem(error: A2AError) -> dict[str, Any]:
    """Return the body of an error over HTTP+JSON."""
    code = error.rpc if error.rpc not in (-32008, -32009) else -32603
    if error.transport and code == -32603:
        code = error.http  # JSON-RPC has no code for it, and it is not an internal error
    return {"code": code, "type": error.legacy, "message": error.message}
