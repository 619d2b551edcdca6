"""Tokens from a real authorization server: how they are got by each flow, and refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import webbrowser
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from msgspec.structs import replace

from dragoman.client import LoginPrompt, OAuth, StaticToken, Unreachable, login_redirect
from dragoman.model.errors import Unauthenticated
from dragoman.model.types import (
    AgentSkill,
    OAuth2SecurityScheme,
    OAuthFlows,
    PasswordOAuthFlow,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from tests.client.authorization_server import CLIENT, CODE, DEVICE, SECRET, Authority
from tests.client.fake_user import Clock, Person, Watched, app, fields, robot, visit
from tests.client.protected_agent import Guarded, calling, greeted, http, key
from tests.harness.raw_server import listening

BINDINGS = ["JSONRPC", "HTTP+JSON"]


# ---- between machines -----------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
async def test_client_credentials(authority: Authority, agent: Guarded, binding: str) -> None:
    agent.demand({"it": authority.scheme("client")}, {"it": ("talk",)})
    assert await greeted(agent, robot(authority), binding) == "robot:talk"
    assert authority.asked == [CLIENT]
    assert SECRET not in str(authority.forms)  # it goes by the header


async def test_scopes_of_card_and_caller(authority: Authority, agent: Guarded) -> None:
    agent.demand({"it": authority.scheme("client")}, {"it": ("talk",)})
    auth = robot(authority, scopes=("listen", "talk"))
    assert await greeted(agent, auth) == "robot:listen talk"


async def test_scopes_of_a_skill(authority: Authority, agent: Guarded) -> None:
    """If the card says what a skill needs, that counts, and not what it says of all skills."""
    card = agent.demand({"it": authority.scheme("client")}, {"it": ("listen",)})
    needs = (SecurityRequirement(schemes={"it": StringList(list=("talk",))}),)
    skill = AgentSkill(id="say", name="Say", description="Says.", tags=())
    agent.card = replace(card, skills=(replace(skill, security_requirements=needs), skill))
    auth = robot(authority)
    assert await greeted(agent, auth, scopes_for="say") == "robot:talk"
    assert await greeted(agent, auth, scopes_for="other") == "robot:listen"
    assert await greeted(agent, auth) == "robot:listen"


async def test_an_authority_at_the_agents_own_address(authority: Authority, agent: Guarded) -> None:
    """It needs no word of the caller."""
    agent.mounts["id"] = authority.app
    authority.url = f"{agent.url}/id"
    agent.demand({"it": authority.scheme("client")})
    assert await greeted(agent, OAuth("robot", SECRET)) == "robot:"


async def test_with_another_scheme(authority: Authority, agent: Guarded) -> None:
    schemes = {"it": authority.scheme("client"), "key": key("header", "x-key")}
    agent.demand(schemes, {"it": (), "key": ()})
    assert await greeted(agent, [StaticToken("k"), robot(authority)]) == "robot:"
    assert set(agent.headers("x-key")) == {"k"}


@pytest.mark.parametrize("other", ["bearer", "basic"])
async def test_beside_other_schemes(authority: Authority, agent: Guarded, other: str) -> None:
    """What takes tokens that it cannot get is left to others."""
    agent.demand(
        {"other": http(other), "it": authority.scheme("client")}, {"other": ()}, {"it": ()}
    )
    assert await greeted(agent, robot(authority)) == "robot:"


@pytest.mark.parametrize("flow", ["client", "code", "device", "openid"])
async def test_a_token_that_is_there_already(
    authority: Authority, agent: Guarded, flow: str
) -> None:
    async with httpx.AsyncClient() as browser:
        data = {"grant_type": CLIENT, "client_id": "robot", "client_secret": SECRET}
        token = (await browser.post(f"{authority.url}/token", data=data)).json()["access_token"]
    agent.demand({"it": authority.scheme(flow)})
    assert await greeted(agent, StaticToken(token)) == "robot:"
    assert authority.asked == [CLIENT]


# ---- by a person's browser ------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(("name", "secret"), [("app", ""), ("site", SECRET)])
async def test_code(
    authority: Authority, agent: Guarded, person: Person, name: str, secret: str, binding: str
) -> None:
    agent.demand({"it": authority.scheme("code")}, {"it": ("talk",)})
    auth = OAuth(name, secret, issuer=authority.url, tell=person)
    assert await greeted(agent, auth, binding) == "ann:talk"
    assert authority.asked == [CODE]
    (invitation,), (page,) = person.invitations, person.pages
    assert page.status_code == 200
    assert invitation.code == ""
    asked = fields(invitation.url)
    assert asked["code_challenge_method"] == "S256"
    assert len(asked["state"]) >= 22
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")


async def test_the_callback_is_closed_afterwards(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    agent.demand({"it": authority.scheme("code")})
    await greeted(agent, app(authority, person))
    port = urlsplit(fields(person.invitations[0].url)["redirect_uri"]).port
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_port_of_ones_choice(authority: Authority, agent: Guarded, person: Person) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agent.demand({"it": authority.scheme("code")})
    await greeted(agent, app(authority, person, port=port))
    redirect = fields(person.invitations[0].url)["redirect_uri"]
    assert redirect == f"http://127.0.0.1:{port}/callback"


async def test_an_authorization_url_with_a_query(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    url = f"{authority.url}/authorize?audience=agent"
    agent.demand({"it": authority.scheme("code", authorization_url=url)})
    assert await greeted(agent, app(authority, person)) == "ann:"
    assert fields(person.invitations[0].url)["audience"] == "agent"


async def test_nothing_of_a_login_is_used_again(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    agent.demand({"it": authority.scheme("code")})
    for _ in range(2):
        await greeted(agent, app(authority, person))
    first, second = (fields(invitation.url) for invitation in person.invitations)
    assert first["state"] != second["state"]
    assert first["code_challenge"] != second["code_challenge"]


@pytest.mark.parametrize(
    "forged", ["?code=evil&state=wrong", "?code=evil", "?code=evil&state=", ""]
)
async def test_only_the_answer_that_was_waited_for(
    authority: Authority, agent: Guarded, forged: str
) -> None:
    async def tell(invitation: LoginPrompt) -> None:
        redirect = fields(invitation.url)["redirect_uri"]
        page = await visit(redirect + forged)
        assert (page.status_code, page.reason_phrase) == (404, "Not Found")
        assert (await visit(invitation.url)).status_code == 200

    agent.demand({"it": authority.scheme("code")})
    assert await greeted(agent, app(authority, tell)) == "ann:"
    assert [form["code"] == "evil" for form in authority.forms] == [False]


async def test_a_person_who_says_no(authority: Authority, agent: Guarded, person: Person) -> None:
    authority.person = None
    agent.demand({"it": authority.scheme("code")})
    with pytest.raises(Unauthenticated, match=r"access_denied.*denied the request"):
        await greeted(agent, app(authority, person))
    assert (authority.asked, agent.requests) == ([], [])


async def test_a_person_who_does_not_come(
    authority: Authority, agent: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_redirect, "PATIENCE", 0.05)
    agent.demand({"it": authority.scheme("code")})
    with pytest.raises(Unauthenticated):
        await greeted(agent, app(authority, lambda invitation: None))


async def test_a_person_may_take_longer_than_an_agent(authority: Authority, agent: Guarded) -> None:
    """How long a call may take is not how long a person may take to log in, once."""
    screen = Watched()
    agent.demand({"it": authority.scheme("code")})
    async with calling(agent, app(authority, screen), timeout=0.2, attempts=1) as client:
        call = asyncio.create_task(client.send("hello"))
        invitation = await screen.invitations.get()
        await asyncio.wait([call], timeout=0.5)
        await visit(invitation.url)
        assert (await call).text == "ann:"
    assert screen.invitations.empty()


async def test_how_a_person_is_told(
    authority: Authority,
    agent: Guarded,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On the terminal, and in a browser where there is a screen."""
    visits: list[asyncio.Task[httpx.Response]] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(
        webbrowser, "open", lambda url: visits.append(asyncio.create_task(visit(url)))
    )
    agent.demand({"it": authority.scheme("code")})
    assert await greeted(agent, OAuth("app", issuer=authority.url)) == "ann:"
    assert (await visits[0]).status_code == 200
    assert f"{authority.url}/authorize?" in capsys.readouterr().err


# ---- by another device ----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def asked(
    authority: Authority, agent: Guarded, **options: Any
) -> AsyncIterator[tuple[LoginPrompt, asyncio.Task[Any]]]:
    """A call that waits for a person, and what the person is told."""
    screen = Watched()
    agent.demand({"it": authority.scheme("device")}, {"it": ("talk",)})
    async with calling(agent, app(authority, screen, **options)) as client:
        call = asyncio.create_task(client.send("hello"))
        yield await screen.invitations.get(), call


async def test_device(authority: Authority, agent: Guarded, clock: Clock) -> None:
    async with asked(authority, agent) as (invitation, call):
        assert invitation.url.startswith(f"{authority.url}/activate")
        await authority.came(3)
        assert not call.done()
        authority.device(invitation.code).verdict = True
        assert (await call).text == "ann:talk"
    assert set(authority.asked) == {DEVICE}
    assert set(clock.sleeps) == {5}  # the interval that the authority told


async def test_a_device_that_has_to_slow_down(
    authority: Authority, agent: Guarded, clock: Clock
) -> None:
    authority.interval, authority.distance = 2, 3
    async with asked(authority, agent) as (invitation, call):
        await authority.came(3)
        authority.device(invitation.code).verdict = True
        assert (await call).text == "ann:talk"
    assert clock.sleeps[:2] == [2, 7]
    assert min(clock.sleeps[1:]) >= 7  # for good


async def test_a_device_that_is_refused(authority: Authority, agent: Guarded, clock: Clock) -> None:
    async with asked(authority, agent) as (invitation, call):
        authority.device(invitation.code).verdict = False
        with pytest.raises(Unauthenticated, match="access_denied"):
            await call
    assert agent.requests == []


async def test_a_device_nobody_comes_to(authority: Authority, agent: Guarded, clock: Clock) -> None:
    authority.patience = 20
    async with asked(authority, agent) as (_, call):
        with pytest.raises(Unauthenticated):
            await call
    assert sum(clock.sleeps) <= 30


async def test_nobody_polls_without_an_interval(
    authority: Authority, agent: Guarded, clock: Clock
) -> None:
    """Whatever the authority says, there is a pause between the polls."""
    authority.interval = 0
    async with asked(authority, agent) as (invitation, call):
        await authority.came(2)
        authority.device(invitation.code).verdict = True
        assert (await call).text == "ann:talk"
    assert min(clock.sleeps) > 0


async def test_a_device_whose_network_fails(
    authority: Authority, agent: Guarded, clock: Clock
) -> None:
    """A poll that was not answered is not the end of the login."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/token" and not authority.asked:
            authority.asked.append("lost")
            raise ConnectionResetError
        await authority.app(scope, receive, send)

    agent.mounts["id"] = broken
    authority.url = f"{agent.url}/id"
    async with asked(authority, agent) as (invitation, call):
        await authority.came(2)
        authority.device(invitation.code).verdict = True
        assert (await call).text == "ann:talk"
    assert authority.asked[:2] == ["lost", DEVICE]


async def test_a_device_that_is_switched_off(
    authority: Authority, agent: Guarded, clock: Clock
) -> None:
    """A login that nobody waits for does not poll behind the back of a closed client."""
    async with asked(authority, agent) as (_, call):
        await authority.came(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await authority.came(len(authority.asked) + 3)


# ---- discovery ------------------------------------------------------------------------------


async def test_openid_between_machines(authority: Authority, agent: Guarded) -> None:
    agent.demand({"it": authority.scheme("openid")}, {"it": ("talk",)})
    assert "talk" in await greeted(agent, robot(authority))
    assert authority.asked == [CLIENT]


async def test_openid_for_people(authority: Authority, agent: Guarded, person: Person) -> None:
    agent.demand({"it": authority.scheme("openid")}, {"it": ("talk",)})
    assert await greeted(agent, app(authority, person)) == "ann:openid talk"
    assert authority.asked == [CODE]


async def test_openid_for_devices(authority: Authority, agent: Guarded, clock: Clock) -> None:
    screen = Watched()
    agent.demand({"it": authority.scheme("openid")})
    async with calling(agent, app(authority, screen, flow="device")) as client:
        call = asyncio.create_task(client.send("hello"))
        invitation = await screen.invitations.get()
        authority.device(invitation.code).verdict = True
        assert (await call).text == "ann:openid"
    assert set(authority.asked) == {DEVICE}


async def test_openid_for_people_with_a_secret(
    authority: Authority, agent: Guarded, person: Person
) -> None:
    agent.demand({"it": authority.scheme("openid")})
    auth = OAuth("site", SECRET, issuer=authority.url, tell=person, flow="code")
    assert await greeted(agent, auth) == "ann:openid"


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://other.example"},
        {"issuer": ""},
        {"issuer": None},
        {"token_endpoint": None},
        {"token_endpoint": 7},
        {"authorization_endpoint": None},
    ],
    ids=str,
)
async def test_a_document_that_is_not_right(
    authority: Authority, agent: Guarded, person: Person, document: dict[str, Any]
) -> None:
    authority.document = document
    agent.demand({"it": authority.scheme("openid")})
    with pytest.raises(Unauthenticated):
        await greeted(agent, app(authority, person))
    assert (authority.asked, person.invitations, agent.requests) == ([], [], [])


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "secret", "scope", "word"),
    [
        ("robot", "wr0ng", "talk", "invalid_client.*cannot authenticate"),
        ("nobody", "wr0ng", "talk", "invalid_client.*does not exist"),
        ("robot", SECRET, "rule", "invalid_scope.*requested scope is invalid"),
    ],
)
async def test_what_the_authority_says(
    authority: Authority, agent: Guarded, name: str, secret: str, scope: str, word: str
) -> None:
    agent.demand({"it": authority.scheme("client")}, {"it": (scope,)})
    auth = OAuth(name, secret, issuer=authority.url)
    with pytest.raises(Unauthenticated, match=word) as caught:
        await greeted(agent, auth)
    assert secret not in str(caught.value)
    assert agent.requests == []


def answer(status: int, body: str) -> bytes:
    head = f"HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>hello</html>"),
        (200, "[]"),
        (200, "{}"),
        (200, '{"access_token": 7, "token_type": "Bearer"}'),
        (200, '{"access_token": "", "token_type": "Bearer"}'),
        (400, ""),
        (404, "<html>"),
        (200, '{"error": "invalid_request"}'),
    ],
)
async def test_an_answer_that_is_no_token(agent: Guarded, status: int, body: str) -> None:
    async with listening(answer(status, body)) as server:
        authority = Authority(url=f"http://127.0.0.1:{server.port}")
        agent.demand({"it": authority.scheme("client")})
        with pytest.raises(Unauthenticated):
            await greeted(agent, robot(authority), attempts=1)
    assert agent.requests == []


@pytest.mark.parametrize("status", [500, 502])
async def test_an_authority_that_is_broken(agent: Guarded, status: int) -> None:
    async with listening(answer(status, "<html>")) as server:
        authority = Authority(url=f"http://127.0.0.1:{server.port}")
        agent.demand({"it": authority.scheme("client")})
        with pytest.raises((Unauthenticated, Unreachable), match=str(status)):
            await greeted(agent, robot(authority), attempts=1)


async def test_a_flow_that_is_out_of_date(agent: Guarded, authority: Authority) -> None:
    flows = OAuthFlows(password=PasswordOAuthFlow(token_url=f"{authority.url}/token"))
    scheme = SecurityScheme(oauth2_security_scheme=OAuth2SecurityScheme(flows=flows))
    agent.demand({"it": scheme})
    with pytest.raises(Unauthenticated, match="deprecated"):
        await greeted(agent, robot(authority))
    assert authority.asked == []
