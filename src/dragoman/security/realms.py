"""Realms and tenants: which callers are the same, and which tenants they may name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.model.caller import Caller, fault

REMEMBERED = 1000
"""The most callers of a scheme that are kept with their realm and tenants."""
Tenants = Mapping[str, str | Sequence[str]] | Sequence[str]
"""The tenants that callers may name, `*` for any: a list for all of them, or by identity."""


def check(naming: Sequence[Sequence[Any]]) -> None:
    """ValueError if several say who calls, and one of them has no realm. Schemes that name the
    same people are given together."""
    if len(naming) < 2:
        return
    for scheme in (scheme for same in naming for scheme in same):
        if getattr(scheme, "realm", None) is None:
            names = ", ".join(repr(same[0].name) for same in naming)
            raise ValueError(
                f"auth: {names} each identify callers, so 'ann' of one scheme would be "
                f"'ann' of the other; give {scheme.name!r} a realm, as in "
                f"{type(scheme).__name__}(…, realm={scheme.name!r}), and give one to each "
                "of the others. The same realm twice means the same people; realm='' means "
                "the owners of tasks that are stored without a realm"
            )


class Mark:
    """What a gate adds to the callers of a scheme: their realm, and the tenants they may name."""

    def __init__(self, scheme: Any) -> None:
        title = type(scheme).__name__
        self.realm: str = getattr(scheme, "realm", None) or ""
        if why := fault(self.realm):
            raise ValueError(f"auth: {title}: realm {why}")
        told: Tenants = getattr(scheme, "tenants", ())
        if isinstance(told, str):
            raise ValueError(f"auth: {title}: tenants: expected a list, such as [{told!r}]")
        self._known: dict[int, tuple[Caller, Caller]] = {}
        self._for_all = frozenset[str]()
        self._by_identity: dict[str, frozenset[str]] = {}
        if isinstance(told, Mapping):
            self._by_identity = {
                identity: frozenset((some,) if isinstance(some, str) else some)
                for identity, some in told.items()
            }
        else:
            self._for_all = frozenset(told)
        for tenant in self._for_all.union(*self._by_identity.values()):
            if not tenant or (why := fault(tenant)):
                what = why if tenant else "is empty"
                raise ValueError(f"auth: {title}: tenants: a tenant {what}")

    def __bool__(self) -> bool:
        return bool(self.realm or self._for_all or self._by_identity)

    def on(self, caller: Caller) -> Caller:
        """The caller with it. A realm that it has already stays."""
        known = self._known.get(id(caller))
        if known is not None and known[0] is caller:  # most schemes remember whom they have met
            return known[1]
        found = caller
        if self.realm and caller.identity and not caller.realm:
            found = replace(found, realm=self.realm)
        if tenants := self._by_identity.get(caller.identity, self._for_all):
            found = replace(found, tenants=caller.tenants | tenants)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[id(caller)] = caller, found
        return found
