"""`dragoman mcp`, and `dragoman serve --mcp`: agents as tools of an MCP server."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dragoman.cli import (
    Options,
    UsageError,
    _add_settings,
    connect_options,
    examples,
    payment_options,
)
from dragoman.cli.terminal_format import seconds

if TYPE_CHECKING:
    from dragoman.client import Client

PATIENCE = 45.0
STORE = "sqlite:///mcp.db"
SETTINGS = ("host", "store", "log_level", "log_format", "access_log")
"""The settings that `mcp --http` has options for, beside the port."""
SECRETS = ("header", "bearer", "api_key", "user", "client_secret")
"""The options with credentials that are for one agent."""
ENVIRONMENT = "DRAGOMAN_MCP_"
KEY = "mcp.key"
"""The file with the secret that signs what a client on standard input carries."""


def add(commands: Any) -> None:
    """Add `mcp` to the commands."""
    parser = commands.add_parser(
        "mcp",
        help="offer agents as tools to an MCP client",
        description="Run an MCP server whose tools are the skills of A2A agents: on standard input "
        "and output, or over HTTP.",
        **examples(
            "mcp https://flights.example https://hotels.example",
            "mcp --http 8900 https://flights.example",
            "mcp https://flights.example --bearer @token.txt --patience 30s",
            more="Bearer tokens and API keys can also be in the environment: DRAGOMAN_MCP_BEARER\n"
            "and DRAGOMAN_MCP_API_KEY for the only agent, DRAGOMAN_MCP_BEARER_FLIGHTS_EXAMPLE\n"
            "for the one at flights.example.",
        ),
    )
    connect_options.add(parser, several=True, without=("timeout", "trace"))
    payment_options.add(parser)
    parser.add_argument(
        "--http",
        type=int,
        metavar="PORT",
        help="serve streamable HTTP at /mcp on this port (default: standard input and output)",
    )
    _add_patience(parser)
    _add_settings(parser, SETTINGS, f"{STORE}, with --http")
    parser.set_defaults(run=run, timeout=60.0, trace=False, follows=True)


def add_to_serve(serve: argparse.ArgumentParser) -> None:
    """Add the options of `dragoman serve`."""
    serve.add_argument(
        "--mcp",
        action="store_true",
        help="be an MCP server, too: the skills are tools, at /mcp and /{agent}/mcp",
    )
    _add_patience(serve)


def check_patience(arguments: argparse.Namespace) -> None:
    """Raise UsageError if a call could never be answered."""
    if arguments.patience <= 0:
        raise UsageError("--patience: must be greater than 0")


def _add_patience(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--patience",
        type=seconds,
        default=PATIENCE,
        metavar="DURATION",
        help="answer the call of a tool with the id of its task after this time (default: 45s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve the agents at the URLs until interrupted."""
    check_patience(arguments)
    several = len(set(arguments.urls)) > 1
    if several and (given := [name for name in SECRETS if getattr(arguments, name)]):
        raise UsageError(
            f"--{given[0].replace('_', '-')}: is for one agent; with several, set "
            f"{ENVIRONMENT}BEARER_{_host(arguments.urls[0])} and the like in the environment"
        )

    def connect(url: str) -> Client:
        return connect_options.client(_for_agent(arguments, url, several=several))

    for url in arguments.urls:  # reports a wrong option before anything is served
        connect(url)
    if arguments.http is None:
        return _stdio(arguments, connect)
    return _http(arguments, connect)


def _stdio(arguments: argparse.Namespace, connect: Callable[[str], Client]) -> int:
    from dragoman import mcp
    from dragoman.telemetry.logs import configure

    configure(arguments.log_level or "warning", arguments.log_format or "text")
    if sys.stdin.isatty():
        print("dragoman: MCP on standard input; Ctrl-D ends it", file=sys.stderr)
    serving = mcp.serve_stdio(
        arguments.urls, connect, secret=_secret(), patience=arguments.patience
    )
    return connect_options.guarded(lambda: asyncio.run(serving) or 0, arguments)


def _http(arguments: argparse.Namespace, connect: Callable[[str], Client]) -> int:
    from msgspec.structs import replace

    from dragoman import App, mcp, stores
    from dragoman.cli import serve
    from dragoman.security.client_network import loopback

    options = _options(arguments)
    settings = options.in_force()
    if settings.store == stores.LOCAL:
        settings = replace(settings, store=STORE)
    served = mcp.McpApp(urls=tuple(arguments.urls), connect=connect, patience=arguments.patience)
    app = App(mounts={"/mcp": served}, settings=settings)
    access = app.access.authenticator
    if not loopback(settings.host) and (access is None or access.open):
        raise UsageError(
            f"--host {settings.host}: without [[auth]] in the settings, every caller would use the "
            "credentials of this server; so it listens on 127.0.0.1 only"
        )
    return serve.serve_app(app, options)


def _options(arguments: argparse.Namespace) -> Options:
    given: dict[str, Any] = {name: getattr(arguments, name, None) for name in SETTINGS}
    given["port"] = arguments.http
    texts = {}
    for item in arguments.set:
        name, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"--set {item}: expected NAME=VALUE")
        texts[name.replace("-", "_")] = value
    return Options(given, texts, arguments.config)


def _for_agent(arguments: argparse.Namespace, url: str, *, several: bool) -> argparse.Namespace:
    """The options for the agent at this URL, with the credentials of the environment."""
    found = argparse.Namespace(**vars(arguments))
    found.url = url
    for option in ("bearer", "api_key"):
        name = f"{ENVIRONMENT}{option.upper()}"
        names = [f"{name}_{_host(url)}"] + ([] if several else [name])
        given = _first(os.environ, names)
        if given and not getattr(found, option):
            setattr(found, option, given)
    return found


def _first(environment: Mapping[str, str], names: list[str]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _host(url: str) -> str:
    """The host of a URL as a part of the name of a variable."""
    host = urlsplit(url if "://" in url else f"https://{url}").netloc
    return re.sub(r"[^A-Z0-9]+", "_", host.upper()).strip("_")


def _secret() -> bytes:
    """The secret that signs what the client carries: the same after a restart."""
    path = connect_options.state() / KEY
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():  # several processes may start at once, and the first one decides
        own = path.with_suffix(f".{secrets.token_hex(8)}")
        with os.fdopen(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        with suppress(FileExistsError):
            path.hardlink_to(own)
        own.unlink()
    found = path.read_bytes()
    if len(found) != 32:
        raise UsageError(f"{path}: is no key; remove the file")
    return found
