"""The entries of a registry, and the rules for what happens to them.

An entry is one agent at one address. Its URN comes from the host of that address, never from the
card, so no card can claim another's name.

    pending   nobody has approved it yet
    approved  its card is shown
    changed   the agent has another card now; the approved one is shown until that is approved
    rejected  the operator does not want it
    removed   the operator has taken it out

Only the operator brings a rejected or removed entry back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from dragoman import AgentCard, Caller
from dragoman.catalog import domain, segment
from dragoman.client import ApprovedAgent
from dragoman.registry.card_differences import Difference, differences
from dragoman.security.address_policy import EgressRefused, parse

State: TypeAlias = Literal["pending", "approved", "changed", "rejected", "removed"]
Source: TypeAlias = Literal["operator", "announced", "catalog", "federation"]
Trust: TypeAlias = Literal["signed", "unsigned"]

SHOWN: tuple[State, ...] = ("approved", "changed")
"""The states in which the approved card is shown to callers."""
GONE: tuple[State, ...] = ("rejected", "removed")
"""The states that only the operator ends."""
WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
IN_REALM = " in "
LONGEST_QUERY = 1000
MOST_LISTED = 100
"""The most entries of a page."""

_ALIAS = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


class RegistryError(Exception):
    """The registry refuses a request. The text says why, and what to do."""


class NotFound(RegistryError):
    """There is no such entry, or the caller may not see it."""


# ---- values --------------------------------------------------------------------------------


class CardVersion(Struct, frozen=True):
    """A card as it was fetched once."""

    card: AgentCard
    document: str = ""
    """The JSON that was received; signatures cover it."""
    keys: Mapping[str, dict[str, Any]] = {}
    """The public keys (JWK) that have signed it, by thumbprint. Empty if it is not signed."""
    fetched: str = ""
    findings: tuple[str, ...] = ()
    """What is wrong with it, for the operator."""

    @property
    def digest(self) -> str:
        """A digest of what the card says and of the keys that have signed it."""
        said = msgspec.to_builtins(replace(self.card, signatures=()))
        text = msgspec.json.encode((said, sorted(self.keys)), order="deterministic")
        return hashlib.sha256(text).hexdigest()


class Audience(Struct, frozen=True, omit_defaults=True):
    """Who may see an entry. Without scopes and identities: every caller."""

    scopes: tuple[str, ...] = ()
    """A caller with all of these scopes sees it."""
    identities: tuple[str, ...] = ()
    """These callers see it, too: `ann`, or `ann in partners` if her realm is `partners`."""

    @property
    def everyone(self) -> bool:
        """Whether nothing is asked of a caller."""
        return not self.scopes and not self.identities

    def admits(self, caller: Caller) -> bool:
        """Whether this caller may see the entry."""
        name = caller_name(caller)
        if self.everyone or (name and name in self.identities):
            return True
        return bool(self.scopes) and caller.scopes.issuperset(self.scopes)


class Health(Struct, frozen=True, omit_defaults=True):
    """How the last fetches of the card went. No message is ever sent to an agent."""

    good: str = ""
    """When the card was last fetched without an error."""
    failed: str = ""
    """When a fetch last failed; empty if the last one did not."""
    error: str = ""
    """Why the last fetch failed."""

    @property
    def ok(self) -> bool:
        """Whether the last fetch gave a card."""
        return bool(self.good) and not self.failed


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent at an address."""

    urn: str
    url: str
    state: State = "pending"
    alias: str = ""
    """A short name that the operator gave."""
    approved: CardVersion | None = None
    candidate: CardVersion | None = None
    """A card that waits for approval."""
    source: Source = "operator"
    named_by: str = ""
    """Who has named the address: an identity, or the URL of a catalog or registry."""
    audience: Audience = Audience()
    queries: tuple[str, ...] = ()
    """Requests that this agent is for, in the words of users."""
    health: Health = Health()
    refused: str = ""
    """The digest of a candidate that was rejected while the approved card stays."""
    added: str = ""
    updated: str = ""

    @property
    def shown(self) -> bool:
        """Whether callers get it."""
        return self.state in SHOWN and self.approved is not None

    @property
    def card(self) -> AgentCard:
        """The approved card. Raises NotFound if there is none."""
        if self.approved is None:
            raise NotFound(f"{self.urn}: no card has been approved")
        return self.approved.card

    @property
    def pins(self) -> Mapping[str, dict[str, Any]]:
        """The public keys (JWK) that must sign the agent's card, by thumbprint."""
        return {} if self.approved is None else self.approved.keys

    async def resolve(self) -> ApprovedAgent:
        """The approved card, for `Client.connect`."""
        return ApprovedAgent(self.url, self.card, self.pins)

    @property
    def publisher(self) -> str:
        """The host of the address."""
        return parse(self.url).host

    @property
    def has_domain(self) -> bool:
        """Whether the host is a domain name. Other entries are not published in catalogs."""
        return has_domain(self.publisher)

    @property
    def differences(self) -> list[Difference]:
        """How the candidate differs from the approved card."""
        if self.approved is None or self.candidate is None:
            return []
        return compare(self.approved, self.candidate)


class Change(Struct, frozen=True, omit_defaults=True):
    """What happened to an entry. `before` and `after` have the fields that differ."""

    urn: str
    at: str
    who: str
    what: str
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    number: int = 0


class Query(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to find. Values of one filter are alternatives; all filters must match."""

    text: str = ""
    """Plain words, such as `book a flight to Lisbon`. Empty: all that the filters leave."""
    skills: tuple[str, ...] = ()
    """Ids of skills."""
    tags: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    """Media types that the agent takes or gives, such as `text/plain`."""
    versions: tuple[str, ...] = ()
    """Versions of the agent, as its card states them."""
    publishers: tuple[str, ...] = ()
    """Hosts; `example.com` includes its subdomains, `=example.com` does not."""
    published: bool = False
    """Only agents at a domain name, which are published in catalogs."""
    trust: Trust | None = None
    """Only agents whose card is signed, or only those whose card is not."""
    healthy: bool | None = None
    """Only agents whose card could be fetched the last time, or only the others."""
    limit: int = 10
    page: str = ""
    """The `next` of the page before."""


class Hit(Struct, frozen=True, omit_defaults=True):
    """An entry that a query has found."""

    entry: Entry
    score: float = 0.0
    """From 0 to 100; the best hit of a text has 100. It says nothing across registries."""
    reasons: tuple[str, ...] = ()
    """Where the words of the query were found, such as `tags: travel`."""


class Hits(Struct, frozen=True, omit_defaults=True):
    """A page of hits. It counts only what the caller may see."""

    hits: tuple[Hit, ...] = ()
    total: int = 0
    next: str = ""
    """Where the next page begins; empty on the last one."""

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)


class Policy(Struct, frozen=True):
    """Which changes of a card need no approval."""

    accept: tuple[str, ...] = ()
    """Fields of a card, such as `version` or `skills`; `*` means all. Addresses, keys and security
    schemes always need approval."""

    def accepts(self, found: Sequence[Difference]) -> bool:
        """Whether the new card may replace the approved one without approval."""
        return all(not each.guarded and self._lists(each.path) for each in found)

    def _lists(self, path: str) -> bool:
        head = re.split(r"[.\[]", path, maxsplit=1)[0]
        return "*" in self.accept or head in self.accept


# ---- names ---------------------------------------------------------------------------------


def address(url: str) -> str:
    """Return the address of an agent in the form that is stored. Raises RegistryError."""
    try:
        target = parse(url)
    except EgressRefused as error:
        raise RegistryError(f"{url[:200]!r} is not the address of an agent: {error}") from None
    if target.query or "#" in url:
        raise RegistryError(f"{url[:200]!r}: the address of an agent has no query and no fragment")
    path = target.path
    for known in WELL_KNOWN:
        path = path.removesuffix(known)
    return f"{target.scheme}://{target.authority}{path.rstrip('/')}"


def urn(url: str) -> str:
    """Return the URN of the agent at an address: `urn:air:<host>:a2a:…`. A host that is not a
    domain name gets another kind of URN, which means nothing outside of this registry."""
    target = parse(address(url))
    path = [segment(part) for part in target.path.split("/") if part]
    port = "" if (target.scheme, target.port) == ("https", 443) else f":port-{target.port}"
    name = ":".join(("a2a", "at", *path)) if path else "a2a:agent"
    if has_domain(target.host):
        return f"urn:air:{target.host}{port}:{name}"
    return f"urn:dragoman:local:{target.host.replace(':', '-')}{port}:{name}"


def has_domain(host: str) -> bool:
    """Whether a host is a domain name: not an IP address, not `localhost`, not a single label."""
    return bool(domain(host))


def caller_name(caller: Caller) -> str:
    """The name of a caller, with the realm if there is one: the same identity in two realms is two
    callers. Empty for an anonymous one, and for one whose name looks like that of a realm."""
    if caller.realm and caller.identity:
        return f"{caller.identity}{IN_REALM}{caller.realm}"
    return "" if IN_REALM in caller.identity else caller.identity


def check_alias(alias: str) -> None:
    """Raise RegistryError if this cannot be an alias."""
    if not _ALIAS.fullmatch(alias):
        raise RegistryError(
            f"{alias[:80]!r} cannot be an alias: use up to 63 lower-case letters, digits and "
            "hyphens, such as flight-booking"
        )


def now() -> str:
    """The current time: RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# ---- rules ---------------------------------------------------------------------------------


def compare(before: CardVersion, after: CardVersion) -> list[Difference]:
    """What differs between two versions of a card, and between the keys that have signed them."""
    return differences(before.card, after.card, before.keys, after.keys)


def fetched(entry: Entry, found: CardVersion, policy: Policy) -> Entry:
    """The entry after its card was fetched."""
    if entry.state in GONE:
        return entry
    entry = replace(entry, health=Health(good=found.fetched))
    if entry.approved is None:
        return replace(entry, candidate=found)
    differing = compare(entry.approved, found)
    if policy.accepts(differing):  # also if nothing differs
        return replace(entry, state="approved", approved=found, candidate=None, refused="")
    if found.digest == entry.refused:
        return replace(entry, state="approved", candidate=None)
    return replace(entry, state="changed", candidate=found)


def unreachable(entry: Entry, error: str, at: str) -> Entry:
    """The entry after a fetch of its card failed. The approved card stays."""
    return replace(entry, health=Health(good=entry.health.good, failed=at, error=error))


def approve(entry: Entry) -> Entry:
    """The entry after the operator has approved its newest card."""
    if entry.state == "removed":
        raise RegistryError(f"{entry.urn} was removed; add {entry.url} again")
    card = entry.candidate or entry.approved
    if card is None:
        why = f": {entry.health.error}" if entry.health.error else ""
        raise RegistryError(
            f"{entry.urn} has no card to approve; its card could not be fetched yet{why}"
        )
    return replace(entry, state="approved", approved=card, candidate=None, refused="")


def reject(entry: Entry) -> Entry:
    """The entry after the operator has rejected it. If its card has changed, only the change is
    rejected, and the approved card stays."""
    if entry.state == "changed" and entry.candidate is not None:
        return replace(entry, state="approved", candidate=None, refused=entry.candidate.digest)
    if entry.state == "removed":
        raise RegistryError(f"{entry.urn} was removed already")
    return replace(entry, state="rejected")


def remove(entry: Entry) -> Entry:
    """The entry after the operator has removed it. Its alias is free again."""
    return replace(entry, state="removed", alias="", approved=None, candidate=None, refused="")


def restore(entry: Entry) -> Entry:
    """A rejected or removed entry that the operator has added again. What was approved before does
    not count."""
    if entry.state not in GONE:
        return entry
    return replace(entry, state="pending", approved=None, candidate=None, refused="")


def for_readers(entry: Entry) -> Entry:
    """The part of an entry that callers without rights get."""
    return replace(
        entry,
        state="approved",
        candidate=None,
        named_by="",
        audience=Audience(),
        refused="",
        health=replace(entry.health, error=""),
        approved=entry.approved and replace(entry.approved, findings=()),
    )


def change(before: Entry | None, after: Entry, who: str, what: str, at: str) -> Change | None:
    """The record of a change; None if nothing but the health, or the signatures, is new."""
    old, new = _recorded(before), _recorded(after)
    differing = [name for name in new if (old.get(name) or None) != (new[name] or None)]
    if not differing:
        return None
    return Change(
        after.urn,
        at,
        who,
        what,
        {name: old[name] for name in differing if name in old},
        {name: new[name] for name in differing},
    )


def _recorded(entry: Entry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    said = asdict(entry)
    for name in ("health", "added", "updated"):
        del said[name]
    for name in ("approved", "candidate"):
        version: CardVersion | None = said[name]
        if version is not None:
            card = msgspec.to_builtins(replace(version.card, signatures=()))
            said[name] = {"card": card, "keys": sorted(version.keys)}
    found: dict[str, Any] = msgspec.to_builtins(said)
    return found
