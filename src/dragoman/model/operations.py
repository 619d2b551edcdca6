"""The table of the eleven operations. Bindings and clients use it."""

from __future__ import annotations

from msgspec import Struct

from dragoman.model.types import (
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
    WireStruct,
)


class Legacy(Struct, frozen=True):
    """The names of an operation in 0.3."""

    method: str = ""
    """The JSON-RPC method; empty if there is none."""
    path: str = ""
    """The HTTP+JSON path; a pattern in braces is a field of the request."""
    name: str = ""
    """The gRPC method."""


class Operation(Struct, frozen=True, kw_only=True):
    """One operation in all of its bindings."""

    name: str
    """The method in JSON-RPC and gRPC."""
    call: str
    """The method of the service."""
    verbs: tuple[str, ...]
    """The HTTP methods that servers accept; clients try them in this order."""
    path: str
    """The HTTP+JSON route; a name in braces is a field of the request."""
    request: type[WireStruct]
    response: type[WireStruct] | None
    """The type of the response or, if the operation streams, of each event. `None` is an empty
    response."""
    streams: bool = False
    legacy: Legacy = Legacy()


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="SendMessage",
        call="send",
        verbs=("POST",),
        path="/message:send",
        request=SendMessageRequest,
        response=SendMessageResponse,
        legacy=Legacy("message/send", "/v1/message:send", "SendMessage"),
    ),
    Operation(
        name="SendStreamingMessage",
        call="stream",
        verbs=("POST",),
        path="/message:stream",
        request=SendMessageRequest,
        response=StreamResponse,
        streams=True,
        legacy=Legacy("message/stream", "/v1/message:stream", "SendStreamingMessage"),
    ),
    Operation(
        name="GetTask",
        call="get",
        verbs=("GET",),
        path="/tasks/{id}",
        request=GetTaskRequest,
        response=Task,
        legacy=Legacy("tasks/get", "/v1/{name=tasks/*}", "GetTask"),
    ),
    Operation(
        name="ListTasks",
        call="list",
        verbs=("GET",),
        path="/tasks",
        request=ListTasksRequest,
        response=ListTasksResponse,
        legacy=Legacy("", "/v1/tasks", ""),
    ),
    Operation(
        name="CancelTask",
        call="cancel",
        verbs=("POST",),
        path="/tasks/{id}:cancel",
        request=CancelTaskRequest,
        response=Task,
        legacy=Legacy("tasks/cancel", "/v1/{name=tasks/*}:cancel", "CancelTask"),
    ),
    Operation(
        name="SubscribeToTask",
        call="subscribe",
        verbs=("POST", "GET"),  # the specification's text and its proto disagree
        path="/tasks/{id}:subscribe",
        request=SubscribeToTaskRequest,
        response=StreamResponse,
        streams=True,
        legacy=Legacy("tasks/resubscribe", "/v1/{name=tasks/*}:subscribe", "TaskSubscription"),
    ),
    Operation(
        name="CreateTaskPushNotificationConfig",
        call="create_webhook",
        verbs=("POST",),
        path="/tasks/{taskId}/pushNotificationConfigs",
        request=TaskPushNotificationConfig,
        response=TaskPushNotificationConfig,
        legacy=Legacy(
            "tasks/pushNotificationConfig/set",
            "/v1/{parent=tasks/*}/pushNotificationConfigs",
            "CreateTaskPushNotificationConfig",
        ),
    ),
    Operation(
        name="GetTaskPushNotificationConfig",
        call="get_webhook",
        verbs=("GET",),
        path="/tasks/{taskId}/pushNotificationConfigs/{id}",
        request=GetTaskPushNotificationConfigRequest,
        response=TaskPushNotificationConfig,
        legacy=Legacy(
            "tasks/pushNotificationConfig/get",
            "/v1/{name=tasks/*/pushNotificationConfigs/*}",
            "GetTaskPushNotificationConfig",
        ),
    ),
    Operation(
        name="ListTaskPushNotificationConfigs",
        call="list_webhooks",
        verbs=("GET",),
        path="/tasks/{taskId}/pushNotificationConfigs",
        request=ListTaskPushNotificationConfigsRequest,
        response=ListTaskPushNotificationConfigsResponse,
        legacy=Legacy(
            "tasks/pushNotificationConfig/list",
            "/v1/{parent=tasks/*}/pushNotificationConfigs",
            "ListTaskPushNotificationConfig",
        ),
    ),
    Operation(
        name="DeleteTaskPushNotificationConfig",
        call="delete_webhook",
        verbs=("DELETE",),
        path="/tasks/{taskId}/pushNotificationConfigs/{id}",
        request=DeleteTaskPushNotificationConfigRequest,
        response=None,
        legacy=Legacy(
            "tasks/pushNotificationConfig/delete",
            "/v1/{name=tasks/*/pushNotificationConfigs/*}",
            "DeleteTaskPushNotificationConfig",
        ),
    ),
    Operation(
        name="GetExtendedAgentCard",
        call="extended_card",
        verbs=("GET",),
        path="/extendedAgentCard",
        request=GetExtendedAgentCardRequest,
        response=AgentCard,
        legacy=Legacy("agent/getAuthenticatedExtendedCard", "/v1/card", "GetAgentCard"),
    ),
)

BY_CALL = {operation.call: operation for operation in OPERATIONS}
"""The operations by their service method."""
