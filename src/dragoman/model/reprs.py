"""Short, readable reprs of values, for notebooks and logs."""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct

LINE, TEXT, ITEMS, DEPTH = 300, 60, 3, 5
"""The most characters of a value, characters of a text in it, items of a list, and levels."""
SECRETS = ("credentials", "token")


def short(value: Any) -> str:
    """The value without defaults and secrets, with as many levels as fit on a line."""
    shown = ""
    for depth in range(DEPTH, 0, -1):
        shown = _short(value, depth)
        if len(shown) <= LINE:
            break
    return shown


def _short(value: Any, depth: int) -> str:
    if isinstance(value, Struct):
        return _struct(value, depth)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, bytes) and len(value) > TEXT // 2:
        return f"<{len(value)} bytes>"
    if isinstance(value, tuple | list | dict) and value:
        return _items(value, depth)
    text = repr(value)
    return text if len(text) <= TEXT else f"{text[: TEXT - 2]}…{text[-1]}"


def _struct(value: Struct, depth: int) -> str:
    name = type(value).__name__
    if not depth:
        return f"{name}(…)"
    fields, defaults = value.__struct_fields__, value.__struct_defaults__
    usual = dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True))
    shown = []
    for field in fields:
        found = getattr(value, field)
        if found == {} or (field in usual and found == usual[field]):
            continue
        secret = field in SECRETS and found
        shown.append(f"{field}={'***' if secret else _short(found, depth - 1)}")
    return f"{name}({', '.join(shown)})"


def _items(value: Any, depth: int) -> str:
    if not depth:
        return f"<{len(value)} items>" if len(value) > 1 else "<1 item>"
    if isinstance(value, dict):
        items = [f"{key!r}: {_short(value[key], depth - 1)}" for key in list(value)[:ITEMS]]
    else:
        items = [_short(item, depth - 1) for item in value[:ITEMS]]
    if len(value) > ITEMS:
        items.append(f"… {len(value) - ITEMS} more")
    shown = ", ".join(items)
    return f"{{{shown}}}" if isinstance(value, dict) else f"[{shown}]"
