"""Authentication of one's own: a function that says whose credential it is, and the ASGI scope."""

from __future__ import annotations

import base64
import logging
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.routing import Mount

from dragoman import App, Caller, Request
from dragoman.model.errors import Unauthenticated
from dragoman.security import AllOf, ApiKey, Basic, Token
from dragoman.security.custom_verifier import Verify
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.older_clients import Grpc03, JsonRpc03
from tests.harness.protected_app import asked, protected
from tests.harness.server import serving
from tests.security.scheme_requests import MESSAGE, doorman, said, send

KNOWN = {"a-token": "ann", "b-token": Caller(identity="bob", scopes=frozenset({"talk"}))}


def plain(token: str) -> Caller | str | None:
    """As a dictionary knows it."""
    return KNOWN.get(token)


async def awaited(token: str) -> Caller | str | None:
    """As a service would say it."""
    return KNOWN.get(token)


@pytest.mark.parametrize("verify", [plain, awaited])
@pytest.mark.parametrize("kind", [JsonRpc, HttpJson, Grpc, JsonRpc03, Grpc03])
async def test_it_is_enforced_over_every_binding(kind: type[Binding], verify: Verify) -> None:
    async with protected(doorman(), auth=Token(verify=verify)) as server:
        for token, who in (("a-token", "ann"), ("b-token", "bob")):
            client = server.client(kind, "", authorization=f"Bearer {token}")
            found = await client.call("SendMessage", **MESSAGE)
            assert found["task"]["artifacts"][0]["parts"][0]["text"].startswith(f"{who}:")
        for headers in ({}, {"authorization": "Bearer no-token"}):
            refused = await asked(server.client(kind, "", **headers), "SendMessage", MESSAGE)
            assert isinstance(refused, Failed)


async def test_it_is_on_the_card() -> None:
    app = App(doorman(), auth=Token(verify=plain, name="session"))
    async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
        card = (await http.get("/.well-known/agent-card.json")).json()
        assert card["securitySchemes"]["session"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
        assert card["securityRequirements"] == [{"schemes": {"session": {}}}]
        refused = await http.post("/message:send", json=MESSAGE)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == 'Bearer realm="agents"'


def basic(user: str, password: str) -> dict[str, str]:
    """The header of a name and a password."""
    return {"authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


async def test_keys_and_passwords_too() -> None:
    def key(secret: str) -> str | None:
        return "billing" if secret == "a-key" else None

    async def password(user: str, word: str) -> str | None:
        return user if (user, word) == ("cy", "a-password") else None

    auth = [
        ApiKey(header="X-Key", verify=key, realm="keys"),
        Basic(verify=password, realm="people"),
    ]
    app = App(doorman(), auth=auth)
    key_of = {"x-key": "a-key"}
    async with serving(app) as url:
        assert said(await send(url, **key_of)) == "billing:"
        assert said(await send(url, **basic("cy", "a-password"))) == "cy:"
        for headers in ({"x-key": "b-key"}, basic("cy", "no")):
            assert (await send(url, **headers)).status_code == 401
    async with serving(App(doorman(), auth=AllOf(*auth))) as url:
        assert said(await send(url, **key_of, **basic("cy", "a-password"))) == "billing:"
        assert (await send(url, **key_of)).status_code == 401


async def test_a_function_may_refuse_in_its_own_words() -> None:
    def verify(token: str) -> Caller:
        raise Unauthenticated("The session has ended")

    async with serving(App(doorman(), auth=Token(verify=verify))) as url:
        answer = await send(url, "x")
        assert answer.status_code == 401
        assert "The session has ended" in answer.text


@pytest.mark.parametrize("answer", [True, 1, {"sub": "ann"}])
async def test_what_says_nobody_lets_nobody_in(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(doorman(), auth=Token(verify=lambda token: answer))
    async with serving(app) as url:
        with caplog.at_level(logging.ERROR, "dragoman"):
            found = await send(url, "x")
        assert found.status_code == 500
    kind = type(answer).__name__
    assert f"Token: verify returned {kind}; expected a Caller, an identity or None" in caplog.text


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Token({"ann": "x"}, verify=plain), "Token: give .* or verify=, not both"),
        (lambda: ApiKey(header="X", keys=["x"], verify=plain), "ApiKey: give .*, not both"),
        (
            lambda: Basic({"ann": "x"}, verify=plain),
            "Basic: give either users or verify=, not both",
        ),
        (lambda: Basic(verify=plain), r"Basic: verify must take \(user, password\) or \(user, "),
        (lambda: Token(verify=lambda: None), r"must take \(token\) or \(token, request\)"),
        (lambda: Token(verify="ann"), "Token: verify: expected a function, got str"),  # type: ignore[arg-type]
        (lambda: Token(), "keys: must not be empty"),
        (lambda: Basic(), "users must not be empty"),
    ],
)
def test_what_is_no_scheme(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


# ---- the scope -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [JsonRpc, HttpJson, Grpc])
async def test_the_request_has_the_scope_of_http(kind: type[Binding]) -> None:
    seen: list[Any] = []

    def verify(token: str, request: Request) -> str:
        seen.append(request.scope and request.scope["type"])
        return token

    async with protected(doorman(), auth=Token(verify=verify)) as server:
        client = server.client(kind, "", authorization="Bearer ann")
        await client.call("SendMessage", **MESSAGE)
    assert seen == [None if kind is Grpc else "http"]


class Session(AuthenticationBackend):
    """Who a header says."""

    async def authenticate(self, conn: Any) -> Any:
        """See Starlette."""
        name = conn.headers.get("x-session")
        return (AuthCredentials(["known"]), SimpleUser(name)) if name else None


def user(request: Request) -> Caller:
    """The user that Starlette knows."""
    known = request.scope and request.scope.get("user")
    if known is None or not known.is_authenticated:
        raise Unauthenticated
    return Caller(identity=known.display_name)


def session(_: str, request: Request) -> Caller:
    """The same, by the header that the card names."""
    return user(request)


@pytest.mark.parametrize(
    "auth", [{"identify": user}, {"auth": ApiKey(header="X-Session", verify=session)}]
)
async def test_the_user_of_the_application_that_it_is_mounted_in(auth: dict[str, Any]) -> None:
    app = App(doorman(), drain_timeout=0.0, **auth)
    host = Starlette(
        routes=[Mount("/agent", app)],
        middleware=[Middleware(AuthenticationMiddleware, backend=Session())],
    )
    transport = httpx.ASGITransport(host)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        path = "/agent/message:send"
        sent = await http.post(path, json=MESSAGE, headers={"x-session": "ann"})
        assert said(sent) == "ann:"
        assert (await http.post(path, json=MESSAGE)).status_code == 401
