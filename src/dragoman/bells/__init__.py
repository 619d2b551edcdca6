"""The backends of the bell. A backend is a URL and a module that is imported for it."""

from __future__ import annotations

import re
from importlib import import_module

from dragoman.bells.bell import Bell

BACKENDS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "nats": "nats",
    "redis": "redis",
    "rediss": "redis",
}
"""The modules of those that reach other machines, which are also the extras that bring them."""


def connect(url: str) -> Bell:
    """The bell that a URL names; nothing is opened yet."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        from dragoman.bells.memory import MemoryBell

        return MemoryBell()
    if scheme not in BACKENDS:
        names = ", ".join(f"{name}:" for name in ("memory", *BACKENDS))
        raise ValueError(f"bell: unknown scheme {scheme!r}; supported: {names}")
    extra = BACKENDS[scheme]
    try:
        module = import_module(f"dragoman.bells.{extra}")
    except ModuleNotFoundError as error:
        raise ValueError(
            f"bell: {error.name} is not installed; run `pip install 'dragoman[{extra}]'`"
        ) from None
    found: Bell = module.bell(url)
    return found


def fitting(store: str) -> str:
    """The URL of the bell that a store at this URL has: its own, if it is for many machines."""
    if BACKENDS.get(store.partition(":")[0]) != "postgres":
        return "memory:"
    return re.sub(r"([?&])prepared=[^&]*&?", r"\1", store).rstrip("?&")  # which is the store's own
