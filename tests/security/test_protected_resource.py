"""Where a caller without a token is sent, and what one with the wrong token is told."""

from __future__ import annotations

import re
import time
from typing import Any

import grpc
import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.routing import Mount

from dragoman import App
from dragoman.model.types import ClientCredentialsOAuthFlow
from dragoman.security import AllOf, Anonymous, ApiKey, Basic, Bearer, Introspection, OAuth2, Token
from tests.harness.clients import Grpc
from tests.harness.server import serving
from tests.harness.trust import NOBODY
from tests.security.scheme_requests import MESSAGE, doorman, send

ISSUER, PATH = "https://id.example", "/.well-known/oauth-protected-resource"
KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})


def bearer(**more: Any) -> Bearer:
    """Tokens of an issuer."""
    keys = {"keys": [KEY.as_dict(private=False)]}
    return Bearer(**{"issuer": ISSUER, "audience": "flights", "jwks": keys, **more})


def token(**more: Any) -> str:
    """A good one, or nearly."""
    claims = {"iss": ISSUER, "aud": "flights", "sub": "ann", "exp": int(time.time()) + 60}
    return jwt.encode({"alg": "ES256", "kid": "one"}, {**claims, **more}, KEY)


async def get(url: str, **headers: str) -> httpx.Response:
    """What is there."""
    async with httpx.AsyncClient(verify=NOBODY) as http:
        return await http.get(url, headers=headers)


def named(answer: httpx.Response) -> str:
    """Where the metadata are, as a challenge says."""
    found = re.findall(r'resource_metadata="([^"]+)"', answer.headers["www-authenticate"])
    (only,) = set(found)
    return only


# ---- the metadata --------------------------------------------------------------------------


async def test_where_to_get_a_token() -> None:
    app = App(doorman(), auth=bearer(scopes=["talk"]), drain_timeout=0.0)
    async with serving(app) as url:
        refused = await send(url)
        assert refused.status_code == 401
        where = named(refused)
        assert where == url + PATH
        assert refused.headers["www-authenticate"] == (
            f'Bearer realm="agents", scope="talk", resource_metadata="{where}"'
        )
        found = await get(where)
        assert found.json() == {
            "resource": url,
            "resource_name": "Doorman",
            "authorization_servers": [ISSUER],
            "bearer_methods_supported": ["header"],
            "scopes_supported": ["talk", "book"],
        }
        assert found.headers["cache-control"] == "public, max-age=300"
        card = (await get(f"{url}/.well-known/agent-card.json")).json()
        assert card["supportedInterfaces"][0]["url"].rstrip("/") == found.json()["resource"]
        async with httpx.AsyncClient() as http:
            assert (await http.post(where)).status_code == 405
        assert (await get(f"{where}/other")).status_code == 404
        assert (await get(f"{where}x")).status_code == 404


async def test_several_agents_have_one_each() -> None:
    agents = [doorman(key="one"), doorman(key="two")]
    async with serving(App(*agents, auth=bearer(), drain_timeout=0.0)) as url:
        for key in ("one", "two"):
            where = named(await send(f"{url}/{key}"))
            assert where == f"{url}{PATH}/{key}"
            assert (await get(where)).json()["resource"] == f"{url}/{key}"
            assert (await get(f"{url}/{key}{PATH}")).json()["resource"] == f"{url}/{key}"
        assert (await get(url + PATH)).status_code == 404
        assert (await get(f"{url}{PATH}/three")).status_code == 404


async def test_below_another_application() -> None:
    """The address that the RFC has belongs to the host; the one that is told is ours."""
    for agents, own in (([doorman()], ""), ([doorman(key="one"), doorman(key="two")], "/two")):
        app = App(*agents, auth=bearer(), drain_timeout=0.0)
        async with app, serving(Starlette(routes=[Mount("/agents", app)])) as url:
            where = named(await send(f"{url}/agents{own}"))
            assert where == f"{url}/agents{PATH}{own}"
            assert (await get(where)).json()["resource"] == f"{url}/agents{own}"


async def test_behind_a_proxy_that_is_told() -> None:
    """Both addresses are known, whichever the proxy hands on; the request's host is not."""
    where = "https://agents.example/doorman"
    app = App(doorman(), auth=bearer(), url=where, trust_forwarded=True, drain_timeout=0.0)
    async with serving(app) as url:
        refused = await send(url, host="evil.example")
        assert named(refused) == f"https://agents.example/doorman{PATH}"
        for path in (PATH, f"{PATH}/doorman"):
            found = await get(url + path, host="evil.example")
            assert found.json()["resource"] == "https://agents.example/doorman"
            assert "evil" not in found.text


@pytest.mark.parametrize(
    "settings", [{}, {"trust_forwarded": True}, {"trusted_hosts": ["agent.example"]}]
)
async def test_a_host_that_a_caller_made_up_is_not_told(settings: dict[str, Any]) -> None:
    app = App(doorman(), auth=bearer(), drain_timeout=0.0, **settings)

    async def public(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "server": ("192.0.2.1", 443)}, receive, send)

    transport = httpx.ASGITransport(public)
    async with app, httpx.AsyncClient(transport=transport) as http:
        for host, good in (("evil.example", False), ("agent.example", "trusted_hosts" in settings)):
            for told in ({}, {"x-forwarded-host": host}):
                refused = await http.post(f"https://{host}/message:send", headers=told)
                challenge = refused.headers.get("www-authenticate", "")
                assert ("resource_metadata" in challenge, host in challenge) == (good, good)
                found = await http.get(f"https://{host}{PATH}", headers=told)
                assert found.status_code == (200 if good else 421)
                assert (host in found.text) is good


async def test_over_grpc_only_a_url_that_is_set_is_told() -> None:
    for url in ("", "https://agents.example"):
        app = App(doorman(), auth=bearer(), url=url, grpc_port=0, drain_timeout=0.0)
        async with app, grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await Grpc("", None, {}, channel).start("SendMessage", MESSAGE)
        told = dict(failed.value.trailing_metadata())["www-authenticate"]
        more = f', resource_metadata="{url}{PATH}"' if url else ""
        assert told == f'Bearer realm="agents"{more}'


async def test_a_host_that_would_break_out_of_its_quotes() -> None:
    async with serving(App(doorman(), auth=bearer(), drain_timeout=0.0)) as url:
        refused = await send(url, host='x", error="y')
    assert refused.status_code in (400, 401, 421)
    assert 'error="y' not in refused.headers.get("www-authenticate", "")


@pytest.mark.parametrize(
    "auth",
    [
        ApiKey(header="X-Key", keys={"a": "b"}),
        Token({"a": "b"}),
        Basic({"a": "b"}),
        Anonymous(),
        Introspection(url=f"{ISSUER}/ask", client_id="a", client_secret="b"),
        None,
    ],
    ids=["key", "token", "basic", "anonymous", "no issuer", "none"],
)
async def test_there_is_nothing_to_tell_without_an_issuer(auth: Any) -> None:
    async with serving(App(doorman(), auth=auth, drain_timeout=0.0)) as url:
        assert (await get(url + PATH)).status_code == 404
        answer = await send(url)
        assert "resource_metadata" not in answer.headers.get("www-authenticate", "")


async def test_several_issuers() -> None:
    other = Introspection(
        url=f"{ISSUER}/ask",
        client_id="a",
        client_secret="b",
        issuer="https://other.example",
        realm="other",
    )
    flow = ClientCredentialsOAuthFlow(token_url=f"{ISSUER}/token", scopes={"read": ""})
    auth = [
        OAuth2(verify=bearer(realm="id"), flow=flow),
        AllOf(other, ApiKey(header="X-Key", keys={"a": "b"})),
        ApiKey(header="X-Other", keys={"a": "b"}, name="other", realm="keys"),
    ]
    async with serving(App(doorman(), auth=auth, drain_timeout=0.0)) as url:
        found = (await get(url + PATH)).json()
    assert found["authorization_servers"] == [ISSUER, "https://other.example"]
    assert found["scopes_supported"] == ["read", "book"]


# ---- what is wrong with a token ------------------------------------------------------------


async def test_a_bad_token_is_told_from_none() -> None:
    auth = [bearer(realm="id"), Basic({"ann": "pw"}, realm="people")]
    async with serving(App(doorman(), auth=auth, drain_timeout=0.0)) as url:
        none, bad = await send(url), await send(url, token(aud="hotels"))
        other = await send(url, authorization="Basic eDp5")
    assert "error=" not in none.headers["www-authenticate"]
    assert bad.status_code == 401
    assert 'Bearer realm="agents", error="invalid_token"' in bad.headers["www-authenticate"]
    # a password that is wrong says nothing of tokens
    assert "error=" not in other.headers["www-authenticate"]


def booking() -> dict[str, Any]:
    """A request for a skill that needs a scope."""
    metadata = {"skillId": "booking", "skill": "booking"}
    return {**MESSAGE, "message": {**MESSAGE["message"], "metadata": metadata}}


@pytest.mark.clause("authz.permission")
async def test_a_scope_that_a_skill_needs() -> None:
    app = App(doorman(), auth=bearer(), grpc_port=0, drain_timeout=0.0)
    where = ""
    async with serving(app) as url, httpx.AsyncClient() as http:
        headers = {"authorization": f"Bearer {token()}"}
        where = url + PATH
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": booking()}
        for path, body in (
            ("/message:send", booking()),
            ("/message:stream", booking()),
            ("/", rpc),
        ):
            answer = await http.post(url + path, json=body, headers=headers)
            assert answer.status_code == 403
            assert answer.headers["www-authenticate"] == (
                'Bearer realm="agents", error="insufficient_scope", scope="book", '
                f'resource_metadata="{where}"'
            )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
            client = Grpc("", None, headers, channel)
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await client.start("SendMessage", booking())
            assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED
            told = dict(failed.value.trailing_metadata())["www-authenticate"]
            assert told == 'Bearer realm="agents", error="insufficient_scope", scope="book"'
        good = {"authorization": f"Bearer {token(scope='book')}"}
        assert (await http.post(f"{url}/message:send", json=booking(), headers=good)).is_success


@pytest.mark.clause("authz.permission")
async def test_a_scope_that_every_token_needs() -> None:
    for auth in (
        bearer(scopes=["talk"]),
        [ApiKey(header="X", keys={"a": "b"}, realm="keys"), bearer(scopes=["talk"], realm="id")],
    ):
        async with serving(App(doorman(), auth=auth, drain_timeout=0.0)) as url:
            answer = await send(url, token(scope="listen"))
        assert answer.status_code == 403
        told = answer.headers["www-authenticate"]
        assert 'error="insufficient_scope", scope="talk"' in told
        assert named(answer) == url + PATH


async def test_a_good_token_that_lacks_a_scope_is_not_called_bad() -> None:
    """Although it is bad for the other issuer."""
    other = bearer(issuer="https://other.example", name="other", realm="other")
    for auth in (
        [other, bearer(scopes=["talk"], realm="id")],
        [bearer(scopes=["talk"], realm="id"), other],
    ):
        async with serving(App(doorman(), auth=auth, drain_timeout=0.0)) as url:
            assert (await send(url, token())).status_code == 403


@pytest.mark.clause("authz.permission")
async def test_a_key_that_lacks_a_scope_is_told_of_no_tokens() -> None:
    auth = ApiKey(header="X-Key", keys={"ann": "s3cret"})
    async with (
        serving(App(doorman(), auth=auth, drain_timeout=0.0)) as url,
        httpx.AsyncClient() as http,
    ):
        answer = await http.post(f"{url}/message:send", json=booking(), headers={"x-key": "s3cret"})
    assert answer.status_code == 403
    assert answer.json()["error"]["message"] == "The skill 'booking' requires the scope 'book'"
    assert "www-authenticate" not in answer.headers
