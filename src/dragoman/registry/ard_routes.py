"""The paths of ARD and AI Catalog on a registry: search, explore, agents, and the documents of all
published entries. Every answer covers only what the caller may see."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import Caller, catalog
from dragoman.registry import ard, entries
from dragoman.registry.ard import ExploreRequest, Refused, SearchRequest
from dragoman.registry.database import Database
from dragoman.registry.entries import (
    MOST_LISTED,
    Entry,
    Hits,
    NotFound,
    Query,
    RegistryError,
)
from dragoman.registry.federation import Federation, Found, merge
from dragoman.security.card_keys import CardKey
from dragoman.security.catalog_signatures import DID_PATH, did_document, sign, signer, web_did

JSON = "application/json"
KEYS_PATH = "/.well-known/jwks.json"
DOCUMENTS = (*catalog.PATHS, DID_PATH, KEYS_PATH)
FRESH = 60
"""Seconds that an answer may be kept."""
MERGED = "m"
"""What the token of a page of merged results begins with."""


class Asked(Struct, frozen=True, kw_only=True):
    """A request."""

    method: str
    path: str
    """Below the registry, and still percent-encoded."""
    url: str
    """The base URL of the registry, as the request names it."""
    caller: Caller = Caller()
    parameters: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    body: bytes = b""


class Reply(Struct, frozen=True, kw_only=True):
    """A response."""

    status: int = 200
    body: bytes = b""
    kind: str = JSON
    headers: Mapping[str, str] = {}


class ArdRoutes:
    """Answers requests from the entries of a database.

    `url` is the base URL that the operator has set. Only with it are the documents signed, because
    anybody can name another host in a request. `peers` are asked by searches with federation."""

    def __init__(
        self,
        database: Database,
        *,
        peers: Federation | None = None,
        url: str = "",
        keys: Sequence[CardKey] = (),
    ) -> None:
        self._database = database
        self._peers = peers
        self._url = url.rstrip("/")
        self._keys = tuple(keys) if url else ()
        self._made: tuple[int, str, bytes] = (-1, "", b"")

    async def answer(self, asked: Asked) -> Reply | None:
        """Answer a request; None if its path is not one of ours."""
        route = self._route(asked)
        if route is None:
            return None
        allowed, handler = route
        if asked.method not in allowed:
            error = Refused(f"This path requires {allowed[0]}", status=405)
            return _failed(error, {"Allow": ", ".join(allowed)})
        try:
            return await handler(asked)
        except Refused as error:
            return _failed(error)
        except NotFound as error:
            return _failed(Refused(str(error), "NOT_FOUND", 404))
        except RegistryError as error:
            return _failed(Refused(str(error)))

    def _route(self, asked: Asked) -> tuple[tuple[str, ...], Any] | None:
        read = ("GET", "HEAD")
        match asked.path:
            case "/search":
                return ("POST",), self._search
            case "/explore":
                return ("POST",), self._explore
            case "/agents":
                return read, self._list
            case path if path.startswith("/agents/"):
                return read, self._retrieve
            case path if path in catalog.PATHS:
                return read, self._catalog
            case path if path in DOCUMENTS:
                return read, self._key_document
        return None

    # -- search

    async def _search(self, asked: Asked) -> Reply:
        request = ard.read_search(asked.body)
        query = ard.query(request.query)
        if request.federation == "auto" and self._peers is not None and self._peers.peers:
            return _json(await self._merged(asked, request, query, self._peers))
        hits = await self._hits(query, request.page_size, request.page_token, asked.caller)
        said: dict[str, Any] = {"results": [ard.result(each) for each in self._found(asked, hits)]}
        if hits.next:
            said["pageToken"] = hits.next
        if request.federation == "referrals":
            peers = self._peers.peers if self._peers is not None else ()
            said["referrals"] = [ard.referral(peer) for peer in peers]
        return _json(said)

    async def _merged(
        self, asked: Asked, request: SearchRequest, query: Query | None, peers: Federation
    ) -> dict[str, Any]:
        """Search here and at the other registries. Every page merges the lists again from their
        beginning, so that no state is kept."""
        begin, size = _begin(request.page_token), request.page_size
        end = min(begin + size, MOST_LISTED)
        given = {"text": request.query.text, "filter": request.query.filter}
        own = self._found(asked, await self._hits(query, end, "", asked.caller))
        answers = await peers.search({k: v for k, v in given.items() if v}, end)
        lists = [answer.found for answer in answers]
        known = await self._database.run(_unwanted, [each for found in lists for each in found])
        merged = merge(own, *([each for each in found if each not in known] for found in lists))
        said: dict[str, Any] = {"results": [ard.result(each) for each in merged[begin:end]]}
        if len(merged) > end < MOST_LISTED:
            said["pageToken"] = f"{MERGED}{end}"
        return said

    def _found(self, asked: Asked, hits: Hits) -> list[Found]:
        source = self._url or asked.url
        return [Found(ard.published(hit.entry), source, hit.score) for hit in hits.hits]

    async def _hits(self, query: Query | None, size: int, page: str, caller: Caller) -> Hits:
        if query is None:
            return Hits()
        asked = replace(query, limit=size, page=page)
        return await self._database.run(Database.search, asked, caller)

    # -- explore

    async def _explore(self, asked: Asked) -> Reply:
        request = ard.read(asked.body, ExploreRequest)
        query = ard.query(request.query)
        facets: dict[str, Any] = {}
        for each in request.result_type.facets:
            if each.field not in ard.TERMS:
                known = ", ".join(ard.TERMS)
                raise Refused(f"resultType.facets: {each.field[:80]!r} is not one of {known}")
            facets[each.field] = ard.facet(await self._counts(query, each.field, asked), each)
        return _json({"resultType": "facets", "facets": facets})

    async def _counts(
        self, query: Query | None, field: str, asked: Asked
    ) -> Sequence[tuple[str, int]]:
        if query is None:
            return []
        if field == "type":  # there is only one
            total = (await self._hits(query, 1, "", asked.caller)).total
            return [(catalog.AGENT, total)] if total else []
        every = -1
        return await self._database.run(
            Database.facets, query, ard.FACETS[field], every, asked.caller
        )

    # -- agents

    async def _list(self, asked: Asked) -> Reply:
        if order := asked.parameters.get("orderBy", ""):
            if order.strip() not in ("identifier", "identifier ASC"):
                raise Refused("orderBy: only identifier is supported")
        size = ard.number(asked.parameters, "pageSize", 20)
        query = ard.query(ard.list_filter(asked.parameters.get("filter", "")))
        hits = await self._hits(query, size, asked.parameters.get("pageToken", ""), asked.caller)
        said: dict[str, Any] = {
            "items": [ard.published(hit.entry) for hit in hits.hits],
            "total": hits.total,
        }
        if hits.next:
            said["pageToken"] = hits.next
        return _document(asked, msgspec.json.encode(said))

    async def _retrieve(self, asked: Asked) -> Reply:
        name = ard.identifier(asked.path.removeprefix("/agents/"))
        try:
            entry = await self._database.run(Database.get, name, asked.caller)
        except NotFound:
            entry = None
        if entry is None or entry.urn != name or not entry.has_domain:
            raise ard.missing(name)
        return _document(asked, msgspec.json.encode(ard.published(entry)))

    # -- documents

    async def _catalog(self, asked: Asked) -> Reply:
        """The entries that everybody may see. The document is kept until an entry changes."""
        url = self._url or asked.url
        last = await self._database.run(Database.changes, "", 1)
        number = last[0].number if last else 0
        if self._made[:2] != (number, url):
            self._made = number, url, await self._database.run(_written, url, self._keys)
        kind = catalog.CATALOG if asked.path == catalog.PATHS[0] else JSON
        return _document(replace(asked, caller=Caller()), self._made[2], kind)

    async def _key_document(self, asked: Asked) -> Reply:
        """The public keys that verify the catalog: as a DID document, or as a key set."""
        found: dict[str, Any] = {}
        if asked.path == DID_PATH and (did := web_did(self._url)):
            found = did_document(did, self._keys)
        elif asked.path == KEYS_PATH:
            found = {"keys": [key.jwk() for key in self._keys if key.made is not None]}
        if not found.get("assertionMethod") and not found.get("keys"):
            raise Refused("Nothing is signed here", "NOT_FOUND", 404)
        return _document(replace(asked, caller=Caller()), msgspec.json.encode(found))


# ---- in the thread of the database -----------------------------------------------------------


def _written(database: Database, url: str, keys: Sequence[CardKey]) -> bytes:
    """Return the catalog of everything that everybody may see, signed if there are keys."""
    found, query = [ard.registry(url)], Query(published=True, limit=MOST_LISTED)
    while True:
        hits = database.search(query, Caller())
        found += [ard.published(hit.entry) for hit in hits.hits]
        if not hits.next:
            break
        query = replace(query, page=hits.next)
    by = signer(url, keys, f"{url}{KEYS_PATH}")
    host = catalog.CatalogHost(
        display_name=found[0].display_name,
        identifier=by.name if by is not None else found[0].publisher,
    )
    document = catalog.document(catalog.Catalog(entries=tuple(found), host=host))
    return msgspec.json.encode(document if by is None else sign(document, by))


def _unwanted(database: Database, found: Sequence[Found]) -> list[Found]:
    """Return the results of others that contradict this registry: they have the name of one of its
    entries, but another address, or the operator has rejected or removed that address."""
    unwanted = []
    for each in found:
        try:
            own = database.find(entries.urn(each.entry.url))
        except RegistryError:
            own = None
        named = database.find(each.entry.identifier)
        if own is not None and own.state in entries.GONE:
            unwanted.append(each)
        elif named is not None and not _same(named, each):
            unwanted.append(each)
    return unwanted


def _same(entry: Entry, found: Found) -> bool:
    try:
        return entries.address(found.entry.url) == entry.url
    except RegistryError:
        return False


# ---- replies ---------------------------------------------------------------------------------


def _begin(token: str) -> int:
    number = token.removeprefix(MERGED)
    if token and (number == token or not number.isascii() or not number.isdecimal()):
        raise Refused("pageToken: is not one of a search with these parameters")
    return min(int(number[:4] or "0"), MOST_LISTED)


def _json(said: Any) -> Reply:
    headers = {"Cache-Control": "no-store"}
    return Reply(body=msgspec.json.encode(said), headers=headers)


def _document(asked: Asked, body: bytes, kind: str = JSON) -> Reply:
    """A reply that may be kept; one for a known caller only by that caller."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    who = "private" if asked.caller.identity else "public"
    headers = {"ETag": tag, "Cache-Control": f"{who}, max-age={FRESH}"}
    if who == "public":
        headers["Access-Control-Allow-Origin"] = "*"
    given = [each.strip().removeprefix("W/") for each in asked.headers.get("if-none-match", "").split(",")]
    if tag in given or "*" in given:
        return Reply(status=304, headers=headers)
    return Reply(body=body, kind=kind, headers=headers)


def _failed(error: Refused, headers: Mapping[str, str] = {}) -> Reply:
    return Reply(
        status=error.status,
        body=msgspec.json.encode(error.document()),
        headers={"Cache-Control": "no-cache", **headers},
    )


