"""How to get a token, as the card says it: read by others, and followed by our own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.compat.v0_3.conversions import to_core_agent_card
from a2a.compat.v0_3.types import AgentCard as Older
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict
from joserfc.jwk import ECKey

from dragoman import App
from dragoman.client import Client, OAuth
from dragoman.model.errors import Unauthenticated
from dragoman.model.types import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    ImplicitOAuthFlow,
    PasswordOAuthFlow,
)
from dragoman.security import Bearer, Introspection, OAuth2, OpenId
from tests.client.authorization_grants import SCOPES
from tests.client.authorization_server import CLIENT, CODE, SECRET, Authority, presiding
from tests.client.fake_user import Clock, Person, Watched, robot
from tests.client.fake_user import app as program
from tests.harness.server import serving
from tests.harness.trust import NOBODY
from tests.security.scheme_requests import doorman, send

BEARER = Bearer(
    issuer="https://id.example", audience="flights", jwks="https://id.example/keys", scopes=["talk"]
)
TALK = {"talk": "Talk to it."}
TOKEN, LOGIN, SCREEN = (f"https://id.example/{name}" for name in ("token", "login", "device"))
FLOWS: dict[str, Any] = {
    "authorizationCode": AuthorizationCodeOAuthFlow(
        authorization_url=LOGIN, token_url=TOKEN, scopes=TALK, pkce_required=True
    ),
    "clientCredentials": ClientCredentialsOAuthFlow(token_url=TOKEN, scopes=TALK),
    "deviceCode": DeviceCodeOAuthFlow(
        device_authorization_url=SCREEN, token_url=TOKEN, scopes=TALK
    ),
    "implicit": ImplicitOAuthFlow(authorization_url=LOGIN, scopes=TALK),
    "password": PasswordOAuthFlow(token_url=TOKEN, scopes=TALK),
}
WIRE: dict[str, Any] = {
    "authorizationCode": {
        "authorizationUrl": LOGIN,
        "tokenUrl": TOKEN,
        "scopes": TALK,
        "pkceRequired": True,
    },
    "clientCredentials": {"tokenUrl": TOKEN, "scopes": TALK},
    "deviceCode": {"deviceAuthorizationUrl": SCREEN, "tokenUrl": TOKEN, "scopes": TALK},
    "implicit": {"authorizationUrl": LOGIN, "scopes": TALK},
    "password": {"tokenUrl": TOKEN, "scopes": TALK},
}


async def card(url: str, version: str = "") -> Any:
    """The card in a version's form."""
    headers = {"A2A-Version": version} if version else {}
    async with httpx.AsyncClient(verify=NOBODY) as http:
        return (await http.get(f"{url}/.well-known/agent-card.json", headers=headers)).json()


# ---- on the card ---------------------------------------------------------------------------


@pytest.mark.clause("card.security-schemes")
@pytest.mark.parametrize("name", FLOWS)
async def test_every_flow_in_every_form(name: str) -> None:
    metadata = "https://id.example/.well-known/oauth-authorization-server"
    scheme = OAuth2(verify=BEARER, flow=FLOWS[name], metadata_url=metadata)
    async with serving(App(doorman(), auth=scheme, drain_timeout=0.0)) as url:
        new, old, both = [await card(url, version) for version in ("1.0", "0.3", "")]
        async with httpx.AsyncClient() as http:
            resolved = await A2ACardResolver(http, url).get_agent_card()
    told = {"flows": {name: WIRE[name]}, "oauth2MetadataUrl": metadata}
    assert new["securitySchemes"] == {"oauth2": {"oauth2SecurityScheme": told}}
    assert new["securityRequirements"] == [{"schemes": {"oauth2": {"list": ["talk"]}}}]
    assert both["securitySchemes"]["oauth2"]["oauth2SecurityScheme"] == told
    assert both["securitySchemes"]["oauth2"]["type"] == "oauth2"
    flows = old["securitySchemes"]["oauth2"]["flows"]
    within = {k: v for k, v in WIRE[name].items() if k != "pkceRequired"}
    assert flows == ({} if name == "deviceCode" else {name: within})
    assert old["security"] == both["security"] == [{"oauth2": ["talk"]}]
    # and the reference reads the same
    read = ParseDict(new, pb.AgentCard())
    assert MessageToDict(read)["securitySchemes"] == new["securitySchemes"]
    flow = resolved.security_schemes["oauth2"].oauth2_security_scheme.flows
    assert flow.WhichOneof("flow") == ParseDict({name: {}}, pb.OAuthFlows()).WhichOneof("flow")
    older = to_core_agent_card(Older.model_validate(old))
    assert older.security_schemes["oauth2"].HasField("oauth2_security_scheme")


async def test_two_flows_are_two_entries() -> None:
    both = [
        OAuth2(verify=BEARER, flow=FLOWS["clientCredentials"], name="machines"),
        OAuth2(verify=BEARER, flow=FLOWS["authorizationCode"], name="people"),
    ]
    async with serving(App(doorman(), auth=both, drain_timeout=0.0)) as url:
        new = await card(url, "1.0")
        refused = await send(url)
    assert set(new["securitySchemes"]) == {"machines", "people"}
    assert len(new["securityRequirements"]) == 2
    # what is the same for both is said once
    assert refused.headers["www-authenticate"].count("Bearer ") == 1


@pytest.mark.clause("card.security-schemes")
async def test_openid_in_every_form() -> None:
    scheme = OpenId(issuer="https://id.example/", audience="flights")
    where = "https://id.example/.well-known/openid-configuration"
    async with serving(App(doorman(), auth=scheme, drain_timeout=0.0)) as url:
        new, old = await card(url, "1.0"), await card(url, "0.3")
    entry = {"openIdConnectSecurityScheme": {"openIdConnectUrl": where}}
    assert new["securitySchemes"] == {"openid": entry}
    assert old["securitySchemes"]["openid"] == {"type": "openIdConnect", "openIdConnectUrl": where}
    read = ParseDict(new, pb.AgentCard()).security_schemes["openid"]
    assert read.open_id_connect_security_scheme.open_id_connect_url == where
    Older.model_validate(old)


@pytest.mark.parametrize(
    "flow",
    [
        None,
        "client_credentials",
        ClientCredentialsOAuthFlow(token_url="", scopes={}),
        ImplicitOAuthFlow(),
        DeviceCodeOAuthFlow(device_authorization_url="", token_url=TOKEN, scopes={}),
    ],
)
def test_a_flow_that_leads_nowhere(flow: Any) -> None:
    with pytest.raises(ValueError, match="flow"):
        OAuth2(verify=BEARER, flow=flow)


# ---- followed ------------------------------------------------------------------------------


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    """The authorization server."""
    async with presiding() as found:
        yield found


def guarded(authority: Authority, flow: Any) -> App:
    """An agent that takes tokens of the authority, which it asks about."""
    verify = Introspection(
        url=f"{authority.url}/introspect",
        client_id="agent",
        client_secret=SECRET,
        issuer=authority.url,
        scopes=["talk"],
    )
    return App(doorman(), auth=OAuth2(verify=verify, flow=flow), drain_timeout=0.0)


async def greeted(app: App, auth: OAuth) -> str:
    """What the agent says to who has these credentials."""
    async with serving(app) as url, Client.connect(url, auth=auth) as client:
        return (await client.send("hello")).text


async def test_our_client_gets_in_by_client_credentials(authority: Authority) -> None:
    flow = ClientCredentialsOAuthFlow(token_url=f"{authority.url}/token", scopes=SCOPES)
    assert await greeted(guarded(authority, flow), robot(authority)) == "robot:talk"
    assert authority.asked == [CLIENT]
    with pytest.raises(Unauthenticated):
        await greeted(guarded(authority, flow), OAuth("robot", "wrong", issuer=authority.url))


async def test_our_client_gets_in_by_a_persons_browser(authority: Authority) -> None:
    flow = AuthorizationCodeOAuthFlow(
        authorization_url=f"{authority.url}/authorize",
        token_url=f"{authority.url}/token",
        scopes=SCOPES,
        pkce_required=True,
    )
    assert await greeted(guarded(authority, flow), program(authority, Person())) == "ann:talk"
    assert authority.asked == [CODE]


async def test_our_client_gets_in_by_another_device(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(authority).rule(monkeypatch)
    flow = DeviceCodeOAuthFlow(
        device_authorization_url=f"{authority.url}/device",
        token_url=f"{authority.url}/token",
        scopes=SCOPES,
    )
    screen = Watched()
    app = guarded(authority, flow)
    call = asyncio.create_task(greeted(app, program(authority, screen)))
    authority.device((await screen.invitations.get()).code).verdict = True
    assert await call == "ann:talk"


@pytest.mark.parametrize("who", ["robot", "ann"])
async def test_our_client_gets_in_by_openid_discovery(authority: Authority, who: str) -> None:
    authority.key = ECKey.generate_key("P-256", parameters={"kid": "one"})
    authority.told = {"aud": "flights", "tenant": "blue"}
    scheme = OpenId(issuer=authority.url, audience="flights", scopes=["talk"])
    app = App(doorman(), auth=scheme, drain_timeout=0.0)
    auth = robot(authority) if who == "robot" else program(authority, Person())
    assert await greeted(app, auth) == f"{who}:openid talk"
    # a token of theirs that is for somebody else
    authority.told = {"aud": "hotels"}
    with pytest.raises(Unauthenticated, match="audience"):
        await greeted(App(doorman(), auth=scheme, drain_timeout=0.0), auth)
