"""The backends of the store. A backend is a URL and a module that is imported for it."""

from __future__ import annotations

from dragoman.store import Store


def connect(url: str, *, max_tasks: int, task_age: float) -> Store:
    """The store that a URL names; nothing is opened yet."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        from dragoman.stores.memory import MemoryStore

        return MemoryStore(max_tasks=max_tasks, task_age=task_age)
    raise ValueError(f"store: no backend for {scheme!r}; this version has memory:")
