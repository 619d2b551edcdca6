"""Converts security schemes and requirements between 1.0 and the JSON form of 0.3, which is that of
OpenAPI."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

import msgspec
from msgspec import field
from msgspec.structs import asdict, replace

from dragoman.model import types
from dragoman.model.types import WireStruct

W = TypeVar("W", bound=WireStruct)


def always(value: Any) -> Any:
    """Declare a field that is always written, because clients require it, but may be missing in a
    document that is read."""
    return field(default_factory=lambda: value)


@overload
def like(kind: type[W], value: WireStruct, **others: Any) -> W: ...
@overload
def like(kind: type[W], value: None, **others: Any) -> None: ...
def like(kind: type[W], value: WireStruct | None, **others: Any) -> W | None:
    """Create a struct from the fields that it shares with another, and from `others`."""
    if value is None:
        return None
    both = [name for name in kind.__struct_fields__ if name in value.__struct_fields__]
    return kind(**{name: getattr(value, name) for name in both} | others)


Security = tuple[dict[str, tuple[str, ...]], ...]
"""Alternative requirements. Each maps all schemes that it needs to their scopes."""


class OAuthFlow(WireStruct, frozen=True, kw_only=True):
    """An OAuth flow of any type, with the fields of all types."""

    authorization_url: str | None = None
    device_authorization_url: str | None = None
    token_url: str | None = None
    refresh_url: str = ""
    scopes: dict[str, str] = always({})
    pkce_required: bool = False


class OAuthFlows(WireStruct, frozen=True, kw_only=True):
    """The flows of a scheme. The device code flow is not part of 0.3, but it is accepted."""

    authorization_code: OAuthFlow | None = None
    client_credentials: OAuthFlow | None = None
    implicit: OAuthFlow | None = None
    password: OAuthFlow | None = None
    device_code: OAuthFlow | None = None


class SecurityScheme(WireStruct, frozen=True, kw_only=True):
    """A security scheme of any type, as in OpenAPI, with the fields of all types."""

    type: str = always("")
    description: str = ""
    in_: str = field(default="", name="in")
    name: str = ""
    scheme: str = ""
    bearer_format: str = ""
    flows: OAuthFlows | None = None
    oauth2_metadata_url: str = field(default="", name="oauth2MetadataUrl")
    open_id_connect_url: str = ""


class Authentication(WireStruct, frozen=True, kw_only=True):
    """The security of a 0.1 card: names of HTTP schemes."""

    schemes: tuple[str, ...] = ()
    credentials: str = ""


# ---- 1.0 to 0.3 ----------------------------------------------------------------------------


def old_security(requirements: Iterable[types.SecurityRequirement]) -> Security:
    """Convert the requirements to 0.3."""
    return tuple(
        {name: scopes.list for name, scopes in requirement.schemes.items()}
        for requirement in requirements
    )


def old_scheme(scheme: types.SecurityScheme, *, beyond: bool) -> SecurityScheme | None:
    """Convert a scheme to 0.3; None if it is of no known type. With `beyond`, its flows keep what
    only 1.0 has."""
    if key := scheme.api_key_security_scheme:
        return SecurityScheme(
            type="apiKey", description=key.description, in_=key.location, name=key.name
        )
    if http := scheme.http_auth_security_scheme:
        return SecurityScheme(
            type="http",
            description=http.description,
            scheme=http.scheme,
            bearer_format=http.bearer_format,
        )
    if oauth := scheme.oauth2_security_scheme:
        flows = OAuthFlows(
            **{name: like(OAuthFlow, flow) for name, flow in asdict(oauth.flows).items()}
        )
        return SecurityScheme(
            type="oauth2",
            description=oauth.description,
            flows=flows if beyond else _within(flows),
            oauth2_metadata_url=oauth.oauth2_metadata_url,
        )
    if oidc := scheme.open_id_connect_security_scheme:
        return SecurityScheme(
            type="openIdConnect",
            description=oidc.description,
            open_id_connect_url=oidc.open_id_connect_url,
        )
    if mtls := scheme.mtls_security_scheme:
        return SecurityScheme(type="mutualTLS", description=mtls.description)
    return None


def _within(flows: OAuthFlows) -> OAuthFlows:
    """Remove from the flows what 0.3 does not have."""
    code = flows.authorization_code
    if code is not None and code.pkce_required:
        code = replace(code, pkce_required=False)
    return replace(flows, authorization_code=code, device_code=None)


# ---- 0.3 to 1.0 ----------------------------------------------------------------------------

Others = dict[str, list[str]]
"""For each scheme with several flows: the names of the additional schemes made from it."""
FLOWS: dict[str, Any] = {
    "authorizationCode": types.AuthorizationCodeOAuthFlow,
    "clientCredentials": types.ClientCredentialsOAuthFlow,
    "implicit": types.ImplicitOAuthFlow,
    "password": types.PasswordOAuthFlow,
    "deviceCode": types.DeviceCodeOAuthFlow,
}


def new_schemes(
    schemes: Mapping[str, SecurityScheme], authentication: Authentication | None
) -> tuple[dict[str, types.SecurityScheme], Others]:
    """Convert the schemes to 1.0; if there are none, those of 0.1."""
    found: dict[str, types.SecurityScheme] = {}
    others: Others = {}
    for name, scheme in schemes.items():
        entries = _new_scheme(scheme)
        found[name] = entries.pop(next(iter(entries)))
        for flow, entry in entries.items():
            other = f"{name}-{flow}"
            while other in schemes or other in found:
                other += "-"
            found[other] = entry
            others.setdefault(name, []).append(other)
    if not schemes and authentication is not None:
        for name in authentication.schemes:
            if name.lower() not in ("", "none", "public"):
                found[name] = _named(name)
    return found, others


def _new_scheme(scheme: SecurityScheme) -> dict[str, types.SecurityScheme]:
    """Convert a scheme to one scheme of 1.0, or to one for each OAuth flow, by flow name."""
    made = types.SecurityScheme()  # stays empty for a type that 1.0 does not have
    kind, text = scheme.type.lower(), scheme.description
    if kind == "oauth2":
        return {name: _oauth(scheme, flows) for name, flows in _new_flows(scheme.flows)} or {
            "": _oauth(scheme, types.OAuthFlows())
        }
    if kind == "apikey" and scheme.name:
        key = types.APIKeySecurityScheme(
            description=text, location=scheme.in_ or "header", name=scheme.name
        )
        made = types.SecurityScheme(api_key_security_scheme=key)
    elif kind == "http" and scheme.scheme:
        http = types.HTTPAuthSecurityScheme(
            description=text, scheme=scheme.scheme, bearer_format=scheme.bearer_format
        )
        made = types.SecurityScheme(http_auth_security_scheme=http)
    elif kind == "openidconnect" and scheme.open_id_connect_url:
        oidc = types.OpenIdConnectSecurityScheme(
            description=text, open_id_connect_url=scheme.open_id_connect_url
        )
        made = types.SecurityScheme(open_id_connect_security_scheme=oidc)
    elif kind == "mutualtls":
        mtls = types.MutualTlsSecurityScheme(description=text)
        made = types.SecurityScheme(mtls_security_scheme=mtls)
    return {"": made}


def _oauth(scheme: SecurityScheme, flows: types.OAuthFlows) -> types.SecurityScheme:
    return types.SecurityScheme(
        oauth2_security_scheme=types.OAuth2SecurityScheme(
            description=scheme.description,
            flows=flows,
            oauth2_metadata_url=scheme.oauth2_metadata_url,
        )
    )


def _new_flows(flows: OAuthFlows | None) -> Iterator[tuple[str, types.OAuthFlows]]:
    """Yield the flows that have all required URLs."""
    for item in msgspec.structs.fields(OAuthFlows):
        flow, kind = getattr(flows, item.name, None), FLOWS[item.encode_name]
        if flow is None:
            continue
        values = {name: getattr(flow, name) for name in kind.__struct_fields__}
        values = {name: "" if value is None else value for name, value in values.items()}
        needed = [each.name for each in msgspec.structs.fields(kind) if each.required]
        if all(values[name] or name == "scopes" for name in needed):
            yield item.encode_name, types.OAuthFlows(**{item.name: kind(**values)})


def _named(name: str) -> types.SecurityScheme:
    """Return a scheme of which only the name is known."""
    if name.lower().replace("-", "").replace("_", "") == "apikey":
        key = types.APIKeySecurityScheme(location="header", name="X-API-Key")
        return types.SecurityScheme(api_key_security_scheme=key)
    scheme = "Bearer" if name.lower() in ("oauth2", "jwt") else name
    return types.SecurityScheme(
        http_auth_security_scheme=types.HTTPAuthSecurityScheme(scheme=scheme)
    )


def new_security(security: Security, others: Others) -> tuple[types.SecurityRequirement, ...]:
    """Convert the requirements to 1.0."""
    return tuple(
        types.SecurityRequirement(
            schemes={name: types.StringList(list=scopes) for name, scopes in schemes.items()}
        )
        for requirement in security
        for schemes in _alternatives(requirement, others)
    )


def _alternatives(
    requirement: dict[str, tuple[str, ...]], others: Others
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Yield the requirement, and a copy for each additional scheme in it. Combinations of these are
    left out, because there can be too many."""
    yield requirement
    for name in requirement:
        for other in others.get(name, ()):
            yield {other if key == name else key: value for key, value in requirement.items()}
