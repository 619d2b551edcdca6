"""Catalogs of agents: the documents of AI Catalog and of Agentic Resource Discovery (ARD).

One document serves both specifications. `parse` reads also what older versions of them wrote;
`document` writes only the present form. Nothing in a catalog is proof of anything: an entry says
where a card may be found, and the card must be fetched and checked like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from itertools import chain, zip_longest
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from dragoman.model.types import AgentCard

__all__ = (
    "Catalog",
    "CatalogEntry",
    "CatalogError",
    "CatalogHost",
    "document",
    "entry",
    "identifier",
    "parse",
    "publisher",
    "read_entry",
    "urn",
)

T = TypeVar("T")

PATHS = ("/.well-known/ai-catalog.json", "/.well-known/ard.json")
"""The paths of the catalog of a host: that of AI Catalog, and that of ARD."""
CATALOG = "application/ai-catalog+json"
AGENT = "application/a2a-agent-card+json"
REGISTRY = "application/ai-registry+json"
METADATA = "https://ai-catalog.org/extensions/metadata"
"""The extension that has replaced the member `metadata`."""
PLACEHOLDER = "agent.localhost"
"""Stands for the domain in the identifiers of agents that only this machine reaches."""

MOST = 1000
"""The most entries of a catalog."""
LARGEST = 4 << 20
"""The most bytes of a catalog."""
MOST_QUERIES = 5

_URN = re.compile(r"urn:air:([A-Za-z0-9.-]+)((?::[A-Za-z0-9._-]+)+)")
_OLD_URN = re.compile(r"urn:ai:", re.IGNORECASE)
_PORTS = {"https": 443, "http": 80}
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_VERSION = re.compile(r"1(\.[0-9]{1,4})?")
_PLACE = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)

_OLD_ENTRY = {
    "id": "identifier",
    "name": "displayName",
    "mediaType": "type",
    "inline": "data",
}
_OLD_HOST = {"name": "displayName", "id": "identifier"}

Text = Annotated[str, Meta(min_length=1, max_length=2048)]


class CatalogError(ValueError):
    """A document is not a catalog. The text names the field."""


class CatalogEntry(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """One agent, or another resource, and where to find it: exactly one of `url` and `data`."""

    identifier: Text
    display_name: str
    type: Text
    url: str = ""
    data: Any = None
    """The resource itself, in place of its URL."""
    description: str = ""
    tags: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    """The ids of the skills."""
    representative_queries: tuple[str, ...] = ()
    """What a user might ask for."""
    version: str = ""
    updated_at: str = ""
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.url) == (self.data is not None):
            raise ValueError("exactly one of url and data is required")

    @property
    def publisher(self) -> str:
        """The domain in the identifier; empty if the identifier has none."""
        return publisher(self.identifier)


class CatalogHost(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Who operates a catalog, as it says itself."""

    display_name: str
    identifier: str = ""
    documentation_url: str = ""
    logo_url: str = ""


class Catalog(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A list of entries."""

    entries: tuple[CatalogEntry, ...]
    host: CatalogHost | None = None


# ---- identifiers ---------------------------------------------------------------------------


def urn(host: str, *names: str) -> str | None:
    """Return the identifier `urn:air:<host>:…:<name>`; None if the host is not a domain. A name
    keeps letters, digits, dot, dash and underscore; other characters become a dash."""
    found = domain(host)
    parts = [_plain(name) for name in names]
    if not parts or not all(parts):
        raise ValueError("urn: needs a name, and no name may be empty")
    return ":".join(("urn:air", found, *parts)) if found else None


def identifier(url: str) -> str:
    """Return the identifier of the agent at an address. It says where the agent is, not what it
    calls itself, so that no agent can take the name of another.

    Only a domain gives an identifier that has a meaning elsewhere. On this machine the placeholder
    of ARD stands for it; another host without a domain gets a name that ARD does not accept."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    names = [f"port-{port}"] if (parts.scheme, port) != ("https", 443) else []
    path = [part for part in parts.path.split("/") if part]
    names += ["a2a", "at", *map(segment, path)] if path else ["a2a", "agent"]
    if found := urn(host, *names):
        return found
    start = f"urn:air:{PLACEHOLDER}" if _loopback(host) else f"urn:dragoman:local:{_plain(host)}"
    return ":".join((start, *(_plain(name) for name in names)))


def segment(text: str) -> str:
    """Return a part of a path as a part of an identifier; another character becomes `_` and its
    number, so that different paths stay different."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda match: f"_{ord(match[0]):02X}", text)


def domain(host: str) -> str:
    """Return the host in the form of an identifier; empty if it is an address, a single name such
    as `localhost`, or below `.localhost`: others cannot know whose it is."""
    try:
        name = host.rstrip(".").lower().encode("idna").decode()
    except UnicodeError:
        return ""
    labels = name.split(".")
    if len(labels) < 2 or len(name) > 253 or labels[-1] == "localhost":
        return ""
    # No top-level domain begins with a digit, but addresses such as 127.1 or 0x7f.1 do.
    if labels[-1][:1].isdigit() or _address(name):
        return ""
    return name if all(_LABEL.fullmatch(label) for label in labels) else ""


def identified(text: str) -> str:
    """Return an identifier in its present spelling: `urn:ai:` has become `urn:air:`."""
    return _OLD_URN.sub("urn:air:", text, count=1) if _OLD_URN.match(text) else text


def valid(identifier: str) -> bool:
    """Whether ARD accepts the identifier."""
    return _URN.fullmatch(identifier) is not None


def publisher(identifier: str) -> str:
    """Return the domain in an identifier; empty if ARD does not accept the identifier."""
    match = _URN.fullmatch(identifier)
    return match[1].lower() if match else ""


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


# ---- writing -------------------------------------------------------------------------------


def entry(card: AgentCard, url: str, identifier: str) -> CatalogEntry:
    """Return the entry of an agent whose card is at this URL."""
    skills = card.skills
    examples = chain.from_iterable(zip_longest(*(skill.examples for skill in skills)))
    return CatalogEntry(
        identifier=identifier,
        display_name=card.name,
        type=AGENT,
        url=url,
        description=card.description,
        tags=_once(tag for skill in skills for tag in skill.tags),
        capabilities=_once(skill.id for skill in skills),
        representative_queries=_once(text for text in examples if text)[:MOST_QUERIES],
        version=card.version,
    )


def document(catalog: Catalog) -> dict[str, Any]:
    """Return the catalog as JSON values, in the present form of both specifications."""
    found: dict[str, Any] = msgspec.to_builtins(catalog)
    return {"specVersion": "1.0", **found}


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


# ---- reading -------------------------------------------------------------------------------


def parse(content: bytes) -> Catalog:
    """Read a catalog of any version. Raises CatalogError if it is not one, if it is too large, or
    if it contains other catalogs. Members that it does not know are left out."""
    if len(content) > LARGEST:
        raise CatalogError(f"the catalog is larger than {LARGEST} bytes")
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CatalogError(f"the catalog is not valid JSON: {error}") from None
    except RecursionError:
        raise CatalogError("the catalog is nested too deeply") from None
    if not isinstance(found, dict):
        raise CatalogError("the catalog is not a JSON object")
    version = found.get("specVersion", "1.0")  # ARD does not require it
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise CatalogError(f"specVersion: {str(version)[:32]!r} is not supported; 1.0 is")
    entries = found.get("entries")
    if not isinstance(entries, list):
        raise CatalogError("entries: a list is required")
    if len(entries) > MOST:
        raise CatalogError(f"entries: {len(entries)} are more than {MOST}")
    made = Catalog(
        entries=tuple(read_entry(each, f"entries[{n}]") for n, each in enumerate(entries)),
        host=_host(found.get("host")),
    )
    _check_unique(made.entries)
    return made


def read_entry(given: Any, where: str = "") -> CatalogEntry:
    """Read one entry in any spelling. Raises CatalogError, which names the field below `where`."""
    if not isinstance(given, Mapping):
        raise CatalogError(f"{where or 'entry'}: an object is required")
    found = _renamed(given, _OLD_ENTRY)
    kind, name = found.get("type"), found.get("identifier")
    if isinstance(kind, str) and kind.partition(";")[0].strip().lower() == CATALOG:
        raise CatalogError(f"{_below(where, 'type')}: a catalog in a catalog is not read")
    if isinstance(name, str):
        found["identifier"] = name = identified(name)
        # AI Catalog: a name is optional, and this is what stands for it.
        found.setdefault("displayName", re.split(r"[:/]", name.rstrip(":/"))[-1])
    metadata = found.pop("metadata", None)
    if isinstance(metadata, dict) and metadata:
        extensions = found.get("extensions") or {}
        found["extensions"] = {METADATA: metadata} | extensions if _object(extensions) else 0
    return _converted(found, CatalogEntry, where)


def _host(given: Any) -> CatalogHost | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CatalogError("host: an object is required")
    return _converted(_renamed(given, _OLD_HOST), CatalogHost, "host")


def _renamed(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the members in their present spelling, without those that are null."""
    found = {name: value for name, value in given.items() if value is not None}
    for old, new in names.items():
        if old in found:
            value = found.pop(old)
            found.setdefault(new, value)
    return found


def _converted(found: dict[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        match = _PLACE.fullmatch(str(error))
        what, place = (match[1], match[2] or "") if match else (str(error), "")
        if missing := re.search(r"missing required field `(.*)`", what):
            what, place = "is required", f"{place}.{missing[1]}".lstrip(".")
        text = what[:1].lower() + what[1:].replace("`", "")
        raise CatalogError(f"{_below(where, place)}: {text}".lstrip(": ")) from None


def _below(where: str, place: str) -> str:
    return f"{where}.{place}".strip(".")


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _check_unique(entries: Iterable[CatalogEntry]) -> None:
    seen: set[tuple[str, str]] = set()
    for number, each in enumerate(entries):
        key = (each.identifier, each.version)
        if key in seen:
            text = "appears twice, with the same version"
            raise CatalogError(f"entries[{number}].identifier: {each.identifier[:128]!r} {text}")
        seen.add(key)
