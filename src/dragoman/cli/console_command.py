"""`dragoman console`: the console of a store without a server, and the inspector of any agent."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dragoman.cli import Options, UsageError, connect_options, examples

if TYPE_CHECKING:
    from dragoman.client import Client, TokenProvider, Transport
    from dragoman.server.app import App

PORT = 8800


def add(commands: Any) -> None:
    """Add `console` to the commands."""
    parser = commands.add_parser(
        "console",
        help="look into a store, or inspect any agent, in the browser",
        description="Show the tasks of a store in the browser, or call and inspect any agent. It "
        "listens on this machine only, and prints an address that works once.",
        **examples(
            "console https://agent.example",
            "console --store sqlite:///flight.db",
            "console --store postgresql://db/tasks",
        ),
    )
    connect_options.add(parser, needed=False, without=("--trace",))
    parser.add_argument(
        "--store",
        default="",
        metavar="URL",
        help="show the tasks of this store: sqlite:///flight.db, postgresql://... (default: none)",
    )
    parser.add_argument(
        "--encryption-key",
        action="append",
        default=[],
        metavar="KEY",
        help="a key of the setting encryption_keys, to show what is encrypted; @FILE reads it from "
        "a file (default: none)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=PORT,
        metavar="PORT",
        help="port to listen on; 0 picks a free port (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from dragoman import App
    from dragoman.cli import serve
    from dragoman.console import Console

    if bool(arguments.url) == bool(arguments.store):
        raise UsageError("console: give the URL of an agent, or --store")
    options = Options({"host": "127.0.0.1", "port": arguments.port, "store": "memory:"}, {})
    opening = Opening()
    if arguments.store:
        console = _store(arguments, opening)
    else:
        source = _remote(arguments)
        console = Console(tell=opening.tell, source=source)
    app = App(mounts={"/": ConsoleServer()})
    app.answer_first(console, close=console.close)
    opening.console = console
    return serve.serve_app(app, options, announced=opening)


def _store(arguments: argparse.Namespace, opening: Opening) -> Any:
    from dragoman import A2AError
    from dragoman.admin import Missing, open_store
    from dragoman.console import Console, StoredTasks

    keys = [connect_options.secret_text(text) for text in arguments.encryption_key]

    def make() -> Any:
        return open_store(arguments.store, encryption_keys=keys, write=True)

    try:
        with make() as admin:
            name = admin.name
    except (A2AError, Missing, ValueError) as error:
        raise UsageError(f"--store: {error}") from None
    return Console(tell=opening.tell, source=StoredTasks(name), store=make)


def _remote(arguments: argparse.Namespace) -> Any:
    from dragoman.console import RemoteAgent

    connect_options.client(arguments)  # reports wrong options before the server starts

    def connect(
        transport: Transport,
        *,
        auth: Mapping[str, TokenProvider],
        headers: Mapping[str, str],
        extensions: Sequence[str],
    ) -> Client:
        return connect_options.client(
            arguments,
            transport=transport,
            given=auth,
            more_headers=headers,
            extensions=extensions,
            attempts=2,
        )

    return RemoteAgent(arguments.url, lambda: connect_options.sockets(arguments), connect)


class Opening:
    """Prints the address of the console once the server listens."""

    console: Any

    def __init__(self) -> None:
        self._base = ""

    def begin(self, app: App, port: int) -> None:
        """Print it."""
        self._base = f"http://127.0.0.1:{port}"
        self.console.token.print()

    def tell(self, token: str) -> None:
        """Print the address with this token. It is not logged."""
        print(f"console: {self._base}/console/?token={token}", flush=True)

    async def end(self) -> None:
        """There is nothing to end."""


class ConsoleServer:
    """Serves nothing beside the console."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer that nothing is here."""
        if scope["type"] == "lifespan":
            return
        body = b'{"message":"nothing is served here; the terminal has the address of the console"}'
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 404, "headers": head})
        await send({"type": "http.response.body", "body": body})
