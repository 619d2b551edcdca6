"""`dragoman card`, `send` and `task`: call an agent from the terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import Parser, UsageError, card_keys, connect_options
from dragoman.cli.colors import BOLD, DIM, paint
from dragoman.cli.db import STATES
from dragoman.cli.text_table import json_text, moment, plain, table, word
from dragoman.dialects import v1_0
from dragoman.model.approvals import ApprovalRequest
from dragoman.model.types import AgentCard, Part, TaskState

if TYPE_CHECKING:
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Client, File
    from dragoman.client.client import SendOptions


WAITING = "waiting for the answer"
CHAT = """\
  /attach FILE …   send files with the next message
  /data JSON       send data with the next message
  /new             begin a new conversation
  /task            the task, and how it stands
  /approve         allow what the agent asks to be approved; /decline does not
  /cancel          end the task that waits for you
  /history         what has been said and produced in this task
  /card            who this is
  /quit            leave; so does Ctrl-D
A line that ends in \\ goes on in the next. Ctrl-C ends the turn that is under way."""


def add(commands: Any) -> None:
    """Add the commands."""
    card = _command(commands, "card", "show an agent's card", show_card)
    card.add_argument("--check", action="store_true", help="say what is wrong with it instead")
    card.add_argument("--raw", action="store_true", help="exactly as it is served")
    card.add_argument("--json", action="store_true", help="as JSON; a line a finding with --check")
    card.set_defaults(run=_card)
    card_keys.add(card)

    send = _command(commands, "send", "send a message and show the answer", say)
    send.add_argument("said", nargs="*", metavar="TEXT", help="text, or @file; - is standard input")
    send.add_argument("--data", action="append", default=[], metavar="JSON", help="structured data")
    send.add_argument("--task", default="", help="go on with this task")
    send.add_argument("--context", default="", help="in this conversation")
    send.add_argument("--skill", default="", help="the skill to use")
    either = send.add_mutually_exclusive_group()
    either.add_argument("--stream", action="store_true", help="show events as they come")
    either.add_argument("--no-wait", action="store_true", help="only until the task exists")
    send.add_argument("-o", "--output", default="", metavar="FOLDER", help="save files there")
    send.add_argument("--json", action="store_true", help="as JSON; a line an event with --stream")

    chat = commands.add_parser(
        "chat",
        help="talk with an agent",
        description="Talk with an agent. Lines from a pipe are one message each.",
        epilog=CHAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    connect_options.add(chat)
    chat.add_argument("--task", default="", help="go on with this task")
    chat.add_argument("--context", default="", help="in this conversation")
    chat.add_argument("--skill", default="", help="the skill to use")
    chat.add_argument("-o", "--output", default="", metavar="FOLDER", help="save files there")
    chat.set_defaults(run=_chat, follows=True)

    task = commands.add_parser("task", help="look at tasks of an agent, or end them")
    inner = task.add_subparsers(required=True, metavar="command")
    for name, what, run in (
        ("get", "show a task", get),
        ("watch", "show what happens to a task until it ends, also past questions", watch),
        ("cancel", "ask the agent to end a task", cancel),
        ("approve", "allow what a task asks to be approved", approve),
        ("decline", "do not allow what a task asks to be approved", decline),
    ):
        one = _command(inner, name, what, run)
        one.add_argument("task")
        one.set_defaults(follows=name == "watch")
        one.add_argument("-o", "--output", default="", metavar="FOLDER", help="save files there")
        one.add_argument("--json", action="store_true", help="as JSON")
    one = _command(inner, "list", "list the tasks that you may see", listing)
    one.add_argument("--state", choices=STATES, metavar="STATE", help=", ".join(STATES))
    one.add_argument("--context", default="", help="only those of this context")
    one.add_argument("--since", type=moment, help="1h, 2026-01-31 or an RFC 3339 time")
    one.add_argument("--limit", type=_positive, default=50, help="at most so many; 50")
    one.add_argument("--json", action="store_true", help="as JSON, one line each")


def _command(commands: Any, name: str, what: str, run: Callable[..., Awaitable[int]]) -> Parser:
    parser: Parser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}."
    )
    connect_options.add(parser)
    parser.set_defaults(run=lambda arguments: connect_options.run(arguments, run))
    return parser


def _card(arguments: argparse.Namespace) -> int:
    if not (arguments.check or arguments.raw):
        return connect_options.run(arguments, show_card)
    from dragoman.cli import card_check

    return card_check.run(arguments)


def _chat(arguments: argparse.Namespace) -> int:
    from dragoman.cli import chat

    return chat.run(arguments)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


async def show_card(agent: Client, arguments: argparse.Namespace) -> int:
    """The card."""
    if arguments.json:
        document = json.loads(v1_0.encode(agent.card))
        print(json_text(json.dumps(document, indent=2, ensure_ascii=False)))
        return 0
    out = sys.stdout
    card = agent.card
    print(paint(f"{plain(card.name)} {plain(card.version)}", BOLD, out))
    print(plain(card.description))
    if card.provider is not None:
        print(f"  by {plain(card.provider.organization)}, {plain(card.provider.url)}")
    for interface in card.supported_interfaces:
        same = interface.protocol_binding, interface.protocol_version, interface.tenant
        here = agent.interface
        spoken = same == (here.protocol_binding, here.protocol_version, here.tenant)
        # (how a gRPC address is dialled is not on the card)
        used = (
            "  (used here)" if spoken and here.url.endswith(interface.url.split("://")[-1]) else ""
        )
        print(
            f"  {plain(interface.protocol_binding)} {plain(interface.protocol_version)}"
            f"  {plain(interface.url)}{used}"
        )
    able = card.capabilities
    can = [name for name in ("streaming", "push_notifications") if getattr(able, name)]
    print(f"  can: {', '.join(can).replace('_', ' ') or 'answer'}")
    print(f"  takes: {', '.join(map(plain, card.default_input_modes))}")
    if way := _way_in(card):
        print(f"  wants: {plain(way)}")
    for extension in able.extensions:
        print(f"  extension {plain(extension.uri)}{' (required)' if extension.required else ''}")
    for skill in card.skills:
        print(f"  skill {paint(plain(skill.id), BOLD, out)}: {plain(skill.description)}")
        for example in skill.examples:
            print(paint(f"    such as: {plain(example)}", DIM, out))
    return 0


def _way_in(card: AgentCard) -> str:
    from dragoman.client.credentials import wanted

    return wanted(card)


async def say(agent: Client, arguments: argparse.Namespace) -> int:
    """Send a message."""
    from dragoman.cli.terminal_output import Screen

    parts = _said(arguments.said)
    for text in arguments.data:
        try:
            parts.append(Part(data=json.loads(text, parse_constant=_number)))
        except ValueError as error:
            raise UsageError(f"--data: not JSON: {error}") from None
    if not parts:
        raise UsageError("nothing to send: give a text, @file, --data, or - for standard input")
    saying: SendOptions = {"skill": arguments.skill}
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    where = {"task": arguments.task, "context": arguments.context}
    with _interruptible(agent, screen, arguments):
        if not arguments.stream:
            with connect_options.waiting(WAITING):
                result = await agent.send(parts, wait=not arguments.no_wait, **where, **saying)
            return screen.result(result)
        async with agent.stream(parts, keep=False, **where, **saying) as stream:
            async for event in stream:
                screen.event(event)
        screen.rest()
        return screen.verdict(stream.result.state)


async def get(agent: Client, arguments: argparse.Namespace) -> int:
    """Show a task."""
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    task = await agent.task(arguments.task).get()
    return Screen(as_json=arguments.json, folder=arguments.output).result(Result(task))


async def watch(agent: Client, arguments: argparse.Namespace) -> int:
    """Follow a task."""
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    task = await agent.task(arguments.task).get()
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    if task.status.state.terminal:
        return screen.result(Result(task))
    with _interruptible(agent, screen, arguments):
        async with agent.task(arguments.task).subscribe(keep=False) as stream:
            async for event in stream:
                screen.event(event)
    screen.rest()
    return screen.verdict(stream.result.state)


async def cancel(agent: Client, arguments: argparse.Namespace) -> int:
    """End a task."""
    from dragoman.cli.terminal_output import FAILED, Screen
    from dragoman.client import Result

    with connect_options.waiting("waiting for the agent to stop"):
        task = await agent.task(arguments.task).cancel()
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    screen.result(Result(task))
    return FAILED if screen.unsaved else 0


async def approve(agent: Client, arguments: argparse.Namespace) -> int:
    """Allow what a task asks for."""
    return await _answer(agent, arguments, approved=True)


async def decline(agent: Client, arguments: argparse.Namespace) -> int:
    """Do not allow it."""
    return await _answer(agent, arguments, approved=False)


async def _answer(agent: Client, arguments: argparse.Namespace, *, approved: bool) -> int:
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    remote = agent.task(arguments.task)
    grant = Result(await remote.get()).grant
    if grant is None:
        raise UsageError("the task asks for no approval")
    print(f"{'approving' if approved else 'declining'}: {asks(grant)}", file=sys.stderr)
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    with _interruptible(agent, screen, arguments), connect_options.waiting(WAITING):
        result = await (remote.approve(grant) if approved else remote.decline(grant))
    return screen.result(result)


def asks(grant: ApprovalRequest) -> str:
    """What is to be approved, in a line."""
    return plain(json.dumps(grant.operation, ensure_ascii=False))


async def listing(agent: Client, arguments: argparse.Namespace) -> int:
    """List tasks."""
    state = TaskState[arguments.state.upper().replace("-", "_")] if arguments.state else None
    rows: list[tuple[Any, ...]] = []
    found = agent.list(
        state=state,
        context=arguments.context,
        since=arguments.since,
        page=min(arguments.limit, 100),
    )
    async for task in found:
        if len(rows) >= arguments.limit:
            break
        if arguments.json:
            print(json_text(v1_0.encode(task)))
        rows.append((task.id, word(task.status.state), task.status.timestamp, task.context_id))
    if not arguments.json:
        print(table(("task", "state", "changed", "context"), rows) if rows else "no tasks")
    return 0


def _said(words: Sequence[str]) -> list[Part | File]:
    """The words of a command line: those that stand together are one text, as with echo."""
    found: list[Part | File] = []
    for plainly, group in groupby(words, lambda word: word != "-" and not word.startswith("@")):
        if plainly:
            found.append(Part(text=" ".join(group)))
        else:
            found += [_part(word) for word in group]
    return found


def _number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _part(text: str) -> Part | File:
    from dragoman.client import File

    if text == "-":
        try:
            return Part(text=sys.stdin.buffer.read().decode())
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8: {error}; send a @file") from None
    path = Path(text[1:])
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return File(path)


@contextmanager
def _interruptible(agent: Client, screen: Screen, arguments: argparse.Namespace) -> Iterator[None]:
    """When it is interrupted, tell which task goes on."""
    from dragoman.client.deadline import following

    with following(agent) as progress:
        try:
            yield
        except asyncio.CancelledError:  # Ctrl-C
            if progress.task:
                task = plain(progress.task)
                watch = f"dragoman task watch {plain(arguments.url)} {task}"
                screen.note(f"task {task} goes on; see it with: {watch}")
            else:
                more = "" if getattr(arguments, "stream", True) else "; --stream names it at once"
                screen.note(f"the agent may go on, and has not named its task yet{more}")
            raise
