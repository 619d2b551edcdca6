"""The backends of the store. A backend is a URL and a module that is imported for it."""

from __future__ import annotations

from dragoman.server.settings import Settings
from dragoman.stores.store import Store


def connect(settings: Settings) -> Store:
    """The store that the settings name; nothing is opened yet."""
    scheme, _, rest = settings.store.partition(":")
    if scheme == "memory":
        from dragoman.stores.memory import RETENTION, MemoryStore

        kept = RETENTION if settings.retention is None else settings.retention
        return MemoryStore(max_tasks=settings.max_tasks, retention=kept)
    if scheme == "sqlite":
        from dragoman.security.encryption import Seal
        from dragoman.stores.sqlite import SqliteStore

        path = rest.removeprefix("///")
        if not path or path.startswith((":", "//")) or (rest.startswith("//") and path == rest):
            raise ValueError(
                f"store: {settings.store!r} names no file; write sqlite:///tasks.db for one in the "
                "working directory, or sqlite:////var/lib/tasks.db"
            )
        return SqliteStore(
            path,
            synchronous=settings.synchronous,
            retention=settings.retention or 0.0,
            max_task_bytes=settings.max_task_bytes,
            seal=Seal(settings.seal_keys),
        )
    if scheme in ("postgresql", "postgres"):
        from dragoman.security.encryption import Seal

        try:
            from dragoman.stores.postgres import PostgresStore
        except ImportError as error:
            if error.name != "asyncpg":
                raise
            raise ValueError(
                "store: PostgreSQL needs asyncpg; `pip install 'dragoman[postgres]'` brings it"
            ) from None
        return PostgresStore(
            settings.store,
            retention=settings.retention or 0.0,
            max_task_bytes=settings.max_task_bytes,
            seal=Seal(settings.seal_keys),
            size=settings.postgres_pool_size,
            migrate=settings.migrate,
        )
    raise ValueError(
        f"store: no backend for {scheme!r}; this version has postgresql:, sqlite: and memory:"
    )
