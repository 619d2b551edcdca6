"""Encodes an operation as a request of each binding, and decodes the response."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import count
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode, urljoin

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.client import discovery, sse, upload
from dragoman.client.limits import DEFAULT, Limits, Meter, TooLarge
from dragoman.client.transport import (
    Transport,
    TransportRequest,
    TransportResponse,
    read_all,
)
from dragoman.client.upload import File
from dragoman.client.wire_formats import HTTP, RPC, WireFormat
from dragoman.dialects import v1_0
from dragoman.model.errors import (
    A2AError,
    ContentTypeNotSupported,
    InvalidAgentResponse,
    InvalidParams,
    ParseError,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    UnsupportedOperation,
    restored,
)
from dragoman.model.operations import BY_CALL, Operation
from dragoman.model.types import AgentCard, AgentInterface, StreamResponse, WireStruct

T = TypeVar("T")


class Order(Struct, frozen=True, kw_only=True):
    """An operation to call, with its request and options."""

    call: str
    request: WireStruct
    headers: Mapping[str, str] = {}
    files: Mapping[str, File] = {}
    """The files in the request, by the placeholder that stands for each."""
    patience: float | None = None
    """Seconds without any byte after which a stream counts as broken."""
    meter: Meter | None = None
    """Counts the bytes and events of a stream."""

    @property
    def operation(self) -> Operation:
        """The entry of this call in the table of operations."""
        return BY_CALL[self.call]


class Binding(Protocol):
    """Calls one interface of an agent over one binding."""

    async def call(self, order: Order) -> Any:
        """Call an operation and return its response. Raises A2AError or Unreachable."""

    def stream(self, order: Order) -> AsyncGenerator[StreamResponse, None]:
        """Call a streaming operation and yield its events. Raises A2AError, or Unreachable if the
        stream breaks."""


class RpcResponse(Struct, Generic[T]):
    """A valid JSON-RPC response."""

    result: T
    error: Any = None


@cache
def _answer(kind: type[WireStruct]) -> msgspec.json.Decoder[RpcResponse[Any]]:
    return msgspec.json.Decoder(RpcResponse[kind])  # type: ignore[valid-type]


class Expired(Unauthenticated):
    """The agent ended a stream because its credential is no longer valid."""


class JsonRpc:
    """JSON-RPC: every request is a POST to one URL."""

    name = "JSONRPC"

    def __init__(
        self, transport: Transport, interface: AgentInterface, limits: Limits = DEFAULT
    ) -> None:
        self.transport = transport
        self.limits = limits
        self.wire_format = RPC[minor(interface.protocol_version)]
        self.url = interface.url
        self.tenant = interface.tenant
        self._ids = count(1)

    async def call(self, order: Order) -> Any:
        """See `Binding.call`."""
        operation = order.operation
        response = await self.transport.send(self._request(order))
        return self._read(
            operation, await read_all(response, self.limits.answer, "answer"), response
        )

    async def stream(self, order: Order) -> AsyncGenerator[StreamResponse, None]:
        """See `Binding.stream`."""
        operation = order.operation
        response = await self.transport.send(self._request(order))
        if not _streams(response):
            self._result(
                _document(await read_all(response, self.limits.answer, "answer"), response),
                response,
            )
            raise InvalidAgentResponse("the agent did not answer with a stream")
        try:
            async for event in sse.events(response, self.limits.answer, order.meter):
                yield self._read(operation, event.data, response)
        except Unauthenticated as error:
            if response.status != 200:  # some agents refuse a stream this way
                raise
            raise Expired(error.message, headers=error.headers) from None
        finally:
            await response.close()

    def _request(self, order: Order) -> TransportRequest:
        request = order.request
        if self.tenant:
            request = replace(request, tenant=self.tenant)
        if order.call == "extended_card" and self.wire_format.version == "0.2":
            url = urljoin(f"{self.url.rstrip('/')}/", "../agent/authenticatedExtendedCard")
            return TransportRequest("GET", url, order.headers)
        body = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":%b}' % (
            next(self._ids),
            self.wire_format.name(order.operation).encode(),
            self.wire_format.encode_request(request),
        )
        headers = {**order.headers, "content-type": "application/json", "accept": _accept(order)}
        return TransportRequest(
            "POST", self.url, headers, upload.body(body, order.files), order.patience
        )

    def _read(self, operation: Operation, body: bytes, response: TransportResponse) -> Any:
        if operation.call == "extended_card":
            if self.wire_format.version == "0.2":
                return _card(body, response)
            found = self._result(_document(body, response), response)
            return discovery.read(found, "the agent")
        if operation.response is not None and self.wire_format.version == "1.0":
            try:
                answer = _answer(operation.response).decode(body)
                if answer.error is None:
                    return answer.result
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # an error, or not quite as specified
        return _value(
            operation, self._result(_document(body, response), response), self.wire_format
        )

    def _result(self, document: Any, response: TransportResponse) -> Any:
        if not isinstance(document, dict):
            raise _invalid_response(response, "the response is not valid JSON-RPC")
        error = document.get("error")
        if error is None:
            if "result" not in document:
                if self.wire_format.version != "1.0" and "jsonrpc" in document:
                    return None  # some agents omit an empty result
                raise _invalid_response(response, "the response has neither a result nor an error")
            return document["result"]
        if not isinstance(error, dict):
            raise _invalid_response(response, "error: expected an object")
        raise restored(
            str(error.get("message") or ""),
            error.get("data") or (),
            rpc=code if isinstance(code := error.get("code"), int) else 0,
            http=response.status if response.status != 200 else 0,
            headers=response.headers,
        )


class HttpJson:
    """HTTP+JSON: a path and a method for each operation."""

    name = "HTTP+JSON"

    def __init__(
        self, transport: Transport, interface: AgentInterface, limits: Limits = DEFAULT
    ) -> None:
        self.transport = transport
        self.limits = limits
        self.wire_format = HTTP[minor(interface.protocol_version)]
        self.url = interface.url.rstrip("/")
        if interface.tenant:
            self.url += f"/{quote(interface.tenant, safe='')}"
        self._verbs: dict[str, str] = {}
        """The HTTP method that the agent accepts, by operation, where two are possible."""

    async def call(self, order: Order) -> Any:
        """See `Binding.call`."""
        operation = order.operation
        response = await self.transport.send(self._request(order))
        body = await read_all(response, self.limits.answer, "answer")
        if not 200 <= response.status < 300:
            raise self._error(_document(body, response), response)
        return None if operation.response is None else self._read(operation, body, response)

    async def stream(self, order: Order) -> AsyncGenerator[StreamResponse, None]:
        """See `Binding.stream`."""
        operation = order.operation
        response = await self._open_response(order)
        if not _streams(response) or response.status != 200:
            raise await self._read_error(response)
        try:
            async for event in sse.events(response, self.limits.answer, order.meter):
                if event.name == "error":
                    raise self._error(_document(event.data, response), response)
                yield self._read(operation, event.data, response)
        except Unauthenticated as error:
            raise Expired(error.message, headers=error.headers) from None
        finally:
            await response.close()

    async def _open_response(self, order: Order) -> TransportResponse:
        """Open a stream. Where an operation has two HTTP methods, an agent may accept only one of
        them: the client tries the other once and remembers which of them worked."""
        verbs, remembered = order.operation.verbs, self._verbs.get(order.call)
        verb = remembered or verbs[0]
        response = await self.transport.send(self._request(order, verb))
        other = next((name for name in verbs if name != verb), None)
        # Agents without this route may answer 404, as for an unknown task, until one method has
        # worked.
        found = response.status not in UNROUTED or (remembered and response.status == 404)
        if other is None or found:
            if response.status in ROUTED:
                self._verbs[order.call] = verb
            return response
        first = await self._read_error(response)
        response = await self.transport.send(self._request(order, other))
        if response.status in ROUTED:
            self._verbs[order.call] = other
        if response.status not in UNROUTED:
            return response
        second = await self._read_error(response)
        raise second if isinstance(second, TaskNotFound) else first

    async def _read_error(self, response: TransportResponse) -> A2AError:
        """Decode an error response."""
        body = await read_all(response, self.limits.answer, "answer")
        try:
            return self._error(_document(body, response), response)
        except A2AError as error:
            return error

    def _request(self, order: Order, verb: str = "") -> TransportRequest:
        path, verb = self.wire_format.name(order.operation), verb or order.operation.verbs[0]
        if order.files and self.wire_format.version != "1.0":  # 0.3 encodes base64 again
            request = upload.filled(order.request, order.files)
            order = replace(order, request=request, files={})
        body = self.wire_format.encode_request(order.request)
        headers = {**order.headers, "accept": _accept(order)}
        if "{" in path or verb != "POST":
            fields: dict[str, Any] = json.loads(body)

            def filled(match: re.Match[str]) -> str:
                # In 0.3, resource names contain slashes, and the body names the parent of a
                # webhook, too.
                name = match[1]
                value = fields[name] if (verb, name) == ("POST", "parent") else fields.pop(name)
                return quote(str(value), safe="/" if match[2] else "")

            url = self.url + _FIELD.sub(filled, path)
            if verb != "POST":
                query = {k: str(v).lower() if isinstance(v, bool) else v for k, v in fields.items()}
                url = f"{url}?{urlencode(query)}" if query else url
                return TransportRequest(verb, url, headers, patience=order.patience)
            body = json.dumps(fields).encode()
        else:
            url = self.url + path
        # Some 0.3 agents accept no other media type.
        kind = "a2a+json" if self.wire_format.version == "1.0" else "json"
        headers["content-type"] = f"application/{kind}"
        return TransportRequest(verb, url, headers, upload.body(body, order.files), order.patience)

    def _read(self, operation: Operation, body: bytes, response: TransportResponse) -> Any:
        assert operation.response is not None
        if self.wire_format.version == "1.0" and operation.call != "extended_card":
            try:
                return v1_0.decoder(operation.response).decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # an error, or not quite as specified
        document = _document(body, response)
        if isinstance(document, dict) and "error" in document:
            raise self._error(document, response)
        if operation.call == "extended_card":
            return discovery.read(document, "the agent")
        return _value(operation, document, self.wire_format)

    def _error(self, document: Any, response: TransportResponse) -> A2AError:
        if self.wire_format.version != "1.0":
            return _legacy_error(document, response)
        error = document.get("error") if isinstance(document, dict) else None
        if not isinstance(error, dict):
            return _invalid_response(response, "the response is not an A2A error")
        code = error.get("code")
        return restored(
            str(error.get("message") or ""),
            error.get("details") or (),
            http=response.status if response.status >= 400 else code if type(code) is int else 0,
            headers=response.headers,
        )


UNROUTED = (404, 405, 501)
"""Statuses of an agent that does not have this path, or not with this method."""
ROUTED = (200, 400)
"""Statuses that only an agent with this route returns."""
STATUSES: dict[int, type[A2AError]] = {
    404: TaskNotFound,
    409: TaskNotCancelable,
    415: ContentTypeNotSupported,
    422: InvalidParams,
    501: UnsupportedOperation,
}
"""What a status alone means in 0.3, if the response comes from an agent."""


def _legacy_error(document: Any, response: TransportResponse) -> A2AError:
    """Decode an error of 0.3 over HTTP+JSON, which has a code or only a message."""
    message = document.get("message") if isinstance(document, dict) else None
    if not isinstance(message, str):
        return _invalid_response(response, "the response is not an A2A error")
    code = document.get("code")
    if type(code) is int:
        return restored(message, rpc=code, http=response.status, headers=response.headers)
    if response.status in STATUSES:
        return STATUSES[response.status](message)
    return restored(message, http=response.status, headers=response.headers)


class Grpc:
    """gRPC: a method for each operation."""

    name = "GRPC"

    def __init__(
        self, transport: Transport, interface: AgentInterface, limits: Limits = DEFAULT
    ) -> None:
        from dragoman.dialects.protobuf.package_codec import BY_VERSION

        self.transport = transport
        self.limits = limits
        self.codec = BY_VERSION[minor(interface.protocol_version)]
        self.url = interface.url
        self.tenant = interface.tenant
        self._names = {found.call: name for name, found in self.codec.methods.items()}

    async def call(self, order: Order) -> Any:
        """See `Binding.call`."""
        response = await self.transport.send(self._request(order))
        body = await read_all(response, self.limits.answer, "answer")
        if response.status != 200:
            raise self._error(response.headers, body)
        kind = order.operation.response
        return None if kind is None else self._read(order.operation, body)

    async def stream(self, order: Order) -> AsyncGenerator[StreamResponse, None]:
        """See `Binding.stream`."""
        from dragoman.client.grpc import Failed

        response = await self.transport.send(self._request(order))
        if response.status != 200:
            raise self._error(
                response.headers, await read_all(response, self.limits.answer, "answer")
            )
        try:
            async for message in response.chunks():
                if order.meter is not None:
                    order.meter.bytes += len(message)
                yield self._read(order.operation, message)
        except Failed as error:
            trailers = {"grpc-status": error.name, "grpc-message": error.words}
            found = self._error(trailers, error.details)
            if isinstance(found, Unauthenticated):
                found = Expired(found.message, headers=found.headers)
            raise found from None
        finally:
            await response.close()

    def _request(self, order: Order) -> TransportRequest:
        request = order.request
        if self.tenant:
            request = replace(request, tenant=self.tenant)
        name = self._names.get(order.call)
        if name is None:
            raise UnsupportedOperation(
                f"the agent uses A2A {self.codec.version}, which has no {order.operation.name}"
            )
        body = self.codec.encode_request(upload.filled(request, order.files))
        url = f"{self.url}/{self.codec.service}/{name}"
        longest = self.limits.answer
        return TransportRequest("POST", url, order.headers, body, order.patience, longest)

    def _read(self, operation: Operation, body: bytes) -> Any:
        assert operation.response is not None
        try:
            if operation.call == "extended_card":
                return self._card(body)
            return self.codec.decode_response(operation.response, body)
        except (InvalidParams, ParseError) as error:
            raise _bad(operation, error) from None

    def _card(self, body: bytes) -> discovery.Reading:
        from dragoman.dialects.protobuf import V1

        try:
            card = self.codec.decode_response(AgentCard, body)
            return discovery.Reading(card, card)
        except InvalidParams:
            if self.codec.version != "1.0":
                raise
        card, missing = V1.partial(AgentCard, body)
        return discovery.Reading(discovery.usable_part(card, missing), card, tuple(missing))

    def _error(self, headers: Mapping[str, str], body: bytes) -> A2AError:
        from dragoman.dialects.protobuf import restored_status

        name, message = headers.get("grpc-status", ""), headers.get("grpc-message", "")
        if name == "RESOURCE_EXHAUSTED" and _LARGER.search(message) and not body:
            most = self.limits.answer  # gRPC itself refused the message
            return TooLarge.of(f"a message is longer than {most} bytes", "answer", most)
        _, _, details = restored_status(body)
        rest = {key: value for key, value in headers.items() if not key.startswith("grpc-")}
        return restored(message, details, grpc=name, headers=rest)


BINDINGS: dict[str, type[JsonRpc] | type[HttpJson] | type[Grpc]] = {
    JsonRpc.name: JsonRpc,
    HttpJson.name: HttpJson,
    Grpc.name: Grpc,
}
_LARGER = re.compile(r"received message larger than max", re.IGNORECASE)
_FIELD = re.compile(r"\{(\w+)(=[^}]*)?\}")


def supported_bindings(transport: Transport) -> list[str]:
    """The bindings that this transport supports."""
    grpc = getattr(transport, "grpc", False) and _installed()
    return [name for name in BINDINGS if name != Grpc.name or grpc]


@cache
def _installed() -> bool:
    try:
        return bool(find_spec("grpc") and find_spec("google.protobuf"))
    except ModuleNotFoundError:
        return False


def minor(version: str) -> str:
    """Return the major and minor number of a version."""
    return ".".join(version.split(".")[:2])


def _card(body: bytes, response: TransportResponse) -> discovery.Reading:
    if response.status != 200:
        raise _invalid_response(response, "there is no card")
    return discovery.read(_document(body, response), "the agent")


def _accept(order: Order) -> str:
    return "text/event-stream" if order.operation.streams else "application/json"


def _streams(response: TransportResponse) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _document(body: bytes, response: TransportResponse) -> Any:
    try:
        return v1_0.parse(body)
    except ParseError as error:
        page = "the response is a web page, not JSON" if discovery.web_page(body) else ""
        raise _invalid_response(response, page or str(error)) from None


def _invalid_response(response: TransportResponse, what: str) -> A2AError:
    """The error for a response that is not valid A2A."""
    if response.status >= 400:
        # A proxy that cannot reach its agent means the same as an agent that answers 503.
        kind = 503 if response.status in (502, 504) else response.status
        return restored(f"HTTP {response.status}", http=kind, headers=response.headers)
    if response.status >= 300:
        where = response.headers.get("location", "elsewhere")
        return InvalidAgentResponse(
            f"the agent redirects to {where} (HTTP {response.status}); the client does not "
            "follow redirects, so the card must contain the right address"
        )
    return InvalidAgentResponse(f"{what} (HTTP {response.status})")


def _value(operation: Operation, document: Any, wire_format: WireFormat) -> Any:
    if operation.response is None:
        return None
    try:
        return wire_format.decode_response(operation.response, document)
    except (InvalidParams, ParseError) as error:
        raise _bad(operation, error) from None


def _bad(operation: Operation, error: A2AError) -> InvalidAgentResponse:
    return InvalidAgentResponse(f"the response of {operation.name} has an invalid field: {error}")
