"""`dragoman db`: a store that lasts, also while servers are running on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.cli import DEFAULTS, UsageError, warn
from dragoman.cli.text_table import duration, moment
from dragoman.server import settings

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
        help="look after the store",
        description="Look after a store in SQLite or PostgreSQL, also while servers use it.",
    )
    inner = db.add_subparsers(required=True, metavar="command")

    one = _command(inner, "list", "list tasks, the latest status first", "--state working")
    for name in ("agent", "tenant", "owner"):
        one.add_argument(f"--{name}", help=f"only those of this {name}; '' is the one without name")
    one.add_argument("--realm", help="the realm of --owner; default the empty one")
    one.add_argument("--context", default="", help="only those of this context")
    one.add_argument("--state", choices=STATES, metavar="STATE", help=", ".join(STATES))
    one.add_argument("--since", type=moment, help="1h, 2026-01-31 or an RFC 3339 time")
    _bounded(one)

    one = _command(inner, "show", "show a task and its webhooks", "0198… --events")
    one.add_argument("task")
    one.add_argument("--events", action="store_true", help="the entries of its log, too")
    one.add_argument("--json", action="store_true", help="as JSON")

    one = _command(inner, "follow", "print the log of a task as it grows", "0198… --after 7")
    one.add_argument("task")
    one.add_argument("--after", type=_whole, default=0, metavar="N", help="only later entries")
    one.add_argument("--json", action="store_true", help="as JSON, one line each")

    one = _command(inner, "prune", "forget tasks that ended long ago", "--older 30d")
    one.add_argument(
        "--older", type=duration, required=True, metavar="DURATION", help="30d, 12h, 90m"
    )
    one.add_argument(
        "--state",
        action="append",
        choices=ENDED,
        metavar="STATE",
        default=[],
        help=f"only those that ended so: {', '.join(ENDED)}; may be repeated",
    )
    one.add_argument("--owner", help="only those of this identity; '' is who is anonymous")
    one.add_argument("--realm", default="", help="the realm of --owner; default the empty one")
    one.add_argument("--dry-run", action="store_true", help="only say what would be forgotten")
    one.add_argument(
        "--force",
        action="store_true",
        help="also what webhooks have not had yet, and sends of the last 24 hours",
    )

    one = _command(inner, "webhooks", "list webhooks that are behind", "--parked")
    one.add_argument("--parked", action="store_true", help="only those that were given up")
    _bounded(one)

    one = _command(inner, "redrive", "let parked webhooks go on at once", "--task 0198…")
    one.add_argument("--task", default="", help="those of this task")
    one.add_argument("--webhook", default="", help="those of this id")
    one.add_argument("--all", action="store_true", help="all of them")

    one = _command(
        inner,
        "rename-owner",
        "give the tasks of one owner to another, with receipts and counts",
        "ann ann --to-realm keys",
    )
    one.add_argument("old", help="the identity whose tasks they are; '' is who is anonymous")
    one.add_argument("new", help="the identity that gets them; it may have tasks already")
    one.add_argument("--realm", default="", help="the realm of the old one; default the empty one")
    one.add_argument("--to-realm", help="the realm of the new one; default the same")
    one.add_argument("--agent", help="only those of this agent")
    one.add_argument("--tenant", help="only those of this tenant; '' is the one without name")
    one.add_argument("--dry-run", action="store_true", help="only say what would be renamed")

    one = _command(inner, "backup", "copy a SQLite store as it is now", "tasks-monday.db")
    one.add_argument("file", type=Path)
    one.add_argument("--force", action="store_true", help="overwrite the file")

    _command(inner, "check", "check that the store is sound")

    one = _command(inner, "export", "write tasks as JSON lines", "tasks.jsonl --since 7d")
    one.add_argument("file", nargs="?", default="-", help="- is standard output, the default")
    one.add_argument("--agent", default="", help="only those of this agent")
    one.add_argument("--since", type=moment, help="only those with a later status")
    one.add_argument("--force", action="store_true", help="overwrite the file")

    one = _command(inner, "import", "take in exported tasks", "tasks.jsonl")
    one.add_argument("file", nargs="?", default="-", help="- is standard input, the default")
    one.add_argument("--replace", action="store_true", help="also those that are there and differ")

    one = _command(inner, "migrate", "bring the tables up to date; serve does it, too")
    one.add_argument(
        "--row-security",
        action=argparse.BooleanOptionalAction,
        help="let other roles of PostgreSQL see only the tenant that dragoman.tenant names",
    )


def _command(commands: Any, name: str, help: str, example: str = "") -> argparse.ArgumentParser:
    one: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=f"{help[0].upper()}{help[1:]}.",
        epilog=f"Example: dragoman db {name} {example}".rstrip(),
    )
    one.add_argument(
        "--store", help="sqlite:///tasks.db or postgresql://host/tasks; default as for serve"
    )
    one.add_argument("--config", metavar="FILE", help="a TOML file; default dragoman.toml")
    one.set_defaults(run=_run, command=name)
    return one


def _bounded(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=_positive, default=50, help="the most; default 50")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _run(arguments: argparse.Namespace) -> int:
    from dragoman.cli import db_commands
    from dragoman.model.errors import Unavailable
    from dragoman.stores.admin import Missing
    from dragoman.stores.export_format import Broken
    from dragoman.stores.store import Unreadable

    make = _make(arguments)
    try:
        return db_commands.COMMANDS[arguments.command](arguments, make)
    except Unavailable as error:
        words = error.message
    except (Missing, Broken, Unreadable) as error:
        words = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        words = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return db_commands.fail(words)


def _make(arguments: argparse.Namespace) -> Make:
    """What opens the store that the settings name, or the one that is here."""
    from dragoman import stores

    chosen = settings.load(
        {"store": arguments.store}, defaults=DEFAULTS, file=arguments.config, warn=warn
    )
    try:
        if chosen.store == stores.LOCAL:
            chosen = replace(chosen, store=stores.find_local())
        store = stores.connect(replace(chosen, seal_keys=()))  # nothing is unsealed here
    except ValueError as error:
        raise UsageError(str(error)) from None
    if store.admin is None:
        raise UsageError(
            f"store: `dragoman db` cannot work on {chosen.masked()['store']}, which has no admin "
            "interface; sqlite:///file.db and postgresql://… have one"
        )
    return store.admin


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if not number:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number
