"""Serves the card at its well-known paths, in the form of the version that the client names."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.bindings.agent_endpoint import Endpoint, Writing
from dragoman.bindings.card_signing import JWKS
from dragoman.bindings.http import fail
from dragoman.bindings.http_request import JSON, Gone, HTTPRequest
from dragoman.catalog import PATHS as CATALOGS
from dragoman.dialects import versions
from dragoman.dialects.v0_3.card import merged, old
from dragoman.dialects.v1_0 import encode
from dragoman.model.caller import Call
from dragoman.model.errors import (
    A2AError,
    InternalError,
    MethodNotAllowed,
    MethodNotFound,
    Misdirected,
)
from dragoman.model.operations import BY_CALL
from dragoman.model.protocol import HTTP_JSON
from dragoman.model.types import AgentCard, GetExtendedAgentCardRequest
from dragoman.security.card_keys import CardKey
from dragoman.security.card_signatures import signatures, signed
from dragoman.security.catalog_signatures import DID_PATH
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger

PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
PUBLIC = (*PATHS, JWKS, *CATALOGS, DID_PATH)
"""The paths that web pages of any origin may read."""
SET = b"application/jwk-set+json"
EXTENDED = "/agent/authenticatedExtendedCard"
"""The path of the extended card in 0.2, below the agent's URL."""


def _everybody(card: AgentCard, keys: Sequence[CardKey], jku: str) -> bytes:
    document = merged(signed(card, keys, jku))
    if keys:
        # Some clients verify the fields of 1.0, others the whole document, so both are signed.
        document["signatures"] += to_builtins(signatures(document, keys, jku))
    return encode(document)


def _v1_0(card: AgentCard, keys: Sequence[CardKey], jku: str) -> bytes:
    return encode(signed(card, keys, jku))


def _older(version: str) -> Writing:
    return lambda card, *_: encode(old(card, version))


FORMS: dict[str, Writing] = {
    each.name: _v1_0 if each.card == "1.0" else _older(each.card) for each in versions.VERSIONS
}
FORMS[""] = _everybody
"""The function that encodes the card for a version; "" is a form that all versions can read."""


async def serve(endpoint: Endpoint, incoming: HTTPRequest) -> None:
    """Answer with the card, or with 304 if the client's copy is current."""
    try:
        only_read(incoming)
        version = _version(incoming)
        if not version and "0.3" not in endpoint.settings.versions:
            version = "1.0"  # the card lists no interface of 0.3
        form = FORMS[version]
        body, tag = await endpoint.card_bytes(incoming, form)
    except A2AError as error:
        if isinstance(error, Misdirected):
            endpoint.note_refusal("host", incoming, error)
        return await fail(incoming, error)
    depends = vary(endpoint.settings, b"A2A-Version")
    return await show(endpoint, incoming, body, tag, JSON, *depends)


def vary(settings: Settings, *names: bytes) -> list[tuple[bytes, bytes]]:
    """Return the Vary header of a response that contains the server's address: it depends on these
    headers, and on the forwarded ones if they are trusted."""
    if settings.trust_forwarded and not settings.url:
        names = (*names, b"X-Forwarded-Proto", b"X-Forwarded-Host", b"X-Forwarded-Prefix")
    elif settings.trust_forwarded and settings.hsts:
        names = (*names, b"X-Forwarded-Proto")
    return [(b"vary", b", ".join(names))] if names else []


async def keys(endpoint: Endpoint, incoming: HTTPRequest) -> None:
    """Answer with the public keys that verify the card."""
    signer = endpoint.signer
    try:
        if not signer.set:
            raise MethodNotFound("The card is not signed: there are no keys")
        only_read(incoming)
    except A2AError as error:
        return await fail(incoming, error)
    return await show(endpoint, incoming, signer.set, signer.tag, SET)


async def show(
    endpoint: Endpoint,
    incoming: HTTPRequest,
    body: bytes,
    tag: bytes,
    kind: bytes,
    *more: tuple[bytes, bytes],
) -> None:
    """Answer with a public document, or with 304 if the client's copy is current."""
    headers = [
        (b"etag", tag),
        (b"cache-control", b"public, max-age=%d" % endpoint.settings.card_age),
        *more,
        (b"access-control-allow-origin", b"*"),
    ]
    if _matches(incoming.headers.get(b"if-none-match", b""), tag):
        return await incoming.nothing(304, headers)
    return await incoming.respond(200, body, kind, headers)


async def extended(endpoint: Endpoint, incoming: HTTPRequest) -> None:
    """Answer with the extended card, at the path of 0.2."""
    try:
        only_read(incoming)
        operation = BY_CALL["extended_card"]
        if incoming.line is not None:
            incoming.line.begins(endpoint.service.agent.key, operation.name, HTTP_JSON.label)
        version = _version(incoming) or "0.2"
        if version == "1.0":  # 1.0 has another path for it
            raise versions.unsupported(version)
        call = Call(replace(await endpoint.caller(incoming), version=version))
        card = await endpoint.operate(operation, GetExtendedAgentCardRequest(), call, incoming)
        body = FORMS[version](card, (), "")
    except A2AError as error:
        return await fail(incoming, error)
    except Gone:
        raise
    except Exception as error:
        logger.exception("internal error")
        return await fail(incoming, InternalError.of(error))
    return await incoming.respond(200, body, JSON, [(b"cache-control", b"private, no-cache")])


def only_read(incoming: HTTPRequest) -> None:
    """Raise MethodNotAllowed if the request would do more than read."""
    if incoming.method not in ("GET", "HEAD"):
        what = "The catalog" if incoming.path.endswith(CATALOGS) else "The card"
        raise MethodNotAllowed(f"{what} requires GET or HEAD", headers={"allow": "GET, HEAD"})


def _version(incoming: HTTPRequest) -> str:
    """Return the version that the request names as Major.Minor; empty if it names none."""
    named = incoming.version()
    return versions.agreed(named, versions.SUPPORTED) if named else ""


def _matches(condition: bytes, tag: bytes) -> bool:
    options = [option.strip().removeprefix(b"W/") for option in condition.split(b",")]
    return tag in options or b"*" in options
