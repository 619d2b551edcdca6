"""Test clients of versions before 1.0. The reference SDK converts 0.3; no SDK supports 0.1, so this
module converts it."""

from __future__ import annotations

import json
import re
from itertools import count
from typing import Any
from uuid import uuid4

import grpc
import httpx
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc as old_grpc
from a2a.compat.v0_3 import conversions
from a2a.compat.v0_3 import types as old
from a2a.compat.v0_3.proto_utils import FromProto, ToProto
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.harness.clients import (
    Failed,
    Grpc,
    Http,
    Seen,
    asked,
    opened,
    query,
    told,
)

METHODS = {
    "SendMessage": "message/send",
    "SendStreamingMessage": "message/stream",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
    "CreateTaskPushNotificationConfig": "tasks/pushNotificationConfig/set",
    "GetTaskPushNotificationConfig": "tasks/pushNotificationConfig/get",
    "ListTaskPushNotificationConfigs": "tasks/pushNotificationConfig/list",
    "DeleteTaskPushNotificationConfig": "tasks/pushNotificationConfig/delete",
    "GetExtendedAgentCard": "agent/getAuthenticatedExtendedCard",
}
COMPAT = {
    "SendMessage": conversions.to_compat_send_message_request,
    "SendStreamingMessage": conversions.to_compat_send_message_request,
    "GetTask": conversions.to_compat_get_task_request,
    "CancelTask": conversions.to_compat_cancel_task_request,
    "SubscribeToTask": conversions.to_compat_subscribe_to_task_request,
    "CreateTaskPushNotificationConfig": (
        conversions.to_compat_create_task_push_notification_config_request
    ),
    "GetTaskPushNotificationConfig": (
        conversions.to_compat_get_task_push_notification_config_request
    ),
    "ListTaskPushNotificationConfigs": (
        conversions.to_compat_list_task_push_notification_config_request
    ),
    "DeleteTaskPushNotificationConfig": (
        conversions.to_compat_delete_task_push_notification_config_request
    ),
    "GetExtendedAgentCard": conversions.to_compat_get_extended_agent_card_request,
}
NEITHER = frozenset(("1.0", "tenant", "json", "media-type", "malformed"))
"""The features that no binding of 0.3 has."""


def params_of(name: str, params: dict[str, Any], id: int) -> Any:
    """Convert the parameters to a model of 0.3."""
    request = COMPAT[name](asked(name, params), id)
    return getattr(request, "params", None)


def event_of(result: Any) -> Seen:
    """Convert an event of 0.3 to 1.0."""
    whole = old.SendStreamingMessageSuccessResponse(result=result)
    final = getattr(result, "final", None)
    return Seen("", told(conversions.to_core_stream_response(whole)), final)


def configs_of(configs: list[Any]) -> dict[str, Any]:
    """Convert a list of webhooks to a page of 1.0."""
    found = [told(conversions.to_core_task_push_notification_config(c)) for c in configs]
    return {"configs": found}


# ---- JSON-RPC ------------------------------------------------------------------------------


class JsonRpc03(Http):
    """A JSON-RPC client of 0.3."""

    name = "jsonrpc-0.3"
    version = "0.3"
    extensions = "X-A2A-Extensions"
    lacks = NEITHER | {"list", "push-pages"}
    ids = count(1)

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        id = next(self.ids)
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": METHODS[name]}
        if (found := params_of(name, params, id)) is not None:
            body["params"] = found.model_dump(mode="json", by_alias=True, exclude_none=True)
        return self.http.build_request("POST", f"{self.url}/", json=body, headers=self.headers)

    def result(self, name: str, response: httpx.Response) -> Any:
        found = opened(response, response.json())
        if name == "SendMessage":
            whole = old.SendMessageResponse.model_validate(response.json())
            return told(conversions.to_core_send_message_response(whole))
        if name in ("GetTask", "CancelTask"):
            return told(conversions.to_core_task(old.Task.model_validate(found)))
        if name == "ListTaskPushNotificationConfigs":
            return configs_of([old.TaskPushNotificationConfig.model_validate(c) for c in found])
        if name.endswith("PushNotificationConfig") and found is not None:
            return configs_of([old.TaskPushNotificationConfig.model_validate(found)])["configs"][0]
        if name == "GetExtendedAgentCard":
            card = old.AgentCard.model_validate(found)
            return told(conversions.to_core_agent_card(card))
        assert found is None
        return None

    def event(self, response: httpx.Response, fields: dict[str, str]) -> Seen:
        document = json.loads(fields["data"])
        opened(response, document)
        whole = old.SendStreamingMessageSuccessResponse.model_validate(document)
        seen = event_of(whole.result)
        seen.id = fields.get("id", "")
        return seen


# ---- the proto -----------------------------------------------------------------------------


def hook_name(params: dict[str, Any]) -> str:
    """Return the resource name of a webhook in 0.3."""
    return f"tasks/{params['taskId']}/pushNotificationConfigs/{params['id']}"


def old_request(name: str, params: dict[str, Any]) -> Any:
    """Convert the parameters to a message of the 0.3 proto."""
    if name in ("SendMessage", "SendStreamingMessage"):
        found = params_of(name, params, 0)
        request = old_pb2.SendMessageRequest(metadata=ToProto.metadata(found.metadata))
        if "message" in params:
            request.request.CopyFrom(ToProto.message(found.message))
        if found.configuration is not None:  # an empty configuration has another meaning
            said = ToProto.message_send_configuration(found.configuration)
            request.configuration.CopyFrom(said)
        return request
    if name == "GetTask":
        length = params.get("historyLength", 0)
        return old_pb2.GetTaskRequest(name=f"tasks/{params['id']}", history_length=length)
    if name == "CancelTask":
        return old_pb2.CancelTaskRequest(name=f"tasks/{params['id']}")
    if name == "SubscribeToTask":
        return old_pb2.TaskSubscriptionRequest(name=f"tasks/{params['id']}")
    if name == "CreateTaskPushNotificationConfig":
        found = params_of(name, params, 0)
        return old_pb2.CreateTaskPushNotificationConfigRequest(
            parent=f"tasks/{params['taskId']}",
            config_id=found.push_notification_config.id,
            config=ToProto.task_push_notification_config(found),
        )
    if name == "GetTaskPushNotificationConfig":
        return old_pb2.GetTaskPushNotificationConfigRequest(name=hook_name(params))
    if name == "DeleteTaskPushNotificationConfig":
        return old_pb2.DeleteTaskPushNotificationConfigRequest(name=hook_name(params))
    if name == "ListTaskPushNotificationConfigs":
        return old_pb2.ListTaskPushNotificationConfigRequest(
            parent=f"tasks/{params['taskId']}",
            page_size=params.get("pageSize", 0),
            page_token=params.get("pageToken", ""),
        )
    assert name == "GetExtendedAgentCard", name
    return old_pb2.GetAgentCardRequest()


def new_task(task: Any) -> Any:
    """Convert a task of the 0.3 proto to JSON of 1.0."""
    return told(conversions.to_core_task(FromProto.task(task)))


def new_answer(name: str, answer: Any) -> Any:
    """Convert a response of the 0.3 proto to JSON of 1.0."""
    if name == "SendMessage":
        if answer.HasField("task"):
            return {"task": new_task(answer.task)}
        message = FromProto.message(answer.msg)
        return {"message": told(conversions.to_core_message(message))}
    if name in ("GetTask", "CancelTask"):
        return new_task(answer)
    if name == "ListTaskPushNotificationConfigs":
        configs = [FromProto.task_push_notification_config(c) for c in answer.configs]
        found = configs_of(configs)
        return found | ({"nextPageToken": answer.next_page_token} if answer.next_page_token else {})
    if name == "DeleteTaskPushNotificationConfig":
        return None
    if name == "GetExtendedAgentCard":
        return told(conversions.to_core_agent_card(FromProto.agent_card(answer)))
    return configs_of([FromProto.task_push_notification_config(answer)])["configs"][0]


def new_event(event: Any) -> Seen:
    """Convert an event of the 0.3 proto."""
    return event_of(FromProto.stream_response(event))


ANSWERS = {
    "SendMessage": old_pb2.SendMessageResponse,
    "GetTask": old_pb2.Task,
    "CancelTask": old_pb2.Task,
    "CreateTaskPushNotificationConfig": old_pb2.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": old_pb2.TaskPushNotificationConfig,
    "ListTaskPushNotificationConfigs": old_pb2.ListTaskPushNotificationConfigResponse,
}
PATHS = {
    "SendMessage": ("POST", "/v1/message:send"),
    "SendStreamingMessage": ("POST", "/v1/message:stream"),
    "GetTask": ("GET", "/v1/tasks/{id}"),
    "ListTasks": ("GET", "/v1/tasks"),
    "CancelTask": ("POST", "/v1/tasks/{id}:cancel"),
    "SubscribeToTask": ("GET", "/v1/tasks/{id}:subscribe"),
    "CreateTaskPushNotificationConfig": ("POST", "/v1/tasks/{taskId}/pushNotificationConfigs"),
    "GetTaskPushNotificationConfig": ("GET", "/v1/tasks/{taskId}/pushNotificationConfigs/{id}"),
    "ListTaskPushNotificationConfigs": ("GET", "/v1/tasks/{taskId}/pushNotificationConfigs"),
    "DeleteTaskPushNotificationConfig": (
        "DELETE",
        "/v1/tasks/{taskId}/pushNotificationConfigs/{id}",
    ),
    "GetExtendedAgentCard": ("GET", "/v1/card"),
}
REASONS = {
    -32001: "TASK_NOT_FOUND",
    -32002: "TASK_NOT_CANCELABLE",
    -32003: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    -32004: "UNSUPPORTED_OPERATION",
    -32005: "CONTENT_TYPE_NOT_SUPPORTED",
    -32006: "INVALID_AGENT_RESPONSE",
    -32007: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    -32600: "INVALID_REQUEST",
    -32601: "METHOD_NOT_FOUND",
    -32602: "INVALID_PARAMS",
    -32603: "INTERNAL_ERROR",
    -32700: "PARSE_ERROR",
}
TRANSPORT = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class Http03(Http):
    """An HTTP+JSON client of 0.3."""

    name = "http-0.3"
    version = "0.3"
    extensions = "X-A2A-Extensions"
    lacks = NEITHER | {"references", "history-zero", "reason"}

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        verb, path = PATHS[name]
        options: dict[str, Any] = {}
        rest = dict(params)
        url = re.sub(r"\{(\w+)\}", lambda match: rest.pop(match[1]), path)
        if verb == "POST":
            options = {"json": MessageToDict(old_request(name, params))}
        elif name != "GetExtendedAgentCard":
            options = {"params": query(rest)}
        return self.http.build_request(verb, f"{self.url}{url}", headers=self.headers, **options)

    def result(self, name: str, response: httpx.Response) -> Any:
        body = response.json()
        if response.status_code != 200:
            raise self._failed(response.status_code, body)
        if name == "DeleteTaskPushNotificationConfig":
            assert body == {}
            return None
        if name == "GetExtendedAgentCard":
            return told(conversions.to_core_agent_card(old.AgentCard.model_validate(body)))
        if name == "ListTasks":  # the 0.3 proto does not have it
            tasks = body.get("tasks", [])
            found = [new_task(ParseDict(task, old_pb2.Task())) for task in tasks]
            blank = {"nextPageToken": "", "pageSize": 0, "totalSize": 0}
            return {**blank, **body, "tasks": found}
        return new_answer(name, ParseDict(body, ANSWERS[name]()))

    def event(self, response: httpx.Response, fields: dict[str, str]) -> Seen:
        document = json.loads(fields["data"])
        if fields.get("event") == "error":
            raise self._failed(200, document)
        seen = new_event(ParseDict(document, old_pb2.StreamResponse()))
        seen.id = fields.get("id", "")
        return seen

    def _failed(self, status: int, body: dict[str, Any]) -> Failed:
        assert body.keys() == {"code", "type", "message"}
        code = body["code"]  # an event has only the code
        reason = TRANSPORT.get(status) or TRANSPORT.get(code) or REASONS[code]
        words = renamed(body["message"])
        at = re.match(r"([\w.\[\]-]+): ", words) if reason == "INVALID_PARAMS" else None
        return Failed(reason, words, [at[1]] if at else [], {}, body["code"], status)


def renamed(text: str) -> str:
    """Rename a field as in 1.0."""
    return re.sub(r"\bmessage\.content\b", "message.parts", text)


class Grpc03(Grpc):
    """A gRPC client of 0.3."""

    name = "grpc-0.3"
    version = "0.3"
    extensions = "X-A2A-Extensions"
    lacks = NEITHER | {"ids", "list", "references", "history-zero"}
    Stub = old_grpc.A2AServiceStub

    def method(self, name: str) -> str:
        return {
            "SubscribeToTask": "TaskSubscription",
            "ListTaskPushNotificationConfigs": "ListTaskPushNotificationConfig",
            "GetExtendedAgentCard": "GetAgentCard",
        }.get(name, name)

    def ask(self, name: str, params: dict[str, Any]) -> Any:
        return old_request(name, params)

    def answered(self, name: str, answer: Any) -> Any:
        return new_answer(name, answer)

    def seen(self, answer: Any) -> Seen:
        return new_event(answer)

    def words(self, error: grpc.aio.AioRpcError, message: str) -> str:
        name, _, words = (error.details() or "").partition(": ")
        assert re.fullmatch(r"\w+Error", name), name
        assert words == message
        return renamed(message)

    def failed(self, error: grpc.aio.AioRpcError) -> Failed:
        found = super().failed(error)
        found.fields = [renamed(field) for field in found.fields]
        return found


# ---- 0.1 -----------------------------------------------------------------------------------

FIRST = {
    "SendMessage": "tasks/send",
    "SendStreamingMessage": "tasks/sendSubscribe",
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "SubscribeToTask": "tasks/resubscribe",
    "CreateTaskPushNotificationConfig": "tasks/pushNotification/set",
    "GetTaskPushNotificationConfig": "tasks/pushNotification/get",
}


def first_part(part: dict[str, Any]) -> dict[str, Any]:
    """Convert a part to 0.1."""
    more = {"metadata": part["metadata"]} if "metadata" in part else {}
    if "text" in part:
        return {"type": "text", "text": part["text"], **more}
    if "data" in part:
        return {"type": "data", "data": part["data"], **more}
    file = {"bytes": part.get("raw"), "uri": part.get("url"), "name": part.get("filename")}
    said = {name: value for name, value in file.items() if value is not None}
    return {"type": "file", "file": said, **more}


def part_of(part: dict[str, Any]) -> dict[str, Any]:
    """Convert a part of 0.1 to 1.0."""
    assert "kind" not in part
    more = {"metadata": part["metadata"]} if "metadata" in part else {}
    if part["type"] != "file":
        return {part["type"]: part[part["type"]], **more}
    names = {"bytes": "raw", "uri": "url", "name": "filename", "mimeType": "mediaType"}
    return {**{names[name]: value for name, value in part["file"].items()}, **more}


def message_of(message: dict[str, Any]) -> dict[str, Any]:
    """Convert a message of 0.1."""
    assert not {"messageId", "kind", "taskId", "contextId"} & message.keys()
    found = {**message, "role": f"ROLE_{message['role'].upper()}"}
    found["parts"] = [part_of(part) for part in message["parts"]]
    return found


def status_of(status: dict[str, Any]) -> dict[str, Any]:
    """Convert a status of 0.1."""
    found = {**status, "state": f"TASK_STATE_{status['state'].upper().replace('-', '_')}"}
    if "message" in found:
        found["message"] = message_of(found["message"])
    return found


def artifact_of(artifact: dict[str, Any]) -> dict[str, Any]:
    """Convert an artifact of 0.1, whose index becomes its id."""
    found = {k: v for k, v in artifact.items() if k not in ("index", "append", "lastChunk")}
    parts = [part_of(part) for part in artifact["parts"]]
    return {**found, "artifactId": str(artifact.get("index", 0)), "parts": parts}


def task_of(task: dict[str, Any]) -> dict[str, Any]:
    """Convert a task of 0.1."""
    assert not {"kind", "contextId"} & task.keys()
    found = {"id": task["id"], "contextId": task["sessionId"], "status": status_of(task["status"])}
    if "artifacts" in task:
        found["artifacts"] = [artifact_of(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        found["history"] = [message_of(message) for message in task["history"]]
    return found | ({"metadata": task["metadata"]} if "metadata" in task else {})


class JsonRpc01(Http):
    """A JSON-RPC client of 0.1, which chooses the task ids."""

    name = "jsonrpc-0.1"
    version = "0.1"
    extensions = "X-A2A-Extensions"
    lacks = NEITHER | {"list", "push-pages", "references", "direct-reply", "return-immediately"}
    ids = count(1)

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        id = next(self.ids)
        said = self._params(name, params)
        body = {"jsonrpc": "2.0", "id": id, "method": FIRST[name], "params": said}
        return self.http.build_request("POST", f"{self.url}/", json=body, headers=self.headers)

    def _params(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        if "PushNotification" in name:
            hook = {key: params[key] for key in ("url", "token") if key in params}
            return {
                "id": params["taskId"],
                **({"pushNotificationConfig": hook} if hook else {}),
            }
        if "message" not in params:
            return params
        message, said = params["message"], params.get("configuration", {})
        found: dict[str, Any] = {
            "id": message.get("taskId") or str(uuid4()),
            "message": {
                "role": message["role"].removeprefix("ROLE_").lower(),
                "parts": [first_part(part) for part in message["parts"]],
            },
        }
        if "metadata" in message:
            found["message"]["metadata"] = message["metadata"]
        if "contextId" in message:
            found["sessionId"] = message["contextId"]
        if "historyLength" in said:
            found["historyLength"] = said["historyLength"]
        if hook := said.get("taskPushNotificationConfig"):
            found["pushNotification"] = hook
        return found

    def result(self, name: str, response: httpx.Response) -> Any:
        found = opened(response, response.json())
        if "PushNotification" in name:
            return {"taskId": found["id"], **found["pushNotificationConfig"]}
        task = task_of(found)
        return {"task": task} if name == "SendMessage" else task

    def event(self, response: httpx.Response, fields: dict[str, str]) -> Seen:
        event = opened(response, json.loads(fields["data"]))
        assert not {"kind", "taskId", "contextId"} & event.keys()
        more = {"metadata": event["metadata"]} if "metadata" in event else {}
        final = event.get("final")
        if "artifact" in event:
            artifact = event["artifact"]
            found: dict[str, Any] = {"taskId": event["id"], "artifact": artifact_of(artifact)}
            flags = {k: True for k in ("append", "lastChunk") if artifact.get(k)}
            inner = {"artifactUpdate": {**found, **flags, **more}}
        else:
            status = status_of(event["status"])
            inner = {"statusUpdate": {"taskId": event["id"], "status": status, **more}}
        return Seen(fields.get("id", ""), inner, final)
