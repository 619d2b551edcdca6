"""Checks whether the interfaces of a card respond: calls each of them with the id of a task that
does not exist.

It sends no credentials. An agent that requires some says so, which is a response, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from dragoman.client.address_rules import NotAllowed
from dragoman.client.bindings import BINDINGS, Order, minor
from dragoman.client.discovery import Document, interfaces, read
from dragoman.client.transport import Transport, Unreachable
from dragoman.conformance.card_shape import Finding
from dragoman.dialects import v1_0
from dragoman.model import clock
from dragoman.model.errors import (
    A2AError,
    InvalidAgentResponse,
    MethodNotFound,
    Unavailable,
    VersionNotSupported,
)
from dragoman.model.types import AgentCard, AgentInterface, GetTaskRequest

PATIENCE = 10.0
"""Seconds that an interface may take to respond."""
CORRECT = "start the server, or correct the address"
AT_ONCE = 8
"""The most interfaces that are called at the same time."""


async def probe(
    document: Document, transport: Transport, bindings: Collection[str] = tuple(BINDINGS)
) -> list[Finding]:
    """Call the interfaces of a card through this transport, which supports these bindings, and
    return the findings; none for a card that no client can read."""
    try:
        raw = v1_0.parse(document.body)
        card = read(raw, document.url).card
    except A2AError:
        return []
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(interface: AgentInterface) -> Finding | None:
        async with gate:
            return await _call(card, interface, transport, bindings, _path(raw, interface))

    found = await asyncio.gather(*map(one, dict.fromkeys(card.supported_interfaces)))
    return [finding for finding in found if finding is not None]


async def _call(
    card: AgentCard,
    interface: AgentInterface,
    transport: Transport,
    bindings: Collection[str],
    path: str,
) -> Finding | None:
    """Call one interface. Return a finding, or None if it responds."""
    name = interface.protocol_binding.upper()
    if name not in BINDINGS:
        return None
    if name not in bindings:
        text = "was not called, because gRPC is not installed; run `pip install 'dragoman[grpc]'`"
        return Finding("note", path, text)
    try:
        ways = interfaces(replace(card, supported_interfaces=(interface,)), list(BINDINGS))
    except (VersionNotSupported, InvalidAgentResponse):
        return None  # the check of the document reports it
    what: Finding | None = None
    for way in ways:
        what = await _asked(way, transport, path)
        if what is None:
            return None
    return what


async def _asked(interface: AgentInterface, transport: Transport, path: str) -> Finding | None:
    version = minor(interface.protocol_version)
    binding = BINDINGS[interface.protocol_binding.upper()](transport, interface)
    order = Order(
        call="get",
        request=GetTaskRequest(id=clock.uuid7()),
        headers={"a2a-version": version},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await binding.call(order)
    except NotAllowed as error:
        return Finding("warning", path, f"was not called: {error}")
    except TimeoutError:
        return Finding("error", path, f"does not answer within {PATIENCE:g} s; {CORRECT}")
    except Unreachable as error:
        return Finding("error", path, f"does not answer: {error}; {CORRECT}")
    except Unavailable as error:
        return Finding("warning", path, f"answers that it is not available: {error}")
    except ValueError as error:
        return Finding("error", path, f"cannot be called: {error}; correct it")
    except (MethodNotFound, InvalidAgentResponse) as error:
        name = f"{interface.protocol_binding} {interface.protocol_version}"
        return Finding("error", path, f"answers, but not as {name} requires: {error}; {CORRECT}")
    except A2AError:
        return None  # no such task, or not without credentials
    return None


def _path(raw: Mapping[str, Any], interface: AgentInterface) -> str:
    """The field of the document that has the URL of this interface."""
    for name in ("supportedInterfaces", "additionalInterfaces"):
        items = raw.get(name)
        for place, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict) and _same(item, interface):
                return f"{name}[{place}].url"
    return "url" if raw.get("url") == interface.url else "supportedInterfaces"


def _same(item: Mapping[str, Any], interface: AgentInterface) -> bool:
    binding = item.get("protocolBinding", item.get("transport"))
    version = item.get("protocolVersion", interface.protocol_version)
    wanted = interface.url, interface.protocol_binding, interface.protocol_version
    return (item.get("url"), binding, version) == wanted
