"""Code that both forms of 0.3 share: above all, how they carry what 0.3 has no field for.

| in 1.0 | in 0.3 |
|---|---|
| data that is not an object | `{"value": …}`, with `data_part_compat` in the metadata |
| media type or name of a text or data part | in the part's metadata, under `CARRIED` |
| `referenceTaskIds`, if the form has none | in the message's metadata, under `CARRIED` |
| `tenant`; over JSON-RPC, pages of webhooks | omitted |
| metadata of a cancel, `historyLength` 0: over HTTP+JSON and gRPC | omitted; no limit |
| empty metadata that carry something | decoded as no metadata |
| a webhook without an id | gets the id of its task |
| an unknown state (`unknown`) | decoded as submitted |
| several `schemes` of a webhook | the first one is used |
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.model import types
from dragoman.model.types import Metadata, Required, WireStruct

CARRIED = "urn:dragoman:carried:v1"
"""The metadata key that holds what the older form has no field for."""
WRAPPED = "data_part_compat"
EVERYTHING = 2**31 - 1
"""Asks for the whole history: some agents return none without a length."""


def with_history(request: WireStruct) -> WireStruct:
    """Ask for the whole history if the request sets no length."""
    if isinstance(request, types.GetTaskRequest) and request.history_length is None:
        return replace(request, history_length=EVERYTHING)
    return request


class Conversion(Struct, frozen=True):
    """Converts one field to the older form and back. Empty values are not converted."""

    old: Callable[[Any], Any]
    new: Callable[[Any], Any]
    name: str = ""
    """The field's name in the older form, if it differs."""


class Pair:
    """Converts a struct of 1.0 to the one of 0.3 and back. It copies fields of the same name, uses
    the given conversions, and omits fields that only one of the structs has."""

    def __init__(
        self, new: type[WireStruct], old: type[WireStruct], *, kind: str = "", **ways: Conversion
    ) -> None:
        self._new, self._old = new, old
        self._kind = {"kind": kind} if kind else {}
        pairs = [
            (name, ways[name].name or name if name in ways else name)
            for name in new.__struct_fields__
            if name in ways or name in old.__struct_fields__
        ]
        self._names, self._olds = zip(*pairs, strict=True)
        self._get_new, self._get_old = _getter(self._names), _getter(self._olds)
        self._ways = [(name, ways[name].name or name, ways[name]) for name in ways]

    def old(self, value: Any, **more: Any) -> Any:
        """Convert a value of 1.0 to the older form."""
        found = dict(zip(self._olds, self._get_new(value), strict=True))
        for _, name, way in self._ways:
            if found[name]:
                found[name] = way.old(found[name])
        return self._old(**self._kind, **found | more)

    def new(self, value: Any, **more: Any) -> Any:
        """Convert a value of the older form to 1.0."""
        found = dict(zip(self._names, self._get_old(value), strict=True))
        for name, _, way in self._ways:
            if found[name]:
                found[name] = way.new(found[name])
        return self._new(**found | more)

    def one(self, name: str = "") -> Conversion:
        """Return the conversion of a field that holds one such struct."""
        return Conversion(self.old, self.new, name)

    def each(self, name: str = "") -> Conversion:
        """Return the conversion of a field that holds a tuple of such structs."""
        return for_each(self.old, self.new, name)


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    get = attrgetter(*names)
    return lambda value: (get(value),)


def for_each(old: Callable[[Any], Any], new: Callable[[Any], Any], name: str = "") -> Conversion:
    """Return the conversion of a field that holds a tuple, given that of its items."""
    return Conversion(
        lambda items: tuple([old(item) for item in items]),
        lambda items: tuple([new(item) for item in items]),
        name,
    )


def mapped(value: Any, kind: type[WireStruct], change: Callable[[Any], Any]) -> Any:
    """Apply a function to all structs of this type in a value."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        return tuple([mapped(item, kind, change) for item in value])
    if not isinstance(value, WireStruct):
        return value
    inner = {name: mapped(getattr(value, name), kind, change) for name in value.__struct_fields__}
    return replace(value, **inner)


def carry(metadata: Metadata | None, **extras: Any) -> Metadata | None:
    """Add values that have no field to the metadata."""
    kept = {name: value for name, value in extras.items() if value}
    return {**(metadata or {}), CARRIED: kept} if kept else metadata


def carried(metadata: Metadata | None) -> tuple[Metadata | None, Metadata]:
    """Split metadata into the sender's own and the carried values."""
    if not metadata or type(metadata.get(CARRIED)) is not dict:
        return metadata, {}
    rest = {name: value for name, value in metadata.items() if name != CARRIED}
    return rest or None, metadata[CARRIED]


def text(extras: Metadata, name: str) -> str:
    """Return a carried text; empty if it is not a string, because any sender can set it."""
    found = extras.get(name, "")
    return found if isinstance(found, str) else ""


def part_metadata(part: types.Part) -> Metadata | None:
    """Return the metadata of a text or data part, including its media type and name."""
    if not part.media_type and not part.filename:
        return part.metadata
    return carry(part.metadata, mediaType=part.media_type, filename=part.filename)


def wrap_data(part: types.Part) -> tuple[Any, Metadata | None]:
    """Return the data of a part as an object, and the metadata of the part."""
    metadata = part_metadata(part)
    if isinstance(part.data, dict):
        return part.data, metadata
    return {"value": part.data}, {**(metadata or {}), WRAPPED: True}


def unwrap_data(data: Any, metadata: Metadata | None) -> types.Part:
    """Return a data part; the inverse of `wrap_data`."""
    metadata, extras = carried(metadata)
    if metadata and metadata.get(WRAPPED) is True and isinstance(data, dict) and "value" in data:
        data = data["value"]
        metadata = {name: value for name, value in metadata.items() if name != WRAPPED} or None
    return types.Part(
        data=data,
        metadata=metadata,
        media_type=text(extras, "mediaType"),
        filename=text(extras, "filename"),
    )


def text_part(content: str, metadata: Metadata | None) -> types.Part:
    """Return a text part; the inverse of `part_metadata`."""
    if metadata is None:
        return types.Part(text=content)
    metadata, extras = carried(metadata)
    return types.Part(
        text=content,
        metadata=metadata,
        media_type=text(extras, "mediaType"),
        filename=text(extras, "filename"),
    )


class AuthenticationInfo(WireStruct, frozen=True, kw_only=True):
    """The credentials for a webhook's receiver."""

    schemes: tuple[str, ...] = ()
    credentials: str = ""


class PushNotificationConfig(WireStruct, frozen=True, kw_only=True):
    """A webhook."""

    id: str = ""
    url: Required
    token: str = ""
    authentication: AuthenticationInfo | None = None


def _old_authentication(secrets: types.AuthenticationInfo) -> AuthenticationInfo:
    return AuthenticationInfo(schemes=(secrets.scheme,), credentials=secrets.credentials)


def _new_authentication(secrets: AuthenticationInfo) -> types.AuthenticationInfo | None:
    if not secrets.schemes and not secrets.credentials:
        return None
    scheme = next((name for name in secrets.schemes if name), "Bearer")
    return types.AuthenticationInfo(scheme=scheme, credentials=secrets.credentials)


CONFIG = Pair(
    types.TaskPushNotificationConfig,
    PushNotificationConfig,
    authentication=Conversion(_old_authentication, _new_authentication),
)
