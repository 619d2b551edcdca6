"""Asks other registries, and merges what they find.

Only the registries that the operator listed are asked, and the request tells them not to ask
others. What they return is a hint: it is marked with the registry it came from, and it becomes an
entry of this registry only when the operator adds it. Addresses in it that are not public are left
out, unless the operator has allowed them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.catalog import AGENT, CatalogEntry, CatalogError, read_entry
from dragoman.registry.entries import WELL_KNOWN
from dragoman.security.address_policy import EgressRefused, parse
from dragoman.security.egress import Egress, EgressUnreachable

AT_ONCE = 5
"""How many registries one search asks at the same time."""
PATIENCE = 2.0
"""Seconds that a registry has for its answer."""
LARGEST = 1 << 18
"""The most bytes of an answer."""
MOST_PEERS = 50
DEPTH = 60
"""The constant of reciprocal rank fusion: the larger, the less the first ranks count."""


class Found(Struct, frozen=True):
    """An entry in a ranked list, and the registry that lists it."""

    entry: CatalogEntry
    source: str
    score: float = 0.0
    """From 0 to 100; the first of a merged list has 100."""


class Answer(Struct, frozen=True):
    """What one registry has found, best first, or why there is nothing."""

    source: str
    found: tuple[Found, ...] = ()
    error: str = ""


class Federation:
    """The registries that may be asked. `allow` are the addresses that results may have although
    they are not public, as for `Egress`; `egress` replaces the way out to the registries."""

    def __init__(
        self,
        peers: Sequence[str] = (),
        *,
        allow: Sequence[str] = (),
        timeout: float = PATIENCE,
        egress: Egress | None = None,
    ) -> None:
        if len(peers) > MOST_PEERS:
            raise ValueError(f"peers: at most {MOST_PEERS} registries can be listed")
        targets = [parse(url) for url in peers]
        for url, target in zip(peers, targets, strict=True):
            if target.query or "#" in url:
                raise ValueError(f"peers: {url[:200]!r}: the URL of a registry has no query")
        self.peers = tuple(dict.fromkeys(url.rstrip("/") for url in peers))
        """The base URLs of the registries."""
        self._timeout = timeout
        # The operator has typed these addresses, so they may be private.
        listed = [f"{target.bracketed}:{target.port}" for target in targets]
        self._egress = egress or Egress(
            allow=(*allow, *listed), timeout=timeout, max_response=LARGEST
        )
        self._admission = Egress(allow=allow)

    async def __aenter__(self) -> Federation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._egress.close()
        await self._admission.close()

    async def search(self, query: dict[str, Any], size: int) -> list[Answer]:
        """Ask all registries for their best hits for this query of ARD, and return their answers
        in the order of the list. It never raises because of a registry."""
        body = {"query": query, "federation": "none", "pageSize": size}
        content, places = msgspec.json.encode(body), asyncio.Semaphore(AT_ONCE)

        async def ask(peer: str) -> Answer:
            async with places:
                return await self._ask(peer, content, size)

        return list(await asyncio.gather(*(ask(peer) for peer in self.peers)))

    async def _ask(self, peer: str, content: bytes, size: int) -> Answer:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._egress.post(f"{peer}/search", content, headers=headers)
        except TimeoutError:
            return Answer(peer, error=f"no answer within {self._timeout:g} s")
        except (EgressRefused, EgressUnreachable) as error:
            return Answer(peer, error=str(error))
        if response.status != 200:
            return Answer(peer, error=f"the answer is HTTP {response.status}")
        if response.cut:
            return Answer(peer, error=f"the answer is larger than {LARGEST} bytes")
        try:
            results = _results(response.body)
        except ValueError as error:
            return Answer(peer, error=str(error))
        entries = (self._entry(each) for each in results[:size])
        return Answer(peer, tuple(Found(entry, peer) for entry in entries if entry is not None))

    def _entry(self, given: Any) -> CatalogEntry | None:
        """Return a result that can be used here; others are left out."""
        try:
            entry = read_entry(given)
            if entry.type != AGENT or not entry.url:
                return None
            self._admission.admit(entry.url)
        except (CatalogError, EgressRefused):
            return None
        return entry


def merge(*lists: Sequence[Found]) -> list[Found]:
    """Merge ranked lists by reciprocal rank fusion, because scores of different registries cannot
    be compared. An agent that several lists have counts for all of them, and the first list that
    has it describes it. The same identifier at another address is another agent."""
    points: dict[tuple[str, str], float] = {}
    first: dict[tuple[str, str], Found] = {}
    for found in lists:
        seen = set()
        for rank, each in enumerate(found, start=1):
            key = (each.entry.identifier, _place(each.entry.url))
            if key in seen:  # a list has one vote for each agent
                continue
            seen.add(key)
            first.setdefault(key, each)
            points[key] = points.get(key, 0.0) + 1 / (DEPTH + rank)
    best = max(points.values(), default=1.0)
    order = sorted(points, key=lambda key: -points[key])  # stable: earlier lists come first
    return [replace(first[key], score=100 * points[key] / best) for key in order]


def _place(url: str) -> str:
    """The address of an agent, whether a registry names it or its card."""
    for known in WELL_KNOWN:
        url = url.removesuffix(known)
    return url.rstrip("/")


def _results(body: bytes) -> list[Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("the answer is not valid JSON") from None
    results = found.get("results") if isinstance(found, dict) else None
    if not isinstance(results, list):
        raise ValueError("the answer has no list of results")
    return results
