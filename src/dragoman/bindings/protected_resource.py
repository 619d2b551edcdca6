"""Serves protected resource metadata (RFC 9728), which tell a client where to get a token for the
agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from dragoman.bindings.agent_endpoint import METADATA, Endpoint
from dragoman.bindings.card import vary
from dragoman.bindings.http import fail
from dragoman.bindings.http_request import JSON, HTTPRequest
from dragoman.dialects.v1_0 import encode
from dragoman.model.errors import MethodNotAllowed, MethodNotFound, Misdirected


async def serve(found: Endpoint | None, incoming: HTTPRequest) -> None:
    """Answer with the metadata of an agent, if it exists and accepts tokens of an issuer."""
    if found is None or found.authenticator is None or not found.authenticator.issued:
        error = MethodNotFound(f"Nothing is served at {incoming.path[:128]!r}")
        return await fail(incoming, error)
    if incoming.method not in ("GET", "HEAD"):
        allowed = {"allow": "GET, HEAD"}
        return await fail(
            incoming, MethodNotAllowed("The metadata require GET or HEAD", headers=allowed)
        )
    if not found.known(incoming):
        wrong = Misdirected(
            "The metadata name only a host that is trusted; the server's `url` or `trusted_hosts`"
            " says which"
        )
        found.note_refusal("host", incoming, wrong)
        return await fail(incoming, wrong)
    headers = [
        (b"cache-control", b"public, max-age=%d" % found.settings.card_age),
        *vary(found.settings),
        (b"access-control-allow-origin", b"*"),
    ]
    return await incoming.respond(200, encode(document(found, incoming)), JSON, headers)


def find(endpoints: Iterable[Endpoint], incoming: HTTPRequest, path: str) -> Endpoint | None:
    """Return the agent whose path follows the well-known prefix: the path below the application,
    or the full path of its URL."""
    rest = path.removeprefix(METADATA)
    for endpoint in endpoints:
        if rest in (endpoint.prefix, urlsplit(endpoint.url(incoming)).path.rstrip("/")):
            return endpoint
    return None


def document(endpoint: Endpoint, incoming: HTTPRequest) -> dict[str, Any]:
    """Return the metadata document of an agent that accepts tokens of issuers."""
    assert endpoint.authenticator is not None
    issued, agent = endpoint.authenticator.issued, endpoint.service.agent
    scopes = [
        *(scope for scheme in issued for scope in scheme.scopes),
        *(scope for scheme in issued for scope in getattr(scheme, "offered", ())),
        *(scope for skill in agent.skills.values() for scope in sorted(skill.scopes)),
    ]
    found: dict[str, Any] = {
        "resource": endpoint.url(incoming),
        "resource_name": agent.name,
        "authorization_servers": list(dict.fromkeys(scheme.issuer for scheme in issued)),
        "bearer_methods_supported": ["header"],
    }
    if scopes:
        found["scopes_supported"] = list(dict.fromkeys(scopes))
    if all(getattr(scheme, "dpop", False) for scheme in issued):
        from dragoman.security.dpop import ALGORITHMS

        found["dpop_bound_access_tokens_required"] = True
        found["dpop_signing_alg_values_supported"] = list(ALGORITHMS)
    return found
