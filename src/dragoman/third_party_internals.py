"""The undocumented parts of other packages that dragoman uses.

A release of such a package may change them without notice. So pyproject.toml has an upper bound for
its version, and tests/unit/test_third_party_internals.py fails when a part is gone. A package of an
extra is imported in the function that uses it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import TCPConnector

BOUNDED = ("aiohttp", "uvicorn")
"""The packages whose versions have an upper bound."""

SERVER = ("lifespan", "on_tick", "server_state", "servers", "shutdown", "startup", "started")
"""What `cli/server.py` uses of a uvicorn server, beyond `Config` and `Server.run`."""
SERVER_STATE = ("connections", "default_headers")
PROTOCOL = (
    *("app", "config", "connection_lost", "connection_made", "conn", "cycle", "data_received"),
    *("flow", "on_response_complete", "scope", "timeout_keep_alive_task", "transport"),
)
"""What `cli/served_connection.py` uses of a uvicorn HTTP connection."""
HTTPTOOLS_PROTOCOL = (
    *(name for name in PROTOCOL if name != "conn"),
    "headers",
    "on_body",
    "pipeline",
)
"""The same of a connection that httptools parses."""
CYCLE = ("more_body", "response_complete", "response_started", "scope")
"""The same of a request."""


def uvicorn_protocol() -> type[Any]:
    """The class of uvicorn's HTTP connections: on httptools if that is installed, else on h11."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    return AutoHTTPProtocol


def aiohttp_protocol() -> type[Any]:
    """The class of aiohttp's side of a client's connection."""
    from aiohttp.client_proto import ResponseHandler

    return ResponseHandler


def set_aiohttp_protocol(connector: TCPConnector, factory: Callable[[], Any]) -> None:
    """Make a connector use this factory for its connections. Raises AttributeError if that would
    have no effect."""
    if not callable(connector._factory):
        raise AttributeError("aiohttp's connector has no factory of protocols")
    connector._factory = factory  # type: ignore[assignment]


def parser_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options and arguments of a parser, in their order."""
    return parser._actions


def subparsers(action: argparse.Action) -> Mapping[str, argparse.ArgumentParser] | None:
    """The parsers of the commands that an action chooses from; None if it is another action."""
    return action.choices if isinstance(action, argparse._SubParsersAction) else None


def repeatable(action: argparse.Action) -> bool:
    """Whether an option may be given several times."""
    return isinstance(action, argparse._AppendAction)
