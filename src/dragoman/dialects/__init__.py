"""The dialects of the protocol: each converts wire objects of one version to the types of `model`
and back.

| module | content |
|---|---|
| `versions` | the table of versions, with the functions of each for JSON-RPC |
| `v1_0` | 1.0 as JSON; the types of `model` are its objects |
| `v0_3.rpc` | 0.3 and 0.2 over JSON-RPC |
| `v0_3.proto` | 0.3 over HTTP+JSON and gRPC; `v0_3.proto_structs` has its structs |
| `v0_3.fasta2a` | for fasta2a's client, which mixes 0.3 and 1.0 |
| `v0_3.card` | the card of 0.3, and the card that all versions can read |
| `v0_1` | 0.1: `tasks/send`, with task ids that the client chooses |
| `client_quirks` | recognises clients that deviate from their version |
| `protobuf` | the protobuf encoding of gRPC, for 1.0 and 0.3 |

The method name, path or gRPC package of a request determines the versions that it may use. If the
request names a version, it must be one of these.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

from dragoman.model.caller import Call
from dragoman.model.errors import A2AError
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)


class Form(Protocol):
    """Encodes responses in one version."""

    @property
    def FORM(self) -> str:
        """The key under which encoded events are cached for all readers; empty if they are not."""

    def encode(self, answer: Any) -> bytes:
        """Encode the result of an operation."""

    def response(self, event: Any, last: bool = False) -> bytes:
        """Encode an event of a stream; empty if it is not for clients. `last` marks the last event,
        which versions before 1.0 need."""


class Dialect(Form, Protocol):
    """Encodes and decodes one version over JSON-RPC."""

    def problem(self, error: A2AError) -> dict[str, Any]:
        """Return the error object of a response."""

    def decode(self, kind: type[W], body: bytes) -> W:
        """Decode a request. Raises InvalidParams, which names the wrong field."""


Received: TypeAlias = tuple[Dialect, WireStruct, Call]
"""A request over JSON-RPC: the dialect of its response, the request, and the call with what the
request adds to it."""


class Paths(Form, Protocol):
    """Encodes and decodes one version over HTTP+JSON."""

    def convert(self, kind: type[W], document: Any, *, text: bool = False) -> W:
        """Decode a request from the merged fields of body, query and path. With `text`, booleans
        may be text, as in a query."""
