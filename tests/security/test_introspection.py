"""Tokens about which their issuer is asked: a real authorization server, and ones that lie."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.model.caller import Caller
from dragoman.model.errors import Forbidden, Unauthenticated, Unavailable
from dragoman.security import Anonymous, ApiKey, Introspection
from dragoman.security.schemes import Authenticator
from tests.client.authorization_server import SECRET, Authority, presiding
from tests.harness.raw_server import Listener, listening
from tests.harness.server import serving
from tests.security.scheme_requests import doorman, identified, request, said, send


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    """The authorization server."""
    async with presiding() as found:
        yield found


def scheme(authority: Authority, **more: Any) -> Introspection:
    """What asks it."""
    given = {"url": f"{authority.url}/introspect", "client_id": "agent", "client_secret": SECRET}
    return Introspection(**{**given, **more})


async def token(authority: Authority, scope: str = "talk") -> str:
    """A token of the robot's."""
    data = {"grant_type": "client_credentials", "scope": scope}
    async with httpx.AsyncClient() as http:
        login = httpx.BasicAuth("robot", httpx.QueryParams({"x": SECRET}).__str__()[2:])
        return (await http.post(f"{authority.url}/token", data=data, auth=login)).json()[
            "access_token"
        ]


# ---- what a real one says ------------------------------------------------------------------


async def test_a_token_gets_in_over_http_and_is_asked_about_once(authority: Authority) -> None:
    app = App(doorman(), auth=scheme(authority, issuer=authority.url), drain_timeout=0.0)
    good = await token(authority)
    async with serving(app) as url:
        assert said(await send(url, good)) == "robot:talk"
        assert said(await send(url, good)) == "robot:talk"
        assert authority.questions == 1
        refused = await send(url, "invented")
        assert refused.status_code == 401
        assert 'error="invalid_token"' in refused.headers["www-authenticate"]
        assert (await send(url)).status_code == 401
    assert authority.questions == 2


async def test_all_who_wait_share_one_question(authority: Authority) -> None:
    asking, good = scheme(authority), await token(authority)
    authority.open.clear()
    calls = [asyncio.ensure_future(identified(asking, request(good))) for _ in range(20)]
    await authority.questioned(1)
    calls[0].cancel()  # who goes away takes nothing from the others
    authority.open.set()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert set(found[1:]) == {Caller(identity="robot", scopes=frozenset({"talk"}))}
    assert authority.questions == 1


async def test_a_token_that_is_withdrawn_is_good_no_longer_than_the_age(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, good = scheme(authority, age=30.0), await token(authority)
    assert (await identified(asking, request(good))).identity == "robot"
    authority.revoke()
    assert (await identified(asking, request(good))).identity == "robot"
    later = time.time() + 31
    monkeypatch.setattr("time.time", lambda: later)
    with pytest.raises(Unauthenticated, match="not active"):
        await identified(asking, request(good))
    assert authority.questions == 2


async def test_a_token_that_is_no_good_is_not_asked_about_at_once_again(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = scheme(authority)
    for _ in range(5):
        with pytest.raises(Unauthenticated):
            await identified(asking, request("invented"))
    assert authority.questions == 1
    later = time.time() + 11
    monkeypatch.setattr("time.time", lambda: later)
    with pytest.raises(Unauthenticated):
        await identified(asking, request("invented"))
    assert authority.questions == 2


async def test_what_is_kept_is_bounded(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.security.bearer_tokens.REMEMBERED", 3)
    asking = scheme(authority)
    for n in range(5):
        with pytest.raises(Unauthenticated):
            await identified(asking, request(f"invented {n}"))
    assert len(asking._book) == 3


async def test_who_invents_tokens_does_not_flood_the_issuer(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.security.introspection.AT_ONCE", 2)
    asking = scheme(authority)
    authority.open.clear()
    calls = [asyncio.ensure_future(identified(asking, request(f"t{n}"))) for n in range(2)]
    await authority.questioned(2)
    with pytest.raises(Unavailable) as busy:
        await identified(asking, request("t3"))
    assert busy.value.headers["retry-after"] == "1"
    authority.open.set()
    await asyncio.gather(*calls, return_exceptions=True)
    with pytest.raises(Unauthenticated):
        await identified(asking, request("t3"))


async def test_a_scope_that_every_token_needs(authority: Authority) -> None:
    asking = scheme(authority, scopes=["listen"])
    with pytest.raises(Forbidden, match="listen"):
        await identified(asking, request(await token(authority)))
    both = await token(authority, "talk listen")
    assert (await identified(asking, request(both))).scopes == {"talk", "listen"}


# ---- nobody gets in by an outage -----------------------------------------------------------


async def test_a_secret_that_is_wrong_lets_nobody_in(authority: Authority) -> None:
    good = await token(authority)
    with pytest.raises(Unavailable):
        await identified(scheme(authority, client_secret="wrong"), request(good))
    # nor does a client that may not ask
    with pytest.raises(Unauthenticated):
        await identified(scheme(authority, client_id="site"), request(good))


async def test_an_issuer_that_is_away(authority: Authority) -> None:
    good = await token(authority)
    async with listening() as gone:
        pass
    away = scheme(authority, url=f"http://127.0.0.1:{gone.port}/introspect", realm="id")
    key = ApiKey(header="X-Key", keys={"k": "s3cret"}, realm="keys")
    app = App(doorman(), auth=[away, key, Anonymous()], drain_timeout=0.0)
    async with serving(app) as url:
        refused = await send(url, good)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        # another way in is not closed by it
        assert said(await send(url, good, **{"x-key": "s3cret"})) == "k:"
        assert said(await send(url)) == ":"


@contextlib.asynccontextmanager
async def saying(document: Any, status: str = "200 OK", more: str = "") -> AsyncIterator[Listener]:
    """An issuer that says this of every token."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = f"HTTP/1.1 {status}\r\n{more}Content-Length: {len(body)}\r\n\r\n".encode()
    async with listening(head + body) as found:
        yield found


def asking(listener: Listener, **more: Any) -> Introspection:
    """What asks there."""
    url = f"http://127.0.0.1:{listener.port}/"
    return Introspection(**{"url": url, "client_id": "a:b", "client_secret": "c%d", **more})


GOOD = {"active": True, "sub": "ann"}


@pytest.mark.parametrize(
    ("document", "status", "more"),
    [
        (b"no json", "200 OK", ""),
        ([], "200 OK", ""),
        ({}, "200 OK", ""),
        ({"active": "true", "sub": "ann"}, "200 OK", ""),
        ({"active": 1, "sub": "ann"}, "200 OK", ""),
        (GOOD, "500 Oh", ""),
        (GOOD, "201 Made", ""),
        (GOOD, "302 Found", "Location: https://evil.example/\r\n"),
    ],
)
async def test_answers_that_are_none(document: Any, status: str, more: str) -> None:
    async with saying(document, status, more) as issuer:
        with pytest.raises(Unavailable):
            await identified(asking(issuer), request("t"))


async def test_nobody_is_sent_elsewhere_with_a_token() -> None:
    async with saying(GOOD) as other:
        place = f"Location: http://127.0.0.1:{other.port}/\r\n"
        async with saying(GOOD, "307 Elsewhere", place) as issuer:
            with pytest.raises(Unavailable):
                await identified(asking(issuer), request("t"))
        await other.unseen()


# ---- what it may say -----------------------------------------------------------------------


async def test_what_it_is_asked() -> None:
    async with saying(GOOD) as issuer:
        assert (await identified(asking(issuer), request("t&+"))).identity == "ann"
        ((first, headers, body),) = issuer.requests
    assert first == "POST / HTTP/1.1"
    assert headers["authorization"] == "Basic YSUzQWI6YyUyNWQ="  # a%3Ab:c%25d
    assert body == b"token=t%26%2B&token_type_hint=access_token"


@pytest.mark.parametrize(
    ("told", "who"),
    [
        ({"sub": "ann", "username": "Ann", "client_id": "app"}, "ann"),
        ({"username": "Ann", "client_id": "app"}, "Ann"),
        ({"client_id": "app"}, "app"),
    ],
)
async def test_who_asks(told: dict[str, str], who: str) -> None:
    async with saying({"active": True, "org": "blue", "scope": "a b", **told}) as issuer:
        found = await identified(asking(issuer, tenant="org"), request("t"))
    assert found == Caller(identity=who, tenant="blue", scopes=frozenset({"a", "b"}))


NOW = int(time.time())


@pytest.mark.parametrize(
    "told",
    [
        {"sub": ""},
        {"exp": NOW - 5},
        {"exp": "soon"},
        {"exp": None},
        {"nbf": NOW + 36_000},
        {"aud": "hotels"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"cnf": {"x": "y"}},
        {"cnf": []},
    ],
)
async def test_an_active_token_that_is_not_for_us(told: dict[str, Any]) -> None:
    document = {**GOOD, "aud": ["x", "flights"], "iss": "https://id.example", "exp": NOW + 36000}
    rules = {"audience": "flights", "issuer": "https://id.example"}
    async with saying(document) as issuer:
        assert await identified(asking(issuer, **rules), request("t"))
    async with saying({**document, **told}) as issuer:
        scheme = asking(issuer, **rules)
        for _ in range(2):
            with pytest.raises(Unauthenticated):
                await identified(scheme, request("t"))
        assert len(issuer.requests) == 1


async def test_an_answer_is_not_kept_after_the_token_has_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with saying({**GOOD, "exp": time.time() + 10}) as issuer:
        scheme = asking(issuer)
        await identified(scheme, request("t"))
        later = time.time() + 11
        monkeypatch.setattr("time.time", lambda: later)
        with pytest.raises(Unauthenticated, match="expired"):
            await identified(scheme, request("t"))
        assert len(issuer.requests) == 2


def test_secrets_go_by_https_only() -> None:
    for url in ("http://id.example/introspect", "ftp://localhost", "id.example"):
        with pytest.raises(ValueError, match="https"):
            Introspection(url=url, client_id="a", client_secret="b")
    with pytest.raises(ValueError, match="client_secret"):
        Introspection(url="https://id.example", client_id="a", client_secret="")


async def test_a_gate_that_waits_says_how_to_get_in(authority: Authority) -> None:
    gate = Authenticator([scheme(authority, scopes=["talk"])])
    with pytest.raises(Unauthenticated) as refused:
        await identified(gate, request())
    assert refused.value.headers["www-authenticate"] == 'Bearer realm="agents", scope="talk"'
