"""Merges two states that began as the same one: while a task waits for an answer, another task of
its conversation may end, and both have added to the state that they began with."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET


def merged(base: bytes, ours: bytes, theirs: bytes) -> bytes:
    """Their state, with what is new in ours: lists that both have continued have their items, then
    ours; of values that both have changed, ours stay. States are JSON or MessagePack, also inside
    of each other; of anything else, ours stays."""
    if ours == base or theirs in (base, ours):
        return theirs if ours == base else ours
    for decode, encode in _FORMATS:
        try:
            found = [decode(data) if data else UNSET for data in (base, ours, theirs)]
        except (ValueError, msgspec.DecodeError):
            continue
        if all(isinstance(each, dict | list) for each in found[1:]):
            return encode(_merged(*found))
    return ours


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


_FORMATS: tuple[tuple[Callable[[bytes], Any], Callable[[Any], bytes]], ...] = (
    (json.loads, _json),
    (msgspec.msgpack.decode, msgspec.msgpack.encode),
)


def _merged(base: Any, ours: Any, theirs: Any) -> Any:
    if ours == base:
        return theirs
    if theirs == base:
        return ours
    if isinstance(ours, dict) and isinstance(theirs, dict):
        before = base if isinstance(base, dict) else {}
        keys = dict.fromkeys((*theirs, *ours))
        found = {
            key: _merged(*(each.get(key, UNSET) for each in (before, ours, theirs))) for key in keys
        }
        return {key: value for key, value in found.items() if value is not UNSET}
    if isinstance(ours, list) and isinstance(theirs, list):
        return _merged_lists(base if isinstance(base, list) else [], ours, theirs)
    if isinstance(ours, bytes) and isinstance(theirs, bytes):
        return merged(base if isinstance(base, bytes) else b"", ours, theirs)
    return ours


def _merged_lists(base: list[Any], ours: list[Any], theirs: list[Any]) -> list[Any]:
    known = len(base)
    # perhaps both have written the known items anew, in another form
    if min(len(ours), len(theirs)) >= known and ours[:known] == theirs[:known]:
        return [*theirs, *ours[known:]]
    if len(base) == len(ours) == len(theirs):  # such as a pair
        return [_merged(*items) for items in zip(base, ours, theirs, strict=True)]
    return ours
