"""Requests that code of this process makes in the name of a caller that is already known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from dragoman.bindings.authentication import checked
from dragoman.bindings.http_request import HTTPRequest, Receive, Scope, Send
from dragoman.bindings.request_body import BodyReader
from dragoman.model.caller import Caller
from dragoman.model.errors import Unauthenticated


class CallerRequest(HTTPRequest):
    """A request of a known caller. Only Python code can make one: nothing that a client sends
    becomes its `caller`."""

    __slots__ = ("caller",)

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, bodies: BodyReader, caller: Caller
    ) -> None:
        super().__init__(scope, receive, send, bodies)
        self.caller = caller

    @property
    def peer(self) -> str:
        """The name of the caller: there is no address, and the limits of addresses then apply to
        each caller on its own."""
        assert self.caller is not None
        return self.caller.owner


class CallerApp:
    """An ASGI application whose requests come from one caller; see `App.for_caller`."""

    def __init__(
        self,
        caller: Caller,
        bodies: Callable[[], BodyReader],
        serve: Callable[[CallerRequest], Awaitable[None]],
    ) -> None:
        if not isinstance(caller, Caller):
            raise TypeError(f"for_caller: expects a Caller, not {caller!r:.40}")
        try:
            known = checked(caller)
        except Unauthenticated as error:
            raise ValueError(f"for_caller: {error.message}") from None
        # Each request has a version and extensions of its own.
        self._caller = replace(known, version="1.0", extensions=())
        self._bodies, self._serve = bodies, serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection scope of HTTP."""
        if scope["type"] != "http":
            raise RuntimeError("for_caller: the application takes only HTTP requests")
        await self._serve(CallerRequest(scope, receive, send, self._bodies(), self._caller))
