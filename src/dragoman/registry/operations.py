"""What can be done with a registry, by its server and by the command line."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from dragoman.prompt_safety import lookalikes
from dragoman.registry import entries
from dragoman.registry.database import Database, Rule
from dragoman.registry.entries import (
    Audience,
    CardVersion,
    Entry,
    Policy,
    RegistryError,
    Source,
    now,
)
from dragoman.registry.fetch_card import Fetcher, FetchFailed

logger = logging.getLogger("dragoman.registry")

MOST_WAITING = 1000
"""The most entries of others that may wait for approval."""
MOST_QUERIES, LONGEST_WORDS = 20, 300
AT_ONCE = 8
"""Cards that are fetched at the same time."""
JITTER = 0.1
"""The part of an interval by which a fetch is early or late, so that they spread out."""
REFRESHER = "refresh"
"""Who makes the changes that the refresh of cards brings."""

ExistingRule = Callable[[Entry], Entry]


class Details(Struct, frozen=True, omit_defaults=True):
    """An entry as the operator sees it."""

    entry: Entry
    warnings: tuple[str, ...] = ()
    """What to look at before approving it."""


class Operations:
    """An open registry: `async with Operations(Database("sqlite:///agents.db")) as registry: …`."""

    def __init__(
        self,
        database: Database,
        *,
        allow: Sequence[str] = (),
        policy: Policy | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self.database = database
        self.policy = policy or Policy()
        self._fetcher = fetcher or Fetcher(allow=allow)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Operations:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.database)
            await stack.enter_async_context(self._fetcher)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- entries come in

    async def add(
        self,
        url: str,
        who: str,
        *,
        approve: bool = False,
        alias: str = "",
        audience: Audience | None = None,
        queries: Sequence[str] = (),
    ) -> Entry:
        """Add the agent at an address that the operator typed; also one that was rejected or
        removed. Raises FetchFailed if it has no usable card."""
        url, urn = entries.address(url), entries.urn(url)
        if alias:
            entries.check_alias(alias)
        asked = _queries(queries)
        found = await self._fetcher.fetch(url, typed=True)

        def rule(before: Entry | None) -> Entry:
            entry = entries.restore(before) if before is not None else Entry(urn=urn, url=url)
            entry = replace(
                entry,
                source="operator",
                named_by=who,
                alias=alias or entry.alias,
                audience=entry.audience if audience is None else audience,
                queries=asked or entry.queries,
            )
            entry = entries.fetched(entry, found, self.policy)
            return entries.approve(entry) if approve else entry

        return await self._write(urn, rule, who, "add")

    async def propose(
        self, url: str, source: Source, named_by: str, queries: Sequence[str] = ()
    ) -> Entry:
        """Add the agent at an address that a caller or a catalog named; it waits for approval. An
        address that is known, also as rejected or removed, changes nothing. Raises FetchFailed if
        it has no usable card, or is neither public nor allowed."""
        url, urn = entries.address(url), entries.urn(url)
        asked = _queries(queries)
        run = self.database.run
        if (known := await run(Database.find, urn)) is not None:
            return known
        if await run(Database.waiting) >= MOST_WAITING:
            raise RegistryError(
                f"{MOST_WAITING} entries wait for approval already; the operator must approve or "
                "reject some first"
            )
        found = await self._fetcher.fetch(url, typed=False)

        def rule(before: Entry | None) -> Entry:
            if before is not None:
                return before
            entry = Entry(urn=urn, url=url, source=source, named_by=named_by, queries=asked)
            return entries.fetched(entry, found, self.policy)

        return await self._write(urn, rule, named_by, source)

    async def announce(self, url: str, who: str, queries: Sequence[str] = ()) -> Entry:
        """Take in an agent that announces itself; see `propose`."""
        return await self.propose(url, "announced", who, queries)

    # -- the operator decides

    async def approve(self, name: str, who: str, *, alias: str = "", digest: str = "") -> Entry:
        """Approve the newest card of an entry. With `digest`, only if it is still that card."""
        if alias:
            entries.check_alias(alias)

        def rule(before: Entry) -> Entry:
            card = before.candidate or before.approved
            if digest and (card is None or card.digest != digest):
                raise RegistryError(
                    f"{before.urn} has another card now; look at it again before you approve it"
                )
            after = entries.approve(before)
            return replace(after, alias=alias or after.alias)

        return await self._existing(name, rule, who, "approve")

    async def reject(self, name: str, who: str) -> Entry:
        """Reject an entry, or the change of its card."""
        return await self._existing(name, entries.reject, who, "reject")

    async def remove(self, name: str, who: str) -> Entry:
        """Remove an entry; only `add` brings it back."""
        return await self._existing(name, entries.remove, who, "remove")

    async def details(self, name: str) -> Details:
        """An entry with what the operator should know about it."""
        entry = await self.database.run(Database.get, name)
        return Details(entry, tuple(await self._warnings(entry)))

    # -- refresh

    async def refresh(self, name: str, who: str) -> Entry:
        """Fetch the card of an entry now. A failure is recorded as its health, and raised."""
        entry = await self.database.run(Database.get, name)
        if entry.state in entries.GONE:
            raise RegistryError(f"{entry.urn} was {entry.state}; add {entry.url} again")
        after, error = await self._refresh(entry, who)
        if error is not None:
            raise error
        return after

    async def refresh_due(self, interval: float) -> int:
        """Fetch the cards that were last fetched longer ago than the interval, a few at the same
        time, and return their number."""
        slack = 1 + random.uniform(-JITTER, JITTER)
        before = datetime.now(UTC) - timedelta(seconds=interval * slack)
        text = before.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        due = await self.database.run(Database.due, text, 10 * AT_ONCE)
        places = asyncio.Semaphore(AT_ONCE)

        async def one(entry: Entry) -> None:
            async with places:
                await self._refresh(entry, REFRESHER)

        async with asyncio.TaskGroup() as group:
            for entry in due:
                group.create_task(one(entry))
        return len(due)

    async def _refresh(self, entry: Entry, who: str) -> tuple[Entry, FetchFailed | None]:
        found: CardVersion | None = None
        failed: FetchFailed | None = None
        try:
            found = await self._fetcher.fetch(entry.url, typed=entry.source == "operator")
        except FetchFailed as error:
            failed = error
        except Exception as error:
            logger.exception("the card of %s cannot be fetched", entry.url)
            failed = FetchFailed(f"{entry.url}: {type(error).__name__}")

        def rule(before: Entry) -> Entry:
            if before.state in entries.GONE:  # meanwhile
                return before
            if found is None:
                return entries.unreachable(before, str(failed), now())
            return entries.fetched(before, found, self.policy)

        return await self._existing(entry.urn, rule, who, "refresh"), failed

    # -- inside

    async def _write(self, urn: str, rule: Rule, who: str, what: str) -> Entry:
        after, _ = await self.database.run(Database.write, urn, rule, who, what)
        return after

    async def _existing(self, name: str, rule: ExistingRule, who: str, what: str) -> Entry:
        entry = await self.database.run(Database.get, name)

        def known(before: Entry | None) -> Entry:
            assert before is not None, "entries are never deleted"
            return rule(before)

        return await self._write(entry.urn, known, who, what)

    async def _warnings(self, entry: Entry) -> list[str]:
        version = entry.candidate or entry.approved
        if version is None:
            return []
        found = list(version.findings)
        if not version.keys:
            found.append("the card is not signed by a key that its origin publishes")
        if not entry.has_domain:
            found.append("the host is not a domain name; the entry is not published in catalogs")
        named = await self.database.run(Database.names, entry.urn)
        others = {id(card := replace(version.card, name=name)): (card, urn) for urn, name in named}
        for group in lookalikes([version.card, *(card for card, _ in others.values())]):
            if any(each is version.card for each in group):
                found += [
                    f"the name looks like that of {others[id(each)][1]}: {each.name!r}"
                    for each in group
                    if each is not version.card
                ]
        return found


def _queries(given: Sequence[str]) -> tuple[str, ...]:
    if len(given) > MOST_QUERIES or any(len(each) > LONGEST_WORDS for each in given):
        raise RegistryError(
            f"queries: give at most {MOST_QUERIES}, each of at most {LONGEST_WORDS} characters"
        )
    return tuple(given)
