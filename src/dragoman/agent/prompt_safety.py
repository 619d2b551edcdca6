"""Prompt safety: cards and messages are data, also where a model reads them.

`sanitize` makes of them what may stand in a prompt: bounded, without characters that people do not
see and models do, between marks that the words cannot forge. What remains may still lie, so that
who may be asked at all is decided before any model reads a word, by `eligible`, from addresses and
declarations alone. `lookalikes` finds names that could be taken for each other.
"""

# ruff: noqa: RUF001 - letters that look like others are the matter here

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import assert_never

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from dragoman.model.types import (
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    SecurityScheme,
)
from dragoman.security.addresses import loopback
from dragoman.security.egress import EgressRefused, Rule, parse

LIMIT = 8000
"""How many characters of a stranger's words a prompt gets."""
FIELD = 1000
"""How many of one field of a card: a long one must not crowd out the others."""
SKILLS, WORDS = 32, 16
"""How many skills of a card, and how many tags and examples of a skill."""
SOURCE = 200
CUT = " [cut]"
OPEN, CLOSE = (
    "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}",
    "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}",
)
MARKS = 8
"""The most accents on a letter. Some script may need four; to sort thousands takes seconds."""

_TIDY = str.maketrans(
    {
        **dict.fromkeys("\r\v\f\x85\u2028\u2029", "\n"),
        # the marks' own, and what looks like them
        **dict.fromkeys((OPEN, "\u301a", "\u2e28", "\u2985"), "["),
        **dict.fromkeys((CLOSE, "\u301b", "\u2e29", "\u2986"), "]"),
    }
)
# Printable by their category, and yet nothing is to be seen of them: variation selectors, fillers,
# joiners, the whole plane of tags.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f"
    "\U000e0000-\U000e0fff]"
)
_BLOCK = re.compile(rf"{OPEN}untrusted \w+[^\n]*{CLOSE}\n(.*)\n{OPEN}end \w+{CLOSE}", re.DOTALL)


# ---- words ---------------------------------------------------------------------------------


def sanitize(words: str | Message | AgentCard, *, limit: int = LIMIT, source: str = "") -> str:
    """The words as a block for a prompt, at most so many characters of them and its two marks. The
    marks carry a digest of the words, which words cannot foretell; `source` is told beside it.
    What has been made into a block of this source stays as it is."""
    name = _line(source, SOURCE)
    if isinstance(words, str) and (known := _BLOCK.fullmatch(words)):
        body = clean(known[1], limit)
        if words == _fenced(body, name):
            return words
    return _fenced(clean(told(words), limit), name)


def clean(text: str, limit: int = LIMIT) -> str:
    """The text in its plainest form (NFKC), without what nobody would see, and so long at most.
    To clean it again changes nothing."""
    text = text[: 16 * limit]  # much of it may fall away, but to look at all of it takes time
    while (plain := _plain(text)) != text:
        text = plain
    if len(text) <= limit:
        return text
    return text[: limit - len(CUT)] + CUT if limit > len(CUT) else text[:limit]


def told(words: str | Message | AgentCard) -> str:
    """What is said, as text: a line for each field of a card, which no field can forge."""
    match words:
        case str():
            return words
        case Message():
            return "\n".join(map(_part, words.parts))
        case AgentCard():
            return "\n".join(_card(words))
        case _ as never:
            assert_never(never)


def _plain(text: str) -> str:
    text = text.replace("\r\n", "\n").translate(_TIDY)
    if text.isascii():
        return "".join(c for c in text if c.isprintable() or c in "\n\t")
    # what this Python has no name for is not printable either: a model may know it
    seen = (c for c in _UNSEEN.sub("", text) if c.isprintable() or c in "\n\t" or c.isspace())
    normal = unicodedata.normalize("NFKC", _sparse("".join(seen)))
    return "".join(c for c in normal if c.isprintable() or c in "\n\t")


def _sparse(text: str) -> str:
    """With no more than so many marks on a letter: normalizing sorts them, each against each."""
    found, run = [], 0
    for char in text:
        run = run + 1 if unicodedata.combining(char) else 0
        if run <= MARKS:
            found.append(char)
    return "".join(found)


def _fenced(body: str, source: str) -> str:
    digest = hashlib.sha256(f"{source}\n{body}".encode()).hexdigest()[:32]
    name = f" {source}" if source else ""
    return f"{OPEN}untrusted {digest}{name}{CLOSE}\n{body}\n{OPEN}end {digest}{CLOSE}"


def _line(text: str, limit: int = FIELD) -> str:
    """On one line: what comes after a line's end could pass for another field."""
    return clean(" ".join(clean(text, limit).split()), limit)


def _part(part: Part) -> str:
    if part.text is not None:
        return part.text
    if part.data is not UNSET:
        return msgspec.json.encode(part.data).decode()
    what = " ".join(filter(None, (_line(part.filename), _line(part.media_type))))
    return f"[file {what or part.url or 'without a name'}]"


def _card(card: AgentCard) -> Iterable[str]:
    yield f"agent: {_line(card.name)}"
    if card.provider is not None:
        yield f"provider: {_line(card.provider.organization)}"
    yield f"description: {_line(card.description)}"
    for skill in card.skills[:SKILLS]:
        yield from _skill(skill)
    if len(card.skills) > SKILLS:
        yield f"{len(card.skills) - SKILLS} more skills{CUT}"


def _skill(skill: AgentSkill) -> Iterable[str]:
    yield f"skill {_line(skill.id, 100)}: {_line(skill.name)}"
    yield f"  description: {_line(skill.description)}"
    yield f"  tags: {', '.join(_line(tag, 100) for tag in skill.tags[:WORDS])}"
    for example in skill.examples[:WORDS]:
        yield f"  example: {_line(example)}"


# ---- who may be asked ----------------------------------------------------------------------


class Policy(Struct, frozen=True, kw_only=True):
    """Who may be asked. Without origins nobody is; what else is empty does not matter."""

    origins: tuple[str, ...] = ()
    """`https://a.example` is just that; `a.example`, `*.a.example`, `10.0.0.0/8` and
    `[::1]:8443` are hosts, on any port unless they name one."""
    schemes: tuple[str, ...] = ()
    """One of these is needed to be let in, by every way in that the card names: `bearer`, `basic`
    or another of HTTP, `apiKey`, `oauth2`, `openIdConnect`, `mutualTLS`."""
    extensions: tuple[str, ...] = ()
    """Extensions that the agent must offer."""
    forbidden: tuple[str, ...] = ()
    """Extensions that it must not offer; `*` is any that it requires."""
    bindings: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    """Major.Minor."""
    tags: tuple[str, ...] = ()
    """One of its skills must have all of these."""
    signed: bool | Callable[[AgentCard], bool] = False
    """What checks the card's signatures; True only looks whether there are any."""


def eligible(
    cards: Iterable[AgentCard] | Mapping[str, AgentCard], policy: Policy
) -> list[AgentCard]:
    """The cards that the policy lets through, each with only those of its addresses that are let
    through, too. In a mapping from where they were found, those places must be listed as well: a
    card can name any address. No text of a card decides anything."""
    found = cards.items() if isinstance(cards, Mapping) else ((None, card) for card in cards)
    return [
        _narrowed(card, addresses)
        for where, card in found
        if (where is None or _listed(where, policy))
        and not objection(card, policy)
        and (addresses := _addresses(card, policy))
    ]


def objection(card: AgentCard, policy: Policy) -> str:
    """Why a card is not eligible, wherever it was found; empty if it is."""
    if not _addresses(card, policy):
        return "none of its addresses is listed, safe, and of a wanted binding and version"
    if policy.schemes and not _guarded(card, policy.schemes):
        return f"it lets callers in without {' or '.join(policy.schemes)}"
    offered = {item.uri: item.required for item in card.capabilities.extensions}
    if missing := [uri for uri in policy.extensions if uri not in offered]:
        return f"it does not offer {missing[0]}"
    if banned := [uri for uri in policy.forbidden if uri in offered]:
        return f"it offers {banned[0]}"
    if "*" in policy.forbidden and any(offered.values()):
        return "it requires an extension"
    if policy.tags and not any(set(policy.tags) <= set(skill.tags) for skill in card.skills):
        return f"no skill of it has the tags {', '.join(policy.tags)}"
    if policy.signed and not card.signatures:
        return "it is not signed"
    if callable(policy.signed) and not policy.signed(card):
        return "its signature does not hold"
    return ""


def kind(scheme: SecurityScheme) -> str:
    """What a scheme is called in a policy."""
    if (http := scheme.http_auth_security_scheme) is not None:
        return http.scheme.lower()
    if scheme.api_key_security_scheme is not None:
        return "apiKey"
    if scheme.oauth2_security_scheme is not None:
        return "oauth2"
    if scheme.open_id_connect_security_scheme is not None:
        return "openIdConnect"
    return "mutualTLS" if scheme.mtls_security_scheme is not None else ""


def _guarded(card: AgentCard, wanted: tuple[str, ...]) -> bool:
    """Whether every way in takes one of these."""
    ways = [
        {kind(card.security_schemes[name]) for name in way.schemes if name in card.security_schemes}
        for way in card.security_requirements
    ]
    return bool(ways) and all(not way.isdisjoint(wanted) for way in ways)


def _addresses(card: AgentCard, policy: Policy) -> tuple[AgentInterface, ...]:
    return tuple(
        replace(item, url=url)
        for item in card.supported_interfaces
        if (not policy.bindings or item.protocol_binding.upper() in policy.bindings)
        and (not policy.versions or _minor(item.protocol_version) in policy.versions)
        and (url := _listed(item.url, policy, grpc=item.protocol_binding.upper() == "GRPC"))
    )


def _narrowed(card: AgentCard, addresses: tuple[AgentInterface, ...]) -> AgentCard:
    if addresses == card.supported_interfaces:
        return card
    # signatures are for the whole of it
    return replace(card, supported_interfaces=addresses, signatures=())


def _listed(url: str, policy: Policy, *, grpc: bool = False) -> str:
    """The URL as it may be dialled, empty if it may not. Of gRPC, cards tell host and port alone,
    which then must be dialled with TLS."""
    scheme, _, rest = url.rpartition("://")
    name = scheme.lower() or ("grpcs" if grpc else "")
    tls = {"https": True, "grpcs": grpc, "http": False, "grpc": False}.get(name)
    if tls is None or (name.startswith("grpc") and not grpc):
        return ""
    try:
        target = parse(f"{'https' if tls else 'http'}://{rest}")
    except EgressRefused:
        return ""
    local = loopback(target.named)
    if not tls and not local:
        return ""
    for rule, only in map(_rule, policy.origins):
        if only in ("", target.scheme) and rule.matches(target.named, target.port):
            return url if scheme or local else f"grpcs://{url}"
    return ""


@lru_cache(1024)
def _rule(entry: str) -> tuple[Rule, str]:
    """A line of the list, and the scheme if it is a whole origin."""
    if "://" not in entry:
        return Rule.parse(entry), ""
    try:
        target = parse(entry)
    except EgressRefused as error:
        raise ValueError(f"{entry!r} cannot be allowed: {error}") from None
    return Rule.parse(f"{target.bracketed}:{target.port}"), target.scheme


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


# ---- names ---------------------------------------------------------------------------------

# Letters that pass for Latin ones, after NFKC and casefold, small or large. The common ones: all
# that Unicode knows of would be more than this package.
_LIKE = "aаα bвьβ cс dԁđ eеεє3 hһнη jј kкκ liіӏιı1|ł mмμ nпν oоοσ0ø pрρ qԛ rг sѕ5 tтτ uυц vѵ wԝω"
_LIKE += " xхχ yуγ"
_PASSES = str.maketrans({other: group[0] for group in _LIKE.split() for other in group[1:]})
_DROPPED = re.compile(r"[\W_]+")


def skeleton(name: str) -> str:
    """What of a name is left to somebody who does not look closely."""
    bare = unicodedata.normalize("NFD", clean(name, FIELD).casefold())
    letters = "".join(c for c in bare if not unicodedata.combining(c)).translate(_PASSES)
    return _DROPPED.sub("", letters).replace("rn", "m").replace("vv", "w")


def lookalikes(cards: Iterable[AgentCard]) -> list[tuple[AgentCard, ...]]:
    """Cards whose names could be taken for each other, or are the same: each such group."""
    groups: dict[str, list[AgentCard]] = {}
    for card in cards:
        groups.setdefault(skeleton(card.name), []).append(card)
    return [tuple(group) for group in groups.values() if len(group) > 1]
