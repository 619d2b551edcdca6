"""Imports the agents of a foreign catalog. Each waits for approval like one that announces itself.

The operator has typed the address of the catalog, so it may be private. The addresses in it are
those of a stranger: they must be public, or on the allow list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from dragoman import catalog
from dragoman.catalog import AGENT, Catalog, CatalogEntry, CatalogError
from dragoman.registry.entries import RegistryError
from dragoman.registry.operations import AT_ONCE, LONGEST_WORDS, Operations
from dragoman.security.address_policy import EgressRefused, parse
from dragoman.security.egress import Egress, EgressUnreachable

PATIENCE = 15.0


class Left(Struct, frozen=True):
    """An entry of a catalog that was not taken in."""

    identifier: str
    reason: str


class Imported(Struct, frozen=True):
    """What became of a catalog."""

    waiting: tuple[str, ...] = ()
    """The URNs of the entries that wait for approval because of it."""
    known: tuple[str, ...] = ()
    """The URNs of the entries that the registry had before; they did not change."""
    left: tuple[Left, ...] = ()


async def import_catalog(registry: Operations, url: str) -> Imported:
    """Take in the agents of the catalog at this URL, or at the well-known paths of this host.
    Raises RegistryError if there is no usable catalog; an agent that cannot be taken in is named in
    the result."""
    where, found = await _fetch(url)
    places = asyncio.Semaphore(AT_ONCE)

    async def take(entry: CatalogEntry) -> tuple[str, bool] | Left:
        if entry.type != AGENT:
            return Left(entry.identifier, f"it is no A2A agent, but {entry.type}")
        if not entry.url:
            return Left(entry.identifier, "it has no address; its card is in the catalog")
        queries = [each[:LONGEST_WORDS] for each in entry.representative_queries]
        try:
            async with places:
                taken = await registry.propose(
                    entry.url, "catalog", where, queries[: catalog.MOST_QUERIES]
                )
        except RegistryError as error:
            return Left(entry.identifier, str(error))
        return taken.urn, taken.state == "pending" and taken.named_by == where

    taken = await asyncio.gather(*(take(entry) for entry in found.entries))
    return Imported(
        waiting=_each(taken, waiting=True),
        known=_each(taken, waiting=False),
        left=tuple(each for each in taken if isinstance(each, Left)),
    )


def _each(taken: Sequence[tuple[str, bool] | Left], *, waiting: bool) -> tuple[str, ...]:
    names = (each[0] for each in taken if not isinstance(each, Left) and each[1] == waiting)
    return tuple(dict.fromkeys(names))


async def _fetch(url: str) -> tuple[str, Catalog]:
    """Fetch the catalog, and return its URL."""
    try:
        target = parse(url)
    except EgressRefused as error:
        raise RegistryError(f"{url[:200]!r} is not the address of a catalog: {error}") from None
    base = f"{target.scheme}://{target.authority}"
    # ARD's path is the one that readers must look at first.
    places = [url] if target.path != "/" else [base + path for path in reversed(catalog.PATHS)]
    reason = ""
    async with Egress(
        allow=[f"{target.bracketed}:{target.port}"],
        timeout=PATIENCE,
        max_response=catalog.LARGEST,
    ) as egress:
        for place in places:
            try:
                response = await egress.request("GET", place)
            except (EgressRefused, EgressUnreachable) as error:
                raise RegistryError(f"{place}: {error}") from None
            if response.status == 200:
                return place, _read(place, response.body, cut=response.cut)
            reason = f"{place}: HTTP {response.status}"
    raise RegistryError(f"there is no catalog: {reason}")


def _read(place: str, body: bytes, *, cut: bool) -> Catalog:
    if cut:
        raise RegistryError(f"{place}: the catalog is larger than {catalog.LARGEST} bytes")
    try:
        return catalog.parse(body)
    except CatalogError as error:
        raise RegistryError(f"{place}: {error}") from None
