"""The operator's API below `/console/api/`: what only the inspector has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.console.api import API
from dragoman.console.http import NotFound, Request, Response, Route
from dragoman.console.recorded_transport import summaries
from dragoman.console.remote_agent import RemoteAgent
from dragoman.console.session import Operator
from dragoman.console.shapes import CallOptions

if TYPE_CHECKING:
    from dragoman.console.console import Console


def _remote(console: Console) -> RemoteAgent:
    if not isinstance(console.source, RemoteAgent):
        raise NotFound("only the inspector has this")
    return console.source


async def wire(request: Request, console: Console, operator: Operator) -> Response:
    """What was sent, without the bodies."""
    return Response({"exchanges": summaries(_remote(console).wire)})


async def exchange(request: Request, console: Console, operator: Operator, number: str) -> Response:
    """A request and its answer, as far as it has arrived."""
    wire = _remote(console).wire
    for each in wire.exchanges if wire is not None else ():
        if str(each.number) == number:
            return Response(each)
    raise NotFound("there is no such exchange")


async def prompt(request: Request, console: Console, operator: Operator) -> Response:
    """How far a log-in is."""
    return Response(_remote(console).login.state)


async def shown_options(request: Request, console: Console, operator: Operator) -> Response:
    """The headers, extensions and metadata of each call."""
    return Response(_remote(console).options)


async def options(request: Request, console: Console, operator: Operator) -> Response:
    """Change the headers, extensions and metadata of each call."""
    given = await request.decode(CallOptions)
    await _remote(console).change(given.headers, given.extensions, given.metadata)
    return Response({})


ROUTES: list[Route] = [
    Route("GET", f"{API}/wire", wire),
    Route("GET", f"{API}/wire/{{number}}", exchange),
    Route("GET", f"{API}/prompt", prompt),
    Route("GET", f"{API}/options", shown_options),
    Route("POST", f"{API}/options", options),
]
