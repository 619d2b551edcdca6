"""The arguments of `dragoman db`, which inspects and maintains a store, also while servers use
it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.cli import DEFAULTS, UsageError, examples, warn
from dragoman.cli.terminal_format import duration, moment
from dragoman.server import load_settings

if TYPE_CHECKING:
    from dragoman.stores.admin import Make

STATES = (
    *("submitted", "working", "completed", "failed", "canceled"),
    *("input-required", "rejected", "auth-required"),
)
ENDED = ("completed", "failed", "canceled", "rejected")


def add(commands: Any) -> None:
    """Add `db` to the commands."""
    db = commands.add_parser(
        "db",
        help="inspect and maintain a store",
        description="Inspect and maintain a store in SQLite or PostgreSQL, also a store in use.",
        **examples("db list --state working", "db show TASK --events", "db backup monday.db"),
    )
    inner = db.add_subparsers(required=True, metavar="command")

    one = _command(
        inner,
        "list",
        "list tasks, those that changed last first",
        "--state working",
        "--owner ann --since 7d --json",
    )
    for name in ("agent", "tenant", "owner"):
        one.add_argument(
            f"--{name}", help=f"list only tasks of this {name}; '' is the empty one (default: all)"
        )
    one.add_argument("--realm", help="the realm of --owner (default: the empty realm)")
    one.add_argument("--context", default="", help="list only tasks of this context (default: all)")
    one.add_argument(
        "--state",
        choices=STATES,
        metavar="STATE",
        help=f"list only tasks in this state: {', '.join(STATES)} (default: all)",
    )
    one.add_argument(
        "--since",
        type=moment,
        help="list only tasks whose status changed after this time: 1h (ago), 2026-01-31 or an RFC "
        "3339 time (default: all)",
    )
    _bounded(one)

    one = _command(inner, "show", "show a task and its webhooks", "0198…", "0198… --events")
    one.add_argument("task", metavar="TASK", help="the id of the task")
    one.add_argument("--events", action="store_true", help="also show the entries of its log")
    one.add_argument("--json", action="store_true", help="print JSON")

    one = _command(
        inner, "follow", "print the log of a task as it grows", "0198…", "0198… --after 7"
    )
    one.add_argument("task", metavar="TASK", help="the id of the task")
    one.add_argument(
        "--after",
        type=_number,
        default=0,
        metavar="N",
        help="print only entries after this number (default: 0)",
    )
    one.add_argument("--json", action="store_true", help="print JSON, one line for each entry")

    one = _command(
        inner,
        "prune",
        "delete tasks that ended long ago",
        "--older 30d --dry-run",
        "--older 12h --state failed",
    )
    one.add_argument(
        "--older",
        type=duration,
        required=True,
        metavar="DURATION",
        help="delete tasks that ended longer ago than this: 30d, 12h or 90m (required)",
    )
    one.add_argument(
        "--state",
        action="append",
        choices=ENDED,
        metavar="STATE",
        default=[],
        help=f"delete only tasks in this state: {', '.join(ENDED)}; can be repeated (default: all)",
    )
    one.add_argument(
        "--owner", help="delete only tasks of this owner; '' is the anonymous owner (default: all)"
    )
    one.add_argument("--realm", default="", help="the realm of --owner (default: the empty realm)")
    one.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    one.add_argument(
        "--force",
        action="store_true",
        help="also delete tasks with undelivered webhook events, and tasks that a client may "
        "still resend (24 hours)",
    )

    one = _command(inner, "webhooks", "list webhooks that have undelivered events", "", "--parked")
    one.add_argument(
        "--parked",
        action="store_true",
        help="list only parked webhooks: those whose delivery was given up",
    )
    _bounded(one)

    one = _command(inner, "redrive", "deliver to parked webhooks again", "--task 0198…", "--all")
    one.add_argument("--task", default="", help="only webhooks of this task (default: all)")
    one.add_argument("--webhook", default="", help="only the webhook with this id (default: all)")
    one.add_argument("--all", action="store_true", help="all parked webhooks")

    one = _command(
        inner,
        "rename-owner",
        "move all tasks of one owner to another owner",
        "ann ann --to-realm keys",
        "'' ann --dry-run",
    )
    one.add_argument("old", metavar="OLD", help="the present owner; '' is the anonymous owner")
    one.add_argument("new", metavar="NEW", help="the new owner; it may already have tasks")
    one.add_argument(
        "--realm", default="", help="the realm of the present owner (default: the empty realm)"
    )
    one.add_argument("--to-realm", help="the realm of the new owner (default: the same realm)")
    one.add_argument("--agent", help="move only tasks of this agent (default: all)")
    one.add_argument(
        "--tenant", help="move only tasks of this tenant; '' is the empty one (default: all)"
    )
    one.add_argument("--dry-run", action="store_true", help="only print what would be moved")

    one = _command(
        inner,
        "backup",
        "copy a SQLite store to a file",
        "tasks-monday.db",
        "tasks-monday.db --force",
    )
    one.add_argument("file", type=Path, metavar="FILE", help="write the copy to this file")
    one.add_argument("--force", action="store_true", help="overwrite the file")

    _command(inner, "check", "check the integrity of a store", "", "--store sqlite:///tasks.db")

    one = _command(
        inner,
        "export",
        "export tasks as JSON lines",
        "tasks.jsonl --since 7d",
        "--agent booking > booking.jsonl",
    )
    one.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="write to this file; - is standard output (default)",
    )
    one.add_argument("--agent", default="", help="export only tasks of this agent (default: all)")
    one.add_argument(
        "--since",
        type=moment,
        help="export only tasks whose status changed after this time: 1h (ago), 2026-01-31 or an "
        "RFC 3339 time (default: all)",
    )
    one.add_argument("--force", action="store_true", help="overwrite the file")

    one = _command(inner, "import", "import exported tasks", "tasks.jsonl", "tasks.jsonl --replace")
    one.add_argument(
        "file",
        nargs="?",
        default="-",
        metavar="FILE",
        help="read this file; - is standard input (default)",
    )
    one.add_argument("--replace", action="store_true", help="replace tasks that exist and differ")

    one = _command(
        inner,
        "migrate",
        "update the database tables; serve does this at the start",
        "--store postgresql://db/tasks",
        "--row-security",
    )
    one.add_argument(
        "--row-security",
        action=argparse.BooleanOptionalAction,
        help="let other PostgreSQL roles read only rows of the tenant in dragoman.tenant: on or "
        "off",
    )


def _command(commands: Any, name: str, help: str, *lines: str) -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        **examples(*(f"db {name} {each}".rstrip() for each in lines)),
    )
    add_store(one)
    one.set_defaults(run=_run, command=name)
    return one


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which store."""
    parser.add_argument(
        "--store",
        help="sqlite:///tasks.db or postgresql://host/tasks (default: the store that `dragoman "
        "serve` uses here)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read settings from this TOML file (default: dragoman.toml, if it exists)",
    )


def _bounded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=_positive, default=50, help="the maximum number of rows (default: 50)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(arguments: argparse.Namespace) -> int:
    from dragoman.cli import db_commands

    # no other command decrypts anything
    decrypts = arguments.command in ("rename-owner", "show")
    return run(arguments, db_commands.COMMANDS[arguments.command], decrypts=decrypts)


def run(
    arguments: argparse.Namespace,
    work: Callable[[argparse.Namespace, Make], int],
    *,
    decrypts: bool,
) -> int:
    """Do some work with the store of the arguments, and return the exit status."""
    from dragoman.cli import db_commands
    from dragoman.model.errors import Unavailable
    from dragoman.stores.admin import Missing
    from dragoman.stores.export_format import BadExport
    from dragoman.stores.store import UnknownEntry, Unreadable

    make = _make(arguments, decrypts=decrypts)
    try:
        return work(arguments, make)
    except Unavailable as error:
        words = error.message
    except (Missing, BadExport, Unreadable) as error:
        words = str(error)
    except UnknownEntry as error:
        words = f"{error}; set encryption_keys as the server has it"
    except BrokenPipeError:
        raise
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return db_commands.fail(words)


def _make(arguments: argparse.Namespace, *, decrypts: bool) -> Make:
    """Return the function that opens the store in the settings, or the local one."""
    from dragoman import stores
    from dragoman.stores.admin import is_database

    chosen = load_settings.load(
        {"store": arguments.store}, defaults=DEFAULTS, file=arguments.config, warn=warn
    )
    try:
        if chosen.store == stores.LOCAL:
            chosen = replace(chosen, store=stores.find_local())
        if not decrypts:
            chosen = replace(chosen, encryption_keys=())
        store = stores.connect(chosen)
    except (ImportError, ValueError) as error:
        raise UsageError(str(error)) from None
    if store.admin is None or not is_database(store.admin()):
        raise UsageError(
            f"store: this command cannot work on {chosen.masked()['store']}, which has no admin "
            "interface for it; sqlite:///file.db and postgresql://… have one"
        )
    return store.admin


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    number = _number(text)
    if not number:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number
