"""Stores: the logs of tasks, in memory, SQLite or PostgreSQL.

`store` has the protocol, `task_head` and `log_changes` the rules that all stores share. The table
of backends is in `dragoman.backends`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman import backends
from dragoman.server.settings import Settings
from dragoman.stores import url_options
from dragoman.stores.store import Store

LOCAL = "sqlite:"
"""The default store of the command: a file in the working directory."""


def connect(settings: Settings) -> Store:
    """Make the store that the settings name; it opens nothing yet. Raises ValueError."""
    make = backends.find("store", settings.store)
    try:
        url_options.check(settings.store)
    except ValueError as error:
        raise ValueError(f"store{error}") from None
    found: Store = make(settings)
    return found


def local_url(agents: Iterable[str]) -> str:
    """Return the URL of the file that `LOCAL` means for agents with these keys."""
    return f"{LOCAL}///{'-'.join(agents)}.db"


def find_local() -> str:
    """Return the URL of the only store in the working directory. Raises ValueError if there is not
    exactly one."""
    from dragoman.stores.sqlite.admin import find

    return f"{LOCAL}///{find()}"
