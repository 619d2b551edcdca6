"""The table of backends: which function makes the store or the bell of a URL.

The table has dragoman's own backends. Other packages add theirs with the entry points
`dragoman.stores` and `dragoman.bells`; see docs/backends.md. A backend is imported when a URL names
it. The options in the URLs of stores are in `dragoman.stores.url_options`. No other module compares
schemes or the classes of stores and bells.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["store", "bell"]
Backend: TypeAlias = Callable[[Any], Any]
"""`store(settings) -> Store` or `bell(url) -> Bell`. It opens nothing."""

TABLE: dict[Kind, dict[str, str]] = {
    "store": {
        "memory": "dragoman.stores.memory",
        "sqlite": "dragoman.stores.sqlite",
        "postgresql": "dragoman.stores.postgres",
        "postgres": "dragoman.stores.postgres",
    },
    "bell": {
        "memory": "dragoman.bells.memory",
        "postgresql": "dragoman.bells.postgres",
        "postgres": "dragoman.bells.postgres",
        "nats": "dragoman.bells.nats",
        "redis": "dragoman.bells.redis",
        "rediss": "dragoman.bells.redis",
    },
}
"""The modules, by scheme. Each has a function named after the kind. If a module needs an extra of
dragoman, it has the name of that extra."""


def find(kind: Kind, url: str) -> Backend:
    """Return the function that makes the store or the bell of this URL. Raises ValueError if there
    is none, or if it cannot be imported."""
    scheme = url.partition(":")[0]
    module = TABLE[kind].get(scheme)
    if module is None:
        return _installed(kind, scheme)
    try:
        found: Backend = getattr(import_module(module), kind)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dragoman"):
            raise
        extra = module.rpartition(".")[2]
        raise ValueError(
            f"{kind}: {error.name} is not installed; `pip install 'dragoman[{extra}]'` brings it"
        ) from None
    return found


def _installed(kind: Kind, scheme: str) -> Backend:
    """Return the backend of another package."""
    from importlib.metadata import entry_points  # slow, and rarely needed

    every = entry_points(group=f"dragoman.{kind}s")
    found = {each.value: each for each in every if each.name == scheme}
    if not found:
        names = ", ".join(f"{name}:" for name in [*TABLE[kind], *sorted(every.names)])
        raise ValueError(f"{kind}: no backend for {scheme!r}; there are {names}")
    if len(found) > 1:
        raise ValueError(f"{kind}: several packages bring {scheme}: ({', '.join(sorted(found))})")
    ((value, entry),) = found.items()
    try:
        loaded: Backend = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{kind}: {value}, the backend for {scheme}:, cannot be imported: {error}"
        ) from error
    if not callable(loaded):
        raise ValueError(f"{kind}: {value}, the backend for {scheme}:, is not a function")
    return loaded
