"""The commands of `dragoman registry`: one function for each."""

from __future__ import annotations

import asyncio
import getpass
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from dragoman.cli import UsageError, _options, connect_options
from dragoman.cli.terminal_format import json_text, plain, table
from dragoman.registry import Entry, Hits, Query, Registry, RegistryError
from dragoman.registry.database import Database, path
from dragoman.registry.entries import MOST_LISTED, Audience, Change, State
from dragoman.registry.import_catalog import Imported, import_catalog
from dragoman.registry.operations import Details, Operations

CREATING = ("add", "import-catalog")
"""The commands that make the file of a registry."""
LONGEST = 100
"""The most characters of a value that a difference shows."""


class Here:
    """The registry in a file, with the calls of a `Registry`."""

    def __init__(self, operations: Operations) -> None:
        self._registry = operations
        self._who = f"{getpass.getuser()} (command line)"

    async def find(self, query: Query) -> Hits:
        """See `Registry.find`."""
        return await self._registry.database.run(Database.search, query)

    async def entries(self, state: State | None = None, after: str = "") -> list[Entry]:
        """See `Registry.entries`."""
        return await self._registry.database.run(Database.entries, state, MOST_LISTED, after)

    async def changes(self, name: str = "", before: int = 0) -> list[Change]:
        """See `Registry.changes`."""
        urn = (await self._registry.database.run(Database.get, name)).urn if name else ""
        return await self._registry.database.run(Database.changes, urn, MOST_LISTED, before)

    async def details(self, name: str) -> Details:
        """See `Registry.details`."""
        return await self._registry.details(name)

    async def add(self, url: str, **given: Any) -> Details:
        """See `Registry.add`."""
        entry = await self._registry.add(url, self._who, **given)
        return await self._registry.details(entry.urn)

    async def import_catalog(self, url: str) -> Imported:
        """See `Registry.import_catalog`."""
        return await import_catalog(self._registry, url)

    async def approve(self, name: str, *, alias: str = "", digest: str = "") -> Entry:
        """See `Registry.approve`."""
        return await self._registry.approve(name, self._who, alias=alias, digest=digest)

    async def reject(self, name: str) -> Entry:
        """See `Registry.reject`."""
        return await self._registry.reject(name, self._who)

    async def remove(self, name: str) -> Entry:
        """See `Registry.remove`."""
        return await self._registry.remove(name, self._who)

    async def refresh(self, name: str) -> Entry:
        """See `Registry.refresh`."""
        return await self._registry.refresh(name, self._who)


Used: TypeAlias = Registry | Here


def serve(arguments: Namespace) -> int:
    """Run the server of a registry."""
    from dragoman import App
    from dragoman.cli import serve as server
    from dragoman.registry import RegistryApp
    from dragoman.server import wiring

    options = _options(arguments)
    settings = options.in_force()
    if arguments.refresh <= 0:
        raise UsageError("--refresh: must be greater than 0")
    keys = wiring.keys(settings)
    try:
        registry = RegistryApp(
            arguments.file,
            allow=[*settings.egress_allow, *arguments.allow],
            accept=arguments.accept,
            operators=arguments.operator,
            interval=arguments.refresh,
            peers=arguments.peer,
            url=settings.url,
            sign=keys,
        )
    except ValueError as error:
        raise UsageError(f"--allow or --peer: {error}") from None
    return server.serve_app(App(mounts={"/": registry}), options)


def run(arguments: Namespace) -> int:
    """Run a command, and return the exit status."""
    command = COMMANDS[arguments.command]

    async def main() -> int:
        async with _used(arguments) as registry:
            return await command(registry, arguments)

    def work() -> int:
        try:
            return asyncio.run(main())
        except RegistryError as error:
            return connect_options.say(plain(error), 1)

    return connect_options.guarded(work, arguments)


@asynccontextmanager
async def _used(arguments: Namespace) -> AsyncIterator[Used]:
    """The registry that the arguments name."""
    async with AsyncExitStack() as stack:
        if arguments.registry:
            try:
                yield await stack.enter_async_context(
                    Registry(
                        arguments.registry,
                        headers=connect_options.headers(arguments),
                        transport=await _sockets(arguments, stack),
                    )
                )
            except ValueError as error:
                raise UsageError(f"--registry: {error}") from None
            return
        if arguments.command not in CREATING and not path(arguments.file).exists():
            raise UsageError(
                f"{path(arguments.file)}: no such file; name one with --store, or a server with "
                "--registry"
            )
        allow = getattr(arguments, "allow", ())
        registry = Operations(Database(arguments.file), allow=allow)
        yield Here(await stack.enter_async_context(registry))


async def _sockets(arguments: Namespace, stack: AsyncExitStack) -> Any:
    sockets = connect_options.sockets(arguments)
    stack.push_async_callback(sockets.close)
    return sockets


# -- the commands


async def add(registry: Used, arguments: Namespace) -> int:
    """Add an agent, and print what to look at."""
    audience = None
    if arguments.scope or arguments.identity:
        audience = Audience(tuple(arguments.scope), tuple(arguments.identity))
    details = await registry.add(
        arguments.url,
        approve=arguments.approve,
        alias=arguments.alias,
        audience=audience,
        queries=arguments.query,
    )
    if arguments.json:
        return _json(details)
    _print_entry(details.entry)
    for each in details.warnings:
        print(f"  {plain(each)}")
    if details.entry.state == "pending":
        print(f"approve it with: dragoman registry approve {details.entry.urn}")
    return 0


async def import_(registry: Used, arguments: Namespace) -> int:
    """Import the agents of a catalog, and print which were imported, and why others were not."""
    found = await registry.import_catalog(arguments.url)
    if arguments.json:
        return _json(found)
    for urn in found.waiting:
        print(f"pending: {plain(urn)}")
    for urn in found.known:
        print(f"known: {plain(urn)}")
    for each in found.left:
        print(f"left out: {plain(each.identifier[:LONGEST])}: {plain(each.reason)}")
    return 0


async def list_(registry: Used, arguments: Namespace) -> int:
    """Print entries."""
    found = [entry async for entry in _every(registry, arguments.state)]
    if arguments.json:
        return _json([_brief(entry) for entry in found])
    if found:
        rows = [
            (entry.alias or "-", entry.state, _health(entry), _title(entry), entry.urn)
            for entry in found
        ]
        print(table(("alias", "state", "card", "name", "urn"), rows))
    return 0


async def show(registry: Used, arguments: Namespace) -> int:
    """Print an entry, its warnings and its history."""
    details = await registry.details(arguments.name)
    changes = await registry.changes(arguments.name)
    if arguments.json:
        return _json({"details": details, "changes": changes})
    entry = details.entry
    version = entry.approved or entry.candidate
    lines = [
        ("urn", entry.urn),
        ("url", entry.url),
        ("alias", entry.alias),
        ("state", entry.state),
        ("card", _health(entry) + (f": {entry.health.error}" if entry.health.error else "")),
        ("from", f"{entry.source} {entry.named_by}"),
        ("seen by", _audience(entry.audience)),
        ("queries", "; ".join(entry.queries)),
    ]
    if version is not None:
        lines += [
            ("name", f"{version.card.name} {version.card.version}"),
            ("about", version.card.description),
            ("skills", ", ".join(skill.id for skill in version.card.skills)),
            ("keys", ", ".join(version.keys)),
        ]
    for name, value in lines:
        if value.strip():
            print(f"{name:8}  {plain(value)}")
    for each in details.warnings:
        print(f"look at   {plain(each)}")
    if entry.differences:
        differing = ", ".join(each.path for each in entry.differences)
        print(f"changed   {plain(differing)}; see: dragoman registry diff {entry.urn}")
    for change in changes:
        what = "; ".join(_changed(change, name) for name in change.after if name != "urn")
        print(f"{change.at}  {plain(change.who)}  {change.what}: {plain(what)}")
    return 0


async def diff(registry: Used, arguments: Namespace) -> int:
    """Print how the new card differs from the approved one."""
    entry = (await registry.details(arguments.name)).entry
    digest = entry.candidate.digest if entry.candidate else ""
    if arguments.json:
        return _json({"differences": entry.differences, "digest": digest})
    if entry.candidate is None:
        print("no card waits for approval")
        return 0
    if entry.approved is None:
        print("no card was approved yet; `dragoman registry show` shows the new one")
    for each in entry.differences:
        print(f"{plain(each.path)}{' (must be approved)' if each.guarded else ''}")
        print(f"  - {_value(each.before)}")
        print(f"  + {_value(each.after)}")
    print(f"approve it with: dragoman registry approve {entry.urn} --digest {digest}")
    return 0


async def search(registry: Used, arguments: Namespace) -> int:
    """Print what a query finds."""
    query = Query(
        text=arguments.text,
        skills=tuple(arguments.skill),
        tags=tuple(arguments.tag),
        modes=tuple(arguments.mode),
        versions=tuple(arguments.version),
        publishers=tuple(arguments.publisher),
        trust=arguments.trust,
        healthy=True if arguments.healthy else None,
        limit=arguments.limit,
    )
    hits = await registry.find(query)
    if arguments.json:
        return _json(hits)
    for hit in hits:
        entry = hit.entry
        print(f"{entry.alias or entry.urn}  {plain(entry.card.name)}  {entry.url}")
        print(f"    {plain('; '.join(hit.reasons)) or plain(entry.card.description[:LONGEST])}")
    if hits.total > len(hits.hits):
        print(f"{hits.total - len(hits.hits)} more; see --limit")
    return 0


async def export(registry: Used, arguments: Namespace) -> int:
    """Print all entries as lines of JSON."""
    async for entry in _every(registry, None):
        print(json_text(msgspec.json.encode(entry)))
    return 0


async def approve(registry: Used, arguments: Namespace) -> int:
    """Approve a card."""
    entry = await registry.approve(arguments.name, alias=arguments.alias, digest=arguments.digest)
    return _done(entry, arguments)


def _simple(name: str) -> Command:
    """The command that makes one call and prints the entry."""

    async def call(registry: Used, arguments: Namespace) -> int:
        return _done(await getattr(registry, name)(arguments.name), arguments)

    return call


Command: TypeAlias = Callable[[Used, Namespace], Awaitable[int]]
COMMANDS: dict[str, Command] = {
    "add": add,
    "approve": approve,
    "diff": diff,
    "export": export,
    "import-catalog": import_,
    "list": list_,
    "refresh": _simple("refresh"),
    "reject": _simple("reject"),
    "remove": _simple("remove"),
    "search": search,
    "show": show,
}


# -- what is printed


async def _every(registry: Used, state: State | None) -> AsyncIterator[Entry]:
    """All entries, page by page."""
    after = ""
    while page := await registry.entries(state, after):
        for entry in page:
            yield entry
        after = page[-1].urn


def _done(entry: Entry, arguments: Namespace) -> int:
    if arguments.json:
        return _json(entry)
    _print_entry(entry)
    return 0


def _print_entry(entry: Entry) -> None:
    print(f"{entry.state}: {plain(_title(entry))} at {entry.url}")
    print(f"  {entry.urn}{f' = {entry.alias}' if entry.alias else ''}")


def _title(entry: Entry) -> str:
    version = entry.approved or entry.candidate
    return version.card.name if version is not None else "-"


def _health(entry: Entry) -> str:
    if entry.health.ok:
        return "fetched"
    return f"not since {entry.health.good}" if entry.health.good else "never"


def _audience(audience: Audience) -> str:
    if audience.everyone:
        return "everybody"
    parts = [f"callers with {' and '.join(audience.scopes)}"] if audience.scopes else []
    return " or ".join([*parts, *audience.identities])


def _changed(change: Change, name: str) -> str:
    """What happened to one field of an entry."""
    before, after = change.before.get(name), change.after[name]
    if not before:
        return f"{name} {_brief_value(after)}"
    if not after or not isinstance(after, dict) or "card" not in after:
        return f"{name} {_brief_value(before)} -> {_brief_value(after)}"
    old, new = ({**each["card"], "keys": each["keys"]} for each in (before, after))
    differing = [field for field in {**old, **new} if old.get(field) != new.get(field)]
    return f"{name} with other {', '.join(differing)}"


def _brief_value(value: Any) -> str:
    """A value of the history in a few words; `--json` shows all of it."""
    if not value:
        return "nothing"
    if isinstance(value, dict) and "card" in value:
        return f"card {value['card']['version']}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _brief(entry: Entry) -> dict[str, Any]:
    return {
        "urn": entry.urn,
        "url": entry.url,
        "alias": entry.alias,
        "state": entry.state,
        "name": _title(entry),
        "health": entry.health,
    }


def _value(value: Any) -> str:
    if value is msgspec.UNSET:
        return "(nothing)"
    text = plain(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def _json(value: Any) -> int:
    print(json_text(msgspec.json.format(msgspec.json.encode(value), indent=2)))
    return 0
