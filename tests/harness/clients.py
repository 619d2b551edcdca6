"""Test clients for each binding, which take parameters and return results in the form of 1.0.

The reference SDK does all conversions, never dragoman's code: a mistake on both sides would go
unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

import grpc
import httpx
from a2a.types import a2a_pb2, a2a_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman.model.operations import OPERATIONS

BY_NAME = {operation.name: operation for operation in OPERATIONS}
STREAMS = ("SendStreamingMessage", "SubscribeToTask")
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
DETAILS = (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest)
"""Imported so that protobuf can decode them in a status."""


@dataclass
class Failed(Exception):
    """An error response of any binding."""

    reason: str
    message: str
    fields: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    code: int = 0
    status: int = 0

    @classmethod
    def of(cls, code: int, status: int, message: str, details: list[Any]) -> Failed:
        """Create it from the fields that all bindings have."""
        info = next(item for item in details if item["@type"] == ERROR_INFO)
        assert info["domain"] == "a2a-protocol.org"
        bad = [item for item in details if item["@type"] == BAD_REQUEST]
        fields = [each["field"] for item in bad for each in item["fieldViolations"]]
        return cls(info["reason"], message, fields, info.get("metadata", {}), code, status)


@dataclass
class Seen:
    """One event of a stream. Over gRPC it has no id; before 1.0 it may be marked as the last."""

    id: str
    event: dict[str, Any]
    final: bool | None = None


class Binding:
    """A client of one binding in one version."""

    name: str
    version = "1.0"
    lacks: ClassVar[frozenset[str]] = frozenset()
    """What this binding cannot express; see the marker `needs`."""
    extensions = "A2A-Extensions"

    def __init__(
        self, url: str, http: httpx.AsyncClient, headers: dict[str, str], channel: Any = None
    ) -> None:
        self.url = url
        self.http = http
        self.channel = channel
        self.headers = {"A2A-Version": "1.0"} if self.version == "1.0" else {}
        for name, value in headers.items():
            self.headers[self.extensions if name == "A2A-Extensions" else name] = value
        self.last: Any = None

    @classmethod
    def can(cls, feature: str) -> bool:
        """Whether this binding can express a feature."""
        return feature not in cls.lacks

    async def call(self, name: str, **params: Any) -> Any:
        """Call an operation. Raises `Failed` if the response is an error."""
        raise NotImplementedError

    @asynccontextmanager
    async def open(self, name: str, **params: Any) -> AsyncIterator[AsyncIterator[Seen]]:
        """Yield the events of a streaming operation as they arrive."""
        raise NotImplementedError
        yield

    async def stream(self, name: str, **params: Any) -> list[Seen]:
        """Return all events of a streaming operation."""
        async with self.open(name, **params) as events:
            return [seen async for seen in events]

    async def tasks(self, **params: Any) -> list[dict[str, Any]]:
        """Return all tasks of the caller, over JSON-RPC, because not all bindings have a list."""
        headers = {k: v for k, v in self.headers.items() if k.startswith("X-") and "A2A" not in k}
        found = await JsonRpc(self.url, self.http, headers).call("ListTasks", **params)
        listed: list[dict[str, Any]] = found["tasks"]
        assert found["totalSize"] == len(listed)
        return listed

    @property
    def activated(self) -> str:
        """The active extensions in the last response."""
        return str(self.last.headers.get(self.extensions.lower(), ""))


class Http(Binding):
    """A client over HTTP, with server-sent events."""

    async def call(self, name: str, **params: Any) -> Any:
        response = await self.http.send(self.request(name, params))
        self.last = response
        return self.result(name, response)

    @asynccontextmanager
    async def open(self, name: str, **params: Any) -> AsyncIterator[AsyncIterator[Seen]]:
        response = await self.http.send(self.request(name, params), stream=True)
        self.last = response
        try:
            if not response.headers["content-type"].startswith("text/event-stream"):
                await response.aread()
                self.result(name, response)
                raise AssertionError("neither a stream nor an error")
            yield self._events(response)
        finally:
            await response.aclose()

    async def _events(self, response: httpx.Response) -> AsyncIterator[Seen]:
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield self.event(response, fields)
                fields = {}

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        raise NotImplementedError

    def result(self, name: str, response: httpx.Response) -> Any:
        raise NotImplementedError

    def event(self, response: httpx.Response, fields: dict[str, str]) -> Seen:
        raise NotImplementedError


def opened(response: httpx.Response, body: dict[str, Any]) -> Any:
    """Return the result of a JSON-RPC response, or raise its error."""
    assert body["jsonrpc"] == "2.0"
    assert ("result" in body) != ("error" in body)
    if "error" in body:
        error = body["error"]
        status = response.status_code
        raise Failed.of(error["code"], status, error["message"], error["data"])
    assert body["id"] == json.loads(response.request.content)["id"]
    return body["result"]


class JsonRpc(Http):
    """A JSON-RPC client."""

    name = "jsonrpc"
    ids = count(1)

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        body = {"jsonrpc": "2.0", "id": next(self.ids), "method": name, "params": params}
        return self.http.build_request("POST", f"{self.url}/", json=body, headers=self.headers)

    def result(self, name: str, response: httpx.Response) -> Any:
        return opened(response, response.json())

    def event(self, response: httpx.Response, fields: dict[str, str]) -> Seen:
        return Seen(fields.get("id", ""), opened(response, json.loads(fields["data"])))


class HttpJson(Http):
    """An HTTP+JSON client."""

    name = "http"

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        operation = BY_NAME[name]
        rest = dict(params)
        path = operation.path
        for key in ("taskId", "id"):
            if f"{{{key}}}" in path:
                path = path.replace(f"{{{key}}}", rest.pop(key, "missing"))
        if tenant := rest.pop("tenant", ""):
            path = f"/{tenant}{path}"
        verb = operation.verbs[0]
        options: dict[str, Any] = {"json": rest} if verb == "POST" else {"params": query(rest)}
        return self.http.build_request(verb, f"{self.url}{path}", headers=self.headers, **options)

    def result(self, name: str, response: httpx.Response) -> Any:
        body = response.json()
        if response.status_code == 200:
            return body or None
        error = body["error"]
        assert error["code"] == response.status_code
        raise Failed.of(0, response.status_code, error["message"], error["details"])

    def event(self, response: httpx.Response, fields: dict[str, str]) -> Seen:
        found: dict[str, Any] = json.loads(fields["data"])
        if fields.get("event") == "error":
            error = found["error"]
            raise Failed.of(0, error["code"], error["message"], error["details"])
        return Seen(fields.get("id", ""), found)


def query(params: dict[str, Any]) -> dict[str, str]:
    """Convert parameters to a query."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in params.items()
    }


STATUSES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}
"""The HTTP status for each gRPC status."""
REQUESTS = {
    "SendMessage": a2a_pb2.SendMessageRequest,
    "SendStreamingMessage": a2a_pb2.SendMessageRequest,
    "GetTask": a2a_pb2.GetTaskRequest,
    "ListTasks": a2a_pb2.ListTasksRequest,
    "CancelTask": a2a_pb2.CancelTaskRequest,
    "SubscribeToTask": a2a_pb2.SubscribeToTaskRequest,
    "CreateTaskPushNotificationConfig": a2a_pb2.TaskPushNotificationConfig,
    "GetTaskPushNotificationConfig": a2a_pb2.GetTaskPushNotificationConfigRequest,
    "ListTaskPushNotificationConfigs": a2a_pb2.ListTaskPushNotificationConfigsRequest,
    "DeleteTaskPushNotificationConfig": a2a_pb2.DeleteTaskPushNotificationConfigRequest,
    "GetExtendedAgentCard": a2a_pb2.GetExtendedAgentCardRequest,
}


def asked(name: str, params: dict[str, Any]) -> Any:
    """Convert the parameters of an operation to a message of the 1.0 proto."""
    return ParseDict(params, REQUESTS[name]())


def told(message: Message) -> dict[str, Any]:
    """Convert a message of the 1.0 proto to JSON."""
    found: dict[str, Any] = settled(MessageToDict(message))
    if message.DESCRIPTOR.name == "ListTasksResponse":  # required, whatever they are
        found = {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0, **found}
    return found


def settled(value: Any) -> Any:
    """Write timestamps with milliseconds, as dragoman does, even if they are 0."""
    if isinstance(value, list):
        return [settled(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {name: settled(item) for name, item in value.items()}
    at = found.get("timestamp")
    if isinstance(at, str) and at.endswith("Z") and "." not in at:
        found["timestamp"] = f"{at[:-1]}.000Z"
    return found


class Grpc(Binding):
    """A gRPC client."""

    name = "grpc"
    lacks = frozenset(("json", "json-query", "ids"))
    Stub: Any = a2a_pb2_grpc.A2AServiceStub

    async def call(self, name: str, **params: Any) -> Any:
        call = self.start(name, params)
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            raise self.failed(error) from None
        await self._note(call)
        return self.answered(name, answer)

    @asynccontextmanager
    async def open(self, name: str, **params: Any) -> AsyncIterator[AsyncIterator[Seen]]:
        call = self.start(name, params)
        try:
            yield self._events(call)
        finally:
            call.cancel()

    async def _events(self, call: Any) -> AsyncIterator[Seen]:
        try:
            async for answer in call:
                if self.last is None:
                    self.last = _Last(dict(await call.initial_metadata()))
                yield self.seen(answer)
            await self._note(call)
        except grpc.aio.AioRpcError as error:
            raise self.failed(error) from None

    def start(self, name: str, params: dict[str, Any], **options: Any) -> Any:
        """Start a call."""
        metadata = [(key.lower(), value) for key, value in self.headers.items()]
        self.last = None
        method = getattr(self.Stub(self.channel), self.method(name))
        return method(self.ask(name, params), metadata=metadata, **options)

    async def _note(self, call: Any) -> None:
        first, after = await call.initial_metadata(), await call.trailing_metadata()
        self.last = _Last({**dict(first), **dict(after)})

    def failed(self, error: grpc.aio.AioRpcError) -> Failed:
        """Convert a gRPC error to `Failed`."""
        code = error.code()
        self.last = _Last({**dict(error.initial_metadata()), **dict(error.trailing_metadata())})
        body = self.last.headers.get("grpc-status-details-bin")
        assert body is not None, f"{code}: {error.details()}"
        status = status_pb2.Status.FromString(body)
        assert status.code == code.value[0]
        details = [MessageToDict(item) for item in status.details]
        return Failed.of(0, STATUSES[code.name], self.words(error, status.message), details)

    def words(self, error: grpc.aio.AioRpcError, message: str) -> str:
        """Return the text of an error, which the call and its status must have in common."""
        assert error.details() == message
        return message

    def method(self, name: str) -> str:
        return name

    def ask(self, name: str, params: dict[str, Any]) -> Any:
        return asked(name, params)

    def answered(self, name: str, answer: Any) -> Any:
        return None if name.startswith("Delete") else told(answer)

    def seen(self, answer: Any) -> Seen:
        return Seen("", told(answer))


class _Last(SimpleNamespace):
    """The metadata of the last response."""

    def __init__(self, headers: dict[str, Any]) -> None:
        super().__init__(headers={"content-type": "application/grpc", **headers})
