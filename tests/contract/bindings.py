"""The same operations over each binding, with answers in one form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from dragoman.operations import OPERATIONS

BY_NAME = {operation.name: operation for operation in OPERATIONS}
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


@dataclass
class Failed(Exception):
    """An error answer, whatever its envelope."""

    reason: str
    message: str
    fields: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    code: int = 0
    status: int = 0

    @classmethod
    def of(cls, code: int, status: int, message: str, details: list[Any]) -> Failed:
        """From the parts that all bindings carry."""
        info = next(item for item in details if item["@type"] == ERROR_INFO)
        assert info["domain"] == "a2a-protocol.org"
        bad = [item for item in details if item["@type"] == BAD_REQUEST]
        fields = [each["field"] for item in bad for each in item["fieldViolations"]]
        return cls(info["reason"], message, fields, info.get("metadata", {}), code, status)


@dataclass
class Seen:
    """One event of a stream."""

    id: str
    event: dict[str, Any]


class Binding:
    """A client of one binding."""

    name: str

    def __init__(self, url: str, http: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self.url = url
        self.http = http
        self.headers = {"A2A-Version": "1.0", **headers}

    async def call(self, name: str, **params: Any) -> Any:
        """One operation; `Failed` if it is answered by an error."""
        response = await self.http.send(self.request(name, params))
        self.last = response
        return self.result(response)

    @asynccontextmanager
    async def open(self, name: str, **params: Any) -> AsyncIterator[AsyncIterator[Seen]]:
        """The events of a streaming operation as they come."""
        response = await self.http.send(self.request(name, params), stream=True)
        self.last = response
        try:
            if not response.headers["content-type"].startswith("text/event-stream"):
                await response.aread()
                self.result(response)
                raise AssertionError("neither a stream nor an error")
            yield self._events(response)
        finally:
            await response.aclose()

    async def stream(self, name: str, **params: Any) -> list[Seen]:
        """All events of a streaming operation."""
        async with self.open(name, **params) as events:
            return [seen async for seen in events]

    async def _events(self, response: httpx.Response) -> AsyncIterator[Seen]:
        fields: dict[str, str] = {}
        async for line in response.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield Seen(fields.get("id", ""), self.event(response, fields))
                fields = {}

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        raise NotImplementedError

    def result(self, response: httpx.Response) -> Any:
        raise NotImplementedError

    def event(self, response: httpx.Response, fields: dict[str, str]) -> dict[str, Any]:
        raise NotImplementedError


class JsonRpc(Binding):
    """JSON-RPC at the root."""

    name = "jsonrpc"
    _ids = count(1)

    def request(self, name: str, params: dict[str, Any]) -> httpx.Request:
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": name, "params": params}
        return self.http.build_request("POST", f"{self.url}/", json=body, headers=self.headers)

    def result(self, response: httpx.Response) -> Any:
        return self._open(response, response.json())

    def event(self, response: httpx.Response, fields: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = self._open(response, json.loads(fields["data"]))
        return found

    def _open(self, response: httpx.Response, body: dict[str, Any]) -> Any:
        assert body["jsonrpc"] == "2.0"
        assert ("result" in body) != ("error" in body)
        if "error" in body:
            error = body["error"]
            status = response.status_code
            raise Failed.of(error["code"], status, error["message"], error["data"])
        assert body["id"] == json.loads(response.request.content)["id"]
        return body["result"]


class HttpJson(Binding):
    """A path for each operation."""

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
        options: dict[str, Any] = {"json": rest} if verb == "POST" else {"params": _query(rest)}
        return self.http.build_request(verb, f"{self.url}{path}", headers=self.headers, **options)

    def result(self, response: httpx.Response) -> Any:
        body = response.json()
        if response.status_code == 200:
            return body or None
        error = body["error"]
        assert error["code"] == response.status_code
        raise Failed.of(0, response.status_code, error["message"], error["details"])

    def event(self, response: httpx.Response, fields: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(fields["data"])
        if fields.get("event") == "error":
            error = found["error"]
            raise Failed.of(0, error["code"], error["message"], error["details"])
        return found


def _query(params: dict[str, Any]) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in params.items()
    }
