"""The versions of the protocol, and what is particular to each of them over JSON-RPC.

Server, client and webhooks ask this table. To remove a version, delete its row and its module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects import Received, v0_1, v1_0
from dragoman.dialects.v0_3 import fasta2a, rpc
from dragoman.model.caller import Call
from dragoman.model.errors import VersionNotSupported
from dragoman.model.operations import OPERATIONS
from dragoman.model.types import StreamResponse, Task, WireStruct


class Version(Struct, frozen=True, kw_only=True):
    """One version of the protocol, over JSON-RPC."""

    name: str
    methods: Mapping[str, str]
    """The operation of each method, as `Operation.call`; the first name is the one to ask for."""
    receive: Callable[[str, type[WireStruct], bytes, Call], Received] | None = None
    """A server decodes the parameters of a call to this agent; None: by `v1_0.decode`."""
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


_V1_0 = Version(
    name="1.0",
    methods={each.name: each.call for each in OPERATIONS},
    ask=v1_0.encode,
    told=v1_0.convert,
    push=v1_0.encode,
)
_V0_3 = Version(
    name="0.3",
    methods={each.former.method: each.call for each in OPERATIONS if each.former.method},
    receive=fasta2a.receive,
    ask=rpc.ask,
    told=rpc.convert,
    push=rpc.encode,
)
_V0_1 = Version(
    name="0.1",
    methods=v0_1.METHODS,
    receive=v0_1.receive,
    ask=v0_1.ask,
    told=v0_1.told,
    push=v0_1.encode,
    chosen_ids=True,
    shared_with=("0.2", "0.3"),
)
VERSIONS = (_V1_0, _V0_3, replace(_V0_3, name="0.2"), _V0_1)
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
    """What a webhook was sent, in whatever version: 1.0 sends events, the others whole tasks. Those
    of the oldest have neither a kind nor a context."""
    document = v1_0.parse(body)
    if isinstance(document, dict) and "status" in document and "id" in document:
        version = _V0_3 if "kind" in document or "contextId" in document else VERSIONS[-1]
        return cast(StreamResponse, version.told(StreamResponse, {**document, "kind": "task"}))
    return v1_0.convert(StreamResponse, document)
