"""Everything that the page of one task shows beside its log."""

from __future__ import annotations

from typing import Any

from dragoman import Task
from dragoman.admin import TaskRow, ancestors, reason
from dragoman.client import Result
from dragoman.console.shapes import TaskDetails
from dragoman.console.store_reader import StoreReader
from dragoman.console.timeline import (
    first_message,
    folded,
    row_view,
    state_name,
    webhook_view,
)

GRANT = "urn:dragoman:grant:v1"
"""The extension for approvals: the key in the metadata of a task and of a reply."""
LATEST = 2000
"""How many of the last entries are read to say why a task is where it is."""


async def details(reader: StoreReader, id: str) -> TaskDetails:
    """Return them. Raises NotFound."""
    row, task = await reader.load(id)
    first = await reader.entries(id, 0, 1)
    start = max(1, row.last - LATEST)
    entries = [*first, *await reader.entries(id, start, LATEST)]
    return TaskDetails(
        row=row_view(row),
        why=reason(row, entries),
        task=folded(task, row.last),
        asks=_asks(row, task),
        operation=operation(task),
        delegates=bool(row.private or ancestors(first)),
        webhooks=[webhook_view(each) for each in await reader.webhooks(id)],
        first=first_message(first),
    )


def operation(task: Task) -> Any:
    """What the task asks an approval for; None if it asks for none."""
    grant = (task.metadata or {}).get(GRANT)
    return grant.get("operation") if isinstance(grant, dict) and not grant.get("used") else None


def _asks(row: TaskRow, task: Task) -> str:
    if not row.state.interrupted:
        return ""
    if operation(task) is not None:
        return "approval"
    pause = Result(task=task).pause
    if pause is not None and not pause.in_words:
        return pause.kind
    return "answer" if state_name(row.state) == "input-required" else ""
