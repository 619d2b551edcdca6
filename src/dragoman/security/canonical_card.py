"""The canonical form of a card, which a signature covers (RFC 8785).

There are two forms. The 1.0 form has only the fields of A2A 1.0, so that all readers that parse the
card to an object get the same form. The whole form also has all other fields. Both omit
`signatures`, and fields of 1.0 with their default value unless they are required or have presence.
Fields that 1.0 does not define stay unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

import msgspec

from dragoman.model.types import AgentCard, WireStruct
from dragoman.security.card_keys import unique

Document: TypeAlias = AgentCard | Mapping[str, Any] | bytes | str
Form: TypeAlias = Literal["whole", "1.0"]

LARGEST = 1 << 20
"""The most bytes of a document."""
DEEPEST = 100
"""The deepest nesting of objects and lists."""


def canonical(document: Document, form: Form = "whole") -> bytes:
    """Return the canonical form of a card in UTF-8. Raises ValueError if it has none."""
    return jcs(covered(parse(document), form))


def jcs(value: Any) -> bytes:
    """Return JSON values in canonical form. Raises ValueError if they have none."""
    try:
        import rfc8785
    except ImportError:
        raise ImportError(
            "signed cards need a library that is not installed; run `pip install "
            "'dragoman[crypto]'`"
        ) from None
    try:
        return rfc8785.dumps(value)
    except UnicodeEncodeError:
        raise ValueError("a text is not valid Unicode") from None


def covered(document: Mapping[str, Any], form: Form) -> dict[str, Any]:
    """The part of the document that this form signs, before serialization."""
    found = _clean(AgentCard, dict(document), form == "whole")
    assert isinstance(found, dict)
    found.pop("signatures", None)
    return found


def hollow(document: Mapping[str, Any]) -> str:
    """The first required field of a card, at any depth, that is present and empty."""
    return _hollow(AgentCard, document)


def _hollow(kind: Any, value: Any) -> str:
    origin = get_origin(kind)
    if origin is tuple or origin is dict:
        inner = _bare(get_args(kind)[origin is dict])
        places = value.items() if origin is dict else enumerate(value)
        for name, item in places:
            if found := _hollow(inner, item):
                step = f"{name}." if origin is dict else f"[{name}]."
                return step + found
        return ""
    if not (isinstance(kind, type) and issubclass(kind, WireStruct)):
        return ""
    required = {item.encode_name for item in msgspec.structs.fields(kind) if item.required}
    for name, (inner, _) in _fields(kind).items():
        if name not in value:
            continue
        if name in required and _empty(value[name]):
            return name
        if found := _hollow(inner, value[name]):
            return name + ("" if found.startswith("[") else ".") + found
    return ""


def parse(document: Document) -> dict[str, Any]:
    """Parse a document strictly. Raises ValueError if parsers could read it differently."""
    if isinstance(document, AgentCard):
        document = msgspec.json.encode(document)
    if isinstance(document, bytes | str):
        document = read(document, LARGEST)
    if not isinstance(document, Mapping):
        raise ValueError("the card is not a JSON object")
    _bound(document)
    return dict(document)


def read(document: bytes | str, most: int) -> Any:
    """Parse JSON of limited length. Raises ValueError if an object has the same name twice."""
    if len(document) > most:
        raise ValueError(f"it is longer than {most} bytes")
    try:
        text = document if isinstance(document, str) else document.decode()
        return json.loads(text, object_pairs_hook=unique, parse_constant=_constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None


def _constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _bound(document: Any) -> None:
    level = [document]
    for _ in range(DEEPEST):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, Mapping) else item)
            if isinstance(inner, Mapping | list | tuple)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


@cache
def _fields(kind: type[WireStruct]) -> dict[str, tuple[Any, bool]]:
    """The type of each field, and whether it is kept if it has its default."""
    return {
        item.encode_name: (_bare(item.type), item.required or item.default is None)
        for item in msgspec.structs.fields(kind)
    }


@cache
def _aliases(kind: type[WireStruct]) -> dict[str, str]:
    """The alternative spelling of a field that ProtoJSON allows."""
    found = {re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower(): name for name in _fields(kind)}
    return {alias: name for alias, name in found.items() if alias != name}


def _bare(kind: Any) -> Any:
    if get_origin(kind) is Annotated:
        return _bare(kind.__origin__)
    inner = get_args(kind)
    if type(None) in inner:
        return _bare(next(each for each in inner if each is not type(None)))
    return kind


def _clean(kind: Any, value: Any, whole: bool) -> Any:
    """The value without defaults. A value of the wrong type stays: another check reports it."""
    origin = get_origin(kind)
    if origin is tuple and isinstance(value, list | tuple):
        inner = _bare(get_args(kind)[0])
        return [_clean(inner, item, whole) for item in value]
    if not isinstance(value, Mapping):
        return value
    if origin is dict:
        inner = _bare(get_args(kind)[1])
        return {name: _clean(inner, item, whole) for name, item in value.items()}
    if not (isinstance(kind, type) and issubclass(kind, WireStruct)):
        return value
    fields, aliases = _fields(kind), _aliases(kind)
    found: dict[str, Any] = {}
    for given, item in value.items():
        name = given if whole or given not in aliases else aliases[given]
        if name not in fields:
            if whole:
                found[name] = item
            continue
        if name != given and name in value:
            raise ValueError(f"{name} appears twice, in two spellings")
        inner, kept = fields[name]
        item = _clean(inner, item, whole)
        if item is not None and (kept or not _empty(item)):
            found[name] = item
    return found


def _empty(value: Any) -> bool:
    return value is False or (isinstance(value, str | list | tuple | dict) and not value)
