"""Checks an agent card: finds everything that is wrong with it, and says what to do.

An error keeps clients out or violates the specification. A warning affects some clients or is a
risk. A note is worth knowing. A card from before 1.0 is checked by the rules of its version.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias

import msgspec

from dragoman.client.discovery import SPOKEN
from dragoman.conformance.card_shape import GIVE, KINDS, Finding, Level, at, fit, quote, read
from dragoman.conformance.interface_url import reach, site, split
from dragoman.dialects import v1_0
from dragoman.dialects.v0_3 import card as v0_3
from dragoman.model.errors import A2AError
from dragoman.model.protocol import BINDINGS
from dragoman.model.types import AgentCard

__all__ = ["Finding", "check"]


Card: TypeAlias = dict[str, Any]
Rule: TypeAlias = Callable[[Card, str], Iterator[Finding]]

MODES = (
    *("defaultInputModes[]", "defaultOutputModes[]"),
    *("skills[].inputModes[]", "skills[].outputModes[]"),
)
MEANT = {
    "text": "text/plain",
    "json": "application/json",
    "data": "application/json",
    "file": "application/octet-stream",
    "image": "image/*",
    "audio": "audio/*",
    "video": "video/*",
    "*": "*/*",
}
OAUTH = "securitySchemes.*.oauth2SecurityScheme"
LINKS: dict[str, Level] = {
    "provider.url": "warning",
    "documentationUrl": "warning",
    "iconUrl": "warning",
    f"{OAUTH}.oauth2MetadataUrl": "error",
    f"{OAUTH}.flows.*.authorizationUrl": "error",
    f"{OAUTH}.flows.*.deviceAuthorizationUrl": "error",
    f"{OAUTH}.flows.*.tokenUrl": "error",
    f"{OAUTH}.flows.*.refreshUrl": "error",
    "securitySchemes.*.openIdConnectSecurityScheme.openIdConnectUrl": "error",
    "securitySchemes.*.oauth2MetadataUrl": "error",
    "securitySchemes.*.flows.*.authorizationUrl": "error",
    "securitySchemes.*.flows.*.tokenUrl": "error",
    "securitySchemes.*.flows.*.refreshUrl": "error",
    "securitySchemes.*.openIdConnectUrl": "error",
}
"""URLs that must use https, and the level of the finding if they do not."""
LONGEST = {"name": 200, "description": 5000, "skills[].name": 200, "skills[].description": 5000}
LINES = ("name", "version", "skills[].id", "skills[].name", "skills[].tags[]")
"""Texts of one line."""
RETIRED = {
    "implicit": "authorizationCode with PKCE",
    "password": "authorizationCode with PKCE, or deviceCode",
}
NOW = SPOKEN[0]
ORDER: tuple[Level, ...] = ("error", "warning", "note")

_MODE = re.compile(r"[\w!#$&^.+-]+/([\w!#$&^.+-]+|\*)(\s*;.*)?|\*/\*", re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")
_B64 = re.compile(r"[A-Za-z0-9_-]+")
# Includes marks that change the direction of text: they make a text look like another.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def check(document: bytes, *, url: str = "", headers: Mapping[str, str] = {}) -> list[Finding]:
    """Check a card that was found at this URL. Return all findings, the worst first."""
    found = list(_headers({name.lower(): value for name, value in headers.items()}))
    try:
        raw = read(document, found)
        if raw is not None:
            old = v0_3.older(raw) and not str(raw.get("protocolVersion")).startswith("1.")
            kind, rules = (v0_3.AgentCard, OLDER) if old else (AgentCard, RULES)
            card = fit(kind, raw, "", found)
            blamed = {finding.field for finding in found if finding.level == "error"}
            said = (finding for rule in rules for finding in rule(card, url))
            found += [finding for finding in said if finding.field not in blamed]
            if all(finding.level != "error" for finding in found):
                v1_0.decode(kind, document)
    except A2AError as error:  # what a client refuses is always an error
        found.append(Finding("error", "", f"{error}; correct it"))
    except RecursionError:
        found.append(Finding("error", "", "is nested too deeply; make it flatter"))
    return ordered(found)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Sort by level, the worst first."""
    return sorted(findings, key=lambda finding: (ORDER.index(finding.level), finding.field))


def visit(value: Any, pattern: str, path: str = "") -> Iterator[tuple[str, Any]]:
    """Find the values for a pattern such as `skills[].tags[]` or `securitySchemes.*`, with their
    paths."""
    head, _, rest = pattern.partition(".")
    name = head.removesuffix("[]")
    names = list(value) if name == "*" else [name] if name in value else []
    items = [(at(path, each), value[each]) for each in names]
    if head.endswith("[]"):
        items = [(f"{place}[{n}]", one) for place, many in items for n, one in enumerate(many)]
    for place, item in items:
        if rest:
            yield from visit(item, rest, place)
        else:
            yield place, item


# ---- HTTP response -------------------------------------------------------------------------


def _headers(headers: Mapping[str, str]) -> Iterator[Finding]:
    if not headers:
        return
    kind, _, options = (
        text.strip().lower() for text in headers.get("content-type", "").partition(";")
    )
    if not kind:
        yield Finding("warning", "Content-Type", "is missing; send application/json")
    elif kind != "application/json" and not kind.endswith("+json"):
        level: Level = "error" if kind == "text/html" else "warning"
        yield Finding(level, "Content-Type", f"is {quote(kind)}; send application/json")
    if "charset" in options and "utf-8" not in options:
        yield Finding("warning", "Content-Type", f"says {quote(options)}, but JSON is UTF-8")
    if "max-age" not in headers.get("cache-control", "").lower():
        text = "has no max-age, so clients fetch the card each time; send one, such as max-age=300"
        yield Finding("note", "Cache-Control", text)
    if "etag" not in headers:
        text = "is missing, so clients download the card each time; send one for each version"
        yield Finding("note", "ETag", text)


# ---- interfaces ----------------------------------------------------------------------------


def _interfaces(card: Card, url: str) -> Iterator[Finding]:
    seen: dict[tuple[Any, ...], str] = {}
    usable: set[str] = set()
    for path, item in visit(card, "supportedInterfaces[]"):
        binding, version = item.get("protocolBinding", ""), item.get("protocolVersion", "")
        yield from _binding(f"{path}.protocolBinding", binding)
        yield from _version(f"{path}.protocolVersion", version)
        yield from site(f"{path}.url", item, url)
        if binding in BINDINGS:
            usable.add(".".join(version.split(".")[:2]))
        key = (item.get("url", "").rstrip("/"), binding, version, item.get("tenant", ""))
        if all(key[:3]) and seen.setdefault(key, path) != path:
            yield Finding("warning", path, f"repeats {seen[key]}; remove it")
    if not card.get("supportedInterfaces") or NOW in usable:
        return
    way = f'give one with protocolVersion "{NOW}" and a protocolBinding of {", ".join(BINDINGS)}'
    older = [version for version in SPOKEN if version in usable]
    if older:
        text = f"have none for {NOW}, so that only clients that speak {', '.join(older)} can call"
        yield Finding("warning", "supportedInterfaces", f"{text}; {way}")
    else:
        text = f"has none that a {NOW} client can use; {way}"
        yield Finding("error", "supportedInterfaces", text)


def _binding(path: str, binding: str) -> Iterator[Finding]:
    if not binding or binding in BINDINGS:
        return
    letters = re.sub(r"[^A-Z0-9]", "", binding.upper())
    for name, known in BINDINGS.items():
        if letters in (name.replace("+", ""), *known.aliases):
            text = f"is {quote(binding)}, but names are compared exactly; write {name}"
            yield Finding("warning", path, text)
            return
    if _URI.fullmatch(binding):
        yield Finding("note", path, "is a custom binding; only clients that know it can call")
        return
    text = f"is {quote(binding)}, which clients do not know; use {', '.join(BINDINGS)}, or a URI"
    yield Finding("warning", path, f"{text} for a custom binding")


def _version(path: str, version: str) -> Iterator[Finding]:
    match = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", version, re.ASCII)
    if version and not match:
        text = f'is {quote(version)}; write Major.Minor, such as "{NOW}"'
        yield Finding("error", path, text)
    elif match and match[2]:
        yield Finding("warning", path, f'has a patch number; write "{match[1]}"')


# ---- description of the agent --------------------------------------------------------------


def _links(card: Card, _: str) -> Iterator[Finding]:
    for pattern, level in LINKS.items():
        for path, text in visit(card, pattern):
            if not text or (pattern == "iconUrl" and text.startswith("data:")):
                continue
            try:
                parts = split(text)
            except ValueError as error:
                yield Finding(level, path, str(error))
                continue
            local = parts.scheme == "http" and reach(parts.hostname or "") == "loopback"
            if parts.scheme != "https" and not local:
                yield Finding(level, path, f"is {parts.scheme}://; write https://")


def _texts(card: Card, _: str) -> Iterator[Finding]:
    for pattern, limit in LONGEST.items():
        for path, text in visit(card, pattern):
            if len(text) > limit:
                more = f"is {len(text)} characters long; use at most {limit}"
                yield Finding("warning", path, more)
    for pattern in LINES:
        for path, text in visit(card, pattern):
            if re.search(r"[\r\n\t]", text):
                yield Finding("warning", path, "contains a line break or a tab; write one line")
    yield from _marks(card, "")


def _marks(value: Any, path: str) -> Iterator[Finding]:
    if isinstance(value, str) and (match := _CONTROL.search(value)):
        text = f"contains the control character U+{ord(match[0]):04X}; remove it"
        yield Finding("warning", path, text)
    items = value.items() if isinstance(value, dict) else ()
    for name, item in items:
        yield from _marks(item, at(path, name))
    for place, item in enumerate(value if isinstance(value, list) else ()):
        yield from _marks(item, f"{path}[{place}]")


def _modes(card: Card, _: str) -> Iterator[Finding]:
    for pattern in MODES:
        for path, mode in visit(card, pattern):
            if not _MODE.fullmatch(mode):
                way = MEANT.get(mode.lower(), "type/subtype, such as text/plain")
                yield Finding("warning", path, f"is {quote(mode)}, not a media type; write {way}")


def _skills(card: Card, _: str) -> Iterator[Finding]:
    if card.get("skills") == []:
        yield Finding(
            "note", "skills", "is empty; name some skills, so that callers know what to ask for"
        )
    seen: dict[str, str] = {}
    for path, skill in visit(card, "skills[]"):
        name = skill.get("id")
        if name and seen.setdefault(name, path) != path:
            text = f"is also the id of {seen[name]}; give each skill its own id"
            yield Finding("error", f"{path}.id", text)
    for path, tag in visit(card, "skills[].tags[]"):
        if not tag.strip():
            yield Finding("warning", path, "is empty; give a keyword, or remove it")


def _capabilities(card: Card, _: str) -> Iterator[Finding]:
    able = card.get("capabilities", {})
    if able.get("extendedAgentCard") and not card.get("securitySchemes"):
        text = (
            "is true, but only authenticated callers get that card, and securitySchemes has no way "
        )
        yield Finding(
            "warning", "capabilities.extendedAgentCard", f"{text}to authenticate; add one"
        )
    seen: set[str] = set()
    for path, extension in visit(card, "capabilities.extensions[]"):
        uri = extension.get("uri", "")
        if not uri:
            yield Finding("error", f"{path}.uri", "is missing; give the URI of the extension")
        elif not _URI.fullmatch(uri):
            text = f"is {quote(uri)}, not a URI; use the URI in the extension's specification"
            yield Finding("warning", f"{path}.uri", text)
        elif uri in seen:
            yield Finding("warning", f"{path}.uri", "is declared twice; remove one")
        seen.add(uri)
        if extension.get("required"):
            text = "is true: the agent refuses callers that do not name it in A2A-Extensions"
            yield Finding("note", f"{path}.required", f"{text}; keep it only if this is intended")


# ---- security ------------------------------------------------------------------------------


def _schemes(card: Card, _: str) -> Iterator[Finding]:
    for path, place in visit(card, "securitySchemes.*.apiKeySecurityScheme.location"):
        if place and place not in ("header", "query", "cookie"):
            yield Finding("error", path, f"is {quote(place)}; write header, query or cookie")
    for path, flows in visit(card, f"{OAUTH}.flows"):
        for name in (name for name in RETIRED if name in flows):
            text = f"is deprecated, because it exposes tokens or passwords; use {RETIRED[name]}"
            yield Finding("warning", at(path, name), text)


def _requirements(card: Card, _: str) -> Iterator[Finding]:
    schemes = card.get("securitySchemes", {})
    found = [
        *visit(card, "securityRequirements[]"),
        *visit(card, "skills[].securityRequirements[]"),
    ]
    if schemes and not found:
        text = (
            "are declared, but nothing requires them; add them to securityRequirements, or remove "
        )
        yield Finding("note", "securitySchemes", f"{text}them")
    for path, requirement in found:
        if not requirement.get("schemes"):
            text = "requires nothing, so anyone may call; remove it if this is not intended"
            yield Finding("note", path, text)
        for name, scopes in requirement.get("schemes", {}).items():
            place = at(f"{path}.schemes", name)
            if name not in schemes:
                near = get_close_matches(name, schemes, 1)
                way = f"did you mean {near[0]}?" if near else "declare it, or remove it"
                yield Finding("error", place, f"is not among securitySchemes; {way}")
                continue
            yield from _scopes(place, scopes.get("list", []), schemes[name])


def _scopes(path: str, scopes: list[str], scheme: Card) -> Iterator[Finding]:
    flows = [flow for _, flow in visit(scheme, "oauth2SecurityScheme.flows.*")]
    offered = {name for flow in flows for name in flow.get("scopes", {})}
    for place, scope in enumerate(scopes):
        if flows and scope not in offered:
            text = (
                f"is {quote(scope)}, which no flow of the scheme offers; add it to the scopes "
                "of a flow"
            )
            yield Finding("warning", f"{path}.list[{place}]", text)


def _signatures(card: Card, _: str) -> Iterator[Finding]:
    for path, item in visit(card, "signatures[]"):
        if item.get("signature") and _bytes(item["signature"]) is None:
            text = "is not base64url without padding, as JWS requires; encode it so"
            yield Finding("error", f"{path}.signature", text)
        if item.get("protected"):
            yield from _protected(f"{path}.protected", item["protected"])


def _protected(path: str, text: str) -> Iterator[Finding]:
    try:
        header = msgspec.json.decode(_bytes(text) or b"", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        words = "must be a JSON object in base64url without padding"
        yield Finding("error", path, words)
        return
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm.lower() in ("", "none"):
        words = (
            f"has alg {quote(str(algorithm))}, which proves nothing; sign with an algorithm "
            "such as ES256"
        )
        yield Finding("error", path, words)
    elif algorithm.startswith("HS"):
        words = (
            f"has alg {algorithm}, so anyone who can verify a signature can forge one; sign "
            "with ES256"
        )
        yield Finding("warning", path, words)
    if not header.get("kid"):
        yield Finding("error", path, "has no kid, so clients cannot find the key; add it")
    if header.get("typ") != "JOSE":
        yield Finding("note", path, 'must have the typ "JOSE"')
    if "jku" in header and not str(header["jku"]).startswith("https://"):
        yield Finding("error", path, "has a jku that is not https; serve the keys over https")


def _bytes(text: str) -> bytes | None:
    if not _B64.fullmatch(text) or len(text) % 4 == 1:
        return None
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


# ---- before 1.0 ----------------------------------------------------------------------------

EXPECTED = (
    *("description", "version", "capabilities", "defaultInputModes", "defaultOutputModes"),
    *("skills", "skills[].name", "skills[].description", "skills[].tags"),
)
"""Fields that a 0.3 card must have, although our client does not need them."""


def _older(card: Card, url: str) -> Iterator[Finding]:
    main = (card.get("url", ""), card.get("preferredTransport", ""))
    first = next(v0_3.interfaces(card.get("protocolVersion", ""), main))
    text = (
        f"is for A2A {first.protocol_version}, and {NOW} clients may find no address in it; "
        "also serve"
    )
    yield Finding("note", "", f"{text} {NOW} there")
    for pattern in EXPECTED:
        parent, _, name = pattern.rpartition(".")
        for path, item in visit(card, parent) if parent else [("", card)]:
            if name not in item:
                text = f"is missing, and many clients refuse the card; give {GIVE[name]}"
                yield Finding("warning", at(path, name), text)
    yield from _binding("preferredTransport", main[1])
    yield from site("url", {"url": main[0], "protocolBinding": main[1]}, url)
    for path, item in visit(card, "additionalInterfaces[]"):
        address, transport = item.get("url", ""), item.get("transport", "")
        yield from _binding(f"{path}.transport", transport)
        if (address, transport) != main:
            yield from site(f"{path}.url", {"url": address, "protocolBinding": transport}, url)


def _older_security(card: Card, _: str) -> Iterator[Finding]:
    schemes = card.get("securitySchemes", {})
    for path, scheme in visit(card, "securitySchemes.*"):
        if scheme.get("type") not in KINDS:
            text = f"is {quote(scheme.get('type', ''))}; write one of {', '.join(KINDS)}"
            yield Finding("error", f"{path}.type", text)
    for path, requirement in (*visit(card, "security[]"), *visit(card, "skills[].security[]")):
        for name in requirement:
            if name not in schemes:
                text = "is not among securitySchemes; declare it, or remove it"
                yield Finding("error", at(path, name), text)


OLDER: tuple[Rule, ...] = (
    *(_older, _links, _texts, _modes, _skills),
    *(_older_security, _signatures),
)
RULES: tuple[Rule, ...] = (
    *(_interfaces, _links, _texts, _modes, _skills),
    *(_capabilities, _schemes, _requirements, _signatures),
)
