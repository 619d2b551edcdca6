"""Which part of a server answers a path: an agent, a mounted application, or the server itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from dragoman.bindings import card, http, jsonrpc, protected_resource, task_callbacks
from dragoman.bindings.agent_endpoint import Endpoint
from dragoman.bindings.authentication import METADATA
from dragoman.bindings.card_signing import JWKS
from dragoman.bindings.catalog import OwnCatalog
from dragoman.bindings.header_checks import HEALTH
from dragoman.bindings.http_request import HTTPRequest
from dragoman.bindings.mounted_apps import Mount
from dragoman.catalog import PATHS as CATALOGS
from dragoman.dialects import v1_0
from dragoman.model.errors import MethodNotAllowed, MethodNotFound
from dragoman.security.catalog_signatures import DID_PATH

PUBLISHED = (*CATALOGS, DID_PATH)
"""The paths that concern all agents of a server."""


class Router:
    """The paths of a server with these agents, by key, and these mounted applications."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        mounts: Sequence[Mount],
        state: Callable[[str], Awaitable[str]],
    ) -> None:
        self._endpoints = endpoints
        self._mounts = mounts
        self._state = state
        """What a path of `HEALTH` reports: ok, or why not."""
        self.only = next(iter(endpoints.values())) if len(endpoints) == 1 else None
        """The endpoint of the only agent; None if there are several, or none."""
        self._catalog = OwnCatalog(endpoints.values()) if endpoints else None

    async def serve(self, incoming: HTTPRequest) -> None:
        """Send the response to a request."""
        path = incoming.path
        for mount in self._mounts:
            if mount.covers(path) and path not in HEALTH and not path.startswith(METADATA):
                return await mount.serve(incoming)
        endpoint = self.only
        if endpoint is None:
            key, slash, rest = path[1:].partition("/")
            endpoint = self._endpoints.get(key)
            if endpoint is None:
                return await self._without_agent(incoming, path)
            path = slash + rest or "/"
        if endpoint.moved:
            path = endpoint.path(path)
        if path == "/":
            if incoming.method == "POST":
                return await jsonrpc.serve(endpoint, incoming)
            error = MethodNotAllowed(
                "JSON-RPC requires POST; the card is at /.well-known/agent-card.json",
                headers={"allow": "POST"},
            )
            return await http.fail(incoming, error)
        if path in jsonrpc.PATHS and incoming.method == "POST":
            return await jsonrpc.serve(endpoint, incoming)
        if path in card.PATHS:
            return await card.serve(endpoint, incoming)
        if path == JWKS:
            return await card.keys(endpoint, incoming)
        if path in PUBLISHED and endpoint is self.only and self._catalog is not None:
            return await self._publish(self._catalog, incoming, path)
        if path == card.EXTENDED:
            return await card.extended(endpoint, incoming)
        if path in HEALTH:
            return await self._health(incoming, path)
        if path == METADATA:
            return await protected_resource.serve(endpoint.access, incoming)
        if path.startswith(METADATA):
            return await self._metadata(incoming, path)
        if task_callbacks.PATH.fullmatch(path):
            return await task_callbacks.serve(endpoint, incoming, path)
        return await http.serve(endpoint, incoming, path)

    async def _without_agent(self, incoming: HTTPRequest, path: str) -> None:
        """Handle requests that name no agent, if there are several."""
        if path in HEALTH:
            return await self._health(incoming, path)
        if path in PUBLISHED and self._catalog is not None:
            return await self._publish(self._catalog, incoming, path)
        if path.startswith(METADATA):
            return await self._metadata(incoming, path)
        found = [
            {"name": e.service.agent.name, "card": e.url(incoming) + card.PATHS[0]}
            for e in self._endpoints.values()
        ]
        if path == "/" and incoming.method in ("GET", "HEAD"):
            return await incoming.respond(200, v1_0.encode({"agents": found}))
        urls = ", ".join(e.url(incoming) for e in self._endpoints.values())
        error = MethodNotFound(f"Nothing is served at {path[:128]!r}; the agents are at {urls}")
        return await http.fail(incoming, error)

    async def _publish(self, own: OwnCatalog, incoming: HTTPRequest, path: str) -> None:
        """Answer with the catalog of all agents, or with the keys that verify it."""
        if path == DID_PATH:
            return await own.did(incoming)
        return await own.serve(incoming, path)

    async def _metadata(self, incoming: HTTPRequest, path: str) -> None:
        served = [endpoint.access for endpoint in self._endpoints.values()]
        served += [mount.access for mount in self._mounts]
        found = protected_resource.find(served, incoming, path)
        return await protected_resource.serve(found, incoming)

    async def _health(self, incoming: HTTPRequest, path: str) -> None:
        state = await self._state(path)
        body = b'{"status":"%b"}' % state.encode()
        await incoming.respond(200 if state == "ok" else 503, body, headers=(http.PRIVATE,))
