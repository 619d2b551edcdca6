"""What both forms of 0.3 have in common: what it cannot say, and how that is carried all the same.

| in 1.0 | in 0.3 |
|---|---|
| data that is no object | `{"value": …}`, with `data_part_compat` in the metadata |
| media type or name of a text or data part | in the part's metadata, under our name |
| `referenceTaskIds`, where the form has none | in the message's metadata, under our name |
| `tenant`; over JSON-RPC, pages of webhooks | not said |
| metadata of a cancel, `historyLength` 0: over HTTP+JSON and gRPC | not said; no limit |
| empty metadata, where something is carried in it | comes back as none |
| a webhook without an id | has its task's |
| a state that is not known (`unknown`) | read as submitted |
| several `schemes` of a webhook | the first one counts |
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
"""Where metadata holds what the older form has no field for."""
WRAPPED = "data_part_compat"
EVERYTHING = 2**31 - 1
"""Asks for the whole history: some agents return none without a length."""


def with_history(request: WireStruct) -> WireStruct:
    """Ask for the whole history if the request sets no length."""
    if isinstance(request, types.GetTaskRequest) and request.history_length is None:
        return replace(request, history_length=EVERYTHING)
    return request


class Way(Struct, frozen=True):
    """How one field is said in the other form, and back. Nothing is said of what is not there."""

    old: Callable[[Any], Any]
    new: Callable[[Any], Any]
    name: str = ""
    """What the field is called in the older form, if that is not the same."""


class Pair:
    """Two structs that say the same. Fields of one name are copied, others have their way; what
    one of them lacks is not said."""

    def __init__(
        self, new: type[WireStruct], old: type[WireStruct], *, kind: str = "", **ways: Way
    ) -> None:
        self._new, self._old = new, old
        self._kind = {"kind": kind} if kind else {}
        pairs = [
            (name, ways[name].name or name if name in ways else name)
            for name in new.__struct_fields__
            if name in ways or name in old.__struct_fields__
        ]
        self._names, self._olds = zip(*pairs, strict=True)
        self._told, self._tells = _getter(self._names), _getter(self._olds)
        self._ways = [(name, ways[name].name or name, ways[name]) for name in ways]

    def old(self, value: Any, **more: Any) -> Any:
        """Our value in the older form."""
        found = dict(zip(self._olds, self._told(value), strict=True))
        for _, name, way in self._ways:
            if found[name]:
                found[name] = way.old(found[name])
        return self._old(**self._kind, **found | more)

    def new(self, value: Any, **more: Any) -> Any:
        """The older form as our value."""
        found = dict(zip(self._names, self._tells(value), strict=True))
        for name, _, way in self._ways:
            if found[name]:
                found[name] = way.new(found[name])
        return self._new(**found | more)

    def one(self, name: str = "") -> Way:
        """The way of a field that holds one."""
        return Way(self.old, self.new, name)

    def each(self, name: str = "") -> Way:
        """The way of a field that holds several."""
        return several(self.old, self.new, name)


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    get = attrgetter(*names)
    return lambda value: (get(value),)


def several(old: Callable[[Any], Any], new: Callable[[Any], Any], name: str = "") -> Way:
    """The way of a field that holds several of what these translate."""
    return Way(
        lambda items: tuple([old(item) for item in items]),
        lambda items: tuple([new(item) for item in items]),
        name,
    )


def mapped(value: Any, kind: type[WireStruct], change: Callable[[Any], Any]) -> Any:
    """The value with all of this kind in it changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, tuple):
        return tuple([mapped(item, kind, change) for item in value])
    if not isinstance(value, WireStruct):
        return value
    inner = {name: mapped(getattr(value, name), kind, change) for name in value.__struct_fields__}
    return replace(value, **inner)


def carry(metadata: Metadata | None, **extras: Any) -> Metadata | None:
    """The metadata with what has no field beside it."""
    kept = {name: value for name, value in extras.items() if value}
    return {**(metadata or {}), CARRIED: kept} if kept else metadata


def carried(metadata: Metadata | None) -> tuple[Metadata | None, Metadata]:
    """The metadata without what was carried in it, and that."""
    if not metadata or type(metadata.get(CARRIED)) is not dict:
        return metadata, {}
    rest = {name: value for name, value in metadata.items() if name != CARRIED}
    return rest or None, metadata[CARRIED]


def text(extras: Metadata, name: str) -> str:
    """A carried text; what others put there is not believed."""
    found = extras.get(name, "")
    return found if isinstance(found, str) else ""


def beside(part: types.Part) -> Metadata | None:
    """The metadata of a text or data part, with its media type and name."""
    if not part.media_type and not part.filename:
        return part.metadata
    return carry(part.metadata, mediaType=part.media_type, filename=part.filename)


def wrapped(part: types.Part) -> tuple[Any, Metadata | None]:
    """The data of a part as an object, and the metadata that goes with it."""
    metadata = beside(part)
    if isinstance(part.data, dict):
        return part.data, metadata
    return {"value": part.data}, {**(metadata or {}), WRAPPED: True}


def unwrapped(data: Any, metadata: Metadata | None) -> types.Part:
    """The data part that was wrapped so."""
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


def plain(content: str, metadata: Metadata | None) -> types.Part:
    """The text part that was written with this metadata."""
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
    """How a webhook's receiver wants to be addressed."""

    schemes: tuple[str, ...] = ()
    credentials: str = ""


class PushNotificationConfig(WireStruct, frozen=True, kw_only=True):
    """Where to push."""

    id: str = ""
    url: Required
    token: str = ""
    authentication: AuthenticationInfo | None = None


def _old_secrets(secrets: types.AuthenticationInfo) -> AuthenticationInfo:
    return AuthenticationInfo(schemes=(secrets.scheme,), credentials=secrets.credentials)


def _new_secrets(secrets: AuthenticationInfo) -> types.AuthenticationInfo | None:
    if not secrets.schemes and not secrets.credentials:
        return None
    scheme = next((name for name in secrets.schemes if name), "Bearer")
    return types.AuthenticationInfo(scheme=scheme, credentials=secrets.credentials)


CONFIG = Pair(
    types.TaskPushNotificationConfig,
    PushNotificationConfig,
    authentication=Way(_old_secrets, _new_secrets),
)
