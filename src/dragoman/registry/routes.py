"""The routes below `/registry/`: for callers who look for agents, and for operators."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.registry.database import Database
from dragoman.registry.entries import (
    MOST_LISTED,
    Audience,
    Hits,
    NotFound,
    Query,
    RegistryError,
    State,
    for_readers,
)
from dragoman.registry.http_routing import ANNOUNCE, WRITE, Request, Response, Route
from dragoman.registry.import_catalog import import_catalog
from dragoman.registry.operations import Operations


class Addition(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an `add`."""

    url: str
    approve: bool = False
    alias: str = ""
    audience: Audience | None = None
    queries: tuple[str, ...] = ()


class Announcement(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an `announce`."""

    url: str
    queries: tuple[str, ...] = ()


class ForeignCatalog(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an `import`."""

    url: str


class Approval(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an `approve`."""

    alias: str = ""
    digest: str = ""


# -- for everyone who may read


async def search(request: Request, registry: Operations) -> Response:
    """Find entries."""
    query = request.decode(Query)
    hits = await registry.database.run(Database.search, query, request.reader)
    shown = tuple(replace(hit, entry=for_readers(hit.entry)) for hit in hits)
    return Response(Hits(shown, hits.total, hits.next))


async def get(request: Request, registry: Operations) -> Response:
    """Get the approved card of an entry, with its pins."""
    name = request.names["name"]
    entry = await registry.database.run(Database.get, name, request.reader)
    if not entry.shown:
        raise NotFound(f"the registry has no approved entry {name[:200]!r}")
    return Response(for_readers(entry))


# -- for operators


async def list_(request: Request, registry: Operations) -> Response:
    """List entries, whatever their state."""
    request.must(WRITE)
    state = request.one("state") or None
    try:
        wanted = msgspec.convert(state, State | None)
    except msgspec.ValidationError:
        raise RegistryError(f"state: there is no state {state!r:.40}") from None
    limit = min(request.number("limit", MOST_LISTED), MOST_LISTED)
    found = await registry.database.run(Database.entries, wanted, limit, request.one("after"))
    return Response({"entries": found})


async def show(request: Request, registry: Operations) -> Response:
    """Show everything about an entry."""
    request.must(WRITE)
    return Response(await registry.details(request.names["name"]))


async def changes(request: Request, registry: Operations) -> Response:
    """List what has happened to an entry, or to all."""
    request.must(WRITE)
    urn = ""
    if name := request.names.get("name", ""):
        urn = (await registry.database.run(Database.get, name)).urn
    limit = min(request.number("limit", MOST_LISTED), MOST_LISTED)
    before = request.number("before", 0)
    found = await registry.database.run(Database.changes, urn, limit, before)
    return Response({"changes": found})


async def add(request: Request, registry: Operations) -> Response:
    """Add an agent."""
    request.must(WRITE)
    given = request.decode(Addition)
    entry = await registry.add(
        given.url,
        request.who,
        approve=given.approve,
        alias=given.alias,
        audience=given.audience,
        queries=given.queries,
    )
    return Response(await registry.details(entry.urn), 201)


async def announce(request: Request, registry: Operations) -> Response:
    """Take in an agent that announces itself."""
    request.must(ANNOUNCE)
    given = request.decode(Announcement)
    entry = await registry.announce(given.url, request.who, given.queries)
    return Response({"urn": entry.urn, "state": entry.state}, 202)


async def import_(request: Request, registry: Operations) -> Response:
    """Take in the agents of a foreign catalog."""
    request.must(WRITE)
    return Response(await import_catalog(registry, request.decode(ForeignCatalog).url))


async def approve(request: Request, registry: Operations) -> Response:
    """Approve the newest card of an entry."""
    request.must(WRITE)
    given = request.decode(Approval)
    name = request.names["name"]
    return Response(
        await registry.approve(name, request.who, alias=given.alias, digest=given.digest)
    )


async def reject(request: Request, registry: Operations) -> Response:
    """Reject an entry, or the change of its card."""
    request.must(WRITE)
    return Response(await registry.reject(request.names["name"], request.who))


async def remove(request: Request, registry: Operations) -> Response:
    """Remove an entry."""
    request.must(WRITE)
    return Response(await registry.remove(request.names["name"], request.who))


async def refresh(request: Request, registry: Operations) -> Response:
    """Fetch the card of an entry now."""
    request.must(WRITE)
    return Response(await registry.refresh(request.names["name"], request.who))


ONE = "/registry/entries/{name}"
ROUTES: list[Route] = [
    Route("POST", "/registry/search", search),
    Route("GET", "/registry/agents/{name}", get),
    Route("GET", "/registry/entries", list_),
    Route("POST", "/registry/entries", add),
    Route("GET", ONE, show),
    Route("DELETE", ONE, remove),
    Route("POST", f"{ONE}/approve", approve),
    Route("POST", f"{ONE}/reject", reject),
    Route("POST", f"{ONE}/refresh", refresh),
    Route("GET", f"{ONE}/changes", changes),
    Route("GET", "/registry/changes", changes),
    Route("POST", "/registry/announcements", announce),
    Route("POST", "/registry/catalogs", import_),
]
"""The first route that matches answers."""


async def overview(request: Request, _: Operations) -> Response:
    """Say what is here."""
    found: dict[str, Any] = {"registry": request.url, "search": f"{request.url}/registry/search"}
    return Response(found)


ROUTES.append(Route("GET", "/", overview))
