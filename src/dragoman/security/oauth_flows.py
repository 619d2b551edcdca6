"""OAuth 2 flows on the card: how clients get a token."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec
from msgspec.structs import replace

from dragoman.model.caller import Request
from dragoman.model.types import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    ImplicitOAuthFlow,
    OAuth2SecurityScheme,
    OAuthFlows,
    PasswordOAuthFlow,
    SecurityScheme,
)
from dragoman.security.realms import Tenants
from dragoman.security.schemes import Found, Scheme

OAuthFlow = (
    AuthorizationCodeOAuthFlow
    | ClientCredentialsOAuthFlow
    | DeviceCodeOAuthFlow
    | ImplicitOAuthFlow
    | PasswordOAuthFlow
)
FLOWS: dict[str, type[OAuthFlow]] = {
    "authorization_code": AuthorizationCodeOAuthFlow,
    "client_credentials": ClientCredentialsOAuthFlow,
    "device_code": DeviceCodeOAuthFlow,
    "implicit": ImplicitOAuthFlow,
    "password": PasswordOAuthFlow,
}
URLS = ("authorization_url", "device_authorization_url", "token_url")


class OAuth2:
    """OAuth 2 tokens, which clients get by one of the flows and `verify` checks: a `Bearer` or an
    `Introspection`. A 1.0 card has one flow per entry; for two flows, use two schemes with
    different names and the same `verify`. `metadata_url` is the metadata of the authorization
    server (RFC 8414)."""

    def __init__(
        self,
        *,
        verify: Scheme,
        flow: OAuthFlow,
        metadata_url: str = "",
        realm: str | None = None,
        tenants: Tenants = (),
        name: str = "",
    ) -> None:
        kinds = {kind: field for field, kind in FLOWS.items()}
        if type(flow) not in kinds:
            raise ValueError(f"OAuth2: flow must be one of {', '.join(k.__name__ for k in kinds)}")
        for item in msgspec.structs.fields(flow):
            if item.name in URLS and not getattr(flow, item.name):
                raise ValueError(f"OAuth2: the flow requires {item.name}")
        self.name = name or "oauth2"
        self.scopes: tuple[str, ...] = tuple(getattr(verify, "scopes", ()))
        self.issuer: str = getattr(verify, "issuer", "")
        self.dpop: bool = getattr(verify, "dpop", False)
        self.realm = getattr(verify, "realm", None) if realm is None else realm
        self.tenants: Tenants = tenants or getattr(verify, "tenants", ())
        self.offered = tuple(flow.scopes)
        """The scopes that a client can request."""
        self.verify = verify
        flows = replace(OAuthFlows(), **{kinds[type(flow)]: flow})
        self._scheme = OAuth2SecurityScheme(flows=flows, oauth2_metadata_url=metadata_url)

    def declared(self) -> SecurityScheme:
        """See `Scheme.declared`."""
        return SecurityScheme(oauth2_security_scheme=self._scheme)

    def challenge(self, realm: str) -> str:
        """See `Scheme.challenge`."""
        return self.verify.challenge(realm)

    def identify(self, request: Request) -> Found | Awaitable[Found]:
        """See `Scheme.identify`."""
        return self.verify.identify(request)
