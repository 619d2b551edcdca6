"""What differs between two cards, and which differences must always be approved."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman import AgentCard

Kind: TypeAlias = Literal["address", "key", "scheme", "other"]

GUARDED: dict[str, Kind] = {
    "supportedInterfaces": "address",
    "securitySchemes": "scheme",
    "securityRequirements": "scheme",
}
"""The fields whose changes must be approved, at any depth of a card."""


class Difference(Struct, frozen=True, omit_defaults=True):
    """One field that differs. A field that is missing on one side is not in the JSON form."""

    path: str
    before: Any = UNSET
    after: Any = UNSET
    kind: Kind = "other"

    @property
    def guarded(self) -> bool:
        """Whether it must always be approved, even if the policy accepts the field."""
        return self.kind != "other"


def differences(
    before: AgentCard,
    after: AgentCard,
    keys_before: Collection[str] = (),
    keys_after: Collection[str] = (),
) -> list[Difference]:
    """Compare two cards and the thumbprints of the keys that have signed them. Signatures are not
    compared: an agent may make new ones with the same keys at any time."""
    found = list(_compare(_plain(before), _plain(after), ""))
    old, new = sorted(keys_before), sorted(keys_after)
    if old != new:
        found.append(Difference("keys", old, new, "key"))
    return found


def _plain(card: AgentCard) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(card))
    said.pop("signatures", None)
    return said


def _compare(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if before == after:
        return
    old, new = _named(before), _named(after)
    if old is None or new is None or _kind(path) == "address":
        yield Difference(path, before, after, _kind(path, before, after))
        return
    listed = isinstance(before, list)
    for name in dict.fromkeys((*old, *new)):
        where = f"{path}[{name}]" if listed else f"{path}.{name}".lstrip(".")
        yield from _compare(old.get(name, UNSET), new.get(name, UNSET), where)


def _named(value: Any) -> Mapping[str, Any] | None:
    """The parts of an object, or of a list of objects that have ids; None for any other value."""
    if isinstance(value, dict):
        return value
    if isinstance(value, UnsetType) or not isinstance(value, list):
        return None
    parts = {str(item["id"]): item for item in value if isinstance(item, dict) and "id" in item}
    return parts if value and len(parts) == len(value) else None


def _kind(path: str, *values: Any) -> Kind:
    """The kind of a difference: by its path, or by what is inside of what differs."""
    parts = path.replace("[", ".").split(".")
    found = {GUARDED[part] for part in parts if part in GUARDED}
    for value in values:
        found |= {GUARDED[name] for name in _fields(value) if name in GUARDED}
    return min(found, default="other")


def _fields(value: Any) -> Iterator[str]:
    """The names of all fields in a value, at any depth."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _fields(part)
