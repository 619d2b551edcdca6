"""The operator's API below `/console/api/`: reading."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from dragoman import TaskState
from dragoman.admin import Choice
from dragoman.console.http import ConsoleError, NotFound, Request, Response, Route
from dragoman.console.process_charts import processes_view
from dragoman.console.session import Operator
from dragoman.console.shapes import TablePage
from dragoman.console.source import ServedAgents
from dragoman.console.task_details import details
from dragoman.console.timeline import (
    entry_view,
    file_in,
    folded,
    folded_file,
    image_type,
    row_view,
    state_name,
    webhook_view,
)

if TYPE_CHECKING:
    from dragoman.console.console import Console

STATES = {state_name(state): state for state in TaskState}
FOLLOW = 0.15
"""Seconds between two reads of a task that somebody follows."""
QUIET = 15.0
"""Seconds after which a stream without events gets a comment."""
SAVED = 50
"""How many entries are saved at once. Each may be large."""
MOST = 1000
"""The most entries or rows in one answer."""


async def session(request: Request, console: Console, operator: Operator) -> Response:
    """Who looks, and at what."""
    return Response(await console.session_view(request, operator))


async def tasks(request: Request, console: Console, operator: Operator) -> Response:
    """A page of the table of tasks."""
    return Response(await _table(request, console, operator))


async def watch_tasks(request: Request, console: Console, operator: Operator) -> Response:
    """The first page of the table, again whenever it has changed."""

    async def stream() -> AsyncIterator[bytes]:
        last, quiet = b"", time.monotonic()
        while not console.closing:
            page = msgspec.json.encode(await _table(request, console, operator))
            if page != last:
                last, quiet = page, time.monotonic()
                yield b"event: table\ndata: " + page + b"\n\n"
            elif time.monotonic() - quiet > QUIET:
                quiet = time.monotonic()
                yield b": quiet\n\n"
            await console.pause(console.poll)

    return _events(stream())


async def _table(request: Request, console: Console, operator: Operator) -> TablePage:
    wanted = _choice(request, operator)
    if text := request.one("text"):
        found = await console.reader.search(wanted, text)
        return TablePage(
            rows=[replace(row_view(hit.row), text=hit.text) for hit in found.hits],
            searched=found.looked,
            stopped=found.cursor is not None,
            next=_cursor(found.cursor),
        )
    page = await console.reader.page(wanted)
    shown = TablePage(rows=[row_view(row) for row in page.rows], next=_cursor(page.cursor))
    if wanted.cursor:
        return shown
    counts = await console.counts(replace(wanted, states=(), limit=1))
    states = {state_name(state): number for state, number in counts.states.items()}
    return replace(shown, counts=states, complete=counts.complete)


def _choice(request: Request, operator: Operator) -> Choice:
    states = [each for each in request.one("state").split(",") if each]
    for name in states:
        if name not in STATES:
            raise ConsoleError(f"state: there is no state {name[:40]!r}")
    cursor = None
    if text := request.one("cursor"):
        changed, _, id = text.partition("~")
        cursor = (changed, id)
    tenant = request.given("tenant") if operator.everywhere else operator.caller.tenant
    return Choice(
        agent=request.one("agent") or None,
        tenant=tenant,
        owner=request.given("owner"),
        context=request.one("context"),
        states=tuple(STATES[name] for name in states),
        skill=request.one("skill") or None,
        id=request.one("id"),
        limit=request.number("size", 100, MOST),
        cursor=cursor,
    )


def _cursor(cursor: tuple[str, str] | None) -> str:
    return "~".join(cursor) if cursor else ""


# -- one task


async def visible(console: Console, operator: Operator, id: str) -> Any:
    """The row of a task that the operator may see. Raises NotFound."""
    row = await console.reader.row(id)
    if not operator.everywhere and row.tenant != operator.caller.tenant:
        raise NotFound("there is no such task")
    return row


async def look(console: Console, operator: Operator, id: str) -> Any:
    """The same, for somebody who looks into it: the audit log has each look at the task of another
    owner. Requests that follow each other closely are one look."""
    row = await visible(console, operator, id)
    if row.owner != operator.caller.qualified and console.looks.begins(operator.name, id):
        console.audit(operator, "look", row)
    return row


async def task(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """Everything about a task but its log."""
    await look(console, operator, id)
    return Response(await details(console.reader, id))


async def tree(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """The tasks that led to a task, and those that it has begun."""
    row = await look(console, operator, id)
    return Response(await console.delegations.tree(operator, row))


async def entries(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """The entries of a log after a number."""
    await look(console, operator, id)
    after, limit = request.number("after", 0), request.number("limit", 500, MOST)
    found = await console.reader.entries(id, after, limit)
    return Response({"entries": [entry_view(entry, id) for entry in found]})


async def follow(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """The entries of a log as they are written, exactly by number. Each event has the number of
    its last entry as its id."""
    await look(console, operator, id)
    after = request.header(b"last-event-id") or request.one("after") or "0"
    if not (after.isascii() and after.isdecimal() and len(after) < 12):
        raise ConsoleError("after: must be a number")

    async def stream() -> AsyncIterator[bytes]:
        place, version, said = int(after), -1, time.monotonic()
        while not console.closing:
            row = await visible(console, operator, id)
            found: Sequence[Any] = ()
            if row.version != version or row.last > place:
                found = await console.reader.entries(id, place, MOST)
            if found:
                place = found[-1].number
                shown = msgspec.json.encode([entry_view(entry, id) for entry in found])
                yield b"event: entries\nid: %d\ndata: %b\n\n" % (place, shown)
            if row.version != version:
                version, said = row.version, time.monotonic()
                yield b"event: row\ndata: " + msgspec.json.encode(row_view(row)) + b"\n\n"
            elif time.monotonic() - said > QUIET:
                said = time.monotonic()
                yield b": quiet\n\n"
            if len(found) < MOST:
                await console.pause(FOLLOW)

    return _events(stream())


async def at(
    request: Request, console: Console, operator: Operator, id: str, number: str
) -> Response:
    """The task as it was after an entry."""
    row = await look(console, operator, id)
    place = min(_number(number), row.last)
    found = await console.history.at(id, place)
    return Response(folded(found, place))


async def log(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """The whole log as a file, which another console can open."""
    row = await visible(console, operator, id)
    console.audit(operator, "save", row)

    async def lines() -> AsyncIterator[bytes]:
        head = {"format": "dragoman-task-log", "version": 1, "row": row_view(row)}
        yield msgspec.json.encode(head) + b"\n"
        after = 0
        while found := await console.reader.entries(id, after, SAVED):
            views = (entry_view(entry, id, whole=True) for entry in found)
            yield b"".join(msgspec.json.encode(view) + b"\n" for view in views)
            after = found[-1].number

    name = quote(f"task-{id}.jsonl")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(kind="application/x-ndjson", headers=headers, stream=lines())


async def entry_file(
    request: Request, console: Console, operator: Operator, id: str, entry: str, index: str
) -> Response:
    """A file in an entry."""
    await look(console, operator, id)
    number = _number(entry)
    found = await console.reader.entries(id, number - 1, 1) if number > 0 else ()
    part = file_in(found[0], _number(index)) if found and found[0].number == number else None
    return _file(part)


async def task_file(
    request: Request,
    console: Console,
    operator: Operator,
    id: str,
    number: str,
    place: str,
    outer: str = "0",
    index: str = "0",
) -> Response:
    """A file of a task as it was after an entry."""
    row = await look(console, operator, id)
    found = await console.history.at(id, min(_number(number), row.last))
    return _file(folded_file(found, place, _number(outer), _number(index)))


def _file(part: Any) -> Response:
    """Answer with a file: images by their first bytes, everything else to be saved."""
    if part is None:
        raise NotFound("there is no such file")
    kind = image_type(part.raw)
    name = re.sub(r"[\x00-\x1f\x7f/\\]", "_", part.filename or "file")[:200]
    headers = {
        "content-security-policy": "default-src 'none'; sandbox",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name)}",
    }
    return Response(part.raw, kind=kind or "application/octet-stream", headers=headers)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise NotFound("there is no such entry")
    return int(text)


def _events(stream: AsyncIterator[bytes]) -> Response:
    return Response(kind="text/event-stream", stream=stream)


async def webhooks(request: Request, console: Console, operator: Operator) -> Response:
    """Webhooks with something to deliver, parked ones first."""
    tenant = None if operator.everywhere else operator.caller.tenant
    rows = await console.reader.webhooks()
    return Response(
        {"webhooks": [webhook_view(row) for row in rows if tenant in (None, row.tenant)]}
    )


async def agents(request: Request, console: Console, operator: Operator) -> Response:
    """The agents, their cards as served, and what the checker says."""
    return Response({"agents": await console.source.agents(request)})


async def conversation(
    request: Request, console: Console, operator: Operator, key: str
) -> Response:
    """What was said in a context of the chat, also without a task. It is the caller's own."""
    source, context = console.source, request.one("context")
    if not isinstance(source, ServedAgents):
        raise NotFound("only the console of a server has this")
    if source.needs_caller(operator):
        raise ConsoleError("log in first as a caller of this agent", 401)
    return Response({"said": await source.said(operator, key, context) if context else []})


async def fleet(request: Request, console: Console, operator: Operator) -> Response:
    """The processes that serve and work."""
    found = await console.reader.fleet()
    return Response({"processes": processes_view(found)})


API = "/console/api"
ONE = f"{API}/tasks/{{id}}"
ANY: list[Route] = [
    Route("GET", f"{API}/session", session),
    Route("GET", f"{API}/agents", agents),
]
"""The routes that need no store."""
ROUTES: list[Route] = [
    *ANY,
    Route("GET", f"{API}/tasks", tasks),
    Route("GET", f"{API}/tasks/events", watch_tasks),
    Route("GET", ONE, task),
    Route("GET", f"{ONE}/tree", tree),
    Route("GET", f"{ONE}/entries", entries),
    Route("GET", f"{ONE}/events", follow),
    Route("GET", f"{ONE}/log", log),
    Route("GET", f"{ONE}/at/{{number}}", at),
    Route("GET", f"{ONE}/files/{{entry}}/{{index}}", entry_file),
    Route("GET", f"{ONE}/at/{{number}}/{{place}}/{{index}}", task_file),
    Route("GET", f"{ONE}/at/{{number}}/{{place}}/{{outer}}/{{index}}", task_file),
    Route("GET", f"{API}/agents/{{key}}/conversation", conversation),
    Route("GET", f"{API}/webhooks", webhooks),
    Route("GET", f"{API}/fleet", fleet),
]
"""The first route that matches answers."""
