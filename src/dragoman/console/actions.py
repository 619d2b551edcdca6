"""The operator's API below `/console/api/`: actions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dragoman import A2AError, Message, Part, Role
from dragoman.admin import TaskRow
from dragoman.client import PAUSE_EXTENSIONS, Client, Result
from dragoman.console.api import API, ONE, visible
from dragoman.console.http import ConsoleError, NotFound, Request, Response, Route
from dragoman.console.session import Operator
from dragoman.console.shapes import Done, Shape
from dragoman.console.source import INSIDE, ServedAgents
from dragoman.console.task_details import GRANT
from dragoman.console.timeline import state_name

if TYPE_CHECKING:
    from dragoman.console.console import Console


class Redrive(Shape, frozen=True, forbid_unknown_fields=True):
    """Which parked webhooks: all of a task, or one."""

    task: str
    webhook: str = ""


async def redrive(request: Request, console: Console, operator: Operator) -> Response:
    """Deliver parked webhooks again."""
    given = await request.decode(Redrive)
    await visible(console, operator, given.task)
    number = await console.redrive(operator, given.task, given.webhook)
    return Response(Done(done=f"{number} webhooks are delivered again"))


class Answer(Shape, frozen=True, forbid_unknown_fields=True):
    """What is answered for the owner of a task."""

    text: str


class Approval(Shape, frozen=True, forbid_unknown_fields=True):
    """Whether the operation of a task may be done."""

    approved: bool


async def cancel(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """Cancel a task."""
    row = await visible(console, operator, id)
    async with _client(console, operator, row) as client:
        task = await client.task(id).cancel()
    return Response(Done(done=f"It is {state_name(task.status.state)}."))


async def answer(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """Answer the question of a task."""
    given = await request.decode(Answer)
    row = await visible(console, operator, id)
    _, task = await console.reader.load(row.id)
    pause = Result(task=task).pause
    if pause is not None and not pause.in_words:
        raise ConsoleError(f"it waits for no words: {pause.text}", 409)
    async with _client(console, operator, row) as client:
        await client.send(given.text, task=id, wait=False)
    return Response(Done(done="The answer was sent."))


async def approve(request: Request, console: Console, operator: Operator, id: str) -> Response:
    """Approve or decline the operation of a task."""
    given = await request.decode(Approval)
    row, task = await console.reader.load((await visible(console, operator, id)).id)
    grant = (task.metadata or {}).get(GRANT)
    if not isinstance(grant, dict):
        raise ConsoleError("the task asks for no approval", 409)
    word = "Approved" if given.approved else "Declined"
    metadata = {GRANT: {"id": grant["id"], "digest": grant["digest"], "approved": given.approved}}
    message = Message(
        message_id=str(uuid4()), role=Role.USER, parts=(Part(text=word),), metadata=metadata
    )
    async with _client(console, operator, row) as client:
        await client.send(message, task=id, wait=False)
    return Response(Done(done=f"{word}."))


@asynccontextmanager
async def _client(console: Console, operator: Operator, row: TaskRow) -> AsyncIterator[Client]:
    """A client of the task's agent that calls as the operator. Raises ConsoleError."""
    if not isinstance(console.source, ServedAgents):
        raise ConsoleError("the agents are not served here", 409)
    app = console.source.app
    url = f"{INSIDE}{console.source.prefix(row.agent)}"
    try:
        acting = app.for_operator(operator.acting)
        async with Client.connect(url, app=acting, extensions=PAUSE_EXTENSIONS) as client:
            yield client
    except A2AError as error:
        raise ConsoleError(str(error), 409) from None


class Call(Shape, frozen=True, forbid_unknown_fields=True):
    """A call of the chat."""

    agent: str
    method: str
    params: Mapping[str, Any]


async def other_requests(request: Request, console: Console, operator: Operator) -> Response:
    """Show how a call would look in each version and binding."""
    from dragoman.console.other_requests import requests

    given = await request.decode(Call)
    known = {each.key: each for each in await console.source.agents(request)}
    agent = known.get(given.agent)
    if agent is None or agent.card is None:
        raise NotFound("there is no such agent")
    made = await requests(agent.card, agent.url, given.method, given.params)
    return Response({"requests": made})


ANY: list[Route] = [
    Route("POST", f"{API}/requests", other_requests, harmless=True),
]
"""The routes that need no store."""
ROUTES: list[Route] = [
    *ANY,
    Route("POST", f"{ONE}/cancel", cancel),
    Route("POST", f"{ONE}/answer", answer),
    Route("POST", f"{ONE}/approve", approve),
    Route("POST", f"{API}/webhooks/redrive", redrive),
]
