"""Prompt safety: treat cards and messages as data, also when a model reads them.

`sanitize` prepares text for a prompt: it limits the length, removes invisible characters, and puts
the text between delimiters that it cannot forge. The text may still lie, so `eligible` decides
which agents may be called before a model reads anything, from addresses and declarations alone.
`lookalikes` finds names that can be mistaken for each other.
"""

# ruff: noqa: RUF001 - this module is about letters that look like others

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, assert_never

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
from dragoman.security.address_policy import EgressRefused, Rule, parse
from dragoman.security.client_network import loopback

__all__ = (
    "Policy",
    "as_text",
    "clean",
    "clean_schema",
    "eligible",
    "lookalikes",
    "objection",
    "sanitize",
)

LIMIT = 8000
"""The most characters of foreign text in a prompt."""
FIELD = 1000
"""The most characters of one field of a card: a long field must not push out the others."""
SKILLS, WORDS = 32, 16
"""The most skills of a card, and the most tags and examples of a skill."""
SOURCE = 200
CUT = " [cut]"
OPEN, CLOSE = (
    "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}",
    "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}",
)
MARKS = 8
"""The most combining marks on a letter. A script may need four; to sort thousands takes seconds."""

_TIDY = str.maketrans(
    {
        **dict.fromkeys("\r\v\f\x85\u2028\u2029", "\n"),
        # The delimiters, and characters that look like them.
        **dict.fromkeys((OPEN, "\u301a", "\u2e28", "\u2985"), "["),
        **dict.fromkeys((CLOSE, "\u301b", "\u2e29", "\u2986"), "]"),
    }
)
NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""The parts of a JSON Schema whose keys are names."""
# Characters that count as printable but are invisible: variation selectors, fillers, joiners, the
# whole plane of tags.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f"
    "\U000e0000-\U000e0fff]"
)
_BLOCK = re.compile(rf"{OPEN}untrusted \w+[^\n]*{CLOSE}\n(.*)\n{OPEN}end \w+{CLOSE}", re.DOTALL)


# ---- text ----------------------------------------------------------------------------------


def sanitize(words: str | Message | AgentCard, *, limit: int = LIMIT, source: str = "") -> str:
    """Return the text as a block for a prompt: at most `limit` characters, between two delimiters.
    The delimiters contain a digest of the text, which the text cannot predict, and `source`. A
    block that was made with the same source is returned unchanged."""
    name = _line(source, SOURCE)
    if isinstance(words, str) and (block := _BLOCK.fullmatch(words)):
        body = clean(block[1], limit)
        if words == _delimited(body, name):
            return words
    return _delimited(clean(as_text(words), limit), name)


def clean(text: str, limit: int = LIMIT) -> str:
    """Normalize the text (NFKC), remove invisible characters and cut it to `limit` characters.
    Cleaning clean text changes nothing."""
    text = text[: 16 * limit]  # most may be removed, but checking all takes time
    while (plain := _plain(text)) != text:
        text = plain
    if len(text) <= limit:
        return text
    return text[: limit - len(CUT)] + CUT if limit > len(CUT) else text[:limit]


def clean_schema(schema: Any, limit: int = FIELD) -> Any:
    """Clean all strings of a JSON Schema. What would mean something else when it is clean, such as
    the value of an enum, is left out."""
    if isinstance(schema, str):
        return clean(schema, limit)
    if isinstance(schema, Sequence):
        return [clean_schema(item, limit) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Any] = {}
    for key, item in schema.items():
        if clean(key, limit) != key:
            continue
        if key in NAMES and isinstance(item, Mapping):
            found[key] = {
                name: clean_schema(each, limit)
                for name, each in item.items()
                if clean(name, limit) == name
            }
        elif key == "enum" and isinstance(item, Sequence):
            found[key] = [each for each in item if clean_schema(each, limit) == each]
        elif key not in ("const", "pattern") or clean_schema(item, limit) == item:
            found[key] = clean_schema(item, limit)
    return found


def as_text(words: str | Message | AgentCard) -> str:
    """Convert to text: a line for each field of a card. No field can forge another line."""
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
    # Characters that are new to this Python count as not printable: a model may know them.
    seen = (c for c in _UNSEEN.sub("", text) if c.isprintable() or c in "\n\t" or c.isspace())
    normal = unicodedata.normalize("NFKC", _limit_marks("".join(seen)))
    return "".join(c for c in normal if c.isprintable() or c in "\n\t")


def _limit_marks(text: str) -> str:
    """Limit the combining marks on a letter, because normalizing takes quadratic time in their
    number."""
    found, run = [], 0
    for char in text:
        run = run + 1 if unicodedata.combining(char) else 0
        if run <= MARKS:
            found.append(char)
    return "".join(found)


def _delimited(body: str, source: str) -> str:
    digest = hashlib.sha256(f"{source}\n{body}".encode()).hexdigest()[:32]
    name = f" {source}" if source else ""
    return f"{OPEN}untrusted {digest}{name}{CLOSE}\n{body}\n{OPEN}end {digest}{CLOSE}"


def _line(text: str, limit: int = FIELD) -> str:
    """Put text on one line: text after a line break could pass for another field."""
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


# ---- eligibility ---------------------------------------------------------------------------


class Policy(Struct, frozen=True, kw_only=True):
    """Which agents may be called. Without origins, none may. Other empty fields are not checked."""

    origins: tuple[str, ...] = ()
    """`https://a.example` is one origin. `a.example`, `*.a.example`, `10.0.0.0/8` and `[::1]:8443`
    are hosts, on any port unless they name one."""
    schemes: tuple[str, ...] = ()
    """Every alternative in the card must require one of these schemes: `bearer`, `basic` or another
    HTTP scheme, `apiKey`, `oauth2`, `openIdConnect`, `mutualTLS`."""
    extensions: tuple[str, ...] = ()
    """Extensions that the agent must offer."""
    forbidden: tuple[str, ...] = ()
    """Extensions that the agent must not offer; `*` means any extension that it requires."""
    bindings: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    """Protocol versions as Major.Minor."""
    tags: tuple[str, ...] = ()
    """One skill must have all of these tags."""
    signed: bool | Callable[[AgentCard], bool] = False
    """A function that checks the card's signatures; True only checks that there are any."""


def eligible(
    cards: Iterable[AgentCard] | Mapping[str, AgentCard], policy: Policy
) -> list[AgentCard]:
    """Return the cards that the policy allows, each with only its allowed addresses. In a mapping
    from URL to card, the URL must be allowed, too, because a card can name any address. No text of
    a card has an influence."""
    found = cards.items() if isinstance(cards, Mapping) else ((None, card) for card in cards)
    return [
        _with_addresses(card, addresses)
        for where, card in found
        if (where is None or _listed(where, policy))
        and not objection(card, policy)
        and (addresses := _addresses(card, policy))
    ]


def objection(card: AgentCard, policy: Policy) -> str:
    """Return why a card is not eligible, wherever it was found; empty if it is."""
    if not _addresses(card, policy):
        return "none of its addresses is listed, safe, and of a wanted binding and version"
    if policy.schemes and not _requires_one(card, policy.schemes):
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
    """The name of a scheme in a policy."""
    if (http := scheme.http_auth_security_scheme) is not None:
        return http.scheme.lower()
    if scheme.api_key_security_scheme is not None:
        return "apiKey"
    if scheme.oauth2_security_scheme is not None:
        return "oauth2"
    if scheme.open_id_connect_security_scheme is not None:
        return "openIdConnect"
    return "mutualTLS" if scheme.mtls_security_scheme is not None else ""


def _requires_one(card: AgentCard, wanted: tuple[str, ...]) -> bool:
    """Whether every alternative requires one of these schemes."""
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


def _with_addresses(card: AgentCard, addresses: tuple[AgentInterface, ...]) -> AgentCard:
    if addresses == card.supported_interfaces:
        return card
    # The signatures cover the whole card.
    return replace(card, supported_interfaces=addresses, signatures=())


def _listed(url: str, policy: Policy, *, grpc: bool = False) -> str:
    """Return the URL to dial, or an empty string if it is not allowed. For gRPC, cards give only
    host and port, and TLS is then required."""
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
    """Parse an entry of `origins`: the rule, and the scheme if it is a whole origin."""
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

# Letters that look like Latin ones, after NFKC and casefold, in lower or upper case. Only the
# common ones: all that Unicode lists would be larger than this package.
_LIKE = "aаα bвьβ cс dԁđ eеεє3 hһнη jј kкκ liіӏιı1|ł mмμ nпν oоοσ0ø pрρ qԛ rг sѕ5 tтτ uυц vѵ wԝω"
_LIKE += " xхχ yуγ"
_PASSES = str.maketrans({other: group[0] for group in _LIKE.split() for other in group[1:]})
_DROPPED = re.compile(r"[\W_]+")


def skeleton(name: str) -> str:
    """Map a name to a form that is the same for names that look alike."""
    bare = unicodedata.normalize("NFD", clean(name, FIELD).casefold())
    letters = "".join(c for c in bare if not unicodedata.combining(c)).translate(_PASSES)
    return _DROPPED.sub("", letters).replace("rn", "m").replace("vv", "w")


def lookalikes(cards: Iterable[AgentCard]) -> list[tuple[AgentCard, ...]]:
    """Return the groups of cards whose names are equal or look alike."""
    groups: dict[str, list[AgentCard]] = {}
    for card in cards:
        groups.setdefault(skeleton(card.name), []).append(card)
    return [tuple(group) for group in groups.values() if len(group) > 1]
