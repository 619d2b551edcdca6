"""Realms and tenants: which callers are the same, and which tenants they may name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.model.caller import Caller, fault
from dragoman.model.reserved_path_names import reserved

REMEMBERED = 1000
"""The most callers of a scheme to cache with their realm and tenants."""
Tenants = Mapping[str, str | Sequence[str]] | Sequence[str]
"""The tenants that callers may name, `*` for any: a list for all callers, or by identity."""


def check(naming: Sequence[Sequence[Any]]) -> None:
    """Raise ValueError if several schemes identify callers, and one of them has no realm. Schemes
    with the same identities are passed together."""
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
    """Adds the realm of a scheme, and the tenants its callers may name, to a caller."""

    def __init__(self, scheme: Any) -> None:
        title = type(scheme).__name__
        self.realm: str = getattr(scheme, "realm", None) or ""
        if why := fault(self.realm):
            raise ValueError(f"auth: {title}: realm {why}")
        allowed: Tenants = getattr(scheme, "tenants", ())
        if isinstance(allowed, str):
            raise ValueError(f"auth: {title}: tenants: expected a list, such as [{allowed!r}]")
        self._cache: dict[int, tuple[Caller, Caller]] = {}
        self._for_all = frozenset[str]()
        self._by_identity: dict[str, frozenset[str]] = {}
        if isinstance(allowed, Mapping):
            self._by_identity = {
                identity: frozenset((some,) if isinstance(some, str) else some)
                for identity, some in allowed.items()
            }
        else:
            self._for_all = frozenset(allowed)
        for tenant in self._for_all.union(*self._by_identity.values()):
            if not tenant or (why := fault(tenant) or reserved(tenant)):
                what = why if tenant else "is empty"
                raise ValueError(f"auth: {title}: tenants: a tenant {what}")

    def __bool__(self) -> bool:
        return bool(self.realm or self._for_all or self._by_identity)

    def on(self, caller: Caller) -> Caller:
        """The caller with realm and tenants. A realm that it already has stays."""
        cached = self._cache.get(id(caller))
        if cached is not None and cached[0] is caller:  # most schemes return cached callers
            return cached[1]
        found = caller
        if self.realm and caller.identity and not caller.realm:
            found = replace(found, realm=self.realm)
        if tenants := self._by_identity.get(caller.identity, self._for_all):
            found = replace(found, tenants=caller.tenants | tenants)
        if len(self._cache) >= REMEMBERED:
            self._cache.clear()
        self._cache[id(caller)] = caller, found
        return found
