"""Hypothesis strategies for all values of the protocol, built from the struct definitions."""

from __future__ import annotations

import re
import types as kinds
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from dragoman.model import types
from dragoman.model.types import Part, WireStruct

KINDS: tuple[type[WireStruct], ...] = tuple(
    kind
    for kind in vars(types).values()
    if isinstance(kind, type) and issubclass(kind, WireStruct) and kind is not WireStruct
)
"""All structs of the protocol."""

ONEOFS = {
    types.OAuthFlows,
    types.SecurityScheme,
    types.SendMessageResponse,
    types.StreamResponse,
}
"""The structs whose fields are the members of one oneof."""

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3).map(list) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
"""Any JSON value."""

TIMES = st.builds(
    lambda moment, fraction: f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z".rjust(
        20 + len(fraction), "0"
    ),
    st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59)),
    st.from_regex(r"(\.[0-9]{1,9})?", fullmatch=True),
)
"""RFC 3339 times in UTC, with any fraction."""


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """A strategy for a type of the protocol."""
    origin = get_origin(kind)
    if origin is Annotated:
        (meta,) = (note for note in kind.__metadata__ if isinstance(note, msgspec.Meta))
        if meta.pattern:
            return TIMES
        if meta.min_length and kind.__origin__ is str:
            return st.text(
                st.characters(exclude_categories=["Cs"]), min_size=meta.min_length, max_size=8
            )
        return _tuples(get_args(kind.__origin__)[0], meta.min_length or 0)
    if origin in (Union, kinds.UnionType):
        return st.one_of(values(item) for item in get_args(kind))
    if origin is tuple:
        return _tuples(get_args(kind)[0], 0)
    if origin is dict:
        return st.dictionaries(TEXT, values(get_args(kind)[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, WireStruct):
        return PARTS if kind is Part else structs(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    return {
        Any: JSON,
        type(None): st.none(),
        UnsetType: st.just(UNSET),
        str: TEXT,
        bool: st.booleans(),
        bytes: st.binary(max_size=8),
        int: st.integers(-(2**31), 2**31 - 1),
    }[kind]


def hints(kind: type[WireStruct]) -> dict[str, Any]:
    """Return the types of a struct's fields, with their constraints."""
    return {
        name: hint
        for name, hint in get_type_hints(kind, include_extras=True).items()
        if name in kind.__struct_fields__
    }


def structs(kind: type[WireStruct]) -> st.SearchStrategy[Any]:
    """A strategy for a struct; of a oneof, at most one member is set."""
    fields = hints(kind)
    if kind in ONEOFS:
        return st.just(kind()) | st.one_of(
            st.builds(kind, **{name: values(hint)}) for name, hint in fields.items()
        )
    return st.builds(kind, **{name: values(hint) for name, hint in fields.items()})


def _tuples(kind: Any, least: int) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(values(kind), min_size=least, max_size=max(2, least)).map(tuple)


CONTENTS = {"text": TEXT, "raw": st.binary(max_size=8), "url": TEXT, "data": JSON}
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(
        Part,
        **{content: strategy},
        metadata=st.none() | st.dictionaries(TEXT, JSON, max_size=2),
        filename=TEXT,
        media_type=TEXT,
    )
    for content, strategy in CONTENTS.items()
)
"""Parts, each with exactly one content."""


# ---- documents to compare ------------------------------------------------------------------

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)


def same(value: Any) -> Any:
    """Normalise a document, so that all spellings of a number or time are equal."""
    if isinstance(value, dict):
        return {key: same(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [same(item) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and _TIME.fullmatch(value):
        return f"{value[:19]}.{value[20:-1].ljust(9, '0')}Z"
    return value


def document(value: Any) -> Any:
    """Convert a value to plain data."""
    return same(msgspec.to_builtins(value))


def filled(value: Any) -> Any:
    """Remove empty values from a document."""
    if isinstance(value, dict):
        kept = {key: filled(item) for key, item in value.items()}
        return {k: v for k, v in kept.items() if v is None or v not in ("", 0, False, [], {})}
    return [filled(item) for item in value] if isinstance(value, list) else value
