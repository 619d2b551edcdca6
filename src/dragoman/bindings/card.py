"""The card at its well-known addresses."""

from __future__ import annotations

from dragoman.bindings.endpoint import Endpoint
from dragoman.bindings.exchange import JSON, Exchange
from dragoman.bindings.http import fail
from dragoman.errors import MethodNotAllowed

PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")


async def serve(endpoint: Endpoint, exchange: Exchange) -> None:
    """Answer with the card, or that the caller's copy is still good."""
    if exchange.method not in ("GET", "HEAD"):
        error = MethodNotAllowed("The card takes GET", headers={"allow": "GET, HEAD"})
        return await fail(exchange, error)
    body, tag = endpoint.card_bytes(exchange)
    headers = [
        (b"etag", tag),
        (b"cache-control", b"public, max-age=%d" % endpoint.settings.card_age),
        (b"vary", b"A2A-Version"),
        (b"access-control-allow-origin", b"*"),
    ]
    if _matches(exchange.headers.get(b"if-none-match", b""), tag):
        await exchange.send({"type": "http.response.start", "status": 304, "headers": headers})
        return await exchange.send({"type": "http.response.body", "body": b""})
    return await exchange.respond(200, body, JSON, headers)


def _matches(condition: bytes, tag: bytes) -> bool:
    options = [option.strip().removeprefix(b"W/") for option in condition.split(b",")]
    return tag in options or b"*" in options
