"""Agents whose card was approved, for example by the operator of a registry.

`fetch_card` fetches a card and says which keys have signed it. A client for an `AgentReference`
uses the approved card, and refuses the agent if its own card has other addresses or keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.client.discovery import Cards, accepted, decode, read, understood
from dragoman.client.transport import Transport, origin
from dragoman.client.trusted_keys import offered_keys
from dragoman.model.types import AgentCard
from dragoman.security.card_signatures import Unverified, places, witnesses
from dragoman.security.client_network import loopback

COMPARED = ("supported_interfaces", "security_schemes", "security_requirements")
"""The fields in which an agent's own card must equal the approved one."""


class CardChanged(PermissionError):
    """The agent's own card has other addresses, keys or security schemes than the approved one."""


class ApprovedAgent(Struct, frozen=True):
    """Where an agent is, and what was approved."""

    url: str
    card: AgentCard
    keys: Mapping[str, dict[str, Any]] = {}
    """The public keys (JWK) of which one must have signed the agent's own card, by thumbprint.
    Empty: it need not be signed."""


@runtime_checkable
class AgentReference(Protocol):
    """Names an agent; who gave the name knows where it is, and which card was approved. Its `repr`
    is the same in each process: a durable handler keeps by it what was named."""

    async def resolve(self) -> ApprovedAgent:
        """Find the agent."""


class FetchedCard(Struct, frozen=True):
    """A card, and the document that it was read from."""

    card: AgentCard
    """If a key has signed it: what the signature covers."""
    document: bytes
    url: str
    headers: Mapping[str, str] = {}
    keys: Mapping[str, dict[str, Any]] = {}
    """The public keys (JWK) that have signed it and that its own origin publishes, by
    thumbprint."""
    unverified: str = ""
    """Why its signatures count for nothing; empty if they do, or if there are none."""


async def fetch_card(url: str, transport: Transport) -> FetchedCard:
    """Fetch the card at the URL of an agent, or at its own URL, and verify its signatures. Raises
    Unverified if the origin publishes the keys and none of them has made a valid signature."""
    cards = Cards(transport)
    found = await cards.fetch(url)
    card = decode(found.body, found.url)
    if not card.signatures:
        return FetchedCard(card, found.body, found.url, found.headers)
    where = origin(found.url)
    why = ""
    parts = urlsplit(where)
    if parts.scheme != "https" and not loopback(parts.hostname or ""):
        why = "over plain http, anyone on the network path can replace its keys"
    elif not places(found.body, where):
        why = "its signatures name no keys at its own origin (jku)"
    if why:
        return FetchedCard(card, found.body, found.url, found.headers, unverified=why)
    offered = await offered_keys(found.body, where, cards.keys)
    good = witnesses(found.body, list(offered.values()))
    return FetchedCard(
        understood(good[0].document | {"signatures": good[0].signatures}, found.url),
        found.body,
        found.url,
        found.headers,
        {each.thumbprint: offered[each.thumbprint].jwk() for each in good},
    )


def read_card(document: Mapping[str, Any] | bytes, where: str = "the document") -> AgentCard:
    """Read a card of any version of the protocol. Raises A2AError, which names the wrong field."""
    if isinstance(document, bytes):
        return decode(document, where)
    # the decoder of JSON refuses what the structs cannot hold
    return accepted(read(json.loads(json.dumps(document)), where), where, False)


def check_unchanged(agent: ApprovedAgent, live: AgentCard) -> None:
    """Raise CardChanged if the agent's own card is not the approved one."""
    differing = [name for name in COMPARED if getattr(agent.card, name) != getattr(live, name)]
    if differing:
        raise CardChanged(
            f"the card at {agent.url} is not the approved one: it has other "
            f"{', '.join(name.replace('_', ' ') for name in differing)}; if that is right, the "
            "operator of the registry must approve the new card"
        )


def changed_keys(agent: ApprovedAgent, error: Unverified) -> CardChanged:
    """The error for a card that none of the approved keys has signed."""
    return CardChanged(
        f"the card at {agent.url} is not signed by an approved key: {error}; if the agent has new "
        "keys, the operator of the registry must approve its new card"
    )
