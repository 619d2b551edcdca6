"""The wire format of each protocol version over JSON-RPC and HTTP+JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dragoman.dialects import v1_0
from dragoman.dialects.v0_3 import proto
from dragoman.dialects.v0_3.common import with_history
from dragoman.dialects.versions import VERSIONS
from dragoman.model.errors import UnsupportedOperation
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.model.types import WireStruct


class WireFormat(Struct, frozen=True, kw_only=True):
    """The wire format of one protocol version over one binding."""

    version: str
    names: Mapping[str, str]
    """The version's names of the operations: methods or paths."""
    encode_request: Callable[[Any], bytes]
    """Encodes a request."""
    decode_response: Callable[[type[WireStruct], Any], Any]
    """Decodes a response from a parsed document."""

    def name(self, operation: Operation) -> str:
        """The version's name of an operation. Raises UnsupportedOperation if it has none."""
        found = self.names.get(operation.call)
        if not found:
            raise UnsupportedOperation(
                f"the agent uses A2A {self.version}, which has no {operation.name}"
            )
        return found


RPC = {
    version.name: WireFormat(
        version=version.name,
        names={call: name for name, call in reversed(list(version.methods.items()))},
        encode_request=version.encode_request,
        decode_response=version.decode_response,
    )
    for version in VERSIONS
}

HTTP: dict[str, WireFormat] = {
    "1.0": WireFormat(
        version="1.0",
        names={operation.call: operation.path for operation in OPERATIONS},
        encode_request=v1_0.encode,
        decode_response=v1_0.convert,
    ),
    "0.3": WireFormat(
        version="0.3",
        names={operation.call: operation.legacy.path for operation in OPERATIONS},
        encode_request=lambda request: proto.encode_request(with_history(request)),
        decode_response=proto.decode_response,
    ),
}
