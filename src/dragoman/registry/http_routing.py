"""Requests and responses of the registry's server, and the table of its routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec
from msgspec import Struct

from dragoman import Caller
from dragoman.registry.entries import NotFound, RegistryError, caller_name
from dragoman.registry.fetch_card import FetchFailed

if TYPE_CHECKING:
    from dragoman.registry.operations import Operations

T = TypeVar("T")

WRITE, ANNOUNCE = "registry:write", "registry:announce"
"""The scopes: to change entries, and to announce agents."""
LOCAL = "local"
"""Who makes changes on this machine, where nobody is authenticated."""


class Forbidden(RegistryError):
    """The caller may not do this."""


class Request(Struct, frozen=True):
    """A request, with what the server knows about its caller."""

    method: str
    path: str
    """Below the registry; percent-encoded."""
    caller: Caller
    local: bool
    """Nobody is authenticated, and it comes from this machine."""
    url: str
    """The URL of the registry."""
    parameters: Mapping[str, list[str]]
    body: bytes
    operators: Container[str] = ()
    """Callers who may change entries without the scope."""
    names: Mapping[str, str] = {}
    """The parts of the path that the route names, decoded once."""
    condition: str = ""
    """The header `If-None-Match`."""

    @property
    def operator(self) -> bool:
        """Whether the caller may change entries."""
        name = caller_name(self.caller)
        return self.local or WRITE in self.caller.scopes or bool(name and name in self.operators)

    @property
    def reader(self) -> Caller | None:
        """Who reads, as the database has it: None is the operator."""
        return None if self.operator else self.caller

    @property
    def who(self) -> str:
        """Who is recorded with a change."""
        return caller_name(self.caller) or self.caller.identity or LOCAL

    def must(self, *scopes: str) -> None:
        """Raise Forbidden unless the caller has one of these scopes, or is the operator."""
        if self.operator or not self.caller.scopes.isdisjoint(scopes):
            return
        needed = " or ".join((*scopes, WRITE) if WRITE not in scopes else scopes)
        if self.caller.identity:
            raise Forbidden(
                f"{self.caller.identity!r} may not do this; it needs the scope {needed}"
            )
        raise Forbidden(
            f"changes need a caller with the scope {needed}: configure callers with [[auth]]; or "
            "let the registry listen on 127.0.0.1 without authentication, and make changes on "
            "that machine"
        )

    def decode(self, kind: type[T]) -> T:
        """Decode the body. Raises RegistryError."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except msgspec.DecodeError as error:
            raise RegistryError(f"the body is not valid: {error}") from None

    def one(self, name: str, default: str = "") -> str:
        """The last value of a parameter."""
        return self.parameters.get(name, [default])[-1]

    def number(self, name: str, default: int) -> int:
        """A parameter that is a number. Raises RegistryError."""
        text = self.one(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise RegistryError(f"{name}: must be a number, not {text[:40]!r}")
        return int(text)


class Response(Struct, frozen=True):
    """What is answered: a value that becomes JSON, or bytes."""

    value: Any = None
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = {}
    """More headers."""

    @property
    def body(self) -> bytes:
        """The bytes to send."""
        return self.value if isinstance(self.value, bytes) else msgspec.json.encode(self.value)


Handler: TypeAlias = "Callable[[Request, Operations], Awaitable[Response]]"


class Route(Struct, frozen=True):
    """A method and a path, such as `/registry/entries/{name}`, and what answers."""

    method: str
    path: str
    answer: Handler

    def matches(self, path: str) -> dict[str, str] | None:
        """The named parts of a path; None if it is another one. A part has no slash, unless it is
        percent-encoded."""
        found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path), path)
        return found and {name: unquote(text) for name, text in found.groupdict().items()}


def read(scope: Mapping[str, Any], body: bytes, operators: Container[str] = ()) -> Request:
    """Make a request of ASGI's scope."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path = raw.partition(b"?")[0].decode("latin-1")
    root = scope.get("root_path", "")
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(
        scope["method"],
        path.removeprefix(root) or "/",
        scope["dragoman.caller"],
        scope["dragoman.local"],
        scope["dragoman.url"],
        parse_qs(query, keep_blank_values=True),
        body,
        operators,
        condition=b",".join(v for k, v in scope["headers"] if k == b"if-none-match").decode(
            "latin-1"
        ),
    )


def failure(error: RegistryError) -> Response:
    """The response for an error."""
    match error:
        case NotFound():
            status, code = 404, "NOT_FOUND"
        case Forbidden():
            status, code = 403, "PERMISSION_DENIED"
        case FetchFailed():
            status, code = 422, "FETCH_FAILED"
        case _:
            status, code = 400, "INVALID_ARGUMENT"
    return Response({"errorCode": code, "message": str(error)}, status)
