"""The wire format of each protocol version over JSON-RPC and HTTP+JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects import v0_1, v1_0
from dragoman.dialects.v0_3 import proto, rpc
from dragoman.model.errors import UnsupportedOperation
from dragoman.model.operations import OPERATIONS, Operation
from dragoman.model.types import GetTaskRequest, WireStruct

EVERYTHING = 2**31 - 1
"""Asks for the whole history: some agents return none without a length."""


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


def _whole(request: WireStruct) -> WireStruct:
    """Ask for the whole history if the request sets no length."""
    if isinstance(request, GetTaskRequest) and request.history_length is None:
        return replace(request, history_length=EVERYTHING)
    return request


RPC: dict[str, WireFormat] = {
    "1.0": WireFormat(
        version="1.0",
        names={operation.call: operation.name for operation in OPERATIONS},
        encode_request=v1_0.encode,
        decode_response=v1_0.convert,
    ),
    "0.3": WireFormat(
        version="0.3",
        names={operation.call: operation.former.method for operation in OPERATIONS},
        encode_request=lambda request: rpc.encode(_whole(request)),
        decode_response=rpc.convert,
    ),
    "0.1": WireFormat(
        version="0.1",
        names={
            "send": "tasks/send",
            "stream": "tasks/sendSubscribe",
            "get": "tasks/get",
            "cancel": "tasks/cancel",
            "subscribe": "tasks/resubscribe",
            "create_webhook": "tasks/pushNotification/set",
            "get_webhook": "tasks/pushNotification/get",
        },
        encode_request=v0_1.ask,
        decode_response=v0_1.told,
    ),
}
RPC["0.2"] = replace(RPC["0.3"], version="0.2")

HTTP: dict[str, WireFormat] = {
    "1.0": WireFormat(
        version="1.0",
        names={operation.call: operation.path for operation in OPERATIONS},
        encode_request=v1_0.encode,
        decode_response=v1_0.convert,
    ),
    "0.3": WireFormat(
        version="0.3",
        names={operation.call: operation.former.path for operation in OPERATIONS},
        encode_request=lambda request: proto.ask(_whole(request)),
        decode_response=proto.told,
    ),
}
