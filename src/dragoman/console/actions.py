"""The operator's API below `/console/api/`: actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.console.api import API, audit, visible
from dragoman.console.http import Request, Response, Route
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


ROUTES: list[Route] = [
    Route("POST", f"{API}/webhooks/redrive", redrive),
]
