"""The dialects of the protocol: wire objects to values and back, nothing else.

| module | has |
|---|---|
| `versions` | the table of versions: what each of them has over JSON-RPC |
| `v1_0` | 1.0 as JSON; our values are its objects |
| `v0_3.rpc` | 0.3 and 0.2 over JSON-RPC |
| `v0_3.proto` | 0.3 over HTTP+JSON and gRPC; `v0_3.messages` has its structs |
| `v0_3.mixed` | for a client that mixes 0.3 and 1.0 |
| `v0_3.card` | the card of 0.3, and the one for everybody |
| `v0_1` | 0.1: `tasks/send`, with ids that the client chooses |
| `client_quirks` | no version: recognises clients that do otherwise than theirs |
| `protobuf` | the bytes of gRPC, for 1.0 and 0.3 |

A request's method name, path or gRPC package says which versions it can be in; the version that it
names, if it does, must be one of them.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

from dragoman.model.caller import Call
from dragoman.model.errors import A2AError
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)


class Form(Protocol):
    """How answers are written."""

    @property
    def FORM(self) -> str:
        """Names the form of its events, which are encoded once for all readers; may be empty."""

    def encode(self, answer: Any) -> bytes:
        """What is answered."""

    def response(self, event: Any, last: bool = False) -> bytes:
        """An event of a stream, and whether it is the last one; empty if it is not for clients."""


class Dialect(Form, Protocol):
    """How JSON-RPC is spoken."""

    def problem(self, error: A2AError) -> dict[str, Any]:
        """An error."""

    def decode(self, kind: type[W], body: bytes) -> W:
        """What is asked; InvalidParams names the field that is wrong."""


Received: TypeAlias = tuple[Dialect, WireStruct, Call]
"""A request over JSON-RPC: the dialect of its answer, the request, and the call with what the
request adds to it."""


class Paths(Form, Protocol):
    """How HTTP+JSON is spoken."""

    def convert(self, kind: type[W], document: Any, *, text: bool = False) -> W:
        """What is asked, from body, query and path."""
