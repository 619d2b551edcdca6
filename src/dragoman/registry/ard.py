"""What Agentic Resource Discovery (ARD) 0.91 asks of a registry, and how it is answered: pure
conversions between its documents and our values.

A filter key names a term of an entry. We know `type`, `publisher`, `tags`, `capabilities` (ids of
skills) and `version`; a request with another one is refused, as the specification permits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from dragoman import catalog
from dragoman.catalog import AGENT, REGISTRY, CatalogEntry
from dragoman.registry.entries import MOST_LISTED, WELL_KNOWN, Entry, NotFound, Query, RegistryError
from dragoman.registry.federation import Found
from dragoman.registry.search import Facet

T = TypeVar("T")

FACETS: dict[str, Facet] = {
    "publisher": "publisher",
    "tags": "tag",
    "capabilities": "skill",
    "version": "version",
}
"""The terms that are counted, and what the index calls them; `type` has only one value."""
TERMS = ("type", *FACETS)
MOST_VALUES = 100
"""The most values of one filter."""
LISTED = {"type": "type", "publisherId": "publisher"}
"""The fields of the filter of a list, and the terms that they stand for."""

_CONDITION = re.compile(r"\s*(\w+)\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|([^\s'\"]+))\s*")
_AND = re.compile(r"\s+AND\s+", re.IGNORECASE)
_ENCODED = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+")


def missing(identifier: str) -> NotFound:
    """The error for an entry that does not exist, or that the caller may not see."""
    return NotFound(f"the registry has no entry {identifier[:200]!r}")


def unsupported(where: str, name: str, known: Iterable[str]) -> RegistryError:
    """The error for a term that we do not know."""
    return RegistryError(f"{where}: {name[:80]!r} is not supported; these are: {', '.join(known)}")


# ---- requests ------------------------------------------------------------------------------


class _Request(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class QueryDocument(_Request, frozen=True, kw_only=True):
    """What both search and explore call `query`."""

    text: str | None = None
    filter: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    context: Any = field(default=None, name="@context")
    """Binds prefixes of filter keys. We know no term with a prefix, so it has no effect."""


PageSize = Annotated[int, Meta(ge=1, le=MOST_LISTED)]
Federated: TypeAlias = Literal["auto", "referrals", "none"]


class SearchRequest(_Request, frozen=True, kw_only=True):
    """The body of `POST /search`."""

    query: QueryDocument
    federation: Federated = "auto"
    page_size: PageSize = 10
    page_token: str = ""


class FacetRequest(_Request, frozen=True, kw_only=True):
    """What to count."""

    field: str
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    min_count: Annotated[int, Meta(ge=1)] = 1


class ResultType(_Request, frozen=True, kw_only=True):
    """The only kind of result of explore."""

    facets: Annotated[tuple[FacetRequest, ...], Meta(min_length=1, max_length=20)]


class ExploreRequest(_Request, frozen=True, kw_only=True):
    """The body of `POST /explore`."""

    query: QueryDocument = QueryDocument()
    result_type: ResultType


def read(body: bytes, kind: type[T]) -> T:
    """Read the body of a request. Raises RegistryError, which names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RegistryError(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RegistryError("the body is not valid JSON") from None


def read_search(body: bytes) -> SearchRequest:
    """Read the body of `POST /search`. Raises RegistryError."""
    found = read(body, SearchRequest)
    if found.query.text is None:
        raise RegistryError("query.text: is required")
    return found


def query(given: QueryDocument) -> Query | None:
    """Return our query; None if no entry can match it. Values of one key are alternatives, and all
    keys must match. Raises RegistryError for a filter that we do not know."""
    asked: dict[str, tuple[str, ...]] = {}
    for key, value in given.filter.items():
        if key not in TERMS:
            raise unsupported("query.filter", key, TERMS)
        values = (value,) if isinstance(value, str) else value
        if len(values) > MOST_VALUES:
            raise RegistryError(f"query.filter.{key}: more than {MOST_VALUES} values")
        if not values:
            return None
        asked[key] = values
    if AGENT not in asked.get("type", (AGENT,)):
        return None
    return Query(
        text=given.text or "",
        tags=asked.get("tags", ()),
        skills=asked.get("capabilities", ()),
        versions=asked.get("version", ()),
        publishers=tuple(f"={host}" for host in asked.get("publisher", ())),
        published=True,
    )


def list_filter(expression: str) -> QueryDocument:
    """Read the filter of `GET /agents`: `type = 'a,b' AND publisherId = 'c'`. Raises
    RegistryError."""
    found: dict[str, str | tuple[str, ...]] = {}
    for part in _AND.split(expression) if expression.strip() else []:
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise RegistryError(f"filter: {part[:80]!r} is not of the form field = 'value'")
        if match[1] not in LISTED:
            raise unsupported("filter", match[1], LISTED)
        text = match[2] or match[3] or match[4] or ""
        if LISTED[match[1]] in found:
            raise RegistryError(f"filter: {match[1]} appears twice; separate its values by commas")
        found[LISTED[match[1]]] = tuple(value.strip() for value in text.split(","))
    return QueryDocument(filter=found)


def identifier(segment: str) -> str:
    """Decode the identifier in the path of `GET /agents/{identifier}`, once. Raises
    RegistryError."""
    text = ""
    if _ENCODED.fullmatch(segment):
        text = catalog.identified(unquote_to_bytes(segment).decode("utf-8", "replace"))
    if not catalog.valid(text):
        raise RegistryError(
            "the path must have one identifier, urn:air:DOMAIN:NAME, percent-encoded"
        )
    return text


# ---- answers -------------------------------------------------------------------------------


def published(entry: Entry) -> CatalogEntry:
    """Return the catalog entry of an entry that is shown. What the operator has added, users ask
    for first."""
    found = catalog.entry(entry.card, entry.url + WELL_KNOWN[0], entry.urn)
    queries = dict.fromkeys((*entry.queries, *found.representative_queries))
    return replace(
        found,
        representative_queries=tuple(queries)[: catalog.MOST_QUERIES],
        updated_at=entry.updated,
    )


def result(found: Found) -> dict[str, Any]:
    """Return a result of a search. Examples of requests serve the index, not the reader."""
    shown = replace(found.entry, representative_queries=())
    document: dict[str, Any] = msgspec.to_builtins(shown)
    return {**document, "score": max(0, min(100, round(found.score))), "source": found.source}


def registry(url: str) -> CatalogEntry:
    """Return the entry of a registry at this base URL: how others find its search."""
    host = urlsplit(url).hostname or ""
    name = catalog.urn(host, "registry", "agents")
    return CatalogEntry(
        identifier=name or f"{catalog.identifier(url)}:registry",
        display_name=f"Agents at {host}",
        type=REGISTRY,
        url=url,
        description="Searches the agents of this registry.",
        representative_queries=("which agents are there", "find an agent for a task"),
    )


def referral(url: str) -> dict[str, str]:
    """Return what refers a caller to another registry."""
    found = registry(url)
    return {
        "identifier": found.identifier,
        "displayName": found.display_name,
        "type": found.type,
        "url": f"{url}/search",
    }


def facet(counts: Sequence[tuple[str, int]], asked: FacetRequest) -> dict[str, Any]:
    """Return one facet of explore from all its counts, the largest first."""
    kept = [(value, count) for value, count in counts if count >= asked.min_count]
    found: dict[str, Any] = {
        "buckets": [{"value": value, "count": count} for value, count in kept[: asked.limit]]
    }
    if rest := sum(count for _, count in kept[asked.limit :]):
        found["otherCount"] = rest
    return found
