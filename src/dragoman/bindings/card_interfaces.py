"""Parses the settings `bindings` and `versions`, which select the interfaces that a card lists.

They set only what the card lists and in which order. The server always answers over every binding
and in every version.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from dragoman.model import protocol
from dragoman.model.protocol import LISTED_VERSIONS as VERSIONS
from dragoman.model.reserved_path_names import RESERVED, SERVED

JSONRPC, REST, GRPC = BINDINGS = tuple(protocol.BINDINGS)
TAKEN = SERVED.union(RESERVED)
"""First path segments that the protocol or the server uses."""
_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][\w.~-]*)+/?", re.ASCII)


class Listed(Struct, frozen=True):
    """A binding on the card, and its path below the agent's URL; empty for the default path. The
    path of JSON-RPC may end with a slash, which the card then repeats. gRPC has no paths, but may
    have an address of its own: host:port, or a URL."""

    binding: str
    path: str = ""
    address: str = ""


def listed(entries: Sequence[str]) -> tuple[Listed, ...]:
    """Parse the setting `bindings`. Raises ValueError, whose text begins with the index of the
    wrong entry."""
    found: list[Listed] = []
    for number, entry in enumerate(entries):
        name, colon, path = entry.partition(":")
        name = name.strip().upper()
        if name not in BINDINGS:
            known = ", ".join(BINDINGS)
            raise ValueError(
                f"[{number}]: {entry!r} must be one of {known}, also with a path, such as "
                "JSONRPC:/rpc"
            )
        if any(name == each.binding for each in found):
            raise ValueError(f"[{number}]: {name} is listed twice")
        found.append(_item(name, path.strip(), f"[{number}]") if colon else Listed(name))
    if not found:
        raise ValueError(f": must name at least one of {', '.join(BINDINGS)}")
    return tuple(found)


def _item(name: str, path: str, where: str) -> Listed:
    if path in ("", "/"):
        return Listed(name)
    if name == GRPC:
        if path.startswith("/"):
            raise ValueError(
                f"{where}: gRPC has no paths, but may have an address, such as "
                "GRPC:grpc.example:443 or GRPC:https://grpc.example"
            )
        return Listed(name, address=path)
    if not _PATH.fullmatch(path):
        raise ValueError(f"{where}: {path!r} is not a path such as /rpc")
    if path.split("/")[1] in TAKEN:
        raise ValueError(f"{where}: the protocol uses {path!r}; choose another path")
    return Listed(name, path.rstrip("/") if name == REST else path)


def grpc_address(entries: Sequence[str]) -> str:
    """The address of gRPC in the setting `bindings`, or an empty string."""
    return next((each.address for each in listed(entries) if each.address), "")


def check_bindings(entries: Sequence[str]) -> None:
    """Raise ValueError if the setting `bindings` is wrong; see `listed`."""
    listed(entries)


def check_versions(versions: Sequence[str]) -> None:
    """Raise ValueError if the setting `versions` is wrong; the text begins with the index of the
    wrong entry."""
    for number, version in enumerate(versions):
        if version not in VERSIONS:
            known = ", ".join(VERSIONS)
            raise ValueError(f"[{number}]: {version!r} must be one of {known}")
        if version in versions[:number]:
            raise ValueError(f"[{number}]: {version} is listed twice")
    if not versions:
        raise ValueError(f": must name at least one of {', '.join(VERSIONS)}")
