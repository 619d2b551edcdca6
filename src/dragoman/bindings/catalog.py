"""Serves the catalog of a server's own agents, at the paths of both specifications."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from dragoman import catalog
from dragoman.bindings import card
from dragoman.bindings.agent_endpoint import CARDS, Endpoint
from dragoman.bindings.card_signing import CardSigner
from dragoman.bindings.http import fail
from dragoman.bindings.http_request import JSON, HTTPRequest
from dragoman.catalog import PATHS
from dragoman.dialects.v1_0 import encode
from dragoman.model.errors import A2AError, MethodNotFound, Misdirected
from dragoman.security.catalog_signatures import did_document, sign, signer, web_did

KINDS = dict(zip(PATHS, (catalog.CATALOG.encode(), JSON), strict=True))
"""The media types at the two paths; ARD has none of its own."""


class OwnCatalog:
    """The catalog of the agents of one server. It has what the public cards say, and nothing else.
    It is made for the first reader, and kept
    until a card changes."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)
        self._first = self._endpoints[0]
        self._known: dict[tuple[str, CardSigner, int], tuple[bytes, bytes]] = {}

    async def serve(self, incoming: HTTPRequest, path: str) -> None:
        """Answer with the catalog, or with 304 if the client's copy is current."""
        try:
            card.only_read(incoming)
            body, tag = await self._content(incoming)
        except A2AError as error:
            if isinstance(error, Misdirected):
                self._first.note_refusal("host", incoming, error)
            return await fail(incoming, error)
        depends = card.vary(self._first.settings)
        return await card.show(self._first, incoming, body, tag, KINDS[path], *depends)

    async def did(self, incoming: HTTPRequest) -> None:
        """Answer with the DID document of the host, if the catalog is signed in its name."""
        try:
            card.only_read(incoming)
            self._first.check_host(incoming)
            name = web_did(self._first.access.base(incoming))
            found = did_document(name, self._first.signer.keys) if name else {}
            if not found.get("assertionMethod"):
                raise MethodNotFound("Nothing is signed in the name of this host")
        except A2AError as error:
            return await fail(incoming, error)
        body, depends = encode(found), card.vary(self._first.settings)
        return await card.show(self._first, incoming, body, _tag(body), JSON, *depends)

    async def _content(self, incoming: HTTPRequest) -> tuple[bytes, bytes]:
        self._first.check_host(incoming)
        base, cards = self._first.access.base(incoming), self._first.signer
        revision = sum(endpoint.service.agent.revision for endpoint in self._endpoints)
        known = self._known.get((base, cards, revision))
        if known is None:
            made = self._made(incoming, base)
            by = signer(base, cards.keys, cards.jku(self._first.url(incoming)))
            if by is not None:
                made["host"]["identifier"] = by.name
                unsigned = made
                made = await cards.make(lambda: sign(unsigned, by))
            body = encode(made)
            known = body, _tag(body)
            if len(self._known) >= CARDS:  # callers can name any number of hosts
                self._known.clear()
            self._known[(base, cards, revision)] = known
        return known

    def _made(self, incoming: HTTPRequest, base: str) -> dict[str, Any]:
        entries, provider = [], ""
        for endpoint in self._endpoints:
            shown, url = endpoint.card(incoming), endpoint.url(incoming)
            provider = provider or (shown.provider.organization if shown.provider else "")
            entries.append(catalog.entry(shown, url + card.PATHS[0], catalog.identifier(url)))
        host = urlsplit(base).hostname or ""
        operator = catalog.CatalogHost(
            display_name=provider or host, identifier=catalog.domain(host)
        )
        return catalog.document(catalog.Catalog(entries=tuple(entries), host=operator))


def _tag(body: bytes) -> bytes:
    return b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
