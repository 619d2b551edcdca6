"""What a caller shows of itself: where the card says, and to nobody but the card's own agent."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dragoman import Caller, Request
from dragoman.client import (
    AuthRequest,
    BasicAuth,
    Client,
    ClientCertificate,
    CredentialsNotSent,
    OAuth,
    StaticToken,
    TokenProvider,
    Unreachable,
)
from dragoman.model.errors import A2AError, Forbidden, Unauthenticated
from dragoman.model.types import SecurityScheme
from tests.client.protected_agent import (
    Guarded,
    Nowhere,
    at,
    counted,
    greeted,
    guarded,
    has,
    http,
    key,
)
from tests.harness.raw_server import listening

BINDINGS = ["JSONRPC", "HTTP+JSON"]
ODD = "k&y=1 +/%41"
"""A key that has to be escaped in a query."""


# ---- every scheme ---------------------------------------------------------------------------


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("scheme", "auth", "expected"),
    [
        (key("header", "X-Key"), StaticToken(ODD), {"x_key": ODD}),
        (key("query", "the key"), StaticToken(ODD), {"query": [("the key", ODD)]}),
        (key("cookie", "key"), StaticToken("abc"), {"cookie": "key=abc"}),
        (http("bearer"), StaticToken("abc"), {"authorization": "Bearer abc"}),
        (http("Bearer"), StaticToken("abc"), {"authorization": "Bearer abc"}),
        (
            http("basic"),
            BasicAuth("ann", "p:ä"),
            {"authorization": "Basic " + base64.b64encode("ann:p:ä".encode()).decode()},
        ),
    ],
    ids=["header", "query", "cookie", "bearer", "Bearer", "basic"],
)
async def test_where_it_goes(
    scheme: SecurityScheme, auth: Any, expected: dict[str, Any], binding: str
) -> None:
    async with guarded(has(**expected)) as agent:
        agent.demand({"it": scheme})
        assert await greeted(agent, auth, binding) == "robot:"
        assert len(agent.requests) == 2


async def test_another_http_scheme() -> None:
    async with guarded(has(authorization="Negotiate abc")) as agent:
        agent.demand({"it": http("Negotiate")})
        assert await greeted(agent, StaticToken("abc")) == "robot:"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_query_beside_others(binding: str) -> None:
    async with guarded(has()) as agent:
        agent.demand({"it": key("query", "key")})
        async with Client.connect(agent.url, auth=StaticToken("abc"), bindings=[binding]) as client:
            assert len([task async for task in client.list(page=7)]) == 0
        query = agent.requests[-1].query.split("&")
        assert "key=abc" in query
        assert query.count("key=abc") == 1
        assert ("pageSize=7" in query) == (binding == "HTTP+JSON")


async def test_a_query_beside_one_of_the_address() -> None:
    async with guarded(has(query=[("room", "2"), ("key", "abc")])) as agent:
        agent.demand({"it": key("query", "key")})
        agent.point("JSONRPC", f"{agent.url}/?room=2")
        assert await greeted(agent, StaticToken("abc")) == "robot:"


async def test_the_card_needs_nothing() -> None:
    """Nothing is shown before the card has said what and where."""
    async with guarded(has(authorization="Bearer abc")) as agent:
        agent.demand({"it": http("bearer")})
        await greeted(agent, StaticToken("abc"), headers={"x-mine": "1"})
        assert agent.headers("x-mine") == ["1", "1"]
        assert len(agent.card_requests) == 1
        assert "authorization" not in agent.card_requests[0]


async def test_a_card_that_asks_for_nothing() -> None:
    async with guarded(has()) as agent:
        agent.demand({"it": http("bearer")}, {})
        assert await greeted(agent, StaticToken("abc")) == "robot:"
        assert agent.headers("authorization") == [None, None]


async def test_an_application_in_this_process() -> None:
    agent = Guarded(has(authorization="Bearer abc"))
    agent.url = "http://inside"
    agent.demand({"it": http("bearer")})
    async with agent.app, Client.connect(app=agent, auth=StaticToken("abc")) as client:
        assert (await client.send("hello")).text == "robot:"


@pytest.mark.parametrize("value", ["a\r\nx-evil: 1", "a\nb", "a\0b"])
@pytest.mark.parametrize(
    "scheme",
    [key("header", "x-key"), key("cookie", "key"), http("bearer")],
    ids=["header", "cookie", "bearer"],
)
async def test_no_second_header_is_smuggled_in(scheme: SecurityScheme, value: str) -> None:
    async with guarded(has()) as agent:
        agent.demand({"it": scheme})
        with pytest.raises((ValueError, A2AError)):
            await greeted(agent, StaticToken(value))
        assert agent.requests == []


@pytest.mark.parametrize(
    "credential",
    [
        StaticToken("s3cret"),
        BasicAuth("ann", "s3cret"),
        OAuth("robot", "s3cret"),
        ClientCertificate("cert.pem", "key.pem", password="s3cret"),
    ],
)
def test_secrets_are_not_shown(credential: Any) -> None:
    assert "s3cret" not in repr(credential)
    assert "s3cret" not in str(credential)


# ---- which of them --------------------------------------------------------------------------

BOTH = {"key": key("header", "x-key"), "token": http("bearer"), "login": http("basic")}


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (
            {"key": StaticToken("k"), "token": StaticToken("t")},
            {"x_key": "k", "authorization": "Bearer t"},
        ),
        (
            {"token": StaticToken("t"), "key": StaticToken("k")},
            {"x_key": "k", "authorization": "Bearer t"},
        ),
    ],
)
async def test_all_schemes_of_an_alternative(auth: Any, expected: dict[str, str]) -> None:
    async with guarded(has(**expected)) as agent:
        agent.demand(BOTH, {"key": (), "token": ()})
        assert await greeted(agent, auth) == "robot:"


async def test_a_list_finds_its_schemes_by_kind() -> None:
    basic = base64.b64encode(b"ann:pass").decode()
    async with guarded(has(x_key="k", authorization=f"Basic {basic}")) as agent:
        agent.demand(BOTH, {"key": (), "login": ()})
        assert await greeted(agent, [BasicAuth("ann", "pass"), StaticToken("k")]) == "robot:"


@pytest.mark.parametrize(
    ("auth", "shown"),
    [
        ({"token": StaticToken("t")}, ("Bearer t", None)),
        ({"key": StaticToken("k"), "token": StaticToken("t")}, (None, "k")),
        (BasicAuth("a", "b"), ("Basic YTpi", None)),
    ],
    ids=["second", "first", "third"],
)
async def test_the_first_alternative_that_can_be_met(
    auth: Any, shown: tuple[str | None, str | None]
) -> None:
    async with guarded(has()) as agent:
        agent.demand(BOTH, {"key": ()}, {"token": ()}, {"login": ()})
        assert await greeted(agent, auth) == "robot:"
        assert {
            (r.headers.get("authorization"), r.headers.get("x-key")) for r in agent.requests
        } == {shown}


async def test_half_of_an_alternative_is_not_shown() -> None:
    async with guarded(has()) as agent:
        agent.demand(BOTH, {"key": (), "token": ()}, {"login": ()})
        auth = {"token": StaticToken("t"), "login": BasicAuth("a", "b")}
        assert await greeted(agent, auth) == "robot:"
        assert set(agent.headers("authorization")) == {"Basic YTpi"}
        assert set(agent.headers("x-key")) == {None}


async def test_nothing_that_fits() -> None:
    async with guarded(has(x_key="k")) as agent:
        agent.demand(BOTH, {"key": ()})
        with pytest.raises(CredentialsNotSent, match="key"):
            await greeted(agent, {"token": StaticToken("t")})
        assert set(agent.headers("authorization")) <= {None}


# ---- a provider of one's own ----------------------------------------------------------------


class Vault:
    """Gives out its tokens one after the other, and remembers what it was asked."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.needs: list[AuthRequest] = []

    async def token(self, need: AuthRequest) -> str:
        self.needs.append(need)
        return self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_provider(binding: str) -> None:
    vault: TokenProvider = Vault("abc")
    async with guarded(has(authorization="Bearer abc")) as agent:
        card = agent.demand({"it": http("bearer")}, {"it": ("talk",)})
        assert await greeted(agent, vault, binding) == "robot:"
        assert isinstance(vault, Vault)
        need = vault.needs[0]
        assert (need.name, list(need.scopes), need.refused) == ("it", ["talk"], "")
        assert need.scheme == card.security_schemes["it"]
        assert need.url.startswith(agent.url)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_provider_is_asked_once_more(binding: str) -> None:
    vault = Vault("old", "new")
    async with guarded(has(authorization="Bearer new")) as agent:
        agent.demand({"it": http("bearer")})
        async with Client.connect(agent.url, auth=vault, bindings=[binding]) as client:
            assert (await client.send("hello")).text == "robot:"
        assert [need.refused for need in vault.needs] == ["", "old"]
        assert agent.headers("authorization") == ["Bearer old", "Bearer new"]
        keys = agent.headers("idempotency-key")
        assert keys[0] == keys[1]  # it is the same send


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_asks_once_more_too(binding: str) -> None:
    vault = Vault("old", "new")
    async with guarded(has(authorization="Bearer new")) as agent:
        agent.demand({"it": http("bearer")})
        async with Client.connect(agent.url, auth=vault, bindings=[binding]) as client:
            assert await counted(client, 2) == "0,1,\nrobot:"
        assert [need.refused for need in vault.needs] == ["", "old"]


async def test_a_provider_is_not_asked_for_ever() -> None:
    vault = Vault("bad")
    async with guarded(has(authorization="Bearer good")) as agent:
        agent.demand({"it": http("bearer")})
        async with Client.connect(agent.url, auth=vault) as client:
            with pytest.raises(Unauthenticated):
                await client.send("hello")
            assert len(agent.requests) <= 2
            assert [need.refused for need in vault.needs] == ["", "bad"]


async def test_a_secret_is_not_shown_twice_in_vain() -> None:
    async with guarded(has(authorization="Bearer good")) as agent:
        agent.demand({"it": http("bearer")})
        async with Client.connect(agent.url, auth=StaticToken("bad")) as client:
            with pytest.raises(Unauthenticated):
                await client.send("hello")
        assert len(agent.requests) <= 2


async def test_who_is_known_and_not_wanted_does_not_ask_again() -> None:
    def guard(request: Request) -> Caller:
        raise Forbidden("not you")

    vault = Vault("abc")
    async with guarded(guard) as agent:
        agent.demand({"it": http("bearer")})
        async with Client.connect(agent.url, auth=vault) as client:
            with pytest.raises(Forbidden, match="not you"):
                await client.send("hello")
        assert (len(agent.requests), len(vault.needs)) == (1, 1)


async def test_a_provider_that_fails() -> None:
    class Broken:
        async def token(self, need: AuthRequest) -> str:
            raise RuntimeError("the vault is closed")

    async with guarded(has()) as agent:
        agent.demand({"it": http("bearer")})
        async with Client.connect(agent.url, auth=Broken()) as client:
            with pytest.raises(RuntimeError, match="the vault is closed"):
                await client.send("hello")
        assert agent.requests == []


# ---- to nobody else -------------------------------------------------------------------------

SHOWN: list[dict[str, Any]] = [{"auth": StaticToken("s3cret")}, {"headers": {"x-key": "s3cret"}}]
SHAPES = ["auth", "headers"]


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("options", SHOWN, ids=SHAPES)
async def test_a_card_that_points_elsewhere(options: dict[str, Any], binding: str) -> None:
    async with guarded(has()) as agent, listening() as canary:
        agent.demand({"it": http("bearer")})
        agent.point(binding, f"http://127.0.0.1:{canary.port}/")
        with pytest.raises(CredentialsNotSent, match=str(canary.port)):
            async with Client.connect(agent.url, **options):
                pass
        await canary.unseen()


async def test_another_name_of_the_same_machine() -> None:
    async with guarded(has()) as agent:
        agent.demand({"it": http("bearer")})
        agent.point("JSONRPC", agent.url.replace("127.0.0.1", "localhost") + "/")
        with pytest.raises(CredentialsNotSent):
            async with Client.connect(agent.url, auth=StaticToken("s3cret")):
                pass
        assert agent.requests == []


@pytest.mark.parametrize("options", SHOWN, ids=SHAPES)
async def test_elsewhere_by_permission(options: dict[str, Any]) -> None:
    async with guarded(has()) as agent, guarded(has()) as other:
        agent.demand({"it": http("bearer")})
        agent.point("JSONRPC", other.url + "/")
        async with Client.connect(agent.url, trust=[other.url], **options) as client:
            assert (await client.send("hello")).text == "robot:"
        (request,) = other.requests
        assert "s3cret" in str(request.headers)


async def test_permission_for_one_is_not_for_all() -> None:
    async with guarded(has()) as agent, guarded(has()) as other, listening() as canary:
        agent.demand({"it": http("bearer")})
        agent.point("JSONRPC", f"http://127.0.0.1:{canary.port}/")
        with pytest.raises(CredentialsNotSent):
            async with Client.connect(agent.url, auth=StaticToken("s3cret"), trust=[other.url]):
                pass
        await canary.unseen()


async def test_elsewhere_with_empty_hands() -> None:
    async with guarded(has()) as agent, guarded(has()) as other:
        agent.demand({"it": http("bearer")})
        agent.point("JSONRPC", other.url + "/")
        async with Client.connect(agent.url) as client:
            assert (await client.send("hello")).text == "robot:"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("options", SHOWN, ids=SHAPES)
async def test_an_agent_that_redirects(options: dict[str, Any], status: int) -> None:
    async with listening() as canary:
        there = f"http://127.0.0.1:{canary.port}/"
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n"
        async with listening(moved.encode()) as agent:
            card = at(f"http://127.0.0.1:{agent.port}", http("bearer"))
            async with Client.connect(card, attempts=1, **options) as client:
                with pytest.raises((A2AError, Unreachable)):
                    await client.send("hello")
                with pytest.raises((A2AError, Unreachable)):
                    async with client.stream("hello") as stream:
                        async for _ in stream:
                            pass
            assert all("s3cret" in str(headers) for _, headers, _ in agent.requests)
        await canary.unseen()


@pytest.mark.parametrize("options", SHOWN, ids=SHAPES)
async def test_a_card_that_has_moved(options: dict[str, Any]) -> None:
    async with listening() as canary:
        there = f"http://127.0.0.1:{canary.port}/"
        moved = f"HTTP/1.1 302 Moved\r\nLocation: {there}\r\nContent-Length: 0\r\n\r\n"
        async with listening(moved.encode()) as agent:
            with pytest.raises((A2AError, Unreachable)):
                async with Client.connect(f"http://127.0.0.1:{agent.port}", attempts=1, **options):
                    pass
        await canary.unseen()


FAR = [
    "http://agent.example",
    "http://127.0.0.1.agent.example",
    "http://localhost.agent.example",
    "http://127.0.0.1@agent.example",
    "http://192.0.2.1",
    "HTTP://agent.example:80",
]


@pytest.mark.parametrize("url", FAR)
@pytest.mark.parametrize("options", SHOWN, ids=SHAPES)
async def test_not_in_clear_over_the_network(options: dict[str, Any], url: str) -> None:
    transport = Nowhere()
    for target in (at(url, http("bearer")), url):
        with pytest.raises(CredentialsNotSent):
            async with Client.connect(target, transport=transport, attempts=1, **options) as client:
                await client.send("hello")
    assert transport.sent == []


@pytest.mark.parametrize("url", ["https://agent.example", "http://localhost:1", "http://[::1]:1"])
async def test_over_tls_or_loopback_it_may_go(url: str) -> None:
    transport = Nowhere()
    async with Client.connect(
        at(url, http("bearer")), transport=transport, attempts=1, auth=StaticToken("s3cret")
    ) as client:
        with pytest.raises(Unreachable):
            await client.send("hello")
    (request,) = transport.sent
    assert "Bearer s3cret" in request.headers.values()


async def test_in_clear_by_permission() -> None:
    transport = Nowhere()
    async with Client.connect(
        at("http://agent.example", http("bearer")),
        transport=transport,
        attempts=1,
        auth=StaticToken("s3"),
        insecure=True,
    ) as client:
        with pytest.raises(Unreachable):
            await client.send("hello")
    (request,) = transport.sent
    assert "Bearer s3" in request.headers.values()


async def test_trust_does_not_mean_in_clear() -> None:
    """A card over TLS whose agent speaks plain HTTP elsewhere."""
    transport = Nowhere()
    with pytest.raises(CredentialsNotSent):
        async with Client.connect(
            at("http://agent.example", http("bearer")),
            transport=transport,
            attempts=1,
            auth=StaticToken("s3"),
            trust=["http://agent.example"],
        ) as client:
            await client.send("hello")
    assert transport.sent == []


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
async def test_what_is_for_this_machine_stays_here(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would carry it over the network, in clear."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with guarded(has(authorization="Bearer abc")) as agent, listening() as proxy:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        agent.demand({"it": http("bearer")})
        assert await greeted(agent, StaticToken("abc"), attempts=1) == "robot:"
        await proxy.unseen()
