"""The backends of the bell. A backend is a URL and a module that is imported for it."""

from __future__ import annotations

from dragoman.bell import Bell


def connect(url: str) -> Bell:
    """The bell that a URL names; nothing is opened yet."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        from dragoman.bells.memory import MemoryBell

        return MemoryBell()
    raise ValueError(f"bell: no backend for {scheme!r}; this version has memory:")
