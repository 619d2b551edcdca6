"""The backends of the store. A backend is a URL and a module that is imported for it."""

from __future__ import annotations

from dragoman.server.settings import Settings
from dragoman.stores.store import Store


def connect(settings: Settings) -> Store:
    """The store that the settings name; nothing is opened yet."""
    scheme, _, rest = settings.store.partition(":")
    if scheme == "memory":
        from dragoman.stores.memory import MemoryStore

        return MemoryStore(max_tasks=settings.max_tasks, task_age=settings.task_age)
    if scheme == "sqlite":
        from dragoman.security.encryption import Seal
        from dragoman.stores.sqlite import SqliteStore

        path = rest.removeprefix("///")
        if not path or path.startswith((":", "//")) or (rest.startswith("//") and path == rest):
            raise ValueError(
                f"store: {settings.store!r} names no file; use sqlite:///tasks.db for a "
                "file in the working directory, or sqlite:////var/lib/tasks.db"
            )
        return SqliteStore(
            path,
            synchronous=settings.synchronous,
            keep=settings.keep,
            max_task=settings.max_task,
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
                "store: PostgreSQL needs asyncpg; run `pip install 'dragoman[postgres]'`"
            ) from None
        return PostgresStore(
            settings.store,
            keep=settings.keep,
            max_task=settings.max_task,
            seal=Seal(settings.seal_keys),
            size=settings.connections,
            migrate=settings.migrate,
        )
    raise ValueError(
        f"store: unknown scheme {scheme!r}; supported: postgresql:, sqlite: and memory:"
    )
