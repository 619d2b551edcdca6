"""Makes security schemes from settings: a table has `scheme` and the arguments by name.

`{"scheme": "bearer", "issuer": "https://id.example", "audience": "flights"}` is `Bearer(issuer=…,
audience=…)`; `{"all_of": [{…}, {…}]}` is `AllOf(…, …)`. A secret may be `env:NAME` or `file:PATH`.
"""

from __future__ import annotations

import collections.abc
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import msgspec
from msgspec import Struct

from dragoman import security
from dragoman.security.schemes import DIGEST, AllOf, Keys, Scheme

SCHEMES = {
    "anonymous": "Anonymous",
    "basic": "Basic",
    "bearer": "Bearer",
    "certificate": "Certificate",
    "introspection": "Introspection",
    "key": "ApiKey",
    "oauth2": "OAuth2",
    "openid": "OpenId",
    "token": "Token",
}
"""The names of schemes in tables, and their classes."""
SECRET = frozenset(("keys", "tokens", "users", "client_secret"))
KNOWN = frozenset(("keys", "tokens", "users"))
"""Arguments that a table must have although the class has a default: a file cannot contain the
function that would replace them."""
_LISTED = dict[str, str | tuple[str, ...]]
_KEYS = _LISTED | tuple[str, ...]


class Built(Struct, frozen=True):
    """The schemes of tables, and the secrets in them."""

    schemes: list[Scheme | AllOf]
    secrets: list[str]


class Wrong(ValueError):
    """An error in a table; the text starts with the position."""


def build(tables: Sequence[Mapping[str, Any] | Scheme | AllOf]) -> Built:
    """Make the schemes; an item may also be a scheme object. The text of a ValueError starts with
    the position in the list: `[0].isuer: …`."""
    secrets: list[str] = []
    return Built(
        [_entry(table, f"[{number}]", secrets) for number, table in enumerate(tables)], secrets
    )


def _entry(
    table: Mapping[str, Any] | Scheme | AllOf, where: str, secrets: list[str]
) -> Scheme | AllOf:
    ready = callable(getattr(table, "identify", None)) and not isinstance(table, type)
    if ready or isinstance(table, AllOf):
        return table  # type: ignore[return-value]
    if not isinstance(table, Mapping):
        raise Wrong(f"{where}: expected a scheme or a table, got {type(table).__name__}")
    if "all_of" not in table:
        return _scheme(table, where, secrets)
    inner = table["all_of"]
    if len(table) > 1 or not isinstance(inner, list | tuple) or len(inner) < 2:
        raise Wrong(
            f"{where}.all_of: must be a list of two or more tables, and the only key of its table"
        )
    return AllOf(*(_scheme(each, f"{where}.all_of[{n}]", secrets) for n, each in enumerate(inner)))


def _scheme(table: Any, where: str, secrets: list[str]) -> Scheme:
    if not isinstance(table, Mapping):
        raise Wrong(f"{where}: must be a table")
    name = table.get("scheme")
    if not isinstance(name, str) or name not in SCHEMES:
        raise Wrong(f"{where}.scheme: must be one of {', '.join(SCHEMES)}, or all_of a list")
    kind: Callable[..., Scheme] = getattr(security, SCHEMES[name])
    accepted, needed = _arguments(kind)
    given = {}
    for key, value in table.items():
        if key == "scheme":
            continue
        if key not in accepted:
            has = ", ".join(accepted) or "no arguments"
            raise Wrong(f"{where}.{key}: unknown argument; {name} has {has}")
        if key == "client_secret" and str(value).startswith(DIGEST):
            raise Wrong(f"{where}.{key}: cannot be a digest, because the server sends this secret")
        given[key] = _value(value, accepted[key], f"{where}.{key}", secrets, secret=key in SECRET)
    if missing := [key for key in needed if key not in given]:
        raise Wrong(f"{where}.{missing[0]}: is required for {name}")
    try:
        return kind(**given)
    except ValueError as error:
        raise Wrong(f"{where}: {error}") from None
    except ImportError as error:  # the extra is not installed
        raise ImportError(f"auth{where}: {error}") from None


def _arguments(kind: Callable[..., Scheme]) -> tuple[dict[str, Any], list[str]]:
    """The types of the arguments that a file can contain, and the names of the required ones."""
    parameters = inspect.signature(kind).parameters
    init = kind.__init__
    hints = typing.get_type_hints(init, localns={"x509": _Nothing}) if parameters else {}
    accepted = {name: plain for name in parameters if (plain := _plain(hints[name])) is not None}
    missing = inspect.Parameter.empty
    return accepted, [n for n in accepted if n in KNOWN or parameters[n].default is missing]


class _Nothing:
    """Replaces a library whose types a file cannot contain."""

    Certificate = None


def _plain(hint: Any) -> Any:
    """The type without functions, which a file cannot contain; None if nothing is left."""
    if hint == Keys:
        return _KEYS
    if typing.get_origin(hint) in (Union, types.UnionType):
        left = [
            each for each in map(_plain, typing.get_args(hint)) if each not in (None, type(None))
        ]
        return Union[tuple(left)] if left else None  # noqa: UP007 - known only at runtime
    return None if typing.get_origin(hint) is collections.abc.Callable else hint


def _value(value: Any, kind: Any, where: str, secrets: list[str], *, secret: bool) -> Any:
    if kind is Scheme:
        return _scheme(value, where, secrets)
    if isinstance(value, Mapping) and kind == _flow_kind():
        return _flow(value, where)
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Wrong(f"{where}: {error}") from None
    return _revealed(found, where, secrets) if secret else found


def _revealed(value: Any, where: str, secrets: list[str]) -> Any:
    """Replace references to secrets by the secrets."""
    if isinstance(value, Mapping):
        return {name: _revealed(item, f"{where}.{name}", secrets) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_revealed(item, f"{where}[{n}]", secrets) for n, item in enumerate(value))
    place, colon, rest = value.partition(":")
    if not colon or place not in ("env", "file"):
        return value
    if place == "env":
        found = os.environ.get(rest, "")
        if not found:
            raise Wrong(f"{where}: the variable {rest} is not set")
    else:
        try:
            found = Path(rest).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not text"
            raise Wrong(f"{where}: {rest}: {reason}") from None
    if not found.startswith(DIGEST):
        secrets.append(found)
    return found


def _flow_kind() -> Any:
    from dragoman.security.oauth_flows import OAuthFlow

    return OAuthFlow


def _flow(value: Mapping[str, Any], where: str) -> Any:
    """`{"client_credentials": {"token_url": …}}`: a flow by its name, with its fields."""
    from dragoman.security.oauth_flows import FLOWS

    if len(value) != 1 or (name := next(iter(value))) not in FLOWS:
        raise Wrong(f"{where}: must be one of {', '.join(FLOWS)}, with its fields")
    fields, kind = value[name], FLOWS[name]
    if not isinstance(fields, Mapping):
        raise Wrong(f"{where}.{name}: must be a table")
    items = {item.name: item for item in msgspec.structs.fields(kind)}
    for key in fields:
        if key not in items:
            raise Wrong(f"{where}.{name}.{key}: unknown field; the fields are {', '.join(items)}")
    try:
        return msgspec.convert({items[key].encode_name: item for key, item in fields.items()}, kind)
    except msgspec.ValidationError as error:
        raise Wrong(f"{where}.{name}: {error}") from None
