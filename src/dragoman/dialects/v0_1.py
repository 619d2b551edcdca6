"""0.1: what `tasks/send` and `tasks/sendSubscribe` mean.

The client chooses the id of a task, and knows no other. Ours is made of it, and of whose it is, so
that two owners can choose the same, and so that it can be read back wherever it is needed.

| in 1.0 | in 0.1 |
|---|---|
| `contextId` | `sessionId` |
| a direct reply | a completed task with the reply in its status |
| `messageId` | none; a message that comes gets one |
| `artifactId` | `index`, by the order in which artifacts appear |
| rejected, auth-required | failed, input-required |
| `extensions`, `referenceTaskIds`, webhooks beyond the first | not said |
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, unquote

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dragoman.dialects import Received, client_quirks, protojson
from dragoman.dialects.v0_3 import fasta2a, rpc
from dragoman.dialects.v0_3.common import CONFIG, Pair, PushNotificationConfig, Way
from dragoman.model import clock, types
from dragoman.model.caller import Call, Scope
from dragoman.model.errors import A2AError, InvalidParams
from dragoman.model.events import Reply
from dragoman.model.types import Metadata, Required, Told, WireStruct

W = TypeVar("W", bound=WireStruct)

METHODS = {
    "tasks/send": "send",
    "tasks/sendSubscribe": "stream",
    "tasks/get": "get",
    "tasks/cancel": "cancel",
    "tasks/resubscribe": "subscribe",
    "tasks/pushNotification/set": "create_webhook",
    "tasks/pushNotification/get": "get_webhook",
    "tasks/stream": "stream",
}
"""The operations by the names of their methods; some clients call `tasks/sendSubscribe` so."""
PREFIX = "v0.1-"
LONGEST = 256


class Message(WireStruct, frozen=True, kw_only=True):
    """See `types.Message`. Some clients of 0.2 send one with an id under the older method."""

    role: rpc.Role
    parts: rpc.Parts
    metadata: Metadata | None = None
    kind: str = ""
    message_id: str = ""
    context_id: str = ""
    task_id: str = ""
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()


class Artifact(WireStruct, frozen=True, kw_only=True, omit_defaults=True):
    """See `types.Artifact`; in an event it also says which chunk it is."""

    name: str = ""
    description: str = ""
    parts: rpc.Parts
    metadata: Metadata | None = None
    index: int | None = None
    append: bool | None = None
    last_chunk: bool | None = None


class TaskStatus(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskStatus`."""

    state: rpc.State
    message: Message | None = None
    timestamp: Told | None = None


class Task(WireStruct, frozen=True, kw_only=True):
    """See `types.Task`."""

    id: Required
    session_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskStatusUpdateEvent`."""

    id: Required
    status: TaskStatus
    final: bool | None = None
    metadata: Metadata | None = None


class TaskArtifactUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskArtifactUpdateEvent`."""

    id: Required
    artifact: Artifact
    final: bool | None = None
    metadata: Metadata | None = None


class TaskSendParams(WireStruct, frozen=True, kw_only=True):
    """A message to a task, which it begins if there is none of this id."""

    id: Annotated[str, Meta(min_length=1, max_length=LONGEST)]
    session_id: str = ""
    message: Message
    accepted_output_modes: tuple[str, ...] = ()
    push_notification: PushNotificationConfig | None = None
    history_length: int | None = None
    metadata: Metadata | None = None


class TaskPushNotificationConfig(WireStruct, frozen=True, kw_only=True):
    """A webhook of a task; there is one."""

    id: Required
    push_notification_config: PushNotificationConfig


# ---- single objects ------------------------------------------------------------------------

_LATER = {
    types.TaskState.REJECTED: rpc.State.FAILED,
    types.TaskState.AUTH_REQUIRED: rpc.State.INPUT_REQUIRED,
}


def _old_part(part: types.Part) -> rpc.Part:
    found = rpc.old_part(part)
    return replace(found, kind="", type=found.kind)


def _old_state(state: types.TaskState) -> rpc.State:
    return _LATER.get(state) or rpc.State[state.name]


def _old_message(message: types.Message) -> Message:
    parts = tuple([_old_part(part) for part in message.parts])
    return Message(role=rpc.Role[message.role.name], parts=parts, metadata=message.metadata)


def _new_message(message: Message, **more: Any) -> types.Message:
    """With an id made of what it says, where it has none: the same one each time it is told."""
    id = message.message_id
    if not id:
        id = hashlib.sha256(msgspec.json.encode(message)).hexdigest()[:32]
    found = types.Message(
        message_id=id,
        context_id=message.context_id,
        task_id=message.task_id,
        role=types.Role[message.role.name],
        parts=tuple([rpc.new_part(part) for part in message.parts]),
        metadata=message.metadata,
        extensions=message.extensions,
        reference_task_ids=message.reference_task_ids,
    )
    return replace(found, **more)


_STATUS = Pair(
    types.TaskStatus,
    TaskStatus,
    state=Way(_old_state, rpc.STATE.new),
    message=Way(_old_message, _new_message),
)


def _old_artifact(artifact: types.Artifact, index: int, **more: Any) -> Artifact:
    return Artifact(
        name=artifact.name,
        description=artifact.description,
        parts=tuple([_old_part(part) for part in artifact.parts]),
        metadata=artifact.metadata,
        index=index,
        **more,
    )


def _new_artifact(artifact: Artifact, index: int = 0) -> types.Artifact:
    return types.Artifact(
        artifact_id=str(index if artifact.index is None else artifact.index),
        name=artifact.name,
        description=artifact.description,
        parts=tuple([rpc.new_part(part) for part in artifact.parts]),
        metadata=artifact.metadata,
    )


# ---- ids -----------------------------------------------------------------------------------


def inside(id: str, scope: Scope) -> str:
    """Our id of the task that its owner calls so."""
    whose = msgspec.json.encode((scope.agent, scope.tenant, scope.owner))
    # nothing that clients would have to quote in a path, which not all of them do
    name = quote(id, safe="").replace("~", "%7E").replace("%", "~")
    return f"{PREFIX}{hashlib.sha256(whose).hexdigest()[:32]}-{name}"


def outside(id: str) -> str:
    """What its owner calls a task of ours."""
    if not id.startswith(PREFIX):
        return id
    return unquote(id.removeprefix(PREFIX).partition("-")[2].replace("~", "%"))


# ---- serving -------------------------------------------------------------------------------


def receive(agent: str, kind: type[WireStruct], params: bytes, call: Call) -> Received:
    """A request to this agent, and how it is answered. A message may begin the task of the id that
    it names. Where only the method's name is of 0.1, it is a request in 0.2."""
    if client_quirks.is_0_2_by_its_params(params):
        call = replace(call, caller=replace(call.caller, version="0.2"))
        return fasta2a.receive(agent, kind, params, call)
    dialect = V01Codec(Scope(agent, call.caller.tenant, call.caller.qualified))
    request = dialect.decode(kind, params)
    if isinstance(request, types.SendMessageRequest):
        call = replace(call, new_task=request.message.task_id)
    return dialect, request, call


class V01Codec:
    """The dialect for one request: it knows whose ids are meant, and which artifacts came."""

    FORM = ""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._id = ""
        self._indices: dict[str, int] = {}

    def decode(self, kind: type[W], body: bytes) -> W:
        """What is asked; InvalidParams names the field that is wrong."""
        if kind is types.SendMessageRequest:
            found: Any = self._send(_params(body))
        elif kind is types.TaskPushNotificationConfig:
            hook = protojson.decode(TaskPushNotificationConfig, body)
            task = inside(hook.id, self.scope)
            found = CONFIG.new(hook.push_notification_config, id=task, task_id=task)
        else:
            found = rpc.decode(kind, body)
            task = inside(getattr(found, "task_id", "") or found.id, self.scope)
            if kind is types.GetTaskPushNotificationConfigRequest:
                found = types.GetTaskPushNotificationConfigRequest(task_id=task, id=task)
            else:
                found = replace(found, id=task)
        return found  # type: ignore[no-any-return]

    def _send(self, params: TaskSendParams) -> types.SendMessageRequest:
        self._id, hook = params.id, params.push_notification
        message = _new_message(
            params.message, context_id=params.session_id, task_id=inside(params.id, self.scope)
        )
        if not params.message.message_id:
            message = replace(message, message_id=clock.uuid7())
        return types.SendMessageRequest(
            message=message,
            configuration=types.SendMessageConfiguration(
                accepted_output_modes=params.accepted_output_modes,
                task_push_notification_config=CONFIG.new(hook, id="") if hook else None,
                history_length=params.history_length,
            ),
            metadata=params.metadata,
        )

    def encode(self, answer: Any) -> bytes:
        """What is answered."""
        if isinstance(answer, types.SendMessageResponse):
            answer = answer.task if answer.message is None else self._told(answer.message)
        if isinstance(answer, types.Task):
            return _encode(old_task(answer))
        if isinstance(answer, types.TaskPushNotificationConfig):
            config = CONFIG.old(answer, id="")
            id = outside(answer.task_id)
            return _encode(TaskPushNotificationConfig(id=id, push_notification_config=config))
        return rpc.encode(answer)

    def response(self, event: Any, last: bool = False) -> bytes:
        """An event of a stream; empty if it is not for clients."""
        if isinstance(event, types.TaskArtifactUpdateEvent):
            return protojson.unbroken(_encode(self._chunk(event)))
        if isinstance(event, Reply):
            event, last = self._told(event.message), True
        if isinstance(event, types.Task):
            for artifact in event.artifacts:
                self._index(artifact)
            # such a stream has none, and a question that was answered is none any more
            if event.status.state.interrupted:
                return b""
            id = event.id
        elif isinstance(event, types.TaskStatusUpdateEvent):
            id = event.task_id
        else:
            return b""
        found = TaskStatusUpdateEvent(
            id=outside(id), status=_STATUS.old(event.status), final=last, metadata=event.metadata
        )
        return protojson.unbroken(_encode(found))

    def _chunk(self, event: types.TaskArtifactUpdateEvent) -> TaskArtifactUpdateEvent:
        artifact = _old_artifact(
            event.artifact,
            self._index(event.artifact),
            append=event.append,
            last_chunk=event.last_chunk,
        )
        return TaskArtifactUpdateEvent(
            id=outside(event.task_id), artifact=artifact, metadata=event.metadata
        )

    def _index(self, artifact: types.Artifact) -> int:
        return self._indices.setdefault(artifact.artifact_id, len(self._indices))

    def _told(self, message: types.Message) -> types.Task:
        """A direct reply as the only thing that 0.1 knows."""
        status = types.TaskStatus(
            state=types.TaskState.COMPLETED, message=message, timestamp=clock.now()
        )
        return types.Task(id=self._id, context_id=message.context_id, status=status)

    def problem(self, error: A2AError) -> dict[str, Any]:
        """An error."""
        return rpc.problem(error)


def _params(body: bytes) -> TaskSendParams:
    """What a send asks; InvalidParams names the field that is wrong."""
    try:
        found: TaskSendParams = protojson.decoder(TaskSendParams).decode(body)
        return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return protojson.convert(TaskSendParams, client_quirks.with_parts(protojson.parse(body)))


def old_task(task: types.Task) -> Task:
    """A task as its owner calls it."""
    return Task(
        id=outside(task.id),
        session_id=task.context_id,
        status=_STATUS.old(task.status),
        artifacts=tuple([_old_artifact(found, n) for n, found in enumerate(task.artifacts)]),
        history=tuple([_old_message(message) for message in task.history]),
        metadata=task.metadata,
    )


def encode(task: types.Task) -> bytes:
    """A task as it is pushed."""
    return _encode(old_task(task))


# ---- calling -------------------------------------------------------------------------------


def ask(request: Any) -> bytes:
    """What is asked. A new task is called as the message that begins it, so that the same send
    again is the same."""
    if isinstance(request, types.SendMessageRequest):
        message, said = request.message, request.configuration
        hook = said and said.task_push_notification_config
        return _encode(
            TaskSendParams(
                id=message.task_id or message.message_id,
                session_id=message.context_id,
                message=_old_message(message),
                accepted_output_modes=said.accepted_output_modes if said else (),
                push_notification=CONFIG.old(hook) if hook else None,
                history_length=said.history_length if said else None,
                metadata=request.metadata,
            )
        )
    if isinstance(request, types.TaskPushNotificationConfig):
        config = CONFIG.old(request, id="")
        return _encode(
            TaskPushNotificationConfig(id=request.task_id, push_notification_config=config)
        )
    return rpc.encode(request)


def told(kind: type[W], document: Any) -> W:
    """What was answered."""
    if kind is types.TaskPushNotificationConfig:
        hook = protojson.convert(TaskPushNotificationConfig, document)
        found: Any = CONFIG.new(hook.push_notification_config, task_id=hook.id)
    elif kind in (types.SendMessageResponse, types.Task):
        task = _new_task(protojson.convert(Task, document))
        found = types.SendMessageResponse(task=task) if kind is not types.Task else task
    elif kind is types.StreamResponse:
        found = _new_event(document)
    else:
        raise InvalidParams.at("params", "A2A 0.1 has no such object")
    return found  # type: ignore[no-any-return]


def _new_task(task: Task) -> types.Task:
    return types.Task(
        id=task.id,
        context_id=task.session_id,
        status=_STATUS.new(task.status),
        artifacts=tuple([_new_artifact(found, n) for n, found in enumerate(task.artifacts)]),
        history=tuple([_new_message(message) for message in task.history]),
        metadata=task.metadata,
    )


def _new_event(document: Any) -> types.StreamResponse:
    if isinstance(document, dict) and "artifact" in document:
        chunk = protojson.convert(TaskArtifactUpdateEvent, document)
        return types.StreamResponse(
            artifact_update=types.TaskArtifactUpdateEvent(
                task_id=chunk.id,
                context_id="",
                artifact=_new_artifact(chunk.artifact),
                append=bool(chunk.artifact.append),
                last_chunk=bool(chunk.artifact.last_chunk),
                metadata=chunk.metadata,
            )
        )
    if isinstance(document, dict) and "final" not in document:
        return types.StreamResponse(task=_new_task(protojson.convert(Task, document)))
    event = protojson.convert(TaskStatusUpdateEvent, document)
    return types.StreamResponse(
        status_update=types.TaskStatusUpdateEvent(
            task_id=event.id,
            context_id="",
            status=_STATUS.new(event.status),
            metadata=event.metadata,
        )
    )


_encode = msgspec.json.Encoder().encode
