"""The registry over HTTP: an ASGI application for `App(mounts={"/": RegistryApp(…)})`, which
authenticates the callers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.registry import routes
from dragoman.registry.ard_routes import ArdRoutes
from dragoman.registry.database import Database
from dragoman.registry.entries import NotFound, Policy, RegistryError
from dragoman.registry.federation import Federation
from dragoman.registry.http_routing import Request, Response, failure, read
from dragoman.registry.operations import Operations
from dragoman.security.card_keys import CardKey

logger = logging.getLogger("dragoman.registry")

INTERVAL = 3600.0
"""Seconds after which a card is fetched again."""


class RegistryApp:
    """A registry in a SQLite file. `allow` are hosts and networks that are not public, to which
    announced agents may lead; `accept` are the fields of a card whose changes need no approval;
    `operators` are callers who may change entries without the scope `registry:write`.

    `peers` are the base URLs of other registries, which searches by ARD ask, too. With `url`, the
    address of this registry, and `sign` its catalog is signed."""

    def __init__(
        self,
        store: str,
        *,
        allow: Sequence[str] = (),
        accept: Sequence[str] = (),
        operators: Sequence[str] = (),
        interval: float = INTERVAL,
        peers: Sequence[str] = (),
        url: str = "",
        sign: Sequence[CardKey] = (),
    ) -> None:
        if interval <= 0:
            raise ValueError("interval: must be greater than 0")
        self._federation = Federation(peers, allow=allow)
        self._routes = [
            *routes.ROUTES,
            *ArdRoutes(federation=self._federation, url=url, keys=sign).routes,
        ]
        policy = Policy(tuple(accept))
        self._registry = Operations(Database(store), allow=allow, policy=policy)
        self._interval = interval
        self._operators = frozenset(operators)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one ASGI connection scope."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if "dragoman.caller" not in scope:
            raise RuntimeError("RegistryApp: mount it in an App, which authenticates the callers")
        message = await receive()
        request = read(scope, message.get("body", b""), self._operators)
        try:
            response = await self._answer(request)
        except RegistryError as error:
            response = failure(error)
        await _send(send, response)

    async def _answer(self, request: Request) -> Response:
        allowed = set()
        for route in self._routes:
            names = route.matches(request.path)
            if names is not None and route.method == request.method:
                return await route.answer(replace(request, names=names), self._registry)
            if names is not None:
                allowed.add(route.method)
        if allowed:
            headers = {"allow": ", ".join(sorted(allowed))}
            words = f"{request.path[:128]} requires {headers['allow']}"
            said = {"errorCode": "METHOD_NOT_ALLOWED", "message": words}
            return Response(said, 405, headers=headers)
        raise NotFound(f"nothing is served at {request.path[:128]!r}")

    async def _lifespan(self, receive: Any, send: Any) -> None:
        await receive()
        try:
            await self._registry.__aenter__()
        except RegistryError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        refreshing = asyncio.create_task(self._refresh())
        try:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
            await self._federation.close()
            await self._registry.__aexit__(None, None, None)
        await send({"type": "lifespan.shutdown.complete"})

    async def _refresh(self) -> None:
        """Fetch the cards that are due, until canceled."""
        while True:
            try:
                number = await self._registry.refresh_due(self._interval)
            except Exception:
                logger.exception("cards could not be refreshed")
                number = 0
            await asyncio.sleep(0.1 if number else min(self._interval / 10, 30.0))


async def _send(send: Any, response: Response) -> None:
    body = response.body
    headers = {
        "content-type": response.kind,
        "content-length": str(len(body)),
        "cache-control": "private, no-store",
        **response.headers,
    }
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
