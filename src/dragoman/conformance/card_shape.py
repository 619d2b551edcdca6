"""Checks the shape of a document: whether each field is present, has the right type, and is spelled
correctly.

It knows the structs of a card and no other rules. Nothing is fatal: a wrong value is reported and
dropped, so that one run reports all errors of a document.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec
from msgspec import Struct

from dragoman.model import types
from dragoman.model.types import WireStruct

Level: TypeAlias = Literal["error", "warning", "note"]


class Finding(Struct, frozen=True):
    """A problem with a field, and what to do about it."""

    level: Level
    field: str
    """A path such as `skills[0].id`, the name of a header, or empty for the whole document."""
    text: str


NAMES: dict[type, str] = {
    str: "a string",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    int: "a number",
    float: "a number",
    type(None): "null",
}
WAYS: dict[tuple[type, type], str] = {
    (list, str): "put it in [ ]",
    (list, dict): "put it in [ ]",
    (str, int): "put it in quotes",
    (str, float): "put it in quotes",
    (bool, str): "write true or false without quotes",
    (dict, list): 'write { } with a name before each, as in {"name": …}',
}

GIVE = {
    "name": "a name that people can read",
    "description": "one or two sentences on what it does",
    "supportedInterfaces": 'at least one {"url", "protocolBinding", "protocolVersion"}',
    "version": 'the version of the agent, such as "1.0.0"',
    "capabilities": '{"streaming": true}, or {} for none',
    "defaultInputModes": 'the accepted media types, such as ["text/plain"]',
    "defaultOutputModes": 'the media types of the results, such as ["text/plain"]',
    "skills": "the skills of the agent, or [] for none",
    "url": "an absolute https URL",
    "organization": "the operator of the agent",
    "protocolBinding": "JSONRPC, HTTP+JSON or GRPC",
    "protocolVersion": '"1.0"',
    "id": "an id that no other skill has",
    "tags": "at least one keyword",
    "location": "header, query or cookie",
    "apiKeySecurityScheme.name": "the name of the header, query parameter or cookie",
    "scheme": 'the HTTP authentication scheme, such as "Bearer"',
    "flows": "one flow, such as authorizationCode",
    "openIdConnectUrl": "the https address of the provider's openid-configuration",
    "authorizationUrl": "the https URL where people log in",
    "tokenUrl": "the https URL of the token endpoint",
    "deviceAuthorizationUrl": "the https URL of the device authorization endpoint",
    "scopes": "the scopes and their descriptions, or {} for none",
    "protected": "the protected header of the JWS, base64url of a JSON object",
    "signature": "the signature of the JWS in base64url",
}
"""What to put into a required field, by the last names of its path."""

OLD: dict[type[WireStruct], dict[str, str]] = {
    types.AgentCard: {
        "url": "supportedInterfaces",
        "preferredTransport": "supportedInterfaces",
        "additionalInterfaces": "supportedInterfaces",
        "protocolVersion": "supportedInterfaces",
        "protocolVersions": "supportedInterfaces",
        "security": "securityRequirements",
        "supportsAuthenticatedExtendedCard": "capabilities.extendedAgentCard",
        "supportsExtendedAgentCard": "capabilities.extendedAgentCard",
    },
    types.AgentCapabilities: {"stateTransitionHistory": ""},
    types.AgentInterface: {"transport": "protocolBinding"},
    types.AgentSkill: {"security": "securityRequirements"},
    types.APIKeySecurityScheme: {"in": "location"},
}
"""Names that 1.0 has removed, and what replaces them."""

KINDS = {
    "apiKey": "apiKeySecurityScheme",
    "http": "httpAuthSecurityScheme",
    "oauth2": "oauth2SecurityScheme",
    "openIdConnect": "openIdConnectSecurityScheme",
    "mutualTLS": "mtlsSecurityScheme",
}
"""The kinds of security schemes: the `type` of 0.3, and the field of 1.0."""
TYPED = {
    *("type", "description", "in", "name", "scheme", "bearerFormat"),
    *("flows", "openIdConnectUrl", "oauth2MetadataUrl"),
}
"""The structs of security schemes in 0.3."""


# ---- the document --------------------------------------------------------------------------


class _Object(dict[str, Any]):
    twice: list[str]


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    counts = Counter(name for name, _ in pairs) if len(made) < len(pairs) else {}
    made.twice = [name for name, number in counts.items() if number > 1]
    return made


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def read(document: bytes, found: list[Finding]) -> dict[str, Any] | None:
    """Parse the object in a document; None with a finding if that fails."""
    fault = ""
    try:
        text = document.decode()
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        fault = f"is not UTF-8 (byte {error.start}); save it as UTF-8"
    except ValueError as error:
        if not text.strip():
            fault = "is empty; serve the card there"
        elif text.startswith("\ufeff"):
            fault = "begins with a byte order mark; save it as UTF-8 without one"
        elif text.lstrip().startswith("<"):
            fault = "is a web page or XML, not JSON; check the address"
        else:
            fault = f"is not valid JSON: {error}; correct it"
    else:
        if isinstance(value, dict):
            found.extend(_twice(value, ""))
            return value
        fault = f"is {NAMES[type(value)]}; a card is one JSON object"
    found.append(Finding("error", "", fault))
    return None


def _twice(value: Any, path: str) -> Iterator[Finding]:
    if isinstance(value, _Object):
        for name in value.twice:
            text = "appears more than once, and clients differ in which one they use; keep one"
            yield Finding("error", at(path, name), text)
        for name, item in value.items():
            yield from _twice(item, at(path, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _twice(item, f"{path}[{place}]")


def at(path: str, name: str) -> str:
    """The path of a field of the object at this path."""
    if not re.fullmatch(r"[\w-]+", name, re.ASCII):
        return f"{path}[{quote(name)}]"
    return f"{path}.{name}" if path else name


def quote(text: str) -> str:
    """Quote a text as in the document, shortened."""
    return json.dumps(text if len(text) <= 60 else f"{text[:59]}…", ensure_ascii=False)


# ---- the fields ----------------------------------------------------------------------------


def fit(kind: Any, value: Any, path: str, found: list[Finding]) -> Any:
    """Convert a value to this type, with the fields by their right names. Report what does not
    fit."""
    kind, least = _without_none(kind)
    if kind is Any:
        return value
    origin = get_origin(kind)
    struct = origin is None and issubclass(kind, WireStruct)
    expected: type = {tuple: list, dict: dict}.get(origin) or (dict if struct else kind)
    fits = isinstance(value, expected)
    if not fits:
        way = WAYS.get((expected, type(value)), f"write {NAMES[expected]}")
        if kind is types.StringList:
            way = 'write {"list": […]}'
        given = next(name for each, name in NAMES.items() if isinstance(value, each))
        given = str(value).lower() if isinstance(value, bool) else given
        found.append(Finding("error", path, f"must be {NAMES[expected]}, not {given}; {way}"))
        return expected()
    if least and not value:
        found.append(Finding("error", path, f"is empty; give {_give(path)}"))
    if struct:
        return _struct(kind, value, path, found)
    if origin is tuple:
        inner = get_args(kind)[0]
        return [fit(inner, item, f"{path}[{n}]", found) for n, item in enumerate(value)]
    if origin is dict:
        inner = get_args(kind)[1]
        return {name: fit(inner, item, at(path, name), found) for name, item in value.items()}
    return value


def _without_none(kind: Any) -> tuple[Any, int]:
    """A type without `None`, and the minimum length of its values."""
    if get_origin(kind) is Annotated:
        notes = [note.min_length for note in kind.__metadata__]
        return kind.__origin__, max(number or 0 for number in notes)
    for inner in get_args(kind):
        if type(None) in get_args(kind) and inner is not type(None):
            return _without_none(inner)
    return kind, 0


def _give(path: str) -> str:
    # A name may have its other spelling.
    names = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), path).split(".")
    return GIVE.get(".".join(names[-2:])) or GIVE.get(names[-1], "a value")


def _struct(
    kind: type[WireStruct], value: dict[str, Any], path: str, found: list[Finding]
) -> dict[str, Any]:
    fields = {item.encode_name: item for item in msgspec.structs.fields(kind)}
    snakes = {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower(): name for name in fields}
    made: dict[str, Any] = {}
    for given, item in value.items():
        name = given if given in fields else snakes.get(given, "")
        place = at(path, given)
        if not name:
            found.extend(_unknown(kind, given, value, path))
            continue
        if name != given and name in value:
            found.append(Finding("error", place, f"repeats {name}; remove this one"))
            continue
        if name != given:
            text = f"must be written {name} in JSON; only some clients accept this spelling"
            found.append(Finding("warning", place, text))
        if item is not None:  # null is the same as absent
            made[name] = fit(fields[name].type, item, place, found)
    for name, field in fields.items():
        if field.required and name not in made:
            found.append(_missing(kind, name, value, path))
    if kind in (types.SecurityScheme, types.OAuthFlows) and len(made) != 1:
        found.append(_one(kind, list(fields), list(made), value, path))
    return made


def _missing(kind: type[WireStruct], name: str, value: dict[str, Any], path: str) -> Finding:
    place = at(path, name)
    if name == "supportedInterfaces" and OLD[kind].keys() & value.keys():
        text = (
            "is missing: this card has the form of A2A 0.3, and 1.0 clients find no address in it; "
            f"give {_give(place)}"
        )
        return Finding("error", place, text)
    what = "is null, which means missing" if name in value else "is missing"
    return Finding("error", place, f"{what}; give {_give(place)}")


def _unknown(
    kind: type[WireStruct], name: str, value: dict[str, Any], path: str
) -> Iterator[Finding]:
    place = at(path, name)
    known = [item.encode_name for item in msgspec.structs.fields(kind)]
    edition = "1.0" if kind.__module__ == types.__name__ else "0.3"
    near = get_close_matches(name.lower(), [other.lower() for other in known], 1, 0.75)
    if kind is types.SecurityScheme and name in TYPED:
        return  # with its 1.0 form it is for older clients; alone, the scheme reports it
    if name in OLD.get(kind, {}):
        now = OLD[kind][name]
        if value[name] and not _says(value, now):
            way = f"say it in {now}" if now else "remove it"
            yield Finding("warning", place, f"belongs to A2A 0.3, and 1.0 clients ignore it; {way}")
    elif kind is types.SecurityRequirement and isinstance(value[name], list):
        scopes = ", ".join(quote(str(scope)) for scope in value[name])
        way = f'{{"schemes": {{{quote(name)}: {{"list": [{scopes}]}}}}}}'
        yield Finding(
            "error", place, f"has the form of A2A 0.3, so nothing is required; write {way}"
        )
    elif near:
        meant = next(other for other in known if other.lower() == near[0])
        yield Finding("warning", place, f"is not a field of A2A {edition}; did you mean {meant}?")
    else:
        text = f"is not a field of A2A {edition}, and clients ignore it; remove it, or put it in "
        yield Finding("note", place, f"{text}the params of an extension")


def _says(value: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    inner = value.get(name) if name and isinstance(value, dict) else None
    return inner is not None and (not rest or _says(inner, rest))


def _one(
    kind: type[WireStruct], fields: list[str], made: list[str], value: dict[str, Any], path: str
) -> Finding:
    if made:
        what = "scheme" if kind is types.SecurityScheme else "flow"
        text = f"has {' and '.join(made)}, but only one is allowed; make a scheme of each {what}"
        return Finding("error", path, text)
    if new := KINDS.get(str(value.get("type"))):
        text = f'is in its 0.3 form, which 1.0 clients ignore; write {{"{new}": {{…}}}}'
        return Finding("error", path, text)
    return Finding("error", path, f"is empty; give one of {', '.join(fields)}")
