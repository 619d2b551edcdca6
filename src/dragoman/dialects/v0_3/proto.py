"""0.3 as its proto has it: over HTTP+JSON and gRPC.

Older readers are strict, so nothing is written that the proto does not know. The Python SDK of
0.3 puts base64 text where the proto has bytes, and reads nothing else; the JavaScript one puts the
bytes themselves there. Both are understood: what can be decoded as base64 text is taken for that.
What is written is base64 text. Of a client that is known to run on Node (`node`) and to one, files
are bare (`NAKED`), and there is nothing to guess.
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
from dragoman.dialects.v0_3.common import CONFIG, Pair, Way
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
    """A part as 0.3 has it."""
    if part.text is not None:
        return Part(text=part.text, metadata=common.beside(part))
    if part.data is not UNSET:
        data, metadata = common.wrapped(part)
        return Part(data=DataPart(data=data), metadata=metadata)
    file = FilePart(
        file_with_uri=part.url,
        file_with_bytes=None if part.raw is None else base64.b64encode(part.raw),
        name=part.filename,
        mime_type=part.media_type,
    )
    return Part(file=file, metadata=part.metadata)


def new_part(part: Part) -> types.Part:
    """A part of 0.3 as ours."""
    if part.text is not None:
        return common.plain(part.text, part.metadata)
    if part.data is not None:
        return common.unwrapped(part.data.data, part.metadata)
    file = part.file
    assert file is not None
    return types.Part(
        raw=None if file.file_with_bytes is None else _bytes(file.file_with_bytes),
        url=file.file_with_uri,
        filename=file.name,
        media_type=file.mime_type,
        metadata=part.metadata,
    )


def _bytes(told: bytes) -> bytes:
    """The bytes that are meant."""
    try:
        return base64.b64decode(told, validate=True)
    except (binascii.Error, ValueError):
        return told


def old_message(message: types.Message) -> Message:
    """A message as 0.3 has it."""
    found: Message = _MESSAGE.old(message)
    if message.reference_task_ids:
        references = list(message.reference_task_ids)
        metadata = common.carry(message.metadata, referenceTaskIds=references)
        return replace(found, metadata=metadata)
    return found


def new_message(message: Message) -> types.Message:
    """A message of 0.3 as ours."""
    metadata, extras = common.carried(message.metadata)
    references = extras.get("referenceTaskIds")
    if not isinstance(references, list) or not all(isinstance(r, str) for r in references):
        references, metadata = [], message.metadata
    found: types.Message = _MESSAGE.new(
        message, metadata=metadata, reference_task_ids=tuple(references)
    )
    return found


PARTS = common.several(old_part, new_part)
_MESSAGE = Pair(types.Message, Message, parts=common.several(old_part, new_part, "content"))
STATE = Way(
    lambda state: TaskState[state.name],
    lambda state: types.TaskState[state.name],
)
ARTIFACT = Pair(types.Artifact, Artifact, parts=PARTS)
_STATUS = Pair(
    types.TaskStatus, TaskStatus, state=STATE, message=Way(old_message, new_message, "update")
)


def _new_status(status: TaskStatus) -> types.TaskStatus:
    more = {} if status.state else {"state": types.TaskState.SUBMITTED}
    found: types.TaskStatus = _STATUS.new(status, **more)
    return found


STATUS = Way(_STATUS.old, _new_status)
TASK = Pair(
    types.Task,
    Task,
    status=STATUS,
    artifacts=ARTIFACT.each(),
    history=common.several(old_message, new_message),
)
UPDATE = Pair(types.TaskStatusUpdateEvent, TaskStatusUpdateEvent, status=STATUS)
CHUNK = Pair(types.TaskArtifactUpdateEvent, TaskArtifactUpdateEvent, artifact=ARTIFACT.one())
REPLY = Way(old_message, new_message, "msg")
SENT = Pair(types.SendMessageResponse, SendMessageResponse, task=TASK.one(), message=REPLY)
EVENT = Pair(
    types.StreamResponse,
    StreamResponse,
    task=TASK.one(),
    message=REPLY,
    status_update=UPDATE.one(),
    artifact_update=CHUNK.one(),
)


class Accent(Struct, frozen=True):
    """How somebody has the bytes of files: what is heard is made base64 text, what is said is made
    of it."""

    heard: Callable[[Any], Any]
    said: Callable[[Any], Any]


TEXT = Accent(lambda value: value, lambda value: value)
NAKED = Accent(
    lambda value: _filed(value, base64.b64encode), lambda value: _filed(value, base64.b64decode)
)


def _filed(value: Any, change: Callable[[bytes], bytes]) -> Any:
    def changed(file: FilePart) -> FilePart:
        raw = file.file_with_bytes
        return file if raw is None else replace(file, file_with_bytes=change(raw))

    return common.mapped(value, FilePart, changed)


# ---- names ---------------------------------------------------------------------------------

_NAME = re.compile(r"(?s)tasks/([^/]+)(?:/pushNotificationConfigs(?:/(.*))?)?")


def named(task: str, config: str = "") -> str:
    """What 0.3 calls a task, or one of its webhooks."""
    return f"tasks/{task}/pushNotificationConfigs/{config}" if config else f"tasks/{task}"


def ids(name: str, field: str = "name") -> tuple[str, str]:
    """The task and the webhook, if any, of such a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidParams.at(field, "expected tasks/{id}")
    return match[1], match[2] or ""


def alone(name: str, field: str = "name") -> str:
    """The task of a name that says nothing else."""
    task, _ = ids(name, field)
    if name != named(task):
        raise InvalidParams.at(field, "expected tasks/{id}")
    return task


# ---- what is asked -------------------------------------------------------------------------

_CONFIGURATION = Pair(
    types.SendMessageConfiguration,
    SendMessageConfiguration,
    task_push_notification_config=CONFIG.one("push_notification"),
)
_SEND = Pair(
    types.SendMessageRequest,
    SendMessageRequest,
    message=Way(old_message, new_message, "request"),
)


def _old_send(request: types.SendMessageRequest) -> SendMessageRequest:
    said = request.configuration
    if said is None:
        return _SEND.old(request)  # type: ignore[no-any-return]
    wishes = _CONFIGURATION.old(
        said, history_length=said.history_length or 0, blocking=not said.return_immediately
    )
    return _SEND.old(request, configuration=wishes)  # type: ignore[no-any-return]


def _new_send(request: SendMessageRequest) -> types.SendMessageRequest:
    said = request.configuration
    if said is None:
        return _SEND.new(request)  # type: ignore[no-any-return]
    wishes = _CONFIGURATION.new(
        said, history_length=said.history_length or None, return_immediately=not said.blocking
    )
    return _SEND.new(request, configuration=wishes)  # type: ignore[no-any-return]


def _new_get(request: GetTaskRequest) -> types.GetTaskRequest:
    length = request.history_length or None
    return types.GetTaskRequest(id=alone(request.name), history_length=length)


def _old_create(
    config: types.TaskPushNotificationConfig,
) -> CreateTaskPushNotificationConfigRequest:
    return CreateTaskPushNotificationConfigRequest(
        parent=named(config.task_id), config_id=config.id, config=_old_hook(config)
    )


def _new_create(
    request: CreateTaskPushNotificationConfigRequest,
) -> types.TaskPushNotificationConfig:
    known = request.parent or not request.config.name
    task = alone(request.parent, "parent") if known else ""
    return _new_hook(request.config, task, request.config_id, "config.name")


def _old_hook(config: types.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(
        name=named(config.task_id, config.id), push_notification_config=CONFIG.old(config)
    )


def _new_hook(
    hook: TaskPushNotificationConfig, task: str = "", id: str = "", field: str = "name"
) -> types.TaskPushNotificationConfig:
    """A webhook. Its task and its id may be told beside it; one without an id has its task's."""
    owner, given = ids(hook.name or named(task), field)
    config = hook.push_notification_config
    task = task or owner
    id = config.id or id or (given if given != "None" else "") or task  # as one SDK says it
    found: types.TaskPushNotificationConfig = CONFIG.new(config, id=id, task_id=task)
    return found


def _new_get_hook(
    request: GetTaskPushNotificationConfigRequest,
) -> types.GetTaskPushNotificationConfigRequest:
    task, config = ids(request.name)
    config = config if config != "None" else ""  # as one SDK says it
    return types.GetTaskPushNotificationConfigRequest(task_id=task, id=config)


def _new_delete(
    request: DeleteTaskPushNotificationConfigRequest,
) -> types.DeleteTaskPushNotificationConfigRequest:
    task, config = ids(request.name)
    return types.DeleteTaskPushNotificationConfigRequest(task_id=task, id=config or task)


def _new_list(
    request: ListTaskPushNotificationConfigRequest,
) -> types.ListTaskPushNotificationConfigsRequest:
    task = alone(request.parent, "parent")
    return types.ListTaskPushNotificationConfigsRequest(
        task_id=task, page_size=request.page_size, page_token=request.page_token
    )


def _old_list(
    request: types.ListTaskPushNotificationConfigsRequest,
) -> ListTaskPushNotificationConfigRequest:
    return ListTaskPushNotificationConfigRequest(
        parent=named(request.task_id), page_size=request.page_size, page_token=request.page_token
    )


_HOOKS = Pair(
    types.ListTaskPushNotificationConfigsResponse,
    ListTaskPushNotificationConfigResponse,
    configs=common.several(_old_hook, _new_hook),
)
_LIST = Pair(types.ListTasksRequest, ListTasksRequest, status=STATE)
_TASKS = Pair(types.ListTasksResponse, ListTasksResponse, tasks=TASK.each())

ASKED: dict[
    type[WireStruct], tuple[type[WireStruct], Callable[[Any], Any], Callable[[Any], Any]]
] = {
    types.SendMessageRequest: (SendMessageRequest, _new_send, _old_send),
    types.GetTaskRequest: (
        GetTaskRequest,
        _new_get,
        lambda r: GetTaskRequest(name=named(r.id), history_length=r.history_length or 0),
    ),
    types.ListTasksRequest: (ListTasksRequest, _LIST.new, _LIST.old),
    types.CancelTaskRequest: (
        CancelTaskRequest,
        lambda r: types.CancelTaskRequest(id=alone(r.name)),
        lambda r: CancelTaskRequest(name=named(r.id)),
    ),
    types.SubscribeToTaskRequest: (
        TaskSubscriptionRequest,
        lambda r: types.SubscribeToTaskRequest(id=alone(r.name)),
        lambda r: TaskSubscriptionRequest(name=named(r.id)),
    ),
    types.TaskPushNotificationConfig: (
        CreateTaskPushNotificationConfigRequest,
        _new_create,
        _old_create,
    ),
    types.GetTaskPushNotificationConfigRequest: (
        GetTaskPushNotificationConfigRequest,
        _new_get_hook,
        lambda r: GetTaskPushNotificationConfigRequest(name=named(r.task_id, r.id)),
    ),
    types.ListTaskPushNotificationConfigsRequest: (
        ListTaskPushNotificationConfigRequest,
        _new_list,
        _old_list,
    ),
    types.DeleteTaskPushNotificationConfigRequest: (
        DeleteTaskPushNotificationConfigRequest,
        _new_delete,
        lambda r: DeleteTaskPushNotificationConfigRequest(name=named(r.task_id, r.id)),
    ),
    types.GetExtendedAgentCardRequest: (
        GetAgentCardRequest,
        lambda _: types.GetExtendedAgentCardRequest(),
        lambda _: GetAgentCardRequest(),
    ),
}
"""Our requests: what 0.3 has in their place, the way from there, and the way to there."""

TOLD: dict[
    type[WireStruct], tuple[type[WireStruct], Callable[[Any], Any], Callable[[Any], Any]]
] = {
    types.SendMessageResponse: (SendMessageResponse, SENT.new, SENT.old),
    types.StreamResponse: (StreamResponse, EVENT.new, EVENT.old),
    types.Task: (Task, TASK.new, TASK.old),
    types.ListTasksResponse: (ListTasksResponse, _TASKS.new, _TASKS.old),
    types.TaskPushNotificationConfig: (TaskPushNotificationConfig, _new_hook, _old_hook),
    types.ListTaskPushNotificationConfigsResponse: (
        ListTaskPushNotificationConfigResponse,
        _HOOKS.new,
        _HOOKS.old,
    ),
    types.AgentCard: (card_proto.AgentCard, card_proto.new, card_proto.old),
}
"""Our answers, likewise."""


def event(event: Any, last: bool = False) -> StreamResponse | None:
    """An event of a stream; None if it is not for clients."""
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
    """What is asked and answered over HTTP+JSON, by all, or by those whose files are bare."""

    def __init__(self, form: str, accent: Accent = TEXT) -> None:
        self.FORM = form
        self._accent = accent

    def convert(self, kind: type[W], document: Any, *, text: bool = False) -> W:
        """What is asked, from body, query and path; InvalidParams names the field."""
        if kind is types.TaskPushNotificationConfig and isinstance(document, dict):
            document = _enclosed(document)
        shape, new, _ = ASKED[kind]
        found: W = new(self._accent.heard(protojson.convert(shape, document, text=text)))
        return found

    def encode(self, answer: WireStruct) -> bytes:
        """What is answered. The card is in the form of JSON-RPC here, too."""
        if isinstance(answer, types.AgentCard):
            return _encode(card.old(answer))
        found = TOLD[type(answer)][2](answer)
        return _encode(self._accent.said(found))

    def response(self, event_: Any, last: bool = False) -> bytes:
        """An event of a stream; empty if it is not for clients."""
        found = event(event_, last)
        if found is None:
            return b""
        return protojson.unbroken(_encode(self._accent.said(found)))


JSON = Json("0.3 proto")
BARE = Json("0.3 bare", NAKED)


def ask(request: WireStruct) -> bytes:
    """What is asked."""
    return _encode(ASKED[type(request)][2](request))


def _enclosed(document: dict[str, Any]) -> dict[str, Any]:
    """Clients also send the webhook as it is answered, without what encloses it."""
    inner = ("pushNotificationConfig", "push_notification_config")
    if "config" in document or not any(name in document for name in inner):
        return document
    rest = {name: value for name, value in document.items() if name not in ("name", *inner)}
    return {**rest, "config": {k: v for k, v in document.items() if k in ("name", *inner)}}


def told(kind: type[W], document: Any) -> W:
    """What was answered, from the parsed body."""
    shape, new, _ = TOLD[kind]
    found: W = new(protojson.convert(shape, document))
    return found


def problem(error: A2AError) -> dict[str, Any]:
    """The body of an error over HTTP+JSON."""
    code = error.rpc if error.rpc not in (-32008, -32009) else -32603
    if error.transport and code == -32603:
        code = error.http  # it is no internal error, and JSON-RPC has no code for it
    return {"code": code, "type": error.former, "message": error.message}
