"""The bindings of the protocol, and the versions that a card lists: one table for server, client,
telemetry and checks."""

from __future__ import annotations

from msgspec import Struct

LISTED_VERSIONS = ("1.0", "0.3")
"""The versions that a card lists by default, in order of preference. Every binding has them."""


class ProtocolBinding(Struct, frozen=True):
    """A binding of the specification."""

    name: str
    """Its name on a card."""
    label: str
    """Its name in metrics, spans and the access log."""
    aliases: frozenset[str]
    """Names that some cards have instead, in upper case and without punctuation."""
    oldest: bool = False
    """Whether versions before 0.3 had it."""


JSONRPC = ProtocolBinding(
    "JSONRPC", "jsonrpc", frozenset({"JSONRPC20", "JSONRPC2", "RPC"}), oldest=True
)
HTTP_JSON = ProtocolBinding(
    "HTTP+JSON",
    "http",
    frozenset({"HTTPJSON", "REST", "HTTP", "HTTPS", "JSON", "HTTPREST", "RESTJSON"}),
)
GRPC = ProtocolBinding("GRPC", "grpc", frozenset({"GRPCS", "GRPCPROTO"}))
BINDINGS = {each.name: each for each in (JSONRPC, HTTP_JSON, GRPC)}
"""All bindings by name, in the order in which a card lists them by default."""


def label(name: str) -> str:
    """Return the label of a binding; its name if it is a custom one."""
    found = BINDINGS.get(name)
    return name if found is None else found.label
