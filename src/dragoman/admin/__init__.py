"""Read a store as an operator: the tasks of all owners, their logs, webhooks and processes.

`App.admin()` opens the store of an App, `open_store` one that no App of this process serves. Nobody
but operators may see what these functions return: they are the exception to the rule that a caller
sees only its own tasks. The calls of a `StoreAdmin` block; `AdminThread` makes them in a thread:

    async with AdminThread(app.admin) as admin:
        page = await admin.call(lambda store: store.tasks(Choice(agent="booking")))
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman import stores
from dragoman.admin.delegations import Delegated, ancestors, delegations
from dragoman.admin.fold import task_at
from dragoman.admin.reason import reason
from dragoman.admin.search import Found, Hit, search
from dragoman.admin.thread import AdminThread
from dragoman.model.events import CancelRequested, Entry, Event, Private, Received, Reply
from dragoman.model.failed_turn import FailedTurn, failed_turn
from dragoman.model.lineage import Ancestor
from dragoman.server.settings import Settings
from dragoman.stores.admin import Missing, SavedValue, StoreAdmin, WebhookRow
from dragoman.stores.process_rows import Fleet, Process, ProcessRow, processes
from dragoman.stores.task_rows import Choice, Counts, TaskPage, TaskRow

__all__ = (
    "AdminThread",
    "Ancestor",
    "CancelRequested",
    "Choice",
    "Counts",
    "Delegated",
    "Entry",
    "Event",
    "FailedTurn",
    "Fleet",
    "Found",
    "Hit",
    "Missing",
    "Private",
    "Process",
    "ProcessRow",
    "Received",
    "Reply",
    "SavedValue",
    "StoreAdmin",
    "TaskPage",
    "TaskRow",
    "WebhookRow",
    "ancestors",
    "delegations",
    "failed_turn",
    "open_store",
    "processes",
    "reason",
    "search",
    "task_at",
)


def open_store(url: str, *, encryption_keys: Sequence[str] = (), write: bool = False) -> StoreAdmin:
    """Return the admin interface of a store that exists already, for a `with`.

    With `encryption_keys`, encrypted values of private entries are shown. Without `write`, the
    store cannot be changed. Raises ValueError if the URL is wrong.
    """
    settings = Settings(store=url, encryption_keys=tuple(encryption_keys))
    if url == stores.LOCAL:
        settings = Settings(store=stores.find_local(), encryption_keys=settings.encryption_keys)
    make = stores.connect(settings).admin
    if make is None:
        raise ValueError("store: this store has no admin interface")
    opened: StoreAdmin = make(write=write)
    return opened
