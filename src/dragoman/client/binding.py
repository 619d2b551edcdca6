"""An operation as a request of each binding, and its answer as a value."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from itertools import count
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from dragoman.client.engine import Engine, Request, Response, Unreachable, whole
from dragoman.dialects import v1_0
from dragoman.errors import A2AError, InvalidAgentResponse, InvalidParams, ParseError, restored
from dragoman.operations import OPERATIONS, Operation
from dragoman.types import StreamResponse, Wire

BY_CALL = {operation.call: operation for operation in OPERATIONS}
LONGEST_EVENT = 64 * 1024 * 1024


class Seen(Struct, frozen=True):
    """One event of a stream, and its place, if the server tells it."""

    place: str
    event: StreamResponse


class Binding(Protocol):
    """Speaks one binding to one address."""

    async def call(self, call: str, request: Wire, headers: Mapping[str, str]) -> Any:
        """The answer of an operation; A2AError, Unreachable."""

    def stream(self, call: str, request: Wire, headers: Mapping[str, str]) -> AsyncIterator[Seen]:
        """The events of an operation; A2AError, Unreachable if it breaks off."""


class JsonRpc:
    """Everything is posted to one address."""

    name = "JSONRPC"

    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self.url = url
        self._ids = count(1)

    async def call(self, call: str, request: Wire, headers: Mapping[str, str]) -> Any:
        """See `Binding.call`."""
        operation = BY_CALL[call]
        response = await self._post(operation, request, headers)
        document = _document(await whole(response), response)
        return _value(operation, self._result(document, response))

    async def stream(
        self, call: str, request: Wire, headers: Mapping[str, str]
    ) -> AsyncIterator[Seen]:
        """See `Binding.stream`."""
        operation = BY_CALL[call]
        response = await self._post(operation, request, headers)
        if not _streams(response):
            self._result(_document(await whole(response), response), response)
            raise InvalidAgentResponse("the agent answered a stream with something else")
        try:
            async for fields in events(response):
                result = self._result(
                    _document(fields.get("data", "").encode(), response), response
                )
                yield Seen(fields.get("id", ""), _value(operation, result))
        finally:
            await response.close()

    async def _post(
        self, operation: Operation, request: Wire, headers: Mapping[str, str]
    ) -> Response:
        body = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (
            next(self._ids),
            operation.name.encode(),
            v1_0.encode(request),
        )
        sent = {"content-type": "application/json", **headers}
        if operation.streams:
            sent["accept"] = "text/event-stream"
        return await self.engine.send(Request("POST", self.url, sent, body))

    def _result(self, document: Any, response: Response) -> Any:
        if not isinstance(document, dict) or ("result" in document) == ("error" in document):
            raise _foreign(response, "the answer is neither a result nor an error of JSON-RPC")
        error = document.get("error")
        if error is None:
            return document["result"]
        if not isinstance(error, dict):
            raise _foreign(response, "error: expected an object")
        raise restored(
            str(error.get("message", "")),
            error.get("data") or (),
            rpc=code if isinstance(code := error.get("code"), int) else 0,
            http=response.status if response.status != 200 else 0,
            headers=response.headers,
        )


class HttpJson:
    """A path and a verb for each operation."""

    name = "HTTP+JSON"

    def __init__(self, engine: Engine, url: str) -> None:
        self.engine = engine
        self.url = url.rstrip("/")

    async def call(self, call: str, request: Wire, headers: Mapping[str, str]) -> Any:
        """See `Binding.call`."""
        operation = BY_CALL[call]
        response = await self.engine.send(self._request(operation, request, headers))
        body = await whole(response)
        if not 200 <= response.status < 300:
            raise self._error(_document(body, response), response)
        return None if operation.response is None else _value(operation, _document(body, response))

    async def stream(
        self, call: str, request: Wire, headers: Mapping[str, str]
    ) -> AsyncIterator[Seen]:
        """See `Binding.stream`."""
        operation = BY_CALL[call]
        sent = {**headers, "accept": "text/event-stream"}
        response = await self.engine.send(self._request(operation, request, sent))
        if not _streams(response) or response.status != 200:
            raise self._error(_document(await whole(response), response), response)
        try:
            async for fields in events(response):
                document = _document(fields.get("data", "").encode(), response)
                if fields.get("event") == "error" or "error" in document:
                    raise self._error(document, response)
                yield Seen(fields.get("id", ""), _value(operation, document))
        finally:
            await response.close()

    def _request(self, operation: Operation, request: Wire, headers: Mapping[str, str]) -> Request:
        fields: dict[str, Any] = json.loads(v1_0.encode(request))
        tenant = fields.pop("tenant", "")
        path = operation.path
        for name in ("taskId", "id"):
            if f"{{{name}}}" in path:
                path = path.replace(f"{{{name}}}", quote(str(fields.pop(name)), safe=""))
        prefix = f"/{quote(tenant, safe='')}" if tenant else ""
        url = f"{self.url}{prefix}{path}"
        verb = operation.verbs[0]
        if verb == "POST":
            sent = {"content-type": "application/a2a+json", **headers}
            return Request(verb, url, sent, json.dumps(fields).encode())
        query = {k: str(v).lower() if isinstance(v, bool) else v for k, v in fields.items()}
        return Request(verb, f"{url}?{urlencode(query)}" if query else url, headers)

    def _error(self, document: Any, response: Response) -> A2AError:
        error = document.get("error") if isinstance(document, dict) else None
        if not isinstance(error, dict):
            return _foreign(response, "the answer is no error of A2A")
        return restored(
            str(error.get("message", "")),
            error.get("details") or (),
            http=response.status if response.status >= 400 else int(error.get("code") or 0),
            headers=response.headers,
        )


BINDINGS: dict[str, type[JsonRpc] | type[HttpJson]] = {
    JsonRpc.name: JsonRpc,
    HttpJson.name: HttpJson,
}


async def events(response: Response) -> AsyncIterator[dict[str, str]]:
    """The fields of each server-sent event. One that was cut off is not an event."""
    rest = b""
    fields: dict[str, str] = {}
    async for chunk in response.chunks():
        rest += chunk
        if len(rest) > LONGEST_EVENT:
            raise Unreachable(f"an event is longer than {LONGEST_EVENT} bytes")
        *lines, rest = rest.replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if not line:
                if "data" in fields:
                    yield fields
                fields = {}
            elif not line.startswith(b":"):
                name, _, value = line.decode("utf-8", "replace").partition(":")
                value = value.removeprefix(" ")
                fields[name] = f"{fields[name]}\n{value}" if name in fields else value


def _streams(response: Response) -> bool:
    return response.headers.get("content-type", "").startswith("text/event-stream")


def _document(body: bytes, response: Response) -> Any:
    try:
        return v1_0.parse(body)
    except ParseError as error:
        raise _foreign(response, str(error)) from None


def _foreign(response: Response, what: str) -> A2AError:
    """Something that is no A2A answers at this address, or an agent that gets it wrong."""
    if response.status >= 400:
        return restored(f"HTTP {response.status}", http=response.status, headers=response.headers)
    return InvalidAgentResponse(f"{what} (HTTP {response.status})")


def _value(operation: Operation, document: Any) -> Any:
    if operation.response is None:
        return None
    try:
        return v1_0.convert(operation.response, document)
    except (InvalidParams, msgspec.ValidationError) as error:
        raise InvalidAgentResponse(f"{operation.name} answered with a bad field: {error}") from None
