"""The paths of ARD and AI Catalog on a registry: search, explore, agents, and the documents of all
published entries. Every answer covers only what the caller may see."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman import Caller, catalog
from dragoman.catalog import CatalogEntry
from dragoman.registry import ard, entries
from dragoman.registry.ard import ExploreRequest, SearchRequest
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
from dragoman.registry.http_routing import Handler, Request, Response, Route
from dragoman.registry.operations import Operations
from dragoman.security.card_keys import CardKey
from dragoman.security.catalog_signatures import DID_PATH, did_document, sign, signer, web_did

JSON = "application/json"
KEYS_PATH = "/.well-known/jwks.json"
PAGE = 200
FRESH = 60
"""Seconds that an answer may be kept."""
MERGED = "m"
"""What the token of a page of merged results begins with."""


class ArdRoutes:
    """Answers from the entries of a registry.

    `url` is the base URL that the operator has set. Only with it are the documents signed, because
    every caller can name another host in a request. The registries of `federation` are asked by
    searches that permit it."""

    def __init__(
        self,
        *,
        federation: Federation | None = None,
        url: str = "",
        keys: Sequence[CardKey] = (),
    ) -> None:
        self._federation = federation if federation is not None and federation.peers else None
        self._url = url.rstrip("/")
        self._keys = tuple(keys) if url else ()
        self._made: tuple[int, str, bytes] = (-1, "", b"")
        self._making = asyncio.Lock()
        documents: list[tuple[str, Handler]] = [
            *((path, self._catalog) for path in catalog.PATHS),
            *((path, self._key_document) for path in (DID_PATH, KEYS_PATH)),
            *(("/agents", self._list), ("/agents/{identifier}", self._retrieve)),
        ]
        self.routes = [
            Route("POST", "/search", self._search),
            Route("POST", "/explore", self._explore),
            *(Route(method, *each) for each in documents for method in ("GET", "HEAD")),
        ]
        """What the server adds to its table."""

    # -- search

    async def _search(self, request: Request, registry: Operations) -> Response:
        asked = ard.read_search(request.body)
        query = ard.query(asked.query)
        if asked.federation == "auto" and self._federation is not None:
            return Response(await self._merged(request, registry, asked, self._federation))
        hits = await _hits(registry, query, asked.page_size, asked.page_token, request.reader)
        found = self._found(request, hits)
        said: dict[str, Any] = {"results": [ard.result(each) for each in found]}
        if hits.next:
            said["pageToken"] = hits.next
        if asked.federation == "referrals":
            peers = self._federation.peers if self._federation is not None else ()
            said["referrals"] = [ard.referral(peer) for peer in peers]
        return Response(said)

    async def _merged(
        self, request: Request, registry: Operations, asked: SearchRequest, federation: Federation
    ) -> dict[str, Any]:
        """Search here and at the other registries. Every page merges the lists again from their
        beginning, so that no state is kept."""
        begin = _begin(asked.page_token)
        end = min(begin + asked.page_size, MOST_LISTED)
        hits = await _hits(registry, ard.query(asked.query), end, "", request.reader)
        given = {"text": asked.query.text, "filter": asked.query.filter}
        answers = await federation.search({k: v for k, v in given.items() if v}, end)
        found = [each for answer in answers for each in answer.found]
        unwanted = await registry.database.run(_unwanted, found)
        lists = [[each for each in answer.found if each not in unwanted] for answer in answers]
        merged = merge(self._found(request, hits), *lists)
        said: dict[str, Any] = {"results": [ard.result(each) for each in merged[begin:end]]}
        if len(merged) > end and end < MOST_LISTED:
            said["pageToken"] = f"{MERGED}{end}"
        return said

    def _found(self, request: Request, hits: Hits) -> list[Found]:
        source = self._url or request.url
        return [Found(ard.published(hit.entry), source, hit.score) for hit in hits]

    # -- explore

    async def _explore(self, request: Request, registry: Operations) -> Response:
        asked = ard.read(request.body, ExploreRequest)
        query = ard.query(asked.query)
        facets: dict[str, Any] = {}
        for each in asked.result_type.facets:
            if each.field not in ard.TERMS:
                raise ard.unsupported("resultType.facets", each.field, ard.TERMS)
            counts = await _counts(registry, query, each.field, request.reader)
            facets[each.field] = ard.facet(counts, each)
        return Response({"resultType": "facets", "facets": facets})

    # -- agents

    async def _list(self, request: Request, registry: Operations) -> Response:
        if request.one("orderBy").strip() not in ("", "identifier", "identifier ASC"):
            raise RegistryError("orderBy: only identifier is supported")
        size = request.number("pageSize", 20)
        query = ard.query(ard.list_filter(request.one("filter")))
        hits = await _hits(registry, query, size, request.one("pageToken"), request.reader)
        said: dict[str, Any] = {
            "items": [ard.published(hit.entry) for hit in hits],
            "total": hits.total,
        }
        if hits.next:
            said["pageToken"] = hits.next
        return _document(request, msgspec.json.encode(said), shared=_anonymous(request))

    async def _retrieve(self, request: Request, registry: Operations) -> Response:
        name = ard.identifier(request.path.rpartition("/")[2])
        found = await registry.database.run(Database.find, name)
        reader = request.reader
        if found is None or not found.shown or not found.has_domain:
            raise ard.missing(name)
        if reader is not None and not found.audience.admits(reader):
            raise ard.missing(name)
        body = msgspec.json.encode(ard.published(found))
        return _document(request, body, shared=_anonymous(request))

    # -- documents

    async def _catalog(self, request: Request, registry: Operations) -> Response:
        """The entries that everybody may see. The document is kept until an entry changes."""
        url, kind = self._url or request.url, JSON
        async with self._making:
            last = await registry.database.run(Database.changes, "", 1)
            number = last[0].number if last else 0
            if self._made[:2] != (number, url):
                self._made = number, url, await self._written(url, registry)
            body = self._made[2]
        if request.path == catalog.PATHS[0]:
            kind = catalog.CATALOG
        return _document(request, body, kind, shared=True)

    async def _written(self, url: str, registry: Operations) -> bytes:
        """Make the document, page by page, so that other requests need not wait for all of it."""
        found: list[CatalogEntry] = []
        after = " "  # before all URNs
        while after:
            page, after = await registry.database.run(_published, after)
            found += page
        # The signature of many entries takes a while.
        return await asyncio.to_thread(_encoded, url, found, self._keys)

    async def _key_document(self, request: Request, _: Operations) -> Response:
        """The public keys that verify the catalog: as a DID document, or as a key set."""
        found: dict[str, Any] = {}
        if request.path == KEYS_PATH:
            found = {"keys": [key.jwk() for key in self._keys if key.made is not None]}
        elif did := web_did(self._url):
            found = did_document(did, self._keys)
        if not found.get("assertionMethod") and not found.get("keys"):
            raise NotFound("the documents of this registry are not signed with such a key")
        return _document(request, msgspec.json.encode(found), shared=True)


async def _hits(
    registry: Operations, query: Query | None, size: int, page: str, reader: Caller | None
) -> Hits:
    if query is None:
        return Hits()
    asked = replace(query, limit=size, page=page)
    return await registry.database.run(Database.search, asked, reader)


async def _counts(
    registry: Operations, query: Query | None, term: str, reader: Caller | None
) -> Sequence[tuple[str, int]]:
    if query is None:
        return []
    if term == "type":  # there is only one
        total = (await _hits(registry, query, 1, "", reader)).total
        return [(catalog.AGENT, total)] if total else []
    every = -1
    return await registry.database.run(Database.facets, query, ard.FACETS[term], every, reader)


def _encoded(url: str, found: Sequence[CatalogEntry], keys: Sequence[CardKey]) -> bytes:
    """Return the catalog of these entries and of the registry itself, signed if there are keys."""
    own = ard.registry(url)
    by = signer(url, keys, f"{url}{KEYS_PATH}")
    host = catalog.CatalogHost(
        display_name=own.display_name, identifier=by.name if by is not None else own.publisher
    )
    document = catalog.document(catalog.Catalog(entries=(own, *found), host=host))
    return msgspec.json.encode(document if by is None else sign(document, by))


# ---- in the thread of the database -----------------------------------------------------------


def _published(database: Database, after: str) -> tuple[list[CatalogEntry], str]:
    """Return a page of what everybody may see, and the URN after which the next one begins; empty
    at the end."""
    page = database.entries(limit=PAGE, after=after)
    shown = [each for each in page if each.shown and each.audience.everyone and each.has_domain]
    return [ard.published(each) for each in shown], page[-1].urn if len(page) == PAGE else ""


def _unwanted(database: Database, found: Sequence[Found]) -> list[Found]:
    """Return the results of others that contradict this registry: they have the name of one of its
    entries, but another address; or the operator has rejected or removed that address."""
    unwanted = []
    for each in found:
        try:
            address = entries.address(each.entry.url)
        except RegistryError:  # it could not become an entry
            unwanted.append(each)
            continue
        known = database.find(entries.urn(address))
        named = database.find(each.entry.identifier)
        if _gone(known) or (named is not None and named.url != address):
            unwanted.append(each)
    return unwanted


def _gone(entry: Entry | None) -> bool:
    return entry is not None and entry.state in entries.GONE


# ---- responses -------------------------------------------------------------------------------


def _begin(token: str) -> int:
    number = token.removeprefix(MERGED)
    if token and (number == token or not number.isascii() or not number.isdecimal()):
        raise RegistryError("pageToken: is not one of a search with these parameters")
    return min(int(number[:4] or "0"), MOST_LISTED)


def _anonymous(request: Request) -> bool:
    """Whether everybody gets the same answer."""
    return request.reader is not None and not request.caller.identity


def _document(request: Request, body: bytes, kind: str = JSON, *, shared: bool) -> Response:
    """A response that may be kept; by its caller only, unless everybody gets the same."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    who = "public" if shared else "private"
    headers = {"etag": tag, "cache-control": f"{who}, max-age={FRESH}"}
    if shared:
        headers["access-control-allow-origin"] = "*"
    given = [each.strip().removeprefix("W/") for each in request.condition.split(",")]
    if tag in given or "*" in given:
        return Response(b"", 304, kind, headers)
    return Response(body, 200, kind, headers)
