"""Converts cards between 1.0 and the JSON form of 0.3 and older versions, which JSON-RPC and the
well-known paths use.

`old` and `new` are inverse for everything that 0.3 can represent. It cannot represent:

- interfaces of several versions, and tenants: `old` lists the interfaces of one version.
- the device code flow, and that PKCE is required: `old` omits both and keeps the scheme.
- a security scheme of an unknown type: `old` omits it.

1.0 cannot represent a scheme with several OAuth flows. `new` makes a scheme for each flow, the
first under the original name, and adds an alternative for each wherever the scheme is required.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import field
from msgspec.structs import replace

from dragoman.dialects.v0_3.schemes import (
    Authentication,
    Security,
    SecurityScheme,
    always,
    like,
    new_schemes,
    new_security,
    old_scheme,
    old_security,
)
from dragoman.model import types
from dragoman.model.types import AgentCardSignature, Metadata, Required, WireStruct

PROTOCOLS = {"0.3": "0.3.0", "0.2": "0.2.6", "0.1": "0.1.0"}
"""The value of `protocolVersion` for each version, the latest first."""
JSONRPC = "JSONRPC"
UNSAID = ("0.2", "0.1")
"""The versions that a card without `protocolVersion` may have; 0.1 has only JSON-RPC."""
UNVERSIONED = "0.0.0"
MODES = ("text/plain",)

_VERSION = re.compile(r"\d+\.\d+")


class AgentProvider(WireStruct, frozen=True, kw_only=True):
    """The organization that runs the agent."""

    organization: str = always("")
    url: str = always("")


class AgentInterface(WireStruct, frozen=True, kw_only=True):
    """A URL of an agent, and its transport."""

    url: str = always("")
    transport: str = always("")


class AgentExtension(WireStruct, frozen=True, kw_only=True):
    """An extension that the agent supports."""

    uri: str = always("")
    description: str = ""
    required: bool = False
    params: Metadata | None = None


class AgentCapabilities(WireStruct, frozen=True, kw_only=True):
    """The optional protocol features that the agent supports."""

    streaming: bool | None = None
    push_notifications: bool | None = None
    state_transition_history: bool | None = None
    extensions: tuple[AgentExtension, ...] = ()


class AgentSkill(WireStruct, frozen=True, kw_only=True):
    """A skill of the agent."""

    id: Required
    name: str = always("")
    description: str = always("")
    tags: tuple[str, ...] = always(())
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security: Security = ()


class AgentCard(WireStruct, frozen=True, kw_only=True):
    """The card of 0.3 and older versions."""

    protocol_version: str = ""
    name: Required
    description: str = always("")
    url: Required
    preferred_transport: str = ""
    additional_interfaces: tuple[AgentInterface, ...] = ()
    provider: AgentProvider | None = None
    version: str = always("")
    documentation_url: str | None = None
    icon_url: str | None = None
    capabilities: AgentCapabilities = always(AgentCapabilities())
    security_schemes: dict[str, SecurityScheme] = field(default_factory=dict)
    security: Security = ()
    default_input_modes: tuple[str, ...] = always(())
    default_output_modes: tuple[str, ...] = always(())
    skills: tuple[AgentSkill, ...] = always(())
    supports_authenticated_extended_card: bool | None = None
    signatures: tuple[AgentCardSignature, ...] = ()
    authentication: Authentication | None = None


MARKS = {
    *("url", "protocolVersion", "protocol_version", "preferredTransport", "preferred_transport"),
    *("additionalInterfaces", "additional_interfaces"),
}
"""Fields that distinguish an older card from a card of 1.0 without interfaces."""


def older(document: Any) -> bool:
    """Whether a document is a card that only versions before 1.0 can read."""
    return (
        isinstance(document, dict)
        and not (document.get("supportedInterfaces") or document.get("supported_interfaces"))
        and not MARKS.isdisjoint(document)
    )


# ---- 1.0 to 0.3 ----------------------------------------------------------------------------


def old(card: types.AgentCard, version: str = "0.3") -> AgentCard:
    """Convert a card to the form for clients of this version."""
    return _old(card, version, beyond=False)


def merged(card: types.AgentCard) -> dict[str, Any]:
    """Return the card with the fields of both 1.0 and 0.3."""
    # The 0.3 flows keep what only 1.0 has, because some clients of 1.0 read these flows.
    found: dict[str, Any] = _merge(_plain(card), _plain(_old(card, "0.3", beyond=True)))
    return found


def _plain(card: WireStruct) -> Any:
    return msgspec.json.decode(msgspec.json.encode(card))


def _merge(new: Any, old: Any) -> Any:
    if isinstance(new, dict) and isinstance(old, dict):
        both = {name: _merge(new[name], old[name]) if name in old else new[name] for name in new}
        return both | {name: old[name] for name in old if name not in new}
    if isinstance(new, list) and isinstance(old, list) and len(new) == len(old):
        return [_merge(*pair) for pair in zip(new, old, strict=True)]
    return new


def _old(card: types.AgentCard, version: str, *, beyond: bool) -> AgentCard:
    protocol, interfaces = announced(card, version)
    schemes = {
        name: scheme
        for name, given in card.security_schemes.items()
        if (scheme := old_scheme(given, beyond=beyond)) is not None
    }
    return AgentCard(
        protocol_version=protocol,
        name=card.name,
        description=card.description,
        url=interfaces[0].url,
        preferred_transport=interfaces[0].protocol_binding,
        # the specification requires the main interface here, too
        additional_interfaces=tuple(
            AgentInterface(url=item.url, transport=item.protocol_binding) for item in interfaces
        ),
        provider=like(AgentProvider, card.provider),
        version=card.version,
        documentation_url=card.documentation_url,
        icon_url=card.icon_url,
        capabilities=AgentCapabilities(
            streaming=card.capabilities.streaming,
            push_notifications=card.capabilities.push_notifications,
            extensions=tuple(like(AgentExtension, item) for item in card.capabilities.extensions),
        ),
        security_schemes=schemes,
        security=old_security(card.security_requirements),
        default_input_modes=card.default_input_modes,
        default_output_modes=card.default_output_modes,
        skills=tuple(
            like(AgentSkill, skill, security=old_security(skill.security_requirements))
            for skill in card.skills
        ),
        supports_authenticated_extended_card=card.capabilities.extended_agent_card,
        signatures=card.signatures,
    )


def announced(
    card: types.AgentCard, version: str = "0.3"
) -> tuple[str, tuple[types.AgentInterface, ...]]:
    """Return the `protocolVersion` and the interfaces on a card for clients of this version: the
    interfaces of that version, else of another version before 1.0, else all, because a card must
    have a URL."""
    for other in (version, *PROTOCOLS):
        found = [item for item in card.supported_interfaces if minor(item) == other]
        if not found:
            continue
        if version < other:  # a JSON-RPC interface also serves older versions
            found = [item for item in found if item.protocol_binding == JSONRPC] or found
        # 0.3 omits the tenant, and without it the URL may lead to another tenant's agent
        found = [item for item in found if not item.tenant] or found
        return PROTOCOLS.get(min(version, other), version), tuple(found)
    return card.supported_interfaces[0].protocol_version, card.supported_interfaces


def minor(interface: types.AgentInterface) -> str:
    """Return the version of an interface as Major.Minor."""
    return ".".join(interface.protocol_version.split(".")[:2])


# ---- 0.3 to 1.0 ----------------------------------------------------------------------------


def new(card: AgentCard) -> types.AgentCard:
    """Convert a card to 1.0, and fill in fields that 1.0 requires and older cards may lack."""
    schemes, others = new_schemes(card.security_schemes, card.authentication)
    security = card.security
    if not security and not card.security_schemes:
        security = tuple({name: ()} for name in schemes)  # in 0.1, any scheme is enough
    return complete(
        types.AgentCard(
            name=card.name,
            description=card.description,
            supported_interfaces=tuple(
                interfaces(
                    card.protocol_version,
                    (card.url, card.preferred_transport),
                    *((item.url, item.transport) for item in card.additional_interfaces),
                )
            ),
            provider=like(types.AgentProvider, card.provider),
            version=card.version,
            documentation_url=card.documentation_url,
            icon_url=card.icon_url,
            capabilities=types.AgentCapabilities(
                streaming=card.capabilities.streaming,
                push_notifications=card.capabilities.push_notifications,
                extensions=tuple(
                    like(types.AgentExtension, item) for item in card.capabilities.extensions
                ),
                extended_agent_card=card.supports_authenticated_extended_card,
            ),
            security_schemes=schemes,
            security_requirements=new_security(security, others),
            default_input_modes=card.default_input_modes,
            default_output_modes=card.default_output_modes,
            skills=tuple(
                like(
                    types.AgentSkill,
                    skill,
                    security_requirements=new_security(skill.security, others),
                )
                for skill in card.skills
            ),
            signatures=card.signatures,
        )
    )


def interfaces(
    protocol: str, main: tuple[str, str], *additional: tuple[str, str]
) -> Iterator[types.AgentInterface]:
    """Yield the interfaces of a card with this `protocolVersion`, from URLs and transports."""
    match = _VERSION.search(protocol)
    pairs = [(main[0], main[1] or JSONRPC), *(pair for pair in additional if all(pair))]
    for url, transport in dict.fromkeys(pairs):
        for version in (match[0],) if match else UNSAID[: 1 + (transport == JSONRPC)]:
            yield types.AgentInterface(
                url=url, protocol_binding=transport, protocol_version=version
            )


def complete(card: types.AgentCard) -> types.AgentCard:
    """Fill in fields that 1.0 requires and older cards may lack."""
    provider = card.provider
    if provider is not None and not (provider.url and provider.organization):
        provider = types.AgentProvider(
            url=provider.url or card.supported_interfaces[0].url,
            organization=provider.organization or provider.url or card.name,
        )
    return replace(
        card,
        description=card.description or card.name,
        provider=provider,
        version=card.version or UNVERSIONED,
        default_input_modes=card.default_input_modes or MODES,
        default_output_modes=card.default_output_modes or MODES,
        skills=tuple(
            replace(
                skill,
                name=skill.name or skill.id,
                description=skill.description or skill.name or skill.id,
                tags=skill.tags or (skill.id,),
            )
            for skill in card.skills
        ),
    )
