"""Serves protected resource metadata (RFC 9728), which tell a client where to get a token for an
agent or a mounted application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from dragoman.bindings.authentication import METADATA, Authentication
from dragoman.bindings.card import vary
from dragoman.bindings.http import fail
from dragoman.bindings.http_request import JSON, HTTPRequest
from dragoman.dialects.v1_0 import encode
from dragoman.model.errors import MethodNotAllowed, MethodNotFound, Misdirected


async def serve(found: Authentication | None, incoming: HTTPRequest) -> None:
    """Answer with the metadata of what is served, if it accepts tokens of an issuer."""
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
        if found.settings.audit:
            found.note("host", incoming, wrong.reason)
        return await fail(incoming, wrong)
    headers = [
        (b"cache-control", b"public, max-age=%d" % found.settings.card_age),
        *vary(found.settings),
        (b"access-control-allow-origin", b"*"),
    ]
    return await incoming.respond(200, encode(document(found, incoming)), JSON, headers)


def find(
    served: Iterable[Authentication], incoming: HTTPRequest, path: str
) -> Authentication | None:
    """Return what is served at the path that follows the well-known prefix: the path below the
    application, or the full path of its URL."""
    rest = path.removeprefix(METADATA)
    for each in served:
        if rest in (each.prefix, urlsplit(each.url(incoming)).path.rstrip("/")):
            return each
    return None


def document(found: Authentication, incoming: HTTPRequest) -> dict[str, Any]:
    """Return the metadata document of what accepts tokens of issuers."""
    assert found.authenticator is not None
    issued = found.authenticator.issued
    scopes = [
        *(scope for scheme in issued for scope in scheme.scopes),
        *(scope for scheme in issued for scope in getattr(scheme, "offered", ())),
        *found.scopes,
    ]
    said: dict[str, Any] = {
        "resource": found.url(incoming),
        "resource_name": found.title,
        "authorization_servers": list(dict.fromkeys(scheme.issuer for scheme in issued)),
        "bearer_methods_supported": ["header"],
    }
    if scopes:
        said["scopes_supported"] = list(dict.fromkeys(scopes))
    if all(getattr(scheme, "dpop", False) for scheme in issued):
        from dragoman.security.dpop import ALGORITHMS

        said["dpop_bound_access_tokens_required"] = True
        said["dpop_signing_alg_values_supported"] = list(ALGORITHMS)
    return said
