"""`dragoman push` and `dragoman listen`: manage webhooks, and receive deliveries."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dragoman.cli import UsageError, connect_options, examples
from dragoman.cli.colors import DIM, GREEN, RED, paint
from dragoman.cli.terminal_format import json_text, plain, table
from dragoman.cli.terminal_output import Screen, error_text
from dragoman.dialects import v1_0
from dragoman.model.errors import A2AError
from dragoman.model.types import AuthenticationInfo, TaskPushNotificationConfig

if TYPE_CHECKING:
    from dragoman.client import Client
    from dragoman.webhooks.receiver import Receiver

CONNECTIONS = 256
"""The maximum number of connections of `listen`; further ones get status 503."""

EXAMPLES = {
    "add": (
        "push add http://localhost:8000 TASK https://me.example/events --token secret",
        "push add https://agent.example TASK https://me.example/ --authorization 'Bearer abc'",
    ),
    "list": ("push list http://localhost:8000 TASK", "push list http://localhost:8000 TASK --json"),
    "get": (
        "push get http://localhost:8000 TASK ID",
        "push get http://localhost:8000 TASK ID --json",
    ),
    "delete": (
        "push delete http://localhost:8000 TASK ID",
        "push delete https://agent.example TASK ID --bearer @token.txt",
    ),
}


def add(commands: Any) -> None:
    """Add the commands."""
    push = commands.add_parser(
        "push",
        help="manage the webhooks of a task",
        description="Manage the webhooks of a task.",
        **examples(*(EXAMPLES[name][0] for name in ("add", "list", "delete"))),
    )
    inner = push.add_subparsers(required=True, metavar="command")
    for name, what, run in (
        ("add", "register a webhook", _add),
        ("list", "list the webhooks of a task", _list),
        ("get", "show a webhook", _get),
        ("delete", "delete a webhook", _delete),
    ):
        one = inner.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            **examples(*EXAMPLES[name]),
        )
        connect_options.add(one)
        one.add_argument("task", metavar="TASK", help="the id of the task")
        if name == "add":
            one.add_argument(
                "hook", metavar="WEBHOOK", help="the URL that the agent posts events to"
            )
            one.add_argument(
                "--id", default="", help="the id of the webhook (default: the agent chooses one)"
            )
            one.add_argument(
                "--token",
                default="",
                help="the agent sends this token as X-A2A-Notification-Token (default: none)",
            )
            one.add_argument(
                "--authorization",
                default="",
                metavar="'SCHEME CREDENTIALS'",
                help="the agent sends this as the Authorization header (default: none)",
            )
        elif name != "list":
            one.add_argument("id", metavar="ID", help="the id of the webhook")
        one.add_argument("--json", action="store_true", help="print JSON")
        one.set_defaults(run=lambda arguments, run=run: connect_options.run(arguments, run))

    listen = commands.add_parser(
        "listen",
        help="receive and verify webhook deliveries",
        description="Receive webhook deliveries on this machine, verify them and print them.",
        **examples(
            "listen",
            "listen --port 9000 --token secret --key whsec_…",
            "listen --any --count 1 --json",
        ),
    )
    listen.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    listen.add_argument(
        "--port",
        type=int,
        default=8099,
        help="the port to listen on; 0 picks a free one (default: 8099)",
    )
    listen.add_argument(
        "--token", default="", help="the token that deliveries must carry (default: a random one)"
    )
    listen.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="KEY",
        help="also verify signatures with this key: whsec_… or whpk_… (default: none)",
    )
    listen.add_argument("--any", action="store_true", help="accept unauthenticated notifications")
    listen.add_argument(
        "--count",
        type=int,
        default=0,
        metavar="N",
        help="stop after this many deliveries (default: no limit)",
    )
    listen.add_argument(
        "--json", action="store_true", help="print the received objects, one on each line"
    )
    listen.set_defaults(run=_listen)


# ---- push ----------------------------------------------------------------------------------


async def _add(agent: Client, arguments: argparse.Namespace) -> int:
    scheme, _, credentials = arguments.authorization.partition(" ")
    made = await agent.task(arguments.task).add_webhook(
        arguments.hook,
        id=arguments.id,
        token=arguments.token,
        authentication=AuthenticationInfo(scheme=scheme, credentials=credentials)
        if scheme
        else None,
    )
    return _show(made, arguments.json)


async def _list(agent: Client, arguments: argparse.Namespace) -> int:
    found = [config async for config in agent.task(arguments.task).webhooks()]
    if arguments.json:
        for config in found:
            print(json_text(v1_0.encode(config)))
    else:
        rows = [(config.id, config.url, _authentication(config)) for config in found]
        print(table(("id", "url", "authentication"), rows) if rows else "no webhooks")
    return 0


async def _get(agent: Client, arguments: argparse.Namespace) -> int:
    return _show(await agent.task(arguments.task).webhook(arguments.id), arguments.json)


async def _delete(agent: Client, arguments: argparse.Namespace) -> int:
    await agent.task(arguments.task).delete_webhook(arguments.id)
    if arguments.json:
        print("{}")
    return 0


def _show(config: TaskPushNotificationConfig, as_json: bool) -> int:
    if as_json:
        print(json_text(v1_0.encode(config)))
    else:
        print(f"{plain(config.id)}  {plain(config.url)}  {_authentication(config)}".rstrip())
    return 0


def _authentication(config: TaskPushNotificationConfig) -> str:
    """Describe how a delivery authenticates itself, without the secrets."""
    given = config.authentication
    names = [*(["token"] if config.token else []), *([plain(given.scheme)] if given else [])]
    return ", ".join(names)


# ---- listen --------------------------------------------------------------------------------


def _listen(arguments: argparse.Namespace) -> int:
    try:
        import uvicorn
    except ImportError:
        raise ModuleNotFoundError(
            "listen needs uvicorn, which is not installed; run `pip install 'dragoman[serve]'`",
            name="uvicorn",
        ) from None
    from dragoman.cli.serve import bind
    from dragoman.webhooks.receiver import Receiver

    token = arguments.token or ("" if arguments.any or arguments.key else secrets.token_urlsafe(18))
    try:
        receiver = Receiver(token=token or None, keys=arguments.key, insecure=arguments.any)
    except ValueError as error:
        raise UsageError(f"--key: {error}") from None
    listener = bind(arguments.host, arguments.port)
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    server: uvicorn.Server
    app = ListenApp(receiver, arguments, lambda: setattr(server, "should_exit", True))

    class Listening(uvicorn.Server):  # type: ignore[misc,unused-ignore]
        async def startup(self, sockets: Any = None) -> None:
            """Print the URL only once the server listens; an earlier Ctrl-C could be lost."""
            await super().startup(sockets)
            _note(f"listening at {url}; press Ctrl-C to stop")
            if not arguments.token and token:
                _note(
                    f"register this webhook with: dragoman push add AGENT TASK {url} "
                    f"--token {token}"
                )

    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        access_log=False,
        limit_concurrency=CONNECTIONS,
    )
    server = Listening(config)
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after it has stopped
        server.run(sockets=[listener])
    return 0


class ListenApp:
    """The ASGI application that prints each notification, or why it was rejected."""

    def __init__(self, receiver: Receiver, arguments: argparse.Namespace, end: Any) -> None:
        self._receiver = receiver
        self._json = arguments.json
        self._left = arguments.count
        self._end = end
        self._screen = Screen()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Receive one notification."""
        from dragoman.webhooks.receiver import Gone

        try:
            notification, body = await self._receiver.read(scope, receive)
            self._receiver.done(notification)
        except Gone:
            return
        except A2AError as error:
            _note(paint(f"refused ({error.http}): {error_text(error)}", RED, sys.stderr))
            headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
            await _answer(send, error.http, json.dumps(error.to_http()).encode(), headers)
            return
        await _answer(send, 200, b"{}")
        if self._json:
            print(json_text(body.strip()).replace("\n", " "), flush=True)
        else:
            again = "" if notification.fresh else ", a repeated delivery"
            text = f"task {plain(notification.task_id)}{again}" if notification.task_id else again
            _note(f"{paint('verified', GREEN, sys.stderr)} {text}")
            self._screen.event(notification.event)
            self._screen.end_line()
        self._left -= 1
        if self._left == 0:
            self._end()


async def _answer(
    send: Any, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    kinds = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*kinds, *headers]},
    )
    await send({"type": "http.response.body", "body": body})


def _note(text: str) -> None:
    print(paint(text, DIM, sys.stderr), file=sys.stderr, flush=True)
