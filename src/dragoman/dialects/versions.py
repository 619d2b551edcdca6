"""The versions of the protocol: one row each, with what is particular to it over JSON-RPC.

Server, client and webhooks look here. To remove a version, delete its row and its module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.dialects import Received, v0_1, v1_0
from dragoman.dialects.v0_3 import mixed, rpc
from dragoman.model.caller import Call
from dragoman.model.errors import VersionNotSupported
from dragoman.model.operations import OPERATIONS
from dragoman.model.types import StreamResponse, Task, WireStruct


class Version(Struct, frozen=True):
    """One version of the protocol, over JSON-RPC."""

    name: str
    methods: Mapping[str, str]
    """The operation of each method, as `Operation.call`; the first name is the one to ask for."""
    receive: Callable[[str, type[WireStruct], bytes, Call], Received]
    """A server decodes the parameters of a call to this agent."""
    ask: Callable[[Any], bytes]
    """A client encodes a request."""
    told: Callable[[type[Any], Any], Any]
    """A client reads a parsed answer."""
    push: Callable[[Task], bytes]
    """What a webhook is sent: before 1.0, the whole task."""
    chosen_ids: bool = False
    """Whether clients choose the ids of tasks."""
    shared_with: tuple[str, ...] = ()
    """The other versions whose clients use these names of methods, too."""


def _receive_1_0(_: str, kind: type[WireStruct], params: bytes, call: Call) -> Received:
    return v1_0, v1_0.decode(kind, params), call


_METHODS_0_3 = {each.former.method: each.call for each in OPERATIONS if each.former.method}

VERSIONS = (
    Version(
        "1.0",
        {each.name: each.call for each in OPERATIONS},
        _receive_1_0,
        v1_0.encode,
        v1_0.convert,
        v1_0.encode,
    ),
    Version("0.3", _METHODS_0_3, mixed.receive, rpc.ask, rpc.convert, rpc.encode),
    Version("0.2", _METHODS_0_3, mixed.receive, rpc.ask, rpc.convert, rpc.encode),
    Version(
        "0.1",
        v0_1.METHODS,
        v0_1.receive,
        v0_1.ask,
        v0_1.told,
        v0_1.encode,
        chosen_ids=True,
        shared_with=("0.2", "0.3"),
    ),
)
"""The latest first."""
BY_NAME = {version.name: version for version in VERSIONS}
SUPPORTED = tuple(BY_NAME)
_NUMBER = re.compile(r"(\d+\.\d+)(\.\d+)?")


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
    """The error for a version that is not supported."""
    supported = ", ".join(SUPPORTED)
    return VersionNotSupported(
        f"A2A version {what!r} is not supported; supported: {supported}",
        metadata={"supported": supported},
    )


def pushed(body: bytes) -> StreamResponse:
    """What a webhook was sent, in whatever version: 1.0 sends events, the others whole tasks."""
    document = v1_0.parse(body)
    if isinstance(document, dict) and "status" in document and "id" in document:
        if "kind" in document or "contextId" in document:
            return rpc.convert(StreamResponse, {**document, "kind": "task"})
        return v0_1.told(StreamResponse, document)
    return v1_0.convert(StreamResponse, document)
