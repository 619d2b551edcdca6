"""Other ASGI applications beside the agents: they get the authenticated caller, and requests within
the limits of the server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from dragoman.bindings import http
from dragoman.bindings.authentication import Authentication
from dragoman.bindings.http_request import (
    JSON,
    Gone,
    HTTPRequest,
    Message,
    Receive,
    Scope,
    headers_of,
)
from dragoman.dialects.v1_0 import encode
from dragoman.model.errors import A2AError, InternalError
from dragoman.model.reserved_path_names import SERVED
from dragoman.security.client_network import loopback
from dragoman.telemetry.logs import logger

ASGI: TypeAlias = Callable[[Any, Any, Any], Awaitable[Any]]

CALLER = "dragoman.caller"
"""The key in the ASGI scope: the `Caller`, anonymous if the server authenticates nobody."""
APP = "dragoman.app"
"""The `App` in which it is mounted; in the scope of the lifespan, too."""
URL = "dragoman.url"
"""The URL of the mounted application: from the setting `url`, else as the request names it."""
LOCAL = "dragoman.local"
"""Whether the request can only come from this machine, of a server without authentication."""

CODES = {429: "RATE_LIMIT_EXCEEDED", 500: "INTERNAL_ERROR"}
"""ARD's codes of errors, by HTTP status, where they are not those of gRPC."""

_PATH = re.compile(r"/(?:[\w.~-]+(?:/[\w.~-]+)*)?", re.ASCII)
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"via")


class Mount:
    """An ASGI application at a path."""

    def __init__(self, path: str, app: ASGI, access: Authentication, host: object) -> None:
        self.path = path
        self.app = app
        self.access = access
        self.host = host
        """The `App`."""
        self._below = f"{path.rstrip('/')}/"

    def covers(self, path: str) -> bool:
        """Whether requests for this path are for the application."""
        return path == self.path or path.startswith(self._below)

    async def serve(self, incoming: HTTPRequest) -> None:
        """Authenticate the caller, read the body, and let the application answer."""
        began = False

        async def send(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                given = {name.lower() for name, _ in message.get("headers", ())}
                more = [item for item in incoming.always if item[0] not in given]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await incoming.send(message)

        try:
            caller = await self.access.caller(incoming)
            receive = _whole(await incoming.content(), incoming.receive)
            scope = {
                **incoming.scope,
                "root_path": incoming.root + self.access.prefix,
                CALLER: caller,
                APP: self.host,
                URL: self.access.url(incoming),
                LOCAL: self._local(incoming),
            }
            await self.app(scope, receive, send)
        except Gone:
            raise
        except Exception as error:
            if not isinstance(error, A2AError):
                logger.exception("the application at %s has failed", self.path)
                error = InternalError.of(error)
            if began:
                raise Gone from None  # half of a response cannot become an error
            await fail(incoming, error)

    def _local(self, incoming: HTTPRequest) -> bool:
        """Whether only a process on this machine can have sent the request. A proxy on this machine
        would connect from here, too, but it names itself, or another host."""
        access = self.access
        return (
            access.identify is None
            and incoming.caller is None
            and not access.settings.url
            and not access.settings.trust_forwarded
            and loopback(incoming.peer)
            and access.hosts.own(incoming)
            and not any(name in incoming.headers for name in _FORWARDED)
        )


async def fail(incoming: HTTPRequest, error: A2AError) -> None:
    """Send an error in the form of HTTP+JSON, and of ARD."""
    incoming.failed(error)
    code = CODES.get(error.http, error.grpc)
    said = {"errorCode": code, "message": error.message, **error.to_http()}
    headers = (http.PRIVATE, *headers_of(error.headers))
    await incoming.respond(error.http, encode(said), JSON, headers)


def names_below(path: str, agents: Collection[str]) -> tuple[str, str]:
    """Return the agent below whose path an application is mounted, and its name there; empty
    strings if it is beside the agents. A single agent is at the root."""
    first, _, rest = path[1:].partition("/")
    if first in agents and (rest or len(agents) > 1):
        return first, rest.partition("/")[0]
    return (next(iter(agents)), first) if len(agents) == 1 else ("", "")


def check_path(path: str, agents: Collection[str]) -> None:
    """Raise ValueError if nothing can be mounted at this path beside these agents."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"mounts: {path!r} is not a path such as /console")
    if agents and path == "/":
        raise ValueError("mounts: the agents are below /; mount the application at another path")
    if path[1:] in agents:
        raise ValueError(f"mounts: {path!r} is the path of the agent {path[1:]!r}")
    agent, name = names_below(path, agents)
    if name in SERVED:
        raise ValueError(
            f"mounts: {path!r}: the agent {agent!r} itself serves paths below {name!r}"
        )


@asynccontextmanager
async def lifespan(app: ASGI, host: object) -> AsyncIterator[None]:
    """Start the application, and stop it at the end. One without a lifespan is left alone."""
    events: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    asgi = {"version": "3.0", "spec_version": "2.0"}
    scope: Scope = {"type": "lifespan", "asgi": asgi, APP: host}
    running = asyncio.ensure_future(app(scope, events.get, said.put))
    try:
        started = await _next(said, running, events, "startup")
        if started is not None and started["type"] == "lifespan.startup.failed":
            raise RuntimeError(started.get("message") or "a mounted application cannot start")
        try:
            yield
        finally:
            if started is not None:
                await _next(said, running, events, "shutdown")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _next(
    said: asyncio.Queue[Message],
    running: asyncio.Future[Any],
    events: asyncio.Queue[Message],
    event: str,
) -> Message | None:
    """Tell the application of an event, and return its answer; None if it has ended instead."""
    await events.put({"type": f"lifespan.{event}"})
    answer = asyncio.ensure_future(said.get())
    try:
        await asyncio.wait({answer, running}, return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        answer.cancel()


def _whole(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole body first."""
    read = False

    async def then() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return then
