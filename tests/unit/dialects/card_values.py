"""Cards of every kind, for the tests of their forms."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.model import types
from tests.harness.wire_values import TEXT, structs, values


def _schemes(flows: st.SearchStrategy[types.OAuthFlows]) -> st.SearchStrategy[Any]:
    keys = st.builds(
        types.APIKeySecurityScheme,
        description=TEXT,
        location=st.sampled_from(["header", "query", "cookie"]),
        name=values(types.Required),
    )
    oauth = st.builds(
        types.OAuth2SecurityScheme, description=TEXT, flows=flows, oauth2_metadata_url=TEXT
    )
    return st.one_of(
        st.builds(types.SecurityScheme, api_key_security_scheme=keys),
        st.builds(types.SecurityScheme, oauth2_security_scheme=oauth),
        *(
            st.builds(types.SecurityScheme, **{name: structs(kind)})
            for name, kind in (
                ("http_auth_security_scheme", types.HTTPAuthSecurityScheme),
                ("open_id_connect_security_scheme", types.OpenIdConnectSecurityScheme),
                ("mtls_security_scheme", types.MutualTlsSecurityScheme),
            )
        ),
    )


def _cards(schemes: st.SearchStrategy[types.SecurityScheme]) -> st.SearchStrategy[types.AgentCard]:
    return st.builds(
        replace, structs(types.AgentCard), security_schemes=st.dictionaries(TEXT, schemes)
    )


CARDS: st.SearchStrategy[types.AgentCard] = _cards(_schemes(structs(types.OAuthFlows)))
"""Any card of 1.0 whose security schemes say what they are."""


def _within(flows: types.OAuthFlows) -> types.OAuthFlows:
    code = flows.authorization_code
    return replace(
        flows,
        device_code=None,
        authorization_code=None if code is None else replace(code, pkce_required=False),
    )


def _spoken(card: types.AgentCard, urls: list[str], version: str) -> types.AgentCard:
    return replace(
        card,
        supported_interfaces=tuple(
            types.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
            for url, binding in zip(urls, ["JSONRPC", "HTTP+JSON", "GRPC"], strict=False)
        ),
    )


OLDER: st.SearchStrategy[types.AgentCard] = st.builds(
    _spoken,
    _cards(_schemes(structs(types.OAuthFlows).map(_within))),
    st.lists(values(types.Required), min_size=1, max_size=3),
    st.sampled_from(["0.3", "0.2", "0.1"]),
)
"""Cards that 0.3 can say without loss, of one version or the other."""
