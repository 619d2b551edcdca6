"""The typed keywords of `App`: one for each setting. To write the file anew after settings have
changed: `python -m tests.unit.server.test_app_options`."""

from __future__ import annotations

import inspect
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dragoman import App, Settings
from dragoman.server import app_options

NAMED = set(inspect.signature(App).parameters) & set(Settings.__struct_fields__)
"""Settings that are parameters of their own, since they may be given as objects, too."""
BEGIN = '''"""The settings that `App` takes as keywords, for type checkers and editors.

A test compares this file with `Settings`; `python -m tests.unit.server.test_app_options` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict


class AppOptions(TypedDict, total=False):
    """Settings by name; docs/settings.md describes them."""

'''


def written(kind: Any) -> str:
    """A type of a setting, as a keyword of `App` takes it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return written(inner[0])
    if origin is Literal:
        return f"Literal[{', '.join(str(msgspec.json.encode(one), 'utf-8') for one in inner)}]"
    if origin in (types.UnionType, typing.Union):
        return " | ".join(written(one) for one in inner)
    if origin is tuple and inner[1:] == (...,):
        return f"Sequence[{written(inner[0])}]"
    if kind is types.NoneType:
        return "None"
    if kind in (bool, int, float, str):
        return str(kind.__name__)
    raise TypeError(f"{kind}: say here how this is written")


def source() -> str:
    """The file as it must be."""
    fields = [item for item in msgspec.structs.fields(Settings) if item.name not in NAMED]
    return BEGIN + "".join(f"    {item.name}: {written(item.type)}\n" for item in fields)


def test_every_setting_is_a_typed_keyword() -> None:
    assert {"store", "bell", "auth"} == NAMED
    assert Path(app_options.__file__).read_text() == source(), __doc__


def test_what_the_keywords_say_is_taken() -> None:
    for name, kind in typing.get_type_hints(app_options.AppOptions).items():
        if typing.get_origin(kind) is not None and "Sequence" in str(kind):
            item = next(f for f in msgspec.structs.fields(Settings) if f.name == name)
            loaded = App(_agent(), **{name: list(item.default)}).settings
            assert getattr(loaded, name) == tuple(item.default)


def test_a_wrong_keyword_is_refused_at_run_time_too() -> None:
    with pytest.raises(ValueError, match="max_boddy: there is no such setting"):
        App(_agent(), max_boddy=3)  # type: ignore[call-arg]


def _agent() -> Any:
    from dragoman import Agent

    agent = Agent("Echo", description="Echoes.")
    agent.handler(lambda turn: turn.text)
    return agent


if __name__ == "__main__":
    Path(app_options.__file__).write_text(source())
