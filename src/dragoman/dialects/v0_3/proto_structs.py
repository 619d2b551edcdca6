"""The messages of 0.3's proto, in JSON names: what HTTP+JSON and gRPC of that version carry."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta, field

from dragoman.dialects.v0_3.common import PushNotificationConfig
from dragoman.dialects.v0_3.schemes import always
from dragoman.model.types import ENUM_NUMBERS, Metadata, Required, Role, Timestamp, Told, WireStruct


class TaskState(Enum):
    """The states, one of them in another spelling."""

    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELLED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"


ENUM_NUMBERS[TaskState] = dict(enumerate(TaskState, start=1))


class FilePart(WireStruct, frozen=True, kw_only=True):
    """The content of a file, or where it is."""

    file_with_uri: str | None = None
    file_with_bytes: bytes | None = None
    mime_type: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if (self.file_with_uri is None) == (self.file_with_bytes is None):
            raise ValueError("a file must have either fileWithUri or fileWithBytes")


class DataPart(WireStruct, frozen=True, kw_only=True):
    """Data, which is an object."""

    data: Metadata = field(default_factory=dict)


class Part(WireStruct, frozen=True, kw_only=True):
    """A piece of content."""

    text: str | None = None
    file: FilePart | None = None
    data: DataPart | None = None
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if (self.text is not None) + (self.file is not None) + (self.data is not None) != 1:
            raise ValueError("a part must have exactly one of text, file, data")


Parts = Annotated[tuple[Part, ...], Meta(min_length=1)]


class Message(WireStruct, frozen=True, kw_only=True):
    """See `types.Message`. Some clients send no id: the service gives it one."""

    message_id: str = always("")
    context_id: str = ""
    task_id: str = ""
    role: Role
    content: Parts
    metadata: Metadata | None = None
    extensions: tuple[str, ...] = ()


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

    state: TaskState | None = None
    update: Message | None = field(default=None, name="message")
    timestamp: Told | None = None


class Task(WireStruct, frozen=True, kw_only=True):
    """See `types.Task`."""

    id: Required
    context_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskStatusUpdateEvent`."""

    task_id: Required
    context_id: Required
    status: TaskStatus
    final: bool = False
    metadata: Metadata | None = None


class TaskArtifactUpdateEvent(WireStruct, frozen=True, kw_only=True):
    """See `types.TaskArtifactUpdateEvent`."""

    task_id: Required
    context_id: Required
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None


class TaskPushNotificationConfig(WireStruct, frozen=True, kw_only=True):
    """A webhook by its name: `tasks/{id}/pushNotificationConfigs/{id}`."""

    name: str = ""
    push_notification_config: PushNotificationConfig


class CreateTaskPushNotificationConfigRequest(WireStruct, frozen=True, kw_only=True):
    """A webhook for a task: `tasks/{id}`."""

    parent: str = ""
    config_id: str = ""
    config: TaskPushNotificationConfig


class SendMessageConfiguration(WireStruct, frozen=True, kw_only=True):
    """How the sender wants to be answered."""

    accepted_output_modes: tuple[str, ...] = ()
    push_notification: PushNotificationConfig | None = None
    history_length: int = 0
    blocking: bool = False


class SendMessageRequest(WireStruct, frozen=True, kw_only=True):
    """A message to an agent."""

    request: Message = field(name="message")
    configuration: SendMessageConfiguration | None = None
    metadata: Metadata | None = None


class GetTaskRequest(WireStruct, frozen=True, kw_only=True):
    """Which task, and how much of its history."""

    name: Required
    history_length: int = 0


class CancelTaskRequest(WireStruct, frozen=True, kw_only=True):
    """Which task."""

    name: Required


class TaskSubscriptionRequest(WireStruct, frozen=True, kw_only=True):
    """Which task."""

    name: Required


class GetTaskPushNotificationConfigRequest(WireStruct, frozen=True, kw_only=True):
    """Which webhook."""

    name: Required


class DeleteTaskPushNotificationConfigRequest(WireStruct, frozen=True, kw_only=True):
    """Which webhook."""

    name: Required


class ListTaskPushNotificationConfigRequest(WireStruct, frozen=True, kw_only=True):
    """Whose webhooks."""

    parent: Required
    page_size: int = 0
    page_token: str = ""


class ListTaskPushNotificationConfigResponse(WireStruct, frozen=True, kw_only=True):
    """A page of webhooks."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""


class ListTasksRequest(WireStruct, frozen=True, kw_only=True):
    """Which tasks, and which page of them. Only HTTP+JSON has it."""

    context_id: str = ""
    status: TaskState | None = None
    page_size: int | None = None
    page_token: str = ""
    history_length: int | None = None
    status_timestamp_after: Timestamp | None = None
    include_artifacts: bool | None = None


class ListTasksResponse(WireStruct, frozen=True, kw_only=True):
    """A page of tasks. Only HTTP+JSON has it."""

    tasks: tuple[Task, ...] = ()
    next_page_token: str = ""
    page_size: int = 0
    total_size: int = 0


class GetAgentCardRequest(WireStruct, frozen=True, kw_only=True):
    """Nothing."""


class SendMessageResponse(WireStruct, frozen=True, kw_only=True):
    """The task that a message led to, or the direct reply."""

    task: Task | None = None
    msg: Message | None = field(default=None, name="message")


class StreamResponse(WireStruct, frozen=True, kw_only=True):
    """One event of a stream."""

    task: Task | None = None
    msg: Message | None = field(default=None, name="message")
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None
