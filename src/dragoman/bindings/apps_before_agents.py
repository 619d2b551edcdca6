"""Applications that get each request before the agents do, and answer it or leave it to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from dragoman.bindings.authentication import METADATA, Authentication
from dragoman.bindings.header_checks import HEALTH
from dragoman.bindings.http_request import Gone, HTTPRequest, Message, Receive
from dragoman.bindings.mounted_apps import APP, URL, fail
from dragoman.model.caller import Caller
from dragoman.model.errors import A2AError, InternalError
from dragoman.telemetry.logs import logger

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
First: TypeAlias = Callable[[Any, Any, Any], Awaitable[bool]]
"""Like an ASGI application, but it returns whether it has answered the request."""

AUTHENTICATE = "dragoman.authenticate"
"""The key in the ASGI scope: an async function that returns the `Caller` of the request, or of the
same request with other headers or another query."""
ALWAYS = "dragoman.headers"
"""A list of headers that every response to this request gets, also one of an agent."""


async def answered(
    handlers: Sequence[First], incoming: HTTPRequest, access: Authentication, host: object
) -> bool:
    """Whether one of these handlers has answered the request."""
    if incoming.path in HEALTH or incoming.path.startswith(METADATA):
        return False
    for first in handlers:
        if await _answers(first, incoming, access, host):
            return True
    return False


async def _answers(
    first: First, incoming: HTTPRequest, access: Authentication, host: object
) -> bool:
    """Offer a request to one application, and return whether it has answered."""
    began = False
    always: list[tuple[bytes, bytes]] = []

    async def authenticate(
        headers: Headers | None = None, query_string: bytes | None = None
    ) -> Caller:
        if headers is None and query_string is None:
            return await access.caller(incoming)
        scope = dict(incoming.scope)
        if headers is not None:
            scope["headers"] = list(headers)
        if query_string is not None:
            scope["query_string"] = query_string
        return await access.caller(
            HTTPRequest(scope, incoming.receive, incoming.send, incoming.bodies)
        )

    async def send(message: Message) -> None:
        nonlocal began
        if message["type"] == "http.response.start":
            began = True
            given = {name.lower() for name, _ in message.get("headers", ())}
            more = [item for item in incoming.always if item[0] not in given]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await incoming.send(message)

    scope = {
        **incoming.scope,
        "path": incoming.path,
        APP: host,
        URL: access.base(incoming),
        AUTHENTICATE: authenticate,
        ALWAYS: always,
    }
    try:
        done = await first(scope, _limited(incoming), send)
    except Gone:
        raise
    except Exception as error:
        if not isinstance(error, A2AError):
            logger.exception("an application of `App.answer_first` failed")
            error = InternalError.of(error)
        if began:
            raise Gone from None  # half of a response cannot become an error
        await fail(incoming, error)
        return True
    if always and not done:
        incoming.always = (*incoming.always, *always)
    return done


def _limited(incoming: HTTPRequest) -> Receive:
    """Return a `receive` that gives the whole body first, read within the limits of the server."""
    read = False

    async def receive() -> Message:
        nonlocal read
        if read:
            return await incoming.receive()
        read = True
        return {"type": "http.request", "body": await incoming.content(), "more_body": False}

    return receive
