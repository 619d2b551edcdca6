"""The agent as a protected resource (RFC 9728): where to get a token for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from dragoman.bindings.card import vary
from dragoman.bindings.endpoint import METADATA, Endpoint
from dragoman.bindings.exchange import JSON, Exchange
from dragoman.bindings.http import fail
from dragoman.dialects.v1_0 import encode
from dragoman.errors import MethodNotAllowed, MethodNotFound, Misdirected


async def serve(found: Endpoint | None, exchange: Exchange) -> None:
    """Answer with the metadata of an agent, if it is there and takes tokens of an issuer."""
    if found is None or found.gate is None or not found.gate.issued:
        error = MethodNotFound(f"There is nothing at {exchange.path[:128]!r}")
        return await fail(exchange, error)
    if exchange.method not in ("GET", "HEAD"):
        allowed = {"allow": "GET, HEAD"}
        return await fail(exchange, MethodNotAllowed("The metadata take GET", headers=allowed))
    if not found.known(exchange):
        wrong = Misdirected(
            "The metadata name only a host that is trusted; the server's `url` or `hosts` says"
            " which"
        )
        found.note_refusal("host", exchange, wrong)
        return await fail(exchange, wrong)
    headers = [
        (b"cache-control", b"public, max-age=%d" % found.settings.card_age),
        *vary(found.settings),
        (b"access-control-allow-origin", b"*"),
    ]
    return await exchange.respond(200, encode(document(found, exchange)), JSON, headers)


def find(endpoints: Iterable[Endpoint], exchange: Exchange, path: str) -> Endpoint | None:
    """The agent whose path stands behind the well-known one: its own part of it, or all of it."""
    rest = path.removeprefix(METADATA)
    for endpoint in endpoints:
        if rest in (endpoint.prefix, urlsplit(endpoint.url(exchange)).path.rstrip("/")):
            return endpoint
    return None


def document(endpoint: Endpoint, exchange: Exchange) -> dict[str, Any]:
    """What is told of an agent that takes tokens of issuers."""
    assert endpoint.gate is not None
    issued, agent = endpoint.gate.issued, endpoint.service.agent
    scopes = [
        *(scope for scheme in issued for scope in scheme.scopes),
        *(scope for scheme in issued for scope in getattr(scheme, "offered", ())),
        *(scope for skill in agent.skills.values() for scope in sorted(skill.scopes)),
    ]
    found: dict[str, Any] = {
        "resource": endpoint.url(exchange),
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
