"""The commands of `dragoman db`: one function for each."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from dragoman.cli import UsageError, db_format
from dragoman.cli.terminal_format import Meter, count, json_text, size
from dragoman.model.caller import fault, long, owner_key, qualified
from dragoman.model.types import TaskState
from dragoman.stores import export_format
from dragoman.stores.admin import BATCH, HEAVY, DatabaseAdmin, Differs, Make, Pruned
from dragoman.stores.export_format import (
    Exported,
    ExportedContext,
    ExportedReservation,
    ExportedTask,
)
from dragoman.stores.task_rows import Choice

PAUSE = 0.2
"""Seconds between two checks for new entries."""


def fail(words: str) -> int:
    """Print an error, and return the exit status."""
    print(f"dragoman: {words}", file=sys.stderr)
    return 1


# -- commands that read


def list_(arguments: Namespace, make: Make) -> int:
    """Print tasks."""
    owner = arguments.owner
    if arguments.realm is not None:
        if owner is None:
            raise UsageError("list: --realm needs --owner")
        owner = qualified(arguments.realm, owner)
    choice = Choice(
        agent=arguments.agent,
        tenant=arguments.tenant,
        owner=owner_key(owner) if owner and long(owner) else owner,
        context=arguments.context,
        states=(_state(arguments.state),) if arguments.state else (),
        since=arguments.since or "",
        limit=arguments.limit,
    )
    with make() as admin:
        rows = admin.tasks(choice).rows
    if arguments.json:
        print(json_text(json.dumps([db_format.head(row) for row in rows], indent=2)))
    elif rows:
        print(db_format.heads(rows))
    else:
        print("no tasks", file=sys.stderr)
    return 0


def show(arguments: Namespace, make: Make) -> int:
    """Print one task."""
    with make() as admin:
        row, task = admin.load(arguments.task)
        lines = admin.webhooks(arguments.task)
        value = admin.context_value(arguments.task)
        entries = list(admin.read(arguments.task)) if arguments.events or row.private else []
        postponed = db_format.postponed(row, entries)
        failed = db_format.failed_turns(entries)
        events, saved = entries if arguments.events else (), db_format.saved(entries)
        if arguments.json:
            found = {
                "head": db_format.head(row),
                "task": msgspec.to_builtins(task),
                "webhooks": [db_format.webhook(line) for line in lines],
                "saved": saved,
                "postponed": postponed,
                "failed_turns": [db_format.failed_value(each) for each in failed],
                "context_value": msgspec.to_builtins(value),
            }
            if arguments.events:
                found["events"] = [db_format.event(entry) for entry in events]
            print(json_text(json.dumps(found, indent=2)))
            return 0
        for line in db_format.text(row, task, lines, value, postponed):
            print(line)
        if saved is not None:
            print(db_format.saved_text(saved))
        for line in db_format.failed_text(failed):
            print(line)
        if arguments.events:
            print()
        for entry in events:
            print(db_format.entry(entry))
    return 0


def follow(arguments: Namespace, make: Make) -> int:
    """Print a log until it ends, or until Ctrl-C."""
    with suppress(KeyboardInterrupt), make() as admin:
        for entry in admin.follow(arguments.task, arguments.after, PAUSE):
            if arguments.json:
                shown = json_text(json.dumps(db_format.event(entry)))
            else:
                shown = db_format.entry(entry)
            print(shown, flush=True)
    return 0


def webhooks(arguments: Namespace, make: Make) -> int:
    """Print webhooks that have undelivered events."""
    with make() as admin:
        found = admin.undelivered(arguments.limit, parked=arguments.parked)
    if arguments.json:
        print(json_text(json.dumps([db_format.webhook(waiting) for waiting in found], indent=2)))
    elif found:
        print(db_format.webhooks(found))
    else:
        print(f"no webhook is {('parked' if arguments.parked else 'behind')}", file=sys.stderr)
    return 0


def check(arguments: Namespace, make: Make) -> int:
    """Print the problems of the store."""
    problems = 0
    with make() as admin:
        name, (room, log) = admin.name, admin.size()
        more = f" and {size(log)} of write-ahead log" if log else ""
        print(f"{name}: schema {admin.version}, {size(room)}{more}", flush=True)
        with Meter() as meter:
            for problem in admin.check(meter.part):
                problems += 1
                print(problem, flush=True)
        if not problems:
            tasks, entries = admin.sums()
            print(f"{count(tasks, 'task')}, {count(entries, 'event')}: sound")
            return 0
    return fail(f"{name}: {count(problems, 'problem')}")


# -- commands that write


def prune(arguments: Namespace, make: Make) -> int:
    """Delete tasks that ended long ago."""
    if arguments.realm and arguments.owner is None:
        raise UsageError("prune: --realm needs --owner")
    owner = None
    if arguments.owner is not None:
        owner = qualified(arguments.realm, arguments.owner)
    done = Pruned()
    with make(write=not arguments.dry_run) as admin, Meter() as meter:
        for done in admin.prune(
            time.time() - arguments.older,
            {_state(name) for name in arguments.state},
            owner=owner,
            force=arguments.force,
            dry=arguments.dry_run,
        ):
            meter.show(f"{count(done.tasks, 'task')}, {size(done.size)}")
    verb = "would be deleted" if arguments.dry_run else "deleted"
    print(f"{count(done.tasks, 'task')} {verb}, {size(done.size)}")
    if done.reservations:
        print(f"{count(done.reservations, 'reservation')} deleted, because they had expired")
    if done.pending:
        print(f"{count(done.pending, 'task')} kept: webhooks have undelivered events")
    if done.recent:
        print(f"{count(done.recent, 'task')} kept: a client may resend within 24 hours")
    return 0


def redrive(arguments: Namespace, make: Make) -> int:
    """Resume the delivery to parked webhooks."""
    some = bool(arguments.task or arguments.webhook)
    if some == arguments.all:
        raise UsageError("redrive: name the webhooks with --task and --webhook, or give --all")
    with make(write=True) as admin:
        number = admin.redrive(arguments.task, arguments.webhook)
    if not number and some:
        return fail(f"no such parked webhook in {admin.name}")
    print(f"{count(number, 'webhook')} redriven")
    return 0


def rename_owner(arguments: Namespace, make: Make) -> int:
    """Move tasks to another owner."""
    realm = arguments.realm if arguments.to_realm is None else arguments.to_realm
    for name, value in (("new", arguments.new), ("--to-realm", realm)):
        if why := fault(value):
            raise UsageError(f"rename-owner: {name}: {why}")
    if not arguments.new:
        raise UsageError(
            "rename-owner: new: must not be empty; every anonymous caller would see the tasks"
        )
    old, new = qualified(arguments.realm, arguments.old), qualified(realm, arguments.new)
    if old == new:
        raise UsageError("rename-owner: old and new are the same owner")
    with make(write=not arguments.dry_run) as admin:
        done = admin.rename_owner(
            old, new, agent=arguments.agent, tenant=arguments.tenant, dry=arguments.dry_run
        )
    if not done.tasks:
        return fail(f"that owner has no tasks in {admin.name}")
    verb = "would be moved" if arguments.dry_run else "renamed"
    more = f", {count(done.values, 'value')} of contexts" if done.values else ""
    print(f"{count(done.tasks, 'task')} {verb}, {count(done.receipts, 'receipt')}{more}")
    if done.dropped:
        print(
            f"{count(done.dropped, 'receipt')} deleted: the new owner sent the same message before"
        )
    if done.doubles:
        print(
            f"{count(done.doubles, 'value')} of contexts deleted: the new owner has one for the "
            "same context"
        )
    if done.named:
        print(
            f"{count(done.named, 'task')} with an id that an A2A 0.1 client chose; that "
            "client cannot find it any more"
        )
    return 0


def backup(arguments: Namespace, make: Make) -> int:
    """Copy a SQLite store to a file."""
    target = arguments.file
    with make() as admin, Meter() as meter:
        try:
            copied = admin.backup(
                target,
                force=arguments.force,
                progress=lambda done, of: meter.part("pages", done, of),
            )
        except FileExistsError:
            return fail(_exists(target, admin.path))
    print(f"{admin.name} copied to {target}, {size(copied)}")
    return 0


def export(arguments: Namespace, make: Make) -> int:
    """Write tasks as JSON lines."""
    target = Path(arguments.file)
    taken = arguments.file != "-" and target.exists()
    source = make().path
    if taken and (not arguments.force or _same(target, source)):
        return fail(_exists(target, source))
    number = values = reserved = 0
    broken: list[str] = []
    with (
        make() as admin,
        _writing(arguments.file) as file,
        Meter() as meter,
    ):
        chosen = {"agent": arguments.agent, "since": arguments.since or ""}
        for task in admin.export(broken.append, **chosen):
            file.write(export_format.encode(task) + b"\n")
            number += 1
            if arguments.file != "-":  # standard output shows the tasks themselves
                meter.show(count(number, "task"))
        for value in admin.export_contexts(broken.append, **chosen):
            file.write(export_format.encode(value) + b"\n")
            values += 1
        if not arguments.agent:  # a reservation belongs to no agent
            for one in admin.export_reservations(broken.append):
                file.write(export_format.encode(one) + b"\n")
                reserved += 1
    for words in broken:
        fail(words)
    sums = [count(number, "task")]
    sums += [f"{count(values, 'value')} of contexts"] if values else []
    sums += [count(reserved, "reservation")] if reserved else []
    *most, last = sums
    listed = f"{', '.join(most)} and {last}" if most else last
    print(f"{listed} exported", file=sys.stderr)
    return 1 if broken else 0


def import_(arguments: Namespace, make: Make) -> int:
    """Import tasks, the values of contexts and reservations from JSON lines. Prints an error for
    each that cannot be imported, and continues."""
    sums = {"new": 0, "same": 0, "replaced": 0, "refused": 0}
    values, reserved = (
        {"new": 0, "same": 0, "replaced": 0, "skipped": 0, "refused": 0} for _ in range(2)
    )
    with (
        _reading(arguments.file) as source,
        make(write=True, create=True) as admin,
        Meter() as meter,
    ):
        for batch in _batches(source, sums):
            _import_batch(admin, batch, sums, values, reserved, replace=arguments.replace)
            meter.show(count(sum(sums.values()), "task"))
    print(
        f"{count(sums['new'], 'task')} imported, {sums['replaced']} replaced, "
        f"{sums['same']} already there"
    )
    if any(values.values()):
        print(
            f"{count(values['new'], 'value')} of contexts imported, {values['replaced']} replaced, "
            f"{values['same']} already there"
        )
    if values["skipped"]:
        print(f"{count(values['skipped'], 'value')} skipped: the context has no task here")
    if any(reserved.values()):
        print(
            f"{count(reserved['new'], 'reservation')} imported, {reserved['replaced']} replaced, "
            f"{reserved['same']} already there"
        )
    if reserved["skipped"]:
        print(f"{count(reserved['skipped'], 'reservation')} skipped: their time is over")
    for kind, outcome in (("task", sums), ("value", values), ("reservation", reserved)):
        if outcome["refused"]:
            return fail(f"{count(outcome['refused'], kind)} not imported")
    return 0


def _batches(source: BinaryIO, sums: dict[str, int]) -> Iterator[list[Exported]]:
    """Yield the lines of a file in batches for one transaction each. No transaction is open while
    the file is read."""
    batch: list[Exported] = []
    heavy = 0
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        try:
            batch.append(export_format.decode(line))
        except export_format.BadExport as error:
            sums["refused"] += 1
            fail(f"line {number}: {error}")
        heavy += len(line)
        if len(batch) >= BATCH or heavy >= HEAVY:
            yield batch
            batch, heavy = [], 0
    yield batch


def _import_batch(
    admin: DatabaseAdmin,
    batch: list[Exported],
    sums: dict[str, int],
    values: dict[str, int],
    reserved: dict[str, int],
    *,
    replace: bool,
) -> None:
    tasks = [item for item in batch if isinstance(item, ExportedTask)]
    _add(admin.put(tasks, replace=replace), sums)
    contexts = [item for item in batch if isinstance(item, ExportedContext)]
    if contexts:
        _add(admin.put_contexts(contexts, replace=replace), values)
    given = [item for item in batch if isinstance(item, ExportedReservation)]
    if given:
        _add(admin.put_reservations(given, replace=replace), reserved)


def _add(outcomes: Sequence[str | Differs], sums: dict[str, int]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Differs):
            sums["refused"] += 1
            fail(str(outcome))
        else:
            sums[outcome] += 1


def migrate(arguments: Namespace, make: Make) -> int:
    """Update the tables to the current schema."""
    admin = make()
    before, after = admin.migrate(row_security=arguments.row_security)
    if before == after:
        print(f"{admin.name} is up to date: schema {after}")
    else:
        print(f"{admin.name}: updated from schema {before} to schema {after}")
    if arguments.row_security is not None:
        print(f"row security is {'on' if arguments.row_security else 'off'}")
    return 0


# -- helpers


@contextmanager
def _reading(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


@contextmanager
def _writing(name: str) -> Iterator[BinaryIO]:
    """Open standard output, or a file that appears only when it is complete."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = Path(f"{name}.part")
    part.unlink(missing_ok=True)
    try:
        # the export may contain secrets, so only the owner may read it
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(name)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _same(target: Path, source: Path | None) -> bool:
    return source is not None and source.exists() and target.samefile(source)


def _exists(target: Path, source: Path | None) -> str:
    if _same(target, source):
        return f"{target} is the store itself"
    return f"{target} exists; --force overwrites it"


def _state(word: str) -> TaskState:
    return TaskState[word.upper().replace("-", "_")]


COMMANDS: dict[str, Callable[[Namespace, Make], int]] = {
    "list": list_,
    "show": show,
    "follow": follow,
    "prune": prune,
    "webhooks": webhooks,
    "redrive": redrive,
    "rename-owner": rename_owner,
    "backup": backup,
    "check": check,
    "export": export,
    "import": import_,
    "migrate": migrate,
}
