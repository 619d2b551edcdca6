"""The table of the eleven operations. Bindings and clients are driven by it."""

from __future__ import annotations

from msgspec import Struct

from dragoman.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    Wire,
)


class Operation(Struct, frozen=True, kw_only=True):
    """One operation in all of its bindings."""

    name: str
    """The JSON-RPC method, and the gRPC one."""
    call: str
    """The method of the service."""
    verbs: tuple[str, ...]
    path: str
    """The HTTP+JSON route; a name in braces is a field of the request."""
    request: type[Wire]
    response: type[Wire] | None
    """What is answered, or, if it streams, what each event is. `None` is an empty answer."""
    streams: bool = False


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="SendMessage",
        call="send",
        verbs=("POST",),
        path="/message:send",
        request=SendMessageRequest,
        response=SendMessageResponse,
    ),
    Operation(
        name="SendStreamingMessage",
        call="stream",
        verbs=("POST",),
        path="/message:stream",
        request=SendMessageRequest,
        response=StreamResponse,
        streams=True,
    ),
    Operation(
        name="GetTask",
        call="get",
        verbs=("GET",),
        path="/tasks/{id}",
        request=GetTaskRequest,
        response=Task,
    ),
    Operation(
        name="ListTasks",
        call="list",
        verbs=("GET",),
        path="/tasks",
        request=ListTasksRequest,
        response=ListTasksResponse,
    ),
    Operation(
        name="CancelTask",
        call="cancel",
        verbs=("POST",),
        path="/tasks/{id}:cancel",
        request=CancelTaskRequest,
        response=Task,
    ),
    Operation(
        name="SubscribeToTask",
        call="subscribe",
        verbs=("GET", "POST"),
        path="/tasks/{id}:subscribe",
        request=SubscribeToTaskRequest,
        response=StreamResponse,
        streams=True,
    ),
    Operation(
        name="CreateTaskPushNotificationConfig",
        call="create_webhook",
        verbs=("POST",),
        path="/tasks/{taskId}/pushNotificationConfigs",
        request=TaskPushNotificationConfig,
        response=TaskPushNotificationConfig,
    ),
    Operation(
        name="GetTaskPushNotificationConfig",
        call="get_webhook",
        verbs=("GET",),
        path="/tasks/{taskId}/pushNotificationConfigs/{id}",
        request=GetTaskPushNotificationConfigRequest,
        response=TaskPushNotificationConfig,
    ),
    Operation(
        name="ListTaskPushNotificationConfigs",
        call="list_webhooks",
        verbs=("GET",),
        path="/tasks/{taskId}/pushNotificationConfigs",
        request=ListTaskPushNotificationConfigsRequest,
        response=ListTaskPushNotificationConfigsResponse,
    ),
    Operation(
        name="DeleteTaskPushNotificationConfig",
        call="delete_webhook",
        verbs=("DELETE",),
        path="/tasks/{taskId}/pushNotificationConfigs/{id}",
        request=DeleteTaskPushNotificationConfigRequest,
        response=None,
    ),
    Operation(
        name="GetExtendedAgentCard",
        call="extended_card",
        verbs=("GET",),
        path="/extendedAgentCard",
        request=GetExtendedAgentCardRequest,
        response=AgentCard,
    ),
)
