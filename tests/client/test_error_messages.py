"""What an error says beside what the agent said: which task, and what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman import Agent, App
from dragoman.client import Client, HTTPTransport, StaticToken, Unreachable, tls
from dragoman.model.errors import InvalidAgentResponse, TaskNotFound, Unauthenticated
from dragoman.model.types import (
    ClientCredentialsOAuthFlow,
    MutualTlsSecurityScheme,
    OAuth2SecurityScheme,
    OAuthFlows,
    SecurityScheme,
)
from tests.client.protected_agent import Guarded, guarded, has, http, key
from tests.client.test_client import parrot
from tests.client.transports import BINDINGS, card, free_port, interface
from tests.harness.raw_server import Certificate as Selfmade
from tests.harness.raw_server import listening
from tests.harness.server import serving


@pytest.fixture
async def agent() -> AsyncIterator[Guarded]:
    """An agent that wants a key."""
    async with guarded(has(x_key="sesame")) as agent:
        yield agent


# ---- tasks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_that_is_not_found_is_named(binding: str) -> None:
    async with (
        App(parrot(), drain_timeout=0.0) as app,
        Client.connect(app=app, bindings=[binding]) as client,
    ):
        for call in (client.task("nobody").get(), client.task("nobody").cancel()):
            with pytest.raises(TaskNotFound, match=r"^Task not found: nobody$") as caught:
                await call
            assert caught.value.message == str(caught.value)
        with pytest.raises(TaskNotFound, match=r"^Task not found: nobody$"):
            await client.send("x", task="nobody")
        with pytest.raises(TaskNotFound, match=r"^Task not found: nobody$"):
            async with client.task("nobody").subscribe() as stream:
                _ = [event async for event in stream]


# ---- credentials ---------------------------------------------------------------------------

FLOW = ClientCredentialsOAuthFlow(token_url="https://a.example/token", scopes={})
OAUTH = SecurityScheme(
    oauth2_security_scheme=OAuth2SecurityScheme(flows=OAuthFlows(client_credentials=FLOW))
)
MUTUAL = SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())
WAYS = [
    (
        key("header", "X-Key"),
        "an API key: --api-key KEY (header X-Key); in Python auth=StaticToken(KEY)",
    ),
    (key("query", "k"), "an API key: --api-key KEY (query k); in Python auth=StaticToken(KEY)"),
    (http("bearer"), "a bearer token: --bearer TOKEN; in Python auth=StaticToken(TOKEN)"),
    (http("Basic"), "a name and a password: --user NAME:PASSWORD; in Python auth=BasicAuth("),
    (OAUTH, "an OAuth login: --client-id ID, or --bearer TOKEN; in Python auth=OAuth(ID)"),
    (MUTUAL, "a client certificate: --cert FILE; in Python auth=ClientCertificate(FILE)"),
]


@pytest.mark.parametrize(("scheme", "words"), WAYS)
async def test_what_an_agent_wants(agent: Guarded, scheme: SecurityScheme, words: str) -> None:
    agent.demand({"it": scheme})
    async with Client.connect(agent.url) as client:
        with pytest.raises(Unauthenticated) as caught:
            await client.send("x")
        assert str(caught.value).startswith(f"The agent requires {words}")
        with pytest.raises(Unauthenticated) as caught:
            async with client.stream("x") as stream:
                _ = [event async for event in stream]
        assert str(caught.value).startswith(f"The agent requires {words}")


async def test_one_of_several_ways_and_two_together(agent: Guarded) -> None:
    schemes = {"key": key("header", "X-Key"), "it": http("bearer")}
    agent.demand(schemes, {"key": (), "it": ()}, {"it": ()})
    async with Client.connect(agent.url) as client:
        with pytest.raises(Unauthenticated) as caught:
            await client.task("t").get()
    assert str(caught.value) == (
        "The agent requires an API key: --api-key KEY (header X-Key) and a bearer token: --bearer "
        "TOKEN, or a bearer token: --bearer TOKEN; in Python "
        "auth=[StaticToken(KEY), StaticToken(TOKEN)]"
    )


async def test_a_credential_that_is_refused(agent: Guarded) -> None:
    """Then the agent's own words count, too."""
    agent.demand({"it": key("header", "x-key")})
    async with Client.connect(agent.url, auth=StaticToken("wrong")) as client:
        with pytest.raises(Unauthenticated) as caught:
            await client.task("t").get()
    said, _, more = str(caught.value).partition("; ")
    assert said
    assert more.startswith("the agent requires an API key: --api-key KEY (header x-key)")


# ---- addresses -----------------------------------------------------------------------------


@pytest.mark.parametrize("binding", ["JSONRPC", "GRPC"])
async def test_nobody_is_at_the_address_that_a_card_names(agent: Guarded, binding: str) -> None:
    port = free_port()
    agent.demand({"it": key("header", "x-key")})
    agent.point(binding, f"127.0.0.1:{port}" if binding == "GRPC" else f"http://127.0.0.1:{port}")
    async with Client.connect(agent.url, attempts=1) as client:
        for streams in (False, True):
            with pytest.raises(Unreachable) as caught:
                if streams:
                    async with client.stream("x") as stream:
                        _ = [event async for event in stream]
                else:
                    await client.task("t").get()
            words = str(caught.value)
            assert "onnection refused" in words
            assert words.count(f"; the card at {agent.url} contains this address; ") == 1
            setting = "bindings" if binding == "GRPC" else "url"
            assert words.endswith(f"(in dragoman: the setting `{setting}`)")


async def test_nobody_is_at_the_address_of_the_card_itself() -> None:
    where = f"http://127.0.0.1:{free_port()}"
    async with Client.connect(card(interface(where)), attempts=1) as client:
        with pytest.raises(Unreachable, match=r"Connection refused$"):
            await client.task("t").get()


async def test_http_where_https_was_asked_for() -> None:
    async with serving(App(parrot(), drain_timeout=0.0)) as url:
        where = url.replace("http:", "https:")
        with pytest.raises(Unreachable) as caught:
            async with Client.connect(where, attempts=1):
                pass
    assert str(caught.value) == f"{where}: the server uses http on this port, not https"


async def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    made = Selfmade(tmp_path / "one", "127.0.0.1")
    async with listening(tls=made.server()) as listener:
        where = f"https://127.0.0.1:{listener.port}"
        with pytest.raises(Unreachable) as caught:
            async with Client.connect(where, attempts=1):
                pass
        words = str(caught.value)
        assert words.startswith(f"{where}: its certificate is not trusted: self-signed certificate")
        assert "; trust it with --ca FILE" in words
        other = f"https://localhost:{listener.port}"
        transport = HTTPTransport(ssl=tls.context(ca=str(made.file)))
        with pytest.raises(Unreachable) as caught:
            async with Client.connect(other, transport=transport, attempts=1):
                pass
        assert "its certificate is not valid: Hostname mismatch" in str(caught.value)
        assert "--ca" not in str(caught.value)


@pytest.mark.parametrize("secure", [False, True])
async def test_grpc_and_tls(tmp_path: Path, secure: bool) -> None:
    pytest.importorskip("grpc")
    file = str(Selfmade(tmp_path, "127.0.0.1").file)
    more = {"cert": file, "key": file} if secure else {}
    port = free_port()
    async with App(parrot(), grpc_port=port, drain_timeout=0.0, **more):
        found = card(interface(f"https://127.0.0.1:{port}", "GRPC"))
        async with Client.connect(found, attempts=1) as client:
            with pytest.raises(Unreachable) as caught:
                await client.task("t").get()
    words = str(caught.value).partition(": ")[2]
    assert words.startswith(
        "its certificate is not trusted: " if secure else "the server does not use TLS on this port"
    )
    assert ("--ca FILE" in words) == secure


# ---- what is no card -----------------------------------------------------------------------


async def test_a_web_page_where_a_card_should_be() -> None:
    page = b"\n<!doctype html><html/>"
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(page)
    async with listening(head + page) as listener:
        where = f"http://127.0.0.1:{listener.port}"
        with pytest.raises(InvalidAgentResponse) as caught:
            async with Client.connect(where):
                pass
    found = f"{where}/.well-known/agent-card.json"
    assert str(caught.value) == f"{found} is a web page, not a card"


async def test_the_root_of_several_agents_says_where_they_are() -> None:
    flight, hotel = (Agent(name, description="Books.") for name in ("Flight", "Hotel"))
    for one in (flight, hotel):
        one.handler(lambda turn: turn.text)
    async with serving(App(flight, hotel, drain_timeout=0.0)) as url:
        with pytest.raises(Exception, match="no agent card") as caught:
            async with Client.connect(url):
                pass
        assert f"the agents are at {url}/flight, {url}/hotel" in str(caught.value)
