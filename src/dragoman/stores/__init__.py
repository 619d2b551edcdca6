"""Stores: the logs of tasks, in memory, SQLite or PostgreSQL.

The protocol is in `store`, the rules that all stores share are in `task_head` and `changes`. The
backends are in the table of `dragoman.backends`.
"""

from __future__ import annotations

from collections.abc import Iterable

from dragoman import backends
from dragoman.server.settings import Settings
from dragoman.stores import url_options
from dragoman.stores.store import Store

LOCAL = "sqlite:"
"""The store of the command if no other is set: a file in the working directory."""


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
    """The URL of the file that `LOCAL` means for agents with these keys."""
    return f"{LOCAL}///{'-'.join(agents)}.db"


def find_local() -> str:
    """The URL of the one store that is in the working directory; ValueError."""
    from dragoman.stores.sqlite.admin import find

    return f"{LOCAL}///{find()}"
