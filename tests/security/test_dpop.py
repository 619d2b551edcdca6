"""Tokens that are bound to a key: proofs that are forged, stale, for something else, or used."""

from __future__ import annotations

import base64
import hashlib
import time
import uuid
import warnings
from typing import Any

import grpc
import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from dragoman import App
from dragoman.model.caller import Request
from dragoman.model.errors import Unauthenticated, Unavailable
from dragoman.model.types import ClientCredentialsOAuthFlow
from dragoman.security import AllOf, ApiKey, Bearer, OAuth2, dpop
from dragoman.security.certificates import thumbprint
from dragoman.security.schemes import Authenticator
from dragoman.server.settings import SettingsError
from tests.harness.clients import Grpc
from tests.harness.server import serving
from tests.security.caller_certificates import ROBOT, made
from tests.security.scheme_requests import MESSAGE, doorman, identified, said

ISSUER, URL = "https://id.example", "https://agent.example/message:send"
KEY = ECKey.generate_key("P-256", parameters={"kid": "issuer"})
MINE = ECKey.generate_key("P-256")
RSA = RSAKey.generate_key(2048)
OKP = OKPKey.generate_key("Ed25519")
OTHER = ECKey.generate_key("P-256")


def bearer(**more: Any) -> Bearer:
    """Tokens of an issuer."""
    keys = {"keys": [KEY.as_dict(private=False)]}
    return Bearer(**{"issuer": ISSUER, "audience": "flights", "jwks": keys, **more})


def token(key: Any = MINE, **more: Any) -> str:
    """A token that is bound to a key."""
    claims = {"iss": ISSUER, "aud": "flights", "sub": "ann", "exp": int(time.time()) + 36000}
    bound = {"cnf": {"jkt": key.thumbprint()}} if key else {}
    return jwt.encode({"alg": "ES256", "kid": "issuer"}, {**claims, **bound, **more}, KEY)


def proof(of: str, key: Any = MINE, head: Any = None, alg: str = "ES256", **more: Any) -> str:
    """A proof for a request with this token."""
    ath = base64.urlsafe_b64encode(hashlib.sha256(of.encode()).digest()).rstrip(b"=").decode()
    claims = {"htm": "POST", "htu": URL, "iat": int(time.time()), "ath": ath}
    claims = {**claims, "jti": str(uuid.uuid4()), **more}
    header = {"typ": "dpop+jwt", "alg": alg, "jwk": key.as_dict(private=False), **(head or {})}
    return jwt.encode(
        {k: v for k, v in header.items() if v is not None},
        {k: v for k, v in claims.items() if v is not None},
        key,
        algorithms=[alg],
    )


def shown(of: str, proving: str = "", kind: str = "DPoP", url: str = URL) -> Request:
    """A request with a token and a proof."""
    headers = {"authorization": f"{kind} {of}"} | ({"dpop": proving} if proving else {})
    return Request("POST", "/message:send", "", headers, "10.0.0.1", url=url)


@pytest.mark.parametrize(
    ("key", "alg"),
    [(MINE, "ES256"), (RSA, "PS256"), (RSA, "RS256"), (OKP, "EdDSA"), (OKP, "Ed25519")],
)
async def test_a_good_proof(key: Any, alg: str) -> None:
    scheme, bound = bearer(), token(key)
    for _ in range(3):  # also when the token is known already
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            proving = proof(bound, key, alg=alg)
        assert (await identified(scheme, shown(bound, proving))).identity == "ann"


BOUND = token()
NOW = int(time.time())
BAD: dict[str, str] = {
    "none": "",
    "no jwt": "a.b.c",
    "another key": proof(BOUND, OTHER),
    "another's signature": ".".join(
        (*proof(BOUND).split(".")[:2], proof(BOUND, OTHER).split(".")[2])
    ),
    "the key it does not sign with": proof(BOUND, OTHER, head={"jwk": MINE.as_dict(private=False)}),
    "no type": proof(BOUND, head={"typ": None}),
    "another type": proof(BOUND, head={"typ": "jwt"}),
    "no key": proof(BOUND, head={"jwk": None}),
    "a private key": proof(BOUND, head={"jwk": MINE.as_dict(private=True)}),
    "a shared key": proof(BOUND, OctKey.generate_key(256), alg="HS256"),
    "another method": proof(BOUND, htm="GET"),
    "a small method": proof(BOUND, htm="post"),
    "another host": proof(BOUND, htu="https://evil.example/message:send"),
    "another scheme": proof(BOUND, htu="http://agent.example/message:send"),
    "another port": proof(BOUND, htu="https://agent.example:8443/message:send"),
    "another path": proof(BOUND, htu="https://agent.example/tasks"),
    "no path": proof(BOUND, htu="https://agent.example"),
    "a url that is none": proof(BOUND, htu="https://[x/message:send"),
    "no url": proof(BOUND, htu=None),
    "old": proof(BOUND, iat=NOW - 3600),
    "to come": proof(BOUND, iat=NOW + 3600),
    "no time": proof(BOUND, iat=None),
    "time in words": proof(BOUND, iat="now"),
    "another token": proof(token(sub="eve")),
    "no token": proof(BOUND, ath=None),
    "no name": proof(BOUND, jti=None),
    "an empty name": proof(BOUND, jti=""),
    "too long": proof(BOUND, more="x" * 10_000),
    "an extension": proof(BOUND).replace(
        proof(BOUND).split(".")[0],
        base64.urlsafe_b64encode(b'{"typ":"dpop+jwt","alg":"ES256","crit":["x"]}').decode(),
        1,
    ),
}


@pytest.mark.parametrize("proving", BAD.values(), ids=BAD)
async def test_a_bad_proof(proving: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Authenticator([bearer()])
    with pytest.raises(Unauthenticated) as refused:
        await identified(gate, shown(BOUND, proving))
    assert 'error="invalid_dpop_proof"' in refused.value.headers["www-authenticate"]


@pytest.mark.parametrize(
    "url",
    [
        f"{URL}?tenant=blue#x",
        "HTTPS://AGENT.example:443/message:send",
        "https://agent.example/message%3Asend",
    ],
)
async def test_other_ways_to_write_the_same_url(url: str) -> None:
    assert await identified(bearer(), shown(BOUND, proof(BOUND, htu=url)))


async def test_a_proof_is_good_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, proving = bearer(), proof(BOUND)
    assert await identified(scheme, shown(BOUND, proving))
    with pytest.raises(Unauthenticated, match="used before"):
        await identified(scheme, shown(BOUND, proving))
    # also one of another token's, if the name is another key's
    theirs = token(OTHER)
    assert await identified(scheme, shown(theirs, proof(theirs, OTHER, jti="x")))
    assert await identified(scheme, shown(BOUND, proof(BOUND, jti="x")))


async def test_a_proof_is_used_once_by_all_ways_of_a_gate() -> None:
    """Not by the first of them, which then lacks something else."""
    scheme = bearer()
    flow = ClientCredentialsOAuthFlow(token_url="https://id.example/token", scopes={})
    key = ApiKey(header="X-Key", keys=["k"])
    for first, second in (
        (scheme, scheme),
        (OAuth2(verify=scheme, flow=flow, name="a"), OAuth2(verify=scheme, flow=flow, name="b")),
    ):
        gate, proving = Authenticator([AllOf(first, key), second]), proof(BOUND)
        assert (await identified(gate, shown(BOUND, proving))).identity == "ann"
        with pytest.raises(Unauthenticated, match="used before"):
            await identified(gate, shown(BOUND, proving))


async def test_proofs_are_forgotten_when_their_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheme = bearer()
    for _ in range(5):
        await identified(scheme, shown(BOUND, proof(BOUND)))
    proofs = scheme._book._proofs
    assert proofs is not None
    assert len(proofs._used) == 5
    later = time.monotonic() + 2 * dpop.WINDOW + 1
    monkeypatch.setattr("time.monotonic", lambda: later)
    await identified(scheme, shown(BOUND, proof(BOUND)))
    assert len(proofs._used) == 1
    assert sum(proofs._each.values()) == 1


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpop, "EACH", 2)
    monkeypatch.setattr(dpop, "ALL", 3)
    scheme, theirs = bearer(), token(OTHER)
    for _ in range(2):
        await identified(scheme, shown(BOUND, proof(BOUND)))
    with pytest.raises(Unavailable):  # who uses up their own
        await identified(scheme, shown(BOUND, proof(BOUND)))
    await identified(scheme, shown(theirs, proof(theirs, OTHER)))
    third = token(RSA)
    with pytest.raises(Unavailable):
        await identified(scheme, shown(third, proof(third, RSA, alg="RS256")))


async def test_a_bound_token_is_no_bearer_token() -> None:
    scheme = bearer()
    for _ in range(2):  # nor when it is known
        for proving in ("", proof(BOUND)):
            with pytest.raises(Unauthenticated, match="as DPoP"):
                await identified(scheme, shown(BOUND, proving, kind="Bearer"))
        assert await identified(scheme, shown(BOUND, proof(BOUND)))


async def test_a_token_that_is_not_bound() -> None:
    free = token(None)
    assert await identified(bearer(), shown(free, kind="Bearer"))
    with pytest.raises(Unauthenticated, match="not bound"):
        await identified(bearer(), shown(free, proof(free)))
    gate = Authenticator([bearer(dpop=True)])
    for kind in ("Bearer", "DPoP"):
        with pytest.raises(Unauthenticated, match="not bound") as refused:
            await identified(gate, shown(free, proof(free), kind=kind))
        told = refused.value.headers["www-authenticate"]
        assert told.startswith('DPoP realm="agents", algs="ES256 ')
    assert await identified(gate, shown(BOUND, proof(BOUND)))
    assert bearer(dpop=True).declared().http_auth_security_scheme.scheme == "DPoP"


async def test_a_token_that_is_bound_to_a_certificate() -> None:
    bound = token(None, cnf={"x5t#S256": thumbprint(ROBOT.der)})
    for certificate, good in ((ROBOT.pem, True), (ROBOT.der, True), (made("eve").pem, False)):
        headers = {"authorization": f"Bearer {bound}"}
        of = Request("POST", "/", "", headers, "", certificate)
        if good:
            assert await identified(bearer(), of)
        else:
            with pytest.raises(Unauthenticated, match="certificate"):
                await identified(bearer(), of)
    with pytest.raises(Unauthenticated, match="certificate"):
        await identified(bearer(), shown(bound, kind="Bearer"))


async def test_over_the_wire() -> None:
    """The URL is the one that the caller has called, over every binding."""
    agents = [doorman(key="one"), doorman(key="two")]
    app = App(
        *agents, auth=bearer(dpop=True), trusted_hosts=["127.0.0.1"], grpc_port=0, drain_timeout=0.0
    )
    async with serving(app) as url, httpx.AsyncClient() as http:

        async def answer(path: str, body: Any, htu: str) -> httpx.Response:
            proving = proof(BOUND, htu=htu)
            headers = {"authorization": f"DPoP {BOUND}", "dpop": proving}
            return await http.post(url + path, json=body, headers=headers)

        for path in ("/one//message:send", "/one/message:send"):
            assert said(await answer(path, MESSAGE, url + path)) == "ann:"
        assert (await answer(path, MESSAGE, f"{url}/two/message:send")).status_code == 401
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": MESSAGE}
        assert "result" in (await answer("/two", rpc, f"{url}/two")).json()
        metadata = (await http.get(f"{url}/.well-known/oauth-protected-resource/one")).json()
        assert metadata["dpop_bound_access_tokens_required"] is True
        assert "ES256" in metadata["dpop_signing_alg_values_supported"]

        async with grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
            for method, good in (("SendMessage", True), ("GetTask", False)):
                htu = f"https://agent.example/lf.a2a.v1.A2AService/{method}"
                headers = {"authorization": f"DPoP {BOUND}", "dpop": proof(BOUND, htu=htu)}
                call = Grpc("", None, headers, channel).start("SendMessage", MESSAGE)
                if good:
                    assert (await call).task.artifacts[0].parts[0].text == "ann:"
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_the_url_that_is_told_to_callers_counts() -> None:
    app = App(doorman(), auth=bearer(), url="https://agent.example", drain_timeout=0.0)
    async with serving(app) as url, httpx.AsyncClient() as http:
        for htu, status in ((URL, 200), (f"{url}/message:send", 401)):
            headers = {"authorization": f"DPoP {BOUND}", "dpop": proof(BOUND, htu=htu)}
            answer = await http.post(f"{url}/message:send", json=MESSAGE, headers=headers)
            assert answer.status_code == status


# ---- whose URL it is -------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [False, True])
def test_it_needs_an_address_of_its_own(wrap: bool) -> None:
    scheme: Any = bearer(dpop=True)
    if wrap:
        flow = ClientCredentialsOAuthFlow(token_url="https://id.example/token", scopes={})
        scheme = OAuth2(verify=scheme, flow=flow)
    with pytest.raises(SettingsError, match="url, or trusted_hosts"):
        App(doorman(), auth=scheme)
    with pytest.raises(SettingsError, match="url, or trusted_hosts"):
        App(
            doorman(),
            auth=[AllOf(scheme, ApiKey(header="X-Key", keys=["k"]))],
            trust_forwarded=True,
        )
    App(doorman(), auth=scheme, url="https://agent.example")
    App(doorman(), auth=scheme, trusted_hosts=["agent.example"])


@pytest.mark.parametrize(
    "settings", [{}, {"trust_forwarded": True}, {"trusted_hosts": ["agent.example"]}]
)
async def test_a_proof_for_another_site(settings: dict[str, Any]) -> None:
    """It was made for evil.example, which relays it and names itself."""
    app = App(doorman(), auth=bearer(), drain_timeout=0.0, **settings)

    async def public(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "server": ("192.0.2.1", 443)}, receive, send)

    transport = httpx.ASGITransport(public)
    async with app, httpx.AsyncClient(transport=transport) as http:
        for host, good in (("evil.example", False), ("agent.example", "trusted_hosts" in settings)):
            url = f"https://{host}/message:send"
            headers = {"authorization": f"DPoP {BOUND}", "dpop": proof(BOUND, htu=url)}
            answer = await http.post(url, json=MESSAGE, headers=headers)
            assert (answer.status_code == 200) is good
            if not good:
                assert answer.status_code in (401, 421)
                assert "`url`" in answer.text
                assert "`trusted_hosts`" in answer.text


async def test_a_proof_for_this_machine() -> None:
    async with (
        serving(App(doorman(), auth=bearer(), drain_timeout=0.0)) as url,
        httpx.AsyncClient() as http,
    ):
        htu = f"{url}/message:send"
        headers = {"authorization": f"DPoP {BOUND}", "dpop": proof(BOUND, htu=htu)}
        assert (await http.post(htu, json=MESSAGE, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "https://agent.example/x"},
        {"url": "https://other.example", "bindings": ["GRPC:agent.example:50051"]},
        {"url": "https://other.example", "bindings": ["GRPC:grpcs://agent.example:50051"]},
    ],
)
async def test_a_proof_for_another_site_over_grpc(settings: dict[str, Any]) -> None:
    app = App(doorman(), auth=bearer(dpop=True), grpc_port=0, drain_timeout=0.0, **settings)
    async with app, grpc.aio.insecure_channel(f"127.0.0.1:{app.ports[0].number}") as channel:
        for host, good in (("agent.example", True), ("evil.example", False), ("", False)):
            htu = f"https://{host}/lf.a2a.v1.A2AService/SendMessage"
            headers = {"authorization": f"DPoP {BOUND}", "dpop": proof(BOUND, htu=htu)}
            call = Grpc("", None, headers, channel).start("SendMessage", MESSAGE)
            if good:
                assert (await call).task.artifacts[0].parts[0].text == "ann:"
                continue
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED
