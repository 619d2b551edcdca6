"""The versions of the protocol, and the functions of each for JSON-RPC.

Server, client and webhooks use this table. To remove a version, delete its row and its module.
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

JSON = "application/json"


class Version(Struct, frozen=True, kw_only=True):
    """One version of the protocol over JSON-RPC."""

    name: str
    methods: Mapping[str, str]
    """The operation of each method, as `Operation.call`. Clients use the first method of an
    operation."""
    receive: Callable[[str, type[WireStruct], bytes, Call], Received] | None = None
    """Decodes the parameters of a call to an agent, for the server; None means `v1_0.decode`."""
    encode_request: Callable[[Any], bytes]
    """Encodes a request, for the client."""
    decode_response: Callable[[type[Any], Any], Any]
    """Decodes a parsed response, for the client."""
    push: Callable[[Task], bytes]
    """Encodes a task as the body of a webhook notification."""
    push_type: str = JSON
    """The media type of a webhook notification."""
    pushes_events: bool = False
    """Whether a webhook gets events; otherwise it gets the whole task."""
    card: str = "0.3"
    """The version of the card that its clients get; 0.1 has no version on its card."""
    id_prefix: str = ""
    """The prefix of the stored ids of tasks, if clients choose the ids."""
    shared_with: tuple[str, ...] = ()
    """Other versions whose clients also use these method names."""


_V1_0 = Version(
    name="1.0",
    methods={each.name: each.call for each in OPERATIONS},
    encode_request=v1_0.encode,
    decode_response=v1_0.convert,
    push=v1_0.encode,
    push_type="application/a2a+json",
    pushes_events=True,
    card="1.0",
)
_V0_3 = Version(
    name="0.3",
    methods={each.legacy.method: each.call for each in OPERATIONS if each.legacy.method},
    receive=fasta2a.receive,
    encode_request=rpc.encode_request,
    decode_response=rpc.convert,
    push=rpc.encode,
)
_V0_1 = Version(
    name="0.1",
    methods=v0_1.METHODS,
    receive=v0_1.receive,
    encode_request=v0_1.encode_request,
    decode_response=v0_1.decode_response,
    push=v0_1.encode,
    id_prefix=v0_1.PREFIX,
    shared_with=("0.2", "0.3"),
)
VERSIONS = (_V1_0, _V0_3, replace(_V0_3, name="0.2", card="0.2"), _V0_1)
"""All versions, the latest first."""
BY_NAME = {version.name: version for version in VERSIONS}
SUPPORTED = tuple(BY_NAME)
(CHOSEN_ID_PREFIX,) = (version.id_prefix for version in VERSIONS if version.id_prefix)
"""The prefix of the stored ids of tasks whose ids were chosen by clients."""
_NUMBER = re.compile(r"(\d+\.\d+)(\.\d+)?")


def agreed(named: str, possible: Sequence[str]) -> str:
    """Return the version of a request: the version that it names, or the first possible one if it
    names none. Raises VersionNotSupported."""
    if not named or named == possible[0]:
        return possible[0]
    match = _NUMBER.fullmatch(named)
    if match is None or match[1] not in SUPPORTED:
        raise unsupported(named[:32])
    if match[1] not in possible:
        raise VersionNotSupported(
            "The method, path or package of the request belongs to A2A "
            f"{' or '.join(possible)}, but it names version {named}",
            metadata={"supported": ", ".join(SUPPORTED)},
        )
    return match[1]


def older(named: str) -> bool:
    """Whether a request for an older method or path is answered in the older form. A client that
    names a version from 1.0 on can read the form of 1.0."""
    return not named or named.startswith("0.")


def unsupported(what: str) -> VersionNotSupported:
    """Return the error for a version that is not supported."""
    supported = ", ".join(SUPPORTED)
    return VersionNotSupported(
        f"A2A version {what!r} is not supported; supported: {supported}",
        metadata={"supported": supported},
    )


def pushed(body: bytes) -> StreamResponse:
    """Decode the body of a webhook notification in any version. 1.0 sends events, older versions
    send tasks; tasks of 0.1 have neither a kind nor a context."""
    document = v1_0.parse(body)
    if isinstance(document, dict) and "status" in document and "id" in document:
        version = _V0_3 if "kind" in document or "contextId" in document else VERSIONS[-1]
        return cast(
            StreamResponse, version.decode_response(StreamResponse, {**document, "kind": "task"})
        )
    return v1_0.convert(StreamResponse, document)
