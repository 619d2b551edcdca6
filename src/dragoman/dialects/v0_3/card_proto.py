"""Converts cards between 1.0 and the proto form of 0.3, which HTTP+JSON and gRPC use.

Booleans and URLs have no presence there: an unset one is `False` or empty. Otherwise `old` and
`new` lose the same as those of the JSON form; a scheme has only one OAuth flow here, too.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from dragoman.dialects.v0_3.card import announced, complete, interfaces
from dragoman.dialects.v0_3.schemes import like
from dragoman.model import types
from dragoman.model.types import (
    AgentCardSignature,
    AgentExtension,
    AgentProvider,
    APIKeySecurityScheme,
    HTTPAuthSecurityScheme,
    ImplicitOAuthFlow,
    MutualTlsSecurityScheme,
    OpenIdConnectSecurityScheme,
    PasswordOAuthFlow,
    Required,
    StringList,
    WireStruct,
)


class AgentInterface(WireStruct, frozen=True, kw_only=True):
    """A URL of an agent, and its transport."""

    url: str = ""
    transport: str = ""


class AgentCapabilities(WireStruct, frozen=True, kw_only=True):
    """The optional protocol features that the agent supports."""

    streaming: bool = False
    push_notifications: bool = False
    extensions: tuple[AgentExtension, ...] = ()


class Security(WireStruct, frozen=True, kw_only=True):
    """A requirement: all schemes that it needs, with their scopes."""

    schemes: dict[str, StringList] = field(default_factory=dict)


class AuthorizationCodeOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """The OAuth 2 authorization code flow."""

    authorization_url: str = ""
    token_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = field(default_factory=dict)


class ClientCredentialsOAuthFlow(WireStruct, frozen=True, kw_only=True):
    """The OAuth 2 client credentials flow."""

    token_url: str = ""
    refresh_url: str = ""
    scopes: dict[str, str] = field(default_factory=dict)


class OAuthFlows(WireStruct, frozen=True, kw_only=True):
    """An OAuth flow; exactly one field is set."""

    authorization_code: AuthorizationCodeOAuthFlow | None = None
    client_credentials: ClientCredentialsOAuthFlow | None = None
    implicit: ImplicitOAuthFlow | None = None
    password: PasswordOAuthFlow | None = None


class OAuth2SecurityScheme(WireStruct, frozen=True, kw_only=True):
    """An OAuth 2 scheme."""

    description: str = ""
    flows: OAuthFlows | None = None
    oauth2_metadata_url: str = field(default="", name="oauth2MetadataUrl")


class SecurityScheme(WireStruct, frozen=True, kw_only=True):
    """A security scheme; exactly one field is set."""

    api_key_security_scheme: APIKeySecurityScheme | None = None
    http_auth_security_scheme: HTTPAuthSecurityScheme | None = None
    oauth2_security_scheme: OAuth2SecurityScheme | None = field(
        default=None, name="oauth2SecurityScheme"
    )
    open_id_connect_security_scheme: OpenIdConnectSecurityScheme | None = None
    mtls_security_scheme: MutualTlsSecurityScheme | None = None


class AgentSkill(WireStruct, frozen=True, kw_only=True):
    """A skill of the agent."""

    id: Required
    name: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ()
    output_modes: tuple[str, ...] = ()
    security: tuple[Security, ...] = ()


class AgentCard(WireStruct, frozen=True, kw_only=True):
    """The card of 0.3 in the proto form."""

    protocol_version: str = ""
    name: Required
    description: str = ""
    url: Required
    preferred_transport: str = ""
    additional_interfaces: tuple[AgentInterface, ...] = ()
    provider: AgentProvider | None = None
    version: str = ""
    documentation_url: str = ""
    capabilities: AgentCapabilities | None = None
    security_schemes: dict[str, SecurityScheme] = field(default_factory=dict)
    security: tuple[Security, ...] = ()
    default_input_modes: tuple[str, ...] = ()
    default_output_modes: tuple[str, ...] = ()
    skills: tuple[AgentSkill, ...] = ()
    supports_authenticated_extended_card: bool = False
    signatures: tuple[AgentCardSignature, ...] = ()
    icon_url: str = ""


def is_proto_form(document: dict[str, Any]) -> bool:
    """Whether an older card in JSON has the proto form. One SDK sends it over HTTP+JSON."""
    schemes, security = document.get("securitySchemes"), document.get("security")
    names = SecurityScheme.__struct_encode_fields__
    return (
        isinstance(schemes, dict)
        and any(
            isinstance(each, dict) and not each.keys().isdisjoint(names)
            for each in schemes.values()
        )
    ) or (
        isinstance(security, list)
        and any(
            isinstance(each, dict) and isinstance(each.get("schemes"), dict) for each in security
        )
    )


def old(card: types.AgentCard, version: str = "0.3") -> AgentCard:
    """Convert a card to the form for clients of this version."""
    protocol, found = announced(card, version)
    capabilities = card.capabilities
    return like(
        AgentCard,
        card,
        protocol_version=protocol,
        url=found[0].url,
        preferred_transport=found[0].protocol_binding,
        additional_interfaces=tuple(
            AgentInterface(url=item.url, transport=item.protocol_binding) for item in found
        ),
        documentation_url=card.documentation_url or "",
        icon_url=card.icon_url or "",
        capabilities=AgentCapabilities(
            streaming=bool(capabilities.streaming),
            push_notifications=bool(capabilities.push_notifications),
            extensions=capabilities.extensions,
        ),
        security_schemes={
            name: _old_scheme(scheme) for name, scheme in card.security_schemes.items()
        },
        security=_old_security(card.security_requirements),
        skills=tuple(
            like(AgentSkill, skill, security=_old_security(skill.security_requirements))
            for skill in card.skills
        ),
        supports_authenticated_extended_card=bool(capabilities.extended_agent_card),
    )


def new(card: AgentCard) -> types.AgentCard:
    """Convert a card to 1.0, and fill in fields that 1.0 requires and older cards may lack."""
    capabilities = card.capabilities or AgentCapabilities()
    return complete(
        like(
            types.AgentCard,
            card,
            supported_interfaces=tuple(
                interfaces(
                    card.protocol_version,
                    (card.url, card.preferred_transport),
                    *((item.url, item.transport) for item in card.additional_interfaces),
                )
            ),
            documentation_url=card.documentation_url or None,
            icon_url=card.icon_url or None,
            capabilities=types.AgentCapabilities(
                streaming=capabilities.streaming,
                push_notifications=capabilities.push_notifications,
                extensions=capabilities.extensions,
                extended_agent_card=card.supports_authenticated_extended_card,
            ),
            security_schemes={
                name: _new_scheme(scheme) for name, scheme in card.security_schemes.items()
            },
            security_requirements=_new_security(card.security),
            skills=tuple(
                like(types.AgentSkill, skill, security_requirements=_new_security(skill.security))
                for skill in card.skills
            ),
        )
    )


def _old_security(requirements: tuple[types.SecurityRequirement, ...]) -> tuple[Security, ...]:
    return tuple(Security(schemes=requirement.schemes) for requirement in requirements)


def _new_security(security: tuple[Security, ...]) -> tuple[types.SecurityRequirement, ...]:
    return tuple(types.SecurityRequirement(schemes=item.schemes) for item in security)


def _old_scheme(scheme: types.SecurityScheme) -> SecurityScheme:
    oauth = scheme.oauth2_security_scheme
    if oauth is None:
        return like(SecurityScheme, scheme)
    code, credentials = oauth.flows.authorization_code, oauth.flows.client_credentials
    flows = OAuthFlows(
        authorization_code=like(AuthorizationCodeOAuthFlow, code),
        client_credentials=like(ClientCredentialsOAuthFlow, credentials),
        implicit=oauth.flows.implicit,
        password=oauth.flows.password,
    )
    return SecurityScheme(oauth2_security_scheme=like(OAuth2SecurityScheme, oauth, flows=flows))


def _new_scheme(scheme: SecurityScheme) -> types.SecurityScheme:
    oauth = scheme.oauth2_security_scheme
    if oauth is None:
        return like(types.SecurityScheme, scheme)
    found = oauth.flows or OAuthFlows()
    code, credentials = found.authorization_code, found.client_credentials
    flows = types.OAuthFlows(
        authorization_code=like(types.AuthorizationCodeOAuthFlow, code),
        client_credentials=like(types.ClientCredentialsOAuthFlow, credentials),
        implicit=found.implicit,
        password=found.password,
    )
    return types.SecurityScheme(
        oauth2_security_scheme=like(types.OAuth2SecurityScheme, oauth, flows=flows)
    )
