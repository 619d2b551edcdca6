"""Requests and responses of each protocol version, over JSON-RPC and HTTP+JSON."""

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
"""A history of this length is all of it: some agents give none unless they are asked for some."""


class WireFormat(Struct, frozen=True, kw_only=True):
    """One version of the protocol over one binding."""

    version: str
    names: Mapping[str, str]
    """What it calls the operations: methods, or paths."""
    ask: Callable[[Any], bytes]
    """A request as it is sent."""
    told: Callable[[type[WireStruct], Any], Any]
    """What was answered, from a parsed document."""

    def name(self, operation: Operation) -> str:
        """What this version calls it; UnsupportedOperation if it has nothing of the kind."""
        found = self.names.get(operation.call)
        if not found:
            raise UnsupportedOperation(
                f"the agent uses A2A {self.version}, which has no {operation.name}"
            )
        return found


def _whole(request: WireStruct) -> WireStruct:
    """With the length of the history said, where no one is meant to bound it."""
    if isinstance(request, GetTaskRequest) and request.history_length is None:
        return replace(request, history_length=EVERYTHING)
    return request


RPC: dict[str, WireFormat] = {
    "1.0": WireFormat(
        version="1.0",
        names={operation.call: operation.name for operation in OPERATIONS},
        ask=v1_0.encode,
        told=v1_0.convert,
    ),
    "0.3": WireFormat(
        version="0.3",
        names={operation.call: operation.former.method for operation in OPERATIONS},
        ask=lambda request: rpc.encode(_whole(request)),
        told=rpc.convert,
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
        ask=v0_1.ask,
        told=v0_1.told,
    ),
}
RPC["0.2"] = replace(RPC["0.3"], version="0.2")

HTTP: dict[str, WireFormat] = {
    "1.0": WireFormat(
        version="1.0",
        names={operation.call: operation.path for operation in OPERATIONS},
        ask=v1_0.encode,
        told=v1_0.convert,
    ),
    "0.3": WireFormat(
        version="0.3",
        names={operation.call: operation.former.path for operation in OPERATIONS},
        ask=lambda request: proto.ask(_whole(request)),
        told=proto.told,
    ),
}
