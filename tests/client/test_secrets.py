"""Somebody whom a card, a document or an answer names, and who must never hear of a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman.client import Client, CredentialsNotSent, OAuth, Unreachable
from dragoman.model.errors import Unauthenticated
from tests.client.authorization_server import DISCOVERY, SECRET, Authority
from tests.client.fake_user import Person
from tests.client.protected_agent import Guarded, Nowhere, at, greeted, guarded
from tests.harness.raw_server import Listener, listening

REDIRECTS = [301, 302, 303, 307, 308]


@pytest.fixture
async def canary() -> AsyncIterator[Listener]:
    """The one who must not be visited."""
    async with listening() as canary:
        yield canary
        await canary.unseen()


def credentials(name: str, **options: Any) -> OAuth:
    """What the client of such a flow would have to lose."""
    return OAuth("robot" if name == "client" else "site", SECRET, **options)


def there(canary: Listener, path: str = "") -> str:
    return f"http://127.0.0.1:{canary.port}{path}"


# ---- cards ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "field"),
    [
        ("client", "token_url"),
        ("client", "refresh_url"),
        ("code", "authorization_url"),
        ("code", "token_url"),
        ("code", "refresh_url"),
        ("device", "device_authorization_url"),
        ("device", "token_url"),
        ("device", "refresh_url"),
        ("openid", "open_id_connect_url"),
    ],
)
async def test_a_card_that_sends_secrets_away(
    authority: Authority, agent: Guarded, canary: Listener, flow: str, field: str
) -> None:
    """One address of a flow lies with a stranger: nobody is asked anything."""
    person = Person()
    agent.demand({"it": authority.scheme(flow, **{field: there(canary, "/x")})})
    with pytest.raises(CredentialsNotSent, match=str(canary.port)):
        await greeted(agent, credentials(flow, issuer=authority.url, tell=person))
    assert (authority.asked, person.invitations, agent.requests) == ([], [], [])


@pytest.mark.parametrize("flow", ["client", "code", "device", "openid"])
async def test_an_authority_nobody_vouches_for(
    authority: Authority, agent: Guarded, flow: str
) -> None:
    """It is not the agent's own, and the caller has not named it."""
    person = Person()
    agent.demand({"it": authority.scheme(flow)})
    with pytest.raises(CredentialsNotSent, match="issuer"):
        await greeted(agent, credentials(flow, tell=person))
    assert (authority.asked, authority.devices, person.invitations) == ([], {}, [])
    assert agent.requests == []


async def test_an_authority_by_its_full_address(authority: Authority, agent: Guarded) -> None:
    """What counts is the origin."""
    agent.demand({"it": authority.scheme("client")})
    auth = credentials("client", issuer=f"{authority.url}/realms/one")
    assert await greeted(agent, auth) == "robot:"


async def test_the_agent_is_not_to_be_had_by_its_authority(
    authority: Authority, agent: Guarded, canary: Listener
) -> None:
    """To vouch for an authority is not to vouch for an agent at the same address."""
    agent.demand({"it": authority.scheme("client")})
    agent.point("JSONRPC", there(canary, "/"))
    with pytest.raises(CredentialsNotSent):
        await greeted(agent, credentials("client", issuer=there(canary)))
    assert authority.asked == []


async def test_a_card_that_names_another_agent_first(authority: Authority, agent: Guarded) -> None:
    """Whose token it is, is not for a card to say: one login serves several agents."""
    auth = credentials("client", issuer=authority.url)
    async with guarded(authority.identify) as other:
        for each in (agent, other):
            each.demand({"it": authority.scheme("client")})
        await greeted(agent, auth)
        other.card = replace(
            other.card,
            supported_interfaces=(
                *agent.card.supported_interfaces,
                *other.card.supported_interfaces,
            ),
        )
        await greeted(other, auth)
        assert not {*agent.headers("authorization")} & {*other.headers("authorization")}


@pytest.mark.parametrize(
    "url", ["http://id.example", "http://127.0.0.1.id.example", "http://127.0.0.1@id.example"]
)
@pytest.mark.parametrize("flow", ["client", "code", "device", "openid"])
async def test_not_in_clear_over_the_network(flow: str, url: str) -> None:
    transport, person = Nowhere(), Person()
    card = at("https://agent.example", Authority(url=url).scheme(flow))
    auth = credentials(flow, issuer=url, tell=person)
    with pytest.raises(CredentialsNotSent):
        async with Client.connect(card, transport=transport, attempts=1, auth=auth) as client:
            await client.send("hello")
    assert (transport.sent, person.invitations) == ([], [])


async def test_over_tls_it_may_go() -> None:
    transport = Nowhere()
    card = at("https://agent.example", Authority(url="https://id.example").scheme("client"))
    auth = credentials("client", issuer="https://id.example")
    async with Client.connect(card, transport=transport, attempts=1, auth=auth) as client:
        with pytest.raises(Unreachable):
            await client.send("hello")
    first, second = transport.sent  # what the agent calls itself is asked without any secret
    assert first.url == "https://agent.example/.well-known/oauth-protected-resource"
    assert (set(first.headers), first.body) == ({"accept"}, b"")
    assert second.url == "https://id.example/token"


# ---- documents ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "field"),
    [
        ("client", "token_endpoint"),
        ("code", "token_endpoint"),
        ("code", "authorization_endpoint"),
        ("device", "token_endpoint"),
        ("device", "device_authorization_endpoint"),
    ],
)
async def test_a_document_that_sends_secrets_away(
    authority: Authority, agent: Guarded, canary: Listener, flow: Any, field: str
) -> None:
    person = Person()
    authority.document = {field: there(canary, "/x")}
    agent.demand({"it": authority.scheme("openid")})
    auth = credentials(flow, issuer=authority.url, flow=flow, tell=person)
    with pytest.raises(CredentialsNotSent, match=str(canary.port)):
        await greeted(agent, auth)
    assert (authority.asked, authority.devices, person.invitations) == ([], {}, [])
    assert agent.requests == []


async def test_a_document_that_speaks_for_somebody_else(
    authority: Authority, agent: Guarded, canary: Listener
) -> None:
    """Its addresses are all right; it says that it is another's."""
    authority.document = {"issuer": there(canary)}
    agent.demand({"it": authority.scheme("openid")})
    with pytest.raises((CredentialsNotSent, Unauthenticated)):
        await greeted(agent, credentials("client", issuer=authority.url))
    assert (authority.asked, agent.requests) == ([], [])


# ---- answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize(
    ("flow", "field"),
    [
        ("client", "token_url"),
        ("code", "token_url"),
        ("device", "device_authorization_url"),
        ("openid", "open_id_connect_url"),
    ],
)
async def test_an_authority_that_redirects(
    authority: Authority, agent: Guarded, canary: Listener, flow: str, field: str, status: int
) -> None:
    head = f"HTTP/1.1 {status} Moved\r\nLocation: {there(canary)}\r\nContent-Length: 0\r\n\r\n"
    async with listening(head.encode()) as moved:
        agent.mounts["id"] = authority.app
        authority.url = f"{agent.url}/id"
        path = DISCOVERY if flow == "openid" else "/x"
        agent.demand({"it": authority.scheme(flow, **{field: there(moved, path)})})
        with pytest.raises(Unauthenticated):
            await greeted(agent, credentials(flow, issuer=there(moved), tell=Person()), attempts=1)
        assert len(moved.requests) == 1
    assert agent.requests == []


async def test_a_refresh_that_is_redirected(
    authority: Authority, agent: Guarded, canary: Listener
) -> None:
    """A refresh token is as good as a login."""
    head = f"HTTP/1.1 307 Moved\r\nLocation: {there(canary)}\r\nContent-Length: 0\r\n\r\n"
    async with listening(head.encode()) as moved:
        agent.mounts["id"] = authority.app
        authority.url = f"{agent.url}/id"
        agent.demand({"it": authority.scheme("code", refresh_url=there(moved, "/x"))})
        auth = credentials("code", issuer=there(moved), tell=Person())
        async with Client.connect(agent.url, auth=auth, attempts=1) as client:
            await client.send("hello")
            authority.revoke()
            assert (await client.send("hello")).text == "ann:"  # by another login
        assert len(moved.requests) == 1
