"""The tongues of the protocol: wire objects to values and back, nothing else.

| module | speaks |
|---|---|
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

import re
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from dragoman.model.errors import A2AError, VersionNotSupported
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)

SUPPORTED = ("1.0", "0.3", "0.2", "0.1")
_NUMBER = re.compile(r"(\d+\.\d+)(\.\d+)?")


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


class Paths(Form, Protocol):
    """How HTTP+JSON is spoken."""

    def convert(self, kind: type[W], document: Any, *, text: bool = False) -> W:
        """What is asked, from body, query and path."""


def agreed(asked: str, possible: Sequence[str]) -> str:
    """The version of a request that can be in these, and names one, or none."""
    if not asked or asked == possible[0]:
        return possible[0]
    match = _NUMBER.fullmatch(asked)
    if match is None or match[1] not in SUPPORTED:
        raise unsupported(asked[:32])
    if match[1] not in possible:
        raise VersionNotSupported(
            "The method, path or package of the request belongs to A2A "
            f"{' or '.join(possible)}, but it names version {asked}",
            metadata={"supported": ", ".join(SUPPORTED)},
        )
    return match[1]


def older(asked: str) -> bool:
    """Whether a request with an older name or path is also answered so: one that names a version
    which is not among the older ones knows what came with 1.0."""
    return not asked or asked.startswith("0.")


def unsupported(what: str) -> VersionNotSupported:
    """The error for a version that is not spoken here."""
    spoken = ", ".join(SUPPORTED)
    return VersionNotSupported(
        f"A2A version {what!r} is not supported; supported: {spoken}",
        metadata={"supported": spoken},
    )
