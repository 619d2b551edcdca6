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

from dragoman.cli import (
    Parser,
    UsageError,
    card_signatures,
    connect_options,
    examples,
    payment_options,
)
from dragoman.cli.colors import BOLD, DIM, paint
from dragoman.cli.db_parser import STATES
from dragoman.cli.terminal_format import json_text, moment, plain, table, word
from dragoman.dialects import v1_0
from dragoman.model.approvals import ApprovalRequest
from dragoman.model.pauses import PAUSE_EXTENSIONS
from dragoman.model.types import AgentCard, Part, TaskState

if TYPE_CHECKING:
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Client, File
    from dragoman.client.options import SendOptions


WAITING = "waiting for the answer"
CHAT = """\
Commands in the chat:
  /attach FILE …   send files with the next message
  /data JSON       send data with the next message
  /new             start a new conversation
  /task            show the task and its state
  /approve         approve what the agent asks for
  /decline         decline what the agent asks for
  /cancel          cancel the task that waits for your answer
  /history         show the messages and results of this task
  /card            show the agent's card
  /quit            leave; Ctrl-D does the same
A line that ends in \\ continues on the next line. Ctrl-C cancels the current turn."""
EXAMPLES = {
    "card": (
        "card http://localhost:8000",
        "card https://agent.example --check",
        "card verify https://agent.example --key public.pem",
    ),
    "send": (
        "send http://localhost:8000 Book a flight to Rome",
        "send http://localhost:8000 'Summarize this' @report.pdf --stream",
        "send https://agent.example 'Check my repository' --pay-max 0.50",
    ),
    "chat": (
        "chat http://localhost:8000",
        "chat https://agent.example --client-id my-client",
        "chat http://localhost:8000 < questions.txt",
    ),
    "get": ("task get http://localhost:8000 TASK", "task get http://localhost:8000 TASK -o files"),
    "watch": (
        "task watch http://localhost:8000 TASK",
        "task watch http://localhost:8000 TASK --json",
    ),
    "cancel": (
        "task cancel http://localhost:8000 TASK",
        "task cancel https://agent.example TASK --bearer @token.txt",
    ),
    "approve": (
        "task approve http://localhost:8000 TASK",
        "task approve https://agent.example TASK --bearer @token.txt",
    ),
    "decline": (
        "task decline http://localhost:8000 TASK",
        "task decline https://agent.example TASK --bearer @token.txt",
    ),
    "pay": (
        "task pay http://localhost:8000 TASK --pay-max 0.50",
        "task pay https://agent.example TASK --pay-max '0.50 USDC' --bearer @token.txt",
    ),
    "list": (
        "task list http://localhost:8000 --state working",
        "task list http://localhost:8000 --since 1h --json",
    ),
}


def add(commands: Any) -> None:
    """Add the commands."""
    card = _command(commands, "card", "show, check, sign or verify an agent's card", show_card)
    card.add_argument("--check", action="store_true", help="check the card and print the problems")
    card.add_argument(
        "--raw", action="store_true", help="print the document exactly as the agent serves it"
    )
    card.add_argument(
        "--json", action="store_true", help="print JSON; with --check, one line for each problem"
    )
    card.set_defaults(run=_card)
    card_signatures.add(card)

    send = _command(commands, "send", "send a message and show the answer", send_message)
    send.intermixed = True
    send.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="a text; @FILE sends a file, - reads standard input",
    )
    send.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="JSON",
        help="send structured data; can be repeated (default: none)",
    )
    send.add_argument(
        "--task", default="", help="continue the task with this id (default: a new task)"
    )
    send.add_argument(
        "--context",
        default="",
        help="use the conversation (context) with this id (default: a new one)",
    )
    send.add_argument(
        "--skill", default="", help="use the skill with this id (default: the agent chooses)"
    )
    either = send.add_mutually_exclusive_group()
    either.add_argument("--stream", action="store_true", help="show events as they arrive")
    either.add_argument("--no-wait", action="store_true", help="return as soon as the task exists")
    send.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FOLDER",
        help="save received files in this folder (default: files are not saved)",
    )
    send.add_argument(
        "--json", action="store_true", help="print JSON; with --stream, one line for each event"
    )

    payment_options.add(send)

    chat = commands.add_parser(
        "chat",
        help="chat with an agent",
        description="Chat with an agent. Each line from a pipe is one message.",
        **examples(*EXAMPLES["chat"], more=CHAT),
    )
    connect_options.add(chat)
    chat.add_argument(
        "--task", default="", help="continue the task with this id (default: a new task)"
    )
    chat.add_argument(
        "--context",
        default="",
        help="use the conversation (context) with this id (default: a new one)",
    )
    chat.add_argument(
        "--skill", default="", help="use the skill with this id (default: the agent chooses)"
    )
    chat.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FOLDER",
        help="save received files in this folder (default: files are not saved)",
    )
    payment_options.add(chat)
    chat.set_defaults(run=_chat, follows=True)

    task = commands.add_parser(
        "task",
        help="show, list, cancel or approve tasks of an agent",
        description="Show, list, cancel or approve tasks of an agent.",
        **examples(*(EXAMPLES[name][0] for name in ("get", "list", "cancel"))),
    )
    inner = task.add_subparsers(required=True, metavar="command")
    for name, what, run in (
        ("get", "show a task", get),
        ("watch", "follow a task until it ends", watch),
        ("cancel", "ask the agent to cancel a task", cancel),
        ("approve", "approve what a task asks for", approve),
        ("decline", "decline what a task asks for", decline),
        ("pay", "pay what a task asks for", pay),
    ):
        one = _command(inner, name, what, run)
        one.add_argument("task", metavar="TASK", help="the id of the task")
        one.set_defaults(follows=name == "watch")
        if name == "pay":
            payment_options.add(one)
        one.add_argument(
            "-o",
            "--output",
            default="",
            metavar="FOLDER",
            help="save received files in this folder (default: files are not saved)",
        )
        one.add_argument("--json", action="store_true", help="print JSON")
    one = _command(inner, "list", "list the tasks that you can access", listing)
    one.add_argument(
        "--state",
        choices=STATES,
        metavar="STATE",
        help=f"list only tasks in this state: {', '.join(STATES)} (default: all)",
    )
    one.add_argument("--context", default="", help="list only tasks of this context (default: all)")
    one.add_argument(
        "--since",
        type=moment,
        help="list only tasks whose status changed after this time: 1h (ago), 2026-01-31 or an RFC "
        "3339 time (default: all)",
    )
    one.add_argument(
        "--limit",
        type=_positive,
        default=50,
        help="the maximum number of tasks to list (default: 50)",
    )
    one.add_argument("--json", action="store_true", help="print JSON, one line for each task")


def _command(commands: Any, name: str, what: str, run: Callable[..., Awaitable[int]]) -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        **examples(*EXAMPLES[name]),
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a number greater than 0")
    return int(text)


async def show_card(agent: Client, arguments: argparse.Namespace) -> int:
    """Show the card."""
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
        listed = interface.protocol_binding, interface.protocol_version, interface.tenant
        here = agent.interface
        same_interface = listed == (here.protocol_binding, here.protocol_version, here.tenant)
        # compared without the scheme, which a card may omit for gRPC
        used = (
            "  (used here)"
            if same_interface and here.url.endswith(interface.url.split("://")[-1])
            else ""
        )
        print(
            f"  {plain(interface.protocol_binding)} {plain(interface.protocol_version)}"
            f"  {plain(interface.url)}{used}"
        )
    capabilities = card.capabilities
    can = [name for name in ("streaming", "push_notifications") if getattr(capabilities, name)]
    print(f"  can: {', '.join(can).replace('_', ' ') or 'answer'}")
    print(f"  takes: {', '.join(map(plain, card.default_input_modes))}")
    if way := _required_schemes(card):
        print(f"  wants: {plain(way)}")
    for extension in capabilities.extensions:
        print(f"  extension {plain(extension.uri)}{' (required)' if extension.required else ''}")
    costs = _prices(card)
    for skill in card.skills:
        print(f"  skill {paint(plain(skill.id), BOLD, out)}: {plain(skill.description)}")
        for example in skill.examples:
            print(paint(f"    example: {plain(example)}", DIM, out))
        if skill.id in costs:
            print(f"    costs {plain(costs[skill.id])}")
    return 0


def _prices(card: AgentCard) -> dict[str, str]:
    """What skills cost by the card, in words."""
    if not any(extension.uri in PAUSE_EXTENSIONS for extension in card.capabilities.extensions):
        return {}
    from dragoman.payments import prices

    found = prices(card).items()
    return {skill: f"{one.amount} on {one.network} to {one.to}" for skill, one in found}


def _required_schemes(card: AgentCard) -> str:
    from dragoman.client.credentials import required_schemes

    return required_schemes(card)


async def send_message(agent: Client, arguments: argparse.Namespace) -> int:
    """Send a message."""
    from dragoman.cli.terminal_output import Screen

    parts = _message_parts(arguments.texts)
    for text in arguments.data:
        try:
            parts.append(Part(data=json.loads(text, parse_constant=_number)))
        except ValueError as error:
            raise UsageError(f"--data: not valid JSON: {error}") from None
    if not parts:
        raise UsageError("nothing to send: give a text, @FILE, --data, or - for standard input")
    options: SendOptions = {"skill": arguments.skill}
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    where = {"task": arguments.task, "context": arguments.context}
    with _interruptible(agent, screen, arguments):
        if not arguments.stream:
            with connect_options.waiting(WAITING):
                result = await agent.send(parts, wait=not arguments.no_wait, **where, **options)
            return screen.result(result)
        async with agent.stream(parts, keep=False, **where, **options) as stream:
            async for event in stream:
                screen.event(event)
        screen.end_line()
        return screen.exit_status(stream.result)


async def get(agent: Client, arguments: argparse.Namespace) -> int:
    """Show a task."""
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    task = await agent.task(arguments.task).get()
    return Screen(as_json=arguments.json, folder=arguments.output).result(Result(task))


async def watch(agent: Client, arguments: argparse.Namespace) -> int:
    """Show the events of a task until it ends."""
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
    screen.end_line()
    return screen.exit_status(stream.result)


async def cancel(agent: Client, arguments: argparse.Namespace) -> int:
    """Cancel a task."""
    from dragoman.cli.terminal_output import FAILED, Screen
    from dragoman.client import Result

    with connect_options.waiting("waiting for the agent to stop"):
        task = await agent.task(arguments.task).cancel()
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    screen.result(Result(task))
    return FAILED if screen.unsaved else 0


async def approve(agent: Client, arguments: argparse.Namespace) -> int:
    """Approve the operation that a task asks for."""
    return await _answer(agent, arguments, approved=True)


async def decline(agent: Client, arguments: argparse.Namespace) -> int:
    """Decline the operation that a task asks for."""
    return await _answer(agent, arguments, approved=False)


async def _answer(agent: Client, arguments: argparse.Namespace, *, approved: bool) -> int:
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    remote = agent.task(arguments.task)
    grant = Result(await remote.get()).grant
    if grant is None:
        raise UsageError("the task does not ask for an approval")
    print(f"{'approving' if approved else 'declining'}: {operation_text(grant)}", file=sys.stderr)
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    with _interruptible(agent, screen, arguments), connect_options.waiting(WAITING):
        result = await (remote.approve(grant) if approved else remote.decline(grant))
    return screen.result(result)


async def pay(agent: Client, arguments: argparse.Namespace) -> int:
    """Pay what a task asks for."""
    from dragoman.cli.terminal_output import Screen
    from dragoman.client import Result

    remote = agent.task(arguments.task)
    pause = Result(await remote.get()).pause
    if pause is None or pause.kind != "payment":
        raise UsageError("the task does not ask for a payment")
    screen = Screen(as_json=arguments.json, folder=arguments.output)
    with _interruptible(agent, screen, arguments), connect_options.waiting(WAITING):
        result = await remote.answer_pause()
    return screen.result(result)


def operation_text(grant: ApprovalRequest) -> str:
    """Format the operation to approve in one line."""
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


def _message_parts(words: Sequence[str]) -> list[Part | File]:
    """Convert arguments to parts. Adjacent words become one text, as with echo."""
    found: list[Part | File] = []
    for is_text, group in groupby(words, lambda word: word != "-" and not word.startswith("@")):
        if is_text:
            found.append(Part(text=" ".join(group)))
        else:
            found += [_part(word) for word in group]
    return found


def _number(text: str) -> Any:
    raise ValueError(f"{text} is not a valid JSON number")


def _part(text: str) -> Part | File:
    from dragoman.client import File

    if text == "-":
        try:
            return Part(text=sys.stdin.buffer.read().decode())
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8: {error}; send it as @FILE") from None
    path = Path(text[1:])
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return File(path)


@contextmanager
def _interruptible(agent: Client, screen: Screen, arguments: argparse.Namespace) -> Iterator[None]:
    """On Ctrl-C, print which task continues."""
    from dragoman.client.deadline import following

    with following(agent._connection) as progress:
        try:
            yield
        except asyncio.CancelledError:
            if progress.task:
                task = plain(progress.task)
                watch = f"dragoman task watch {plain(arguments.url)} {task}"
                screen.note(f"task {task} continues; follow it with: {watch}")
            else:
                more = (
                    ""
                    if getattr(arguments, "stream", True)
                    else "; --stream shows the id immediately"
                )
                screen.note(f"the agent may continue, but it has not sent a task id yet{more}")
            raise
