"""Headers that must not be repeated: two readers could see two callers."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.model.errors import AmbiguousRequest

SINGLE = frozenset((b"host", b"origin", b"content-type", b"authorization", b"dpop"))
"""Those of every request; schemes add the headers that they read."""


def check_single(names: Iterable[bytes], single: frozenset[bytes]) -> None:
    """AmbiguousRequest names a header of `single` that stands more than once."""
    seen = set()
    for name in names:
        if name in seen and name in single:
            raise AmbiguousRequest(f"{name.decode('latin-1')}: the header appears more than once")
        seen.add(name)
