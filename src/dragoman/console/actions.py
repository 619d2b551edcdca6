"""The operator's API below `/console/api/`: actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dragoman.console.api import API, audit, visible
from dragoman.console.http import NotFound, Request, Response, Route
from dragoman.console.session import Operator
from dragoman.console.shapes import Done, Shape

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
    number = await console.reader.redrive(given.task, given.webhook)
    audit("console_redrive", operator, task=given.task, webhook=given.webhook)
    return Response(Done(done=f"{number} webhooks are delivered again"))


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
    Route("POST", f"{API}/webhooks/redrive", redrive),
]
