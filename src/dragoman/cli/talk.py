"""`dragoman card`, `send` and `task`: an agent from the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import mimetypes
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from dragoman.cli import UsageError
from dragoman.cli.db import STATES
from dragoman.cli.table import moment, plain, size, table, word
from dragoman.dialects import v1_0
from dragoman.errors import A2AError
from dragoman.types import (
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

if TYPE_CHECKING:
    from dragoman.client import Client, Result

FAILED = {TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED}


def add(commands: Any) -> None:
    """Add the commands."""
    card = _command(commands, "card", "show an agent's card", show_card)
    card.add_argument("--json", action="store_true", help="the card as it is")

    send = _command(commands, "send", "send a message and show the answer", say)
    send.add_argument("said", nargs="*", metavar="TEXT", help="text, or @file; - is standard input")
    send.add_argument("--data", action="append", default=[], metavar="JSON", help="structured data")
    send.add_argument("--task", default="", help="go on with this task")
    send.add_argument("--context", default="", help="in this conversation")
    send.add_argument("--skill", default="", help="the skill to use")
    send.add_argument("--stream", action="store_true", help="show events as they come")
    send.add_argument("--no-wait", action="store_true", help="only until the task exists")
    send.add_argument("--json", action="store_true", help="as JSON; a line an event with --stream")

    task = commands.add_parser("task", help="look at tasks of an agent, or end them")
    inner = task.add_subparsers(required=True, metavar="command")
    for name, what, run in (
        ("get", "show a task", get),
        ("watch", "show what happens to a task until it ends", watch),
        ("cancel", "ask the agent to end a task", cancel),
    ):
        one = _command(inner, name, what, run)
        one.add_argument("task")
        one.add_argument("--json", action="store_true", help="as JSON")
    one = _command(inner, "list", "list the tasks that you may see", listing)
    one.add_argument("--state", choices=STATES, metavar="STATE", help=", ".join(STATES))
    one.add_argument("--context", default="", help="only those of this context")
    one.add_argument("--since", type=moment, help="1h, 2026-01-31 or an RFC 3339 time")
    one.add_argument("--limit", type=int, default=50, help="at most so many; 50")
    one.add_argument("--json", action="store_true", help="as JSON, one line each")


def _command(
    commands: Any, name: str, what: str, run: Callable[..., Awaitable[int]]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}."
    )
    parser.add_argument("url", metavar="URL", help="the agent, its card, or a file with its card")
    parser.add_argument(
        *("-H", "--header"),
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="send this header with every request",
    )
    parser.add_argument("--bearer", default="", metavar="TOKEN", help="a bearer token")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds; 300")
    parser.set_defaults(run=lambda arguments: _run(arguments, run))
    return parser


def _run(arguments: argparse.Namespace, run: Callable[..., Awaitable[int]]) -> int:
    from dragoman.client import Client, Unreachable  # other commands do without it

    headers = {}
    for item in arguments.header:
        name, colon, value = item.partition(":")
        if not colon or not name.strip():
            raise UsageError(f"--header {item}: expected NAME: VALUE")
        headers[name.strip().lower()] = value.strip()
    if arguments.bearer:
        headers["authorization"] = f"Bearer {arguments.bearer}"

    async def main() -> int:
        client = Client.connect(arguments.url, headers=headers, timeout=arguments.timeout)
        async with client:
            return await run(client, arguments)

    try:
        return asyncio.run(main())
    except (A2AError, Unreachable, ModuleNotFoundError) as error:
        print(f"dragoman: {plain(error)}", file=sys.stderr)
        return 1
    except TimeoutError:
        print(f"dragoman: no answer within {arguments.timeout:g} s", file=sys.stderr)
        return 1


# ---- commands ------------------------------------------------------------------------------


async def show_card(client: Client, arguments: argparse.Namespace) -> int:
    """The card."""
    card = client.card
    if arguments.json:
        print(json.dumps(json.loads(v1_0.encode(card)), indent=2, ensure_ascii=False))
        return 0
    print(f"{plain(card.name)} {plain(card.version)}")
    print(plain(card.description))
    for interface in card.supported_interfaces:
        used = "  (used here)" if interface == client.interface else ""
        print(
            f"  {plain(interface.protocol_binding)} {plain(interface.protocol_version)}"
            f"  {plain(interface.url)}{used}"
        )
    able = card.capabilities
    can = [name for name in ("streaming", "push_notifications") if getattr(able, name)]
    print(f"  can: {', '.join(can).replace('_', ' ') or 'answer'}")
    for extension in able.extensions:
        print(f"  extension {plain(extension.uri)}{' (required)' if extension.required else ''}")
    for skill in card.skills:
        print(f"  skill {plain(skill.id)}: {plain(skill.description)}")
        for example in skill.examples:
            print(f"    such as: {plain(example)}")
    return 0


async def say(client: Client, arguments: argparse.Namespace) -> int:
    """Send a message."""
    parts = [part for text in arguments.said for part in _parts(text)]
    for text in arguments.data:
        try:
            parts.append(Part(data=json.loads(text)))
        except ValueError as error:
            raise UsageError(f"--data: not JSON: {error}") from None
    if not parts:
        raise UsageError("nothing to send: give a text, @file, --data, or - for standard input")
    options = {
        "task": arguments.task,
        "context": arguments.context,
        "skill": arguments.skill,
    }
    if not arguments.stream:
        result = await client.send(parts, wait=not arguments.no_wait, **options)
        return _show(result, arguments.json)
    async with client.stream(parts, **options) as stream:
        async for event in stream:
            _event(event, arguments.json)
    return _status(stream.result)


async def get(client: Client, arguments: argparse.Namespace) -> int:
    """Show a task."""
    return _show(_result(await client.task(arguments.task).get()), arguments.json)


async def watch(client: Client, arguments: argparse.Namespace) -> int:
    """Follow a task."""
    task = await client.task(arguments.task).get()
    if task.status.state.terminal:
        return _show(_result(task), arguments.json)
    async with client.task(arguments.task).subscribe() as stream:
        async for event in stream:
            _event(event, arguments.json)
    return _status(stream.result)


async def cancel(client: Client, arguments: argparse.Namespace) -> int:
    """End a task."""
    task = await client.task(arguments.task).cancel()
    _show(_result(task), arguments.json)
    return 0


async def listing(client: Client, arguments: argparse.Namespace) -> int:
    """List tasks."""
    state = TaskState[arguments.state.upper().replace("-", "_")] if arguments.state else None
    rows: list[tuple[Any, ...]] = []
    found = client.list(
        state=state,
        context=arguments.context,
        since=arguments.since,
        page=min(arguments.limit, 100),
    )
    async for task in found:
        if len(rows) >= arguments.limit:
            break
        if arguments.json:
            print(v1_0.encode(task).decode())
        rows.append((task.id, word(task.status.state), task.status.timestamp, task.context_id))
    if not arguments.json:
        print(table(("task", "state", "changed", "context"), rows) if rows else "no tasks")
    return 0


# ---- what is shown -------------------------------------------------------------------------


def _parts(text: str) -> Sequence[Part]:
    if text == "-":
        return [Part(text=sys.stdin.read())]
    if not text.startswith("@"):
        return [Part(text=text)]
    path = Path(text[1:])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return [Part(raw=data, filename=path.name, media_type=kind)]


def _show(result: Result, as_json: bool) -> int:
    if as_json:
        print(v1_0.encode(result.task or result.message).decode())
        return _status(result)
    for part in result.parts:
        print(_words(part))
    if result.task is not None:
        task = result.task
        print(f"[{word(task.status.state)}] task {plain(task.id)}", file=sys.stderr)
    return _status(result)


def _event(event: Any, as_json: bool) -> None:
    if as_json:
        print(v1_0.response(event).decode(), flush=True)
    elif isinstance(event, TaskArtifactUpdateEvent):
        for part in event.artifact.parts:
            print(_words(part), flush=True)
    elif isinstance(event, TaskStatusUpdateEvent | Task):
        said = event.status.message
        text = " ".join(_words(part) for part in said.parts) if said else ""
        print(f"[{word(event.status.state)}] {text}".rstrip(), file=sys.stderr, flush=True)
    else:
        for part in event.parts:
            print(_words(part), flush=True)


def _words(part: Part) -> str:
    """A part for a terminal, which it must not steer."""
    if part.text is not None:
        return "\n".join(plain(line) for line in part.text.rstrip("\n").split("\n"))
    if part.data is not UNSET:
        return plain(msgspec.json.encode(part.data).decode())
    if part.raw is not None:
        return f"<{plain(part.filename or 'file')}, {size(len(part.raw))}>"
    return f"<{plain(part.filename or 'file')} at {plain(part.url)}>"


def _result(task: Task) -> Result:
    from dragoman.client import Result

    return Result(task)


def _status(result: Result) -> int:
    return 1 if result.state in FAILED else 0
