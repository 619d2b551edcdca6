"""Everything that the page of one task shows beside its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman import Task
from dragoman.admin import Entry, TaskRow, ancestors, delegations, reason
from dragoman.console.http import NotFound
from dragoman.console.session import Operator
from dragoman.console.shapes import RemoteView, TaskDetails
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


async def details(reader: StoreReader, operator: Operator, id: str) -> TaskDetails:
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
        above=await _above(reader, operator, entries),
        below=await _below(reader, operator, row, entries),
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
    return "answer" if state_name(row.state) == "input-required" else ""


async def _above(
    reader: StoreReader, operator: Operator, entries: Sequence[Entry]
) -> list[RemoteView]:
    return [
        RemoteView(agent=each.agent, task=each.task, here=await _here(reader, operator, each.task))
        for each in ancestors(entries)
    ]


async def _below(
    reader: StoreReader, operator: Operator, row: TaskRow, entries: Sequence[Entry]
) -> list[RemoteView]:
    if not row.private:
        return []
    return [
        RemoteView(
            agent=each.agent,
            address=each.address,
            task=each.task,
            state=state_name(each.state) if each.state else "",
            here=await _here(reader, operator, each.task),
        )
        for each in delegations(entries)
    ]


async def _here(reader: StoreReader, operator: Operator, task: str) -> bool:
    """Whether the operator can open the task in this console."""
    try:
        row = await reader.row(task)
    except NotFound:
        return False
    return operator.everywhere or row.tenant == operator.caller.tenant
