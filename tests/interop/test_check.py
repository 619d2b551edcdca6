"""Cards that are good: the reference SDK's and our own."""

from __future__ import annotations

import json

import pytest
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import a2a_pb2 as pb

from dragoman import App
from dragoman.client.discovery import Cards
from dragoman.client.transport import HTTPTransport
from dragoman.conformance.card import check
from tests.harness.server import serving
from tests.interop import peers, test_card


def requirement(name: str, *scopes: str) -> pb.SecurityRequirement:
    """What a caller needs."""
    return pb.SecurityRequirement(schemes={name: pb.StringList(list=scopes)})


def card(*versions: str) -> pb.AgentCard:
    """A card of the SDK with all that it can tell of security."""
    code = pb.AuthorizationCodeOAuthFlow(
        authorization_url="https://id.example/a",
        token_url="https://id.example/t",
        scopes={"read": "to read"},
    )
    return pb.AgentCard(
        name="Desk",
        description="Does what the text says.",
        version="1.0.0",
        supported_interfaces=[
            pb.AgentInterface(
                url="https://agent.example/", protocol_binding="JSONRPC", protocol_version=version
            )
            for version in versions
        ],
        capabilities=pb.AgentCapabilities(streaming=True, extended_agent_card=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            pb.AgentSkill(
                id="desk",
                name="desk",
                description="Works.",
                tags=["x"],
                security_requirements=[requirement("oidc", "openid")],
            )
        ],
        security_schemes={
            "key": pb.SecurityScheme(
                api_key_security_scheme=pb.APIKeySecurityScheme(location="header", name="x")
            ),
            "http": pb.SecurityScheme(
                http_auth_security_scheme=pb.HTTPAuthSecurityScheme(scheme="bearer")
            ),
            "mtls": pb.SecurityScheme(mtls_security_scheme=pb.MutualTlsSecurityScheme()),
            "oauth": pb.SecurityScheme(
                oauth2_security_scheme=pb.OAuth2SecurityScheme(
                    flows=pb.OAuthFlows(authorization_code=code)
                )
            ),
            "oidc": pb.SecurityScheme(
                open_id_connect_security_scheme=pb.OpenIdConnectSecurityScheme(
                    open_id_connect_url="https://id.example/x"
                )
            ),
        },
        security_requirements=[requirement("oauth", "read")],
    )


@pytest.mark.parametrize("versions", [["1.0"], ["1.0", "0.3"]])
def test_what_the_sdk_writes(versions: list[str]) -> None:
    document = agent_card_to_dict(card(*versions))
    assert ("preferredTransport" in document) is ("0.3" in versions)  # both forms in one
    assert check(json.dumps(document).encode(), url="https://agent.example/card.json") == []


async def said(url: str) -> list[tuple[str, str]]:
    """What is said of the card at a URL."""
    transport = HTTPTransport()
    try:
        found = await Cards(transport).fetch(url)
    finally:
        await transport.close()
    findings = check(found.body, url=found.url, headers=found.headers)
    return [(finding.level, finding.field) for finding in findings]


async def test_what_the_sdk_serves() -> None:
    with peers.serving("reference") as url:
        assert await said(url) == [
            ("warning", "capabilities.extendedAgentCard"),  # this one is for anybody
            ("note", "Cache-Control"),  # which it leaves to its user
        ]


async def test_what_we_serve() -> None:
    async with serving(App(test_card.desk(), push=True)) as url:
        assert await said(url) == []
        assert await said(f"{url}/.well-known/agent.json") == []
