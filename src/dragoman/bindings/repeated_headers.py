"""Rejects repeated headers that name the caller or the host: a proxy and the server could each
read a different one."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.model.errors import AmbiguousRequest

SINGLE = frozenset((b"host", b"origin", b"content-type", b"authorization", b"dpop"))
"""The headers that no request may repeat; security schemes add the headers that they read."""


def check_single(names: Iterable[bytes], single: frozenset[bytes]) -> None:
    """Raise AmbiguousRequest if a header of `single` appears more than once."""
    seen = set()
    for name in names:
        if name in seen and name in single:
            raise AmbiguousRequest(f"{name.decode('latin-1')}: the header appears more than once")
        seen.add(name)
