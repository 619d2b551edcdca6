"""The card at its well-known addresses, in the form of the version that is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins
from msgspec.structs import replace

from dragoman.bindings.agent_endpoint import Endpoint, Writing
from dragoman.bindings.card_signing import JWKS
from dragoman.bindings.http import fail
from dragoman.bindings.http_request import JSON, Gone, HTTPRequest
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
from dragoman.model.types import AgentCard, GetExtendedAgentCardRequest
from dragoman.security.card_keys import CardKey
from dragoman.security.card_signatures import signatures, signed
from dragoman.server.settings import Settings
from dragoman.telemetry.logs import logger

PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
PUBLIC = (*PATHS, JWKS)
"""What any page may read."""
SET = b"application/jwk-set+json"
EXTENDED = "/agent/authenticatedExtendedCard"
"""Where 0.2 has the card for those who are known, beside the agent's address."""


def _everybody(card: AgentCard, keys: Sequence[CardKey], jku: str) -> bytes:
    document = merged(signed(card, keys, jku))
    if keys:
        # some read the fields that they know, and some the document as it stands
        document["signatures"] += to_builtins(signatures(document, keys, jku))
    return encode(document)


def _v1_0(card: AgentCard, keys: Sequence[CardKey], jku: str) -> bytes:
    return encode(signed(card, keys, jku))


def _v0_3(card: AgentCard, *_: object) -> bytes:
    return encode(old(card))


def _v0_2(card: AgentCard, *_: object) -> bytes:
    return encode(old(card, "0.2"))


FORMS: dict[str, Writing] = dict.fromkeys(versions.SUPPORTED, _v0_3)
FORMS |= {"": _everybody, "1.0": _v1_0, "0.2": _v0_2}
"""How the card is written for a version; without one, for everybody."""


async def serve(endpoint: Endpoint, incoming: HTTPRequest) -> None:
    """Answer with the card, or that the caller's copy is still good."""
    try:
        _only_read(incoming)
        version = _version(incoming)
        if not version and "0.3" not in endpoint.settings.versions:
            version = "1.0"  # there is nothing of 0.3 to tell beside it
        form = FORMS[version]
        body, tag = await endpoint.card_bytes(incoming, form)
    except A2AError as error:
        if isinstance(error, Misdirected):
            endpoint.note_refusal("host", incoming, error)
        return await fail(incoming, error)
    depends = vary(endpoint.settings, b"A2A-Version")
    return await _show(endpoint, incoming, body, tag, JSON, *depends)


def vary(settings: Settings, *names: bytes) -> list[tuple[bytes, bytes]]:
    """The header that says on which others an answer depends which tells the server's address."""
    if settings.trust_forwarded and not settings.url:
        names = (*names, b"X-Forwarded-Proto", b"X-Forwarded-Host", b"X-Forwarded-Prefix")
    elif settings.trust_forwarded and settings.hsts:
        names = (*names, b"X-Forwarded-Proto")
    return [(b"vary", b", ".join(names))] if names else []


async def keys(endpoint: Endpoint, incoming: HTTPRequest) -> None:
    """Answer with the public halves of the keys that sign the card."""
    signer = endpoint.signer
    try:
        if not signer.set:
            raise MethodNotFound("The card is not signed: there are no keys")
        _only_read(incoming)
    except A2AError as error:
        return await fail(incoming, error)
    return await _show(endpoint, incoming, signer.set, signer.tag, SET)


async def _show(
    endpoint: Endpoint,
    incoming: HTTPRequest,
    body: bytes,
    tag: bytes,
    kind: bytes,
    *more: tuple[bytes, bytes],
) -> None:
    """Answer anybody, or that the caller's copy is still good."""
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
    """Answer with the card for those who are known, as 0.2 asks for it."""
    try:
        _only_read(incoming)
        operation = BY_CALL["extended_card"]
        if incoming.line is not None:
            incoming.line.begins(endpoint.service.agent.key, operation.name, "http")
        version = _version(incoming) or "0.2"
        if version == "1.0":  # it has this elsewhere
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


def _only_read(incoming: HTTPRequest) -> None:
    if incoming.method not in ("GET", "HEAD"):
        raise MethodNotAllowed("The card requires GET or HEAD", headers={"allow": "GET, HEAD"})


def _version(incoming: HTTPRequest) -> str:
    """The version that is asked for as Major.Minor, if any."""
    asked = incoming.version()
    return versions.agreed(asked, versions.SUPPORTED) if asked else ""


def _matches(condition: bytes, tag: bytes) -> bool:
    options = [option.strip().removeprefix(b"W/") for option in condition.split(b",")]
    return tag in options or b"*" in options
