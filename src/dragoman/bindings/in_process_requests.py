"""Requests that code of this process makes in the name of a caller that is already known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from dragoman.bindings.authentication import checked
from dragoman.bindings.http_request import HTTPRequest, Receive, Scope, Send
from dragoman.bindings.request_body import BodyReader
from dragoman.model.caller import Caller
from dragoman.model.errors import Unauthenticated
from dragoman.model.operator import OperatorAccess


class CallerRequest(HTTPRequest):
    """A request of a known caller. Only Python code can make one: nothing that a client sends
    becomes its `caller`."""

    __slots__ = ("caller", "operator")

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        bodies: BodyReader,
        caller: Caller,
        operator: OperatorAccess | None,
    ) -> None:
        super().__init__(scope, receive, send, bodies)
        self.caller = caller
        self.operator = operator
        """Set if the caller acts as an operator."""

    @property
    def peer(self) -> str:
        """The name of the caller: there is no address, and the limits of addresses then apply to
        each caller on its own."""
        assert self.caller is not None
        return self.caller.owner


class CallerApp:
    """An ASGI application whose requests come from one caller; see `App.for_caller` and
    `App.for_operator`."""

    def __init__(
        self,
        caller: Caller,
        bodies: Callable[[], BodyReader],
        serve: Callable[[CallerRequest], Awaitable[None]],
        *,
        operates: bool = False,
    ) -> None:
        self._operates = operates
        self._name = name = "for_operator" if operates else "for_caller"
        if not isinstance(caller, Caller):
            raise TypeError(f"{name}: expects a Caller, not {caller!r:.40}")
        try:
            known = checked(caller)
        except Unauthenticated as error:
            raise ValueError(f"{name}: {error.message}") from None
        # Each request has a version and extensions of its own.
        self._caller = replace(known, version="1.0", extensions=())
        self._bodies, self._serve = bodies, serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection scope of HTTP."""
        if scope["type"] != "http":
            raise RuntimeError(f"{self._name}: the application takes only HTTP requests")
        operator = OperatorAccess() if self._operates else None
        bodies = self._bodies()
        await self._serve(CallerRequest(scope, receive, send, bodies, self._caller, operator))
