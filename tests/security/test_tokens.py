"""Tokens that an attacker makes, and keys that an attacker asks for."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import inspect
import json
import time
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry

from dragoman.model.caller import Caller, Request
from dragoman.model.errors import Unauthenticated, Unavailable
from dragoman.security import AllOf, Anonymous, ApiKey, Basic, Bearer, Token
from dragoman.security.bearer_tokens import AGE, FRESH, OUTAGE, REMEMBERED
from dragoman.security.issuer_requests import FIRST_PAUSE
from dragoman.security.schemes import Authenticator

ISSUER, AUDIENCE = "https://id.example", "flights"
KEY = RSAKey.generate_key(2048, parameters={"kid": "one", "use": "sig"})
OTHER = RSAKey.generate_key(2048, parameters={"kid": "one"})
CURVE = ECKey.generate_key("P-256", parameters={"kid": "two"})
JWKS = {"keys": [KEY.as_dict(private=False), CURVE.as_dict(private=False)]}


def claims(**more: Any) -> dict[str, Any]:
    """What a good token says."""
    now = int(time.time())
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": now + 600, "scope": "book read"}
    return {name: value for name, value in {**found, **more}.items() if value is not None}


def signed(key: Any = KEY, alg: str = "RS256", header: Any = None, **more: Any) -> str:
    """A token."""
    head = {"alg": alg, "kid": key.kid, **(header or {})}
    return jwt.encode(head, claims(**more), key, algorithms=[alg])


def raw(header: dict[str, Any], body: dict[str, Any], signature: bytes = b"") -> str:
    """A token made by hand."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    return (
        f"{part(json.dumps(header).encode())}.{part(json.dumps(body).encode())}.{part(signature)}"
    )


def request(token: str = "", **headers: str) -> Request:
    """A request that shows it."""
    told = {"authorization": f"Bearer {token}"} if token else {}
    return Request("POST", "/", "", {**told, **headers}, "10.0.0.1")


async def identified(scheme: Any, of: Request) -> Any:
    """What a scheme or a gate says."""
    found = scheme.identify(of)
    return await found if inspect.isawaitable(found) else found


def bearer(**more: Any) -> Bearer:
    """The scheme under attack."""
    return Bearer(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks": JWKS, **more})


@pytest.mark.parametrize("key", [KEY, CURVE], ids=["RS256", "ES256"])
async def test_a_good_token(key: Any) -> None:
    alg = "RS256" if key is KEY else "ES256"
    token = signed(key, alg, tenant="blue")
    found = await identified(bearer(), request(token))
    told = Caller(identity="ann", tenant="blue", scopes=frozenset({"book", "read"}))
    assert found.stored == told
    assert 0 < found.expires - time.time() <= 3600
    assert await identified(bearer(), request()) is None
    assert await identified(bearer(audience=["other", AUDIENCE]), request(token)) == found
    listed = signed(key, alg, aud=["x", AUDIENCE], scope=None, scp=["book"])
    assert (await identified(bearer(), request(listed))).scopes == {"book"}


def confused() -> str:
    """Signed by HMAC with the public key, which everybody has."""
    header = {"alg": "HS256", "kid": "one"}
    head = raw(header, claims()).rpartition(".")[0]
    secret = KEY.as_pem(private=False)
    mac = base64.urlsafe_b64encode(hmac.digest(secret, head.encode(), "sha256"))
    return f"{head}.{mac.decode().rstrip('=')}"


def changed() -> str:
    """A good signature under other claims."""
    head, _, signature = signed().split(".")
    return f"{head}.{raw({}, claims(sub='root')).split('.')[1]}.{signature}"


NOW = int(time.time())
FORGED = {
    "none": raw({"alg": "none"}, claims()),
    "None": raw({"alg": "None", "kid": "one"}, claims()),
    "no algorithm": raw({"kid": "one"}, claims()),
    "rs to hs": confused(),
    "another key": signed(OTHER),
    "a key of its own": signed(OTHER, header={"jwk": OTHER.as_dict(private=False), "kid": "mine"}),
    "a key elsewhere": signed(OTHER, header={"jku": "https://evil.example/jwks", "kid": "mine"}),
    "an extension": raw({"alg": "RS256", "kid": "one", "crit": ["x"]}, claims()),
    "changed": changed(),
    "expired": signed(exp=NOW - 600),
    "never expires": signed(exp=None),
    "expires in words": raw({"alg": "RS256", "kid": "one"}, claims(exp="x")),
    "not yet": signed(nbf=NOW + 36_000),
    "another issuer": signed(iss="https://evil.example"),
    "no issuer": signed(iss=None),
    "another audience": signed(aud="hotels"),
    "no audience": signed(aud=None),
    "nobody": signed(sub=None),
    "an id token": signed(header={"typ": "id+jwt"}),
    "too long": "a" * 20_000,
    "two parts": "a.b",
    "no json": "a.b.c",
    "a list": raw([], claims()),  # type: ignore[arg-type]
    "kid that is a list": raw({"alg": "RS256", "kid": ["one"]}, claims()),
    "nothing": " ",
}


@pytest.mark.parametrize("token", FORGED.values(), ids=FORGED)
async def test_forged_tokens(token: str) -> None:
    scheme = bearer()
    with pytest.raises(Unauthenticated):
        await identified(scheme, Request("POST", "/", "", {"authorization": f"Bearer {token}"}, ""))
    assert not scheme._book


async def test_a_secret_among_the_keys_is_none() -> None:
    """An issuer that publishes a symmetric key gives everybody what it signs with."""
    oct_ = {"kty": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode(), "kid": "sym"}
    with pytest.raises(ValueError, match="no keys"):
        await identified(bearer(jwks={"keys": [oct_]}), request(signed()))
    with pytest.raises(ValueError, match="HS256"):
        bearer(algorithms=["HS256"])


async def test_a_verdict_is_kept_until_the_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = bearer(leeway=0.0)
    token = signed(exp=time.time() + 60)
    first = await identified(scheme, request(token))
    again = scheme.identify(request(token))
    assert again is first  # at once, and not by verifying again
    later = time.time() + 61
    monkeypatch.setattr("time.time", lambda: later)
    with pytest.raises(Unauthenticated, match="expired"):
        await identified(scheme, request(token))


async def test_a_key_that_is_withdrawn_is_not_honoured_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A verdict is kept for some minutes, keys for an hour."""
    issuer = Issuer(KEY, CURVE)
    scheme, token = bearer(jwks="", fetch=issuer), signed(exp=time.time() + 7200)
    assert (await identified(scheme, request(token))).identity == "ann"
    issuer.keys = [CURVE]
    now, ticks = time.time(), time.monotonic()

    def wait(seconds: float) -> None:
        monkeypatch.setattr("time.time", lambda: now + seconds)
        monkeypatch.setattr("time.monotonic", lambda: ticks + seconds)

    wait(AGE - 5)
    assert not inspect.isawaitable(scheme.identify(request(token)))
    wait(AGE + 5)
    again = scheme.identify(request(token))
    assert inspect.isawaitable(again)
    await again
    wait(FRESH + AGE + 10)
    with pytest.raises(Unauthenticated):
        await identified(scheme, request(token))


async def test_keys_of_an_issuer_that_stays_away_are_not_used_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = Issuer(KEY)
    scheme, token = bearer(jwks="", fetch=issuer), signed(exp=time.time() + 10 * OUTAGE)
    await identified(scheme, request(token))
    issuer.keys, ticks, now = [], time.monotonic(), time.time()
    for later, good in ((FRESH + 60, True), (FRESH + OUTAGE + 60, False)):
        monkeypatch.setattr("time.monotonic", lambda later=later: ticks + later)
        monkeypatch.setattr("time.time", lambda later=later: now + later)
        if good:
            assert (await identified(scheme, request(token))).identity == "ann"
        else:
            with pytest.raises(Unavailable):
                await identified(scheme, request(token))


async def test_what_has_had_its_time_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    scheme = bearer()
    for n in range(5):
        await identified(scheme, request(signed(jti=str(n))))
    later = time.time() + AGE + 1
    monkeypatch.setattr("time.time", lambda: later)
    await identified(scheme, request(signed(jti="new", exp=later + 60)))
    assert len(scheme._book) == 1


async def test_a_header_may_say_more_than_we_know() -> None:
    head = {"alg": "RS256", "kid": "one", "rh": "x", "x5c": ["A" * 2000]}
    registry = JWSRegistry(algorithms=["RS256"], strict_check_header=False)
    registry.max_header_length = 10_000
    token = jwt.encode(head, claims(), KEY, registry=registry)
    assert (await identified(bearer(), request(token))).identity == "ann"


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.security.bearer_tokens.REMEMBERED", 3)
    scheme = bearer()
    for n in range(5):
        await identified(scheme, request(signed(jti=str(n))))
    assert len(scheme._book) == 3
    assert REMEMBERED <= 100_000


class Issuer:
    """Answers for an issuer, and counts."""

    def __init__(self, *keys: Any) -> None:
        self.keys = list(keys)
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, url: str) -> Any:
        self.asked.append(url)
        await self.gate.wait()
        if not self.keys:
            raise OSError("away")
        if url.endswith("openid-configuration"):
            return {"issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys"}
        return {"keys": [key.as_dict(private=False) for key in self.keys]}


async def test_keys_are_found_by_discovery_once_for_all_who_wait() -> None:
    issuer = Issuer(KEY)
    issuer.gate.clear()
    scheme = bearer(jwks="", fetch=issuer)
    calls = [
        asyncio.ensure_future(identified(scheme, request(signed(jti=str(n))))) for n in range(20)
    ]
    await asyncio.sleep(0)
    issuer.gate.set()
    assert {caller.identity for caller in await asyncio.gather(*calls)} == {"ann"}
    assert issuer.asked == [f"{ISSUER}/.well-known/openid-configuration", f"{ISSUER}/keys"]


async def test_a_flood_of_unknown_keys_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer(KEY)
    scheme = bearer(jwks=f"{ISSUER}/keys", fetch=issuer)
    await identified(scheme, request(signed()))
    for n in range(200):
        with pytest.raises(Unauthenticated):
            await identified(scheme, request(signed(OTHER, header={"kid": f"k{n}"})))
    assert len(issuer.asked) == 1
    # a key that is really new is found when the pause is over
    issuer.keys = [CURVE]
    monkeypatch.setattr("dragoman.security.bearer_tokens.PAUSE", 0.0)
    assert (await identified(scheme, request(signed(CURVE, "ES256")))).identity == "ann"
    with pytest.raises(Unauthenticated):
        await identified(scheme, request(signed(jti="after")))  # the old one is gone


async def test_an_issuer_that_is_away_is_no_reason_to_let_anybody_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = Issuer()
    scheme = bearer(jwks="", fetch=issuer)
    with pytest.raises(Unavailable):
        await identified(scheme, request(signed()))
    issuer.keys = [KEY]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + FIRST_PAUSE)
    assert (await identified(scheme, request(signed()))).identity == "ann"


async def test_metadata_of_another_issuer_is_not_believed() -> None:
    async def fetch(url: str) -> Any:
        return {"issuer": "https://evil.example", "jwks_uri": "https://evil.example/keys", **JWKS}

    with pytest.raises(Unavailable):
        await identified(bearer(jwks="", fetch=fetch), request(signed()))


# ---- combinations ----------------------------------------------------------------------------


def basic(user: str, password: str) -> dict[str, str]:
    """The header of Basic."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


async def test_any_of() -> None:
    key, login = ApiKey(header="X-Key", keys={"bob": "k"}, realm="k"), Basic({"cy": "pw"}, realm="")
    gate = Authenticator([bearer(realm="b"), key, login])
    assert (await identified(gate, request(signed()))).identity == "ann"
    assert (await identified(gate, request(**{"x-key": "k"}))).identity == "bob"
    assert (await identified(gate, request(**basic("cy", "pw")))).identity == "cy"
    with pytest.raises(Unauthenticated) as refused:
        await identified(gate, request())
    challenge = refused.value.headers["www-authenticate"]
    assert challenge == 'Bearer realm="agents", Basic realm="agents", charset="UTF-8"'
    assert "bearer, key, login" in refused.value.message
    for wrong in (basic("cy", "no"), basic("nobody", "pw"), {"authorization": "Basic ***"}):
        with pytest.raises(Unauthenticated):
            await identified(gate, request(**wrong))
    # one that is wrong does not spoil another that is right
    assert (await identified(gate, request("bad", **{"x-key": "k"}))).identity == "bob"


async def test_all_of() -> None:
    gate = Authenticator([AllOf(bearer(), ApiKey(header="X-Key", keys={"machine": "k"}))])
    token = signed()
    found = await identified(gate, request(token, **{"x-key": "k"}))
    assert (found.identity, found.scopes) == ("ann", {"book", "read"})
    for some in (request(token), request(**{"x-key": "k"}), request(token, **{"x-key": "no"})):
        with pytest.raises(Unauthenticated):
            await identified(gate, some)


async def test_anonymous_is_for_those_who_say_nothing() -> None:
    gate = Authenticator([Token({"ann": "t"}), Anonymous()])
    assert gate.open
    assert await identified(gate, request()) == Caller()
    assert (await identified(gate, request("t"))).identity == "ann"
    with pytest.raises(Unauthenticated):  # a wrong word is not the same as none
        await identified(gate, request("wrong"))


@pytest.mark.parametrize(
    "made",
    [
        lambda: Authenticator([]),
        lambda: ApiKey(keys={"a": "b"}),
        lambda: ApiKey(header="x", query="y", keys={"a": "b"}),
        lambda: ApiKey(header="x", keys={}),
        lambda: ApiKey(header="x", keys="abc"),
        lambda: ApiKey(header="x", keys={"a": ""}),
        lambda: ApiKey(header="x", keys={"a": "sha256:12"}),
        lambda: Basic({}),
        lambda: AllOf(Token(["t"])),
        lambda: Authenticator([Token(["t"]), Token(["u"])]),
        lambda: Bearer(issuer="", audience="x"),
    ],
)
def test_what_makes_no_sense_is_told_at_once(made: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        made()


async def test_keys_can_be_given_as_digests() -> None:
    known = "sha256:" + hashlib.sha256(b"k").hexdigest()
    for where in ("header", "query", "cookie"):
        scheme = ApiKey(**{where: "X-Key"}, keys=[known])
        shown = {
            "header": request(**{"x-key": "k"}),
            "query": Request("GET", "/", "X-Key=k", {}, ""),
            "cookie": request(cookie="a=b; X-Key=k"),
        }[where]
        assert scheme.identify(shown) is not None


async def test_one_scheme_says_how_to_get_in() -> None:
    """Also where it was its own error, and where it had to wait for the verdict."""
    for scheme in (Token(["t"]), bearer()):
        for shown in (request(), request("wrong")):
            with pytest.raises(Unauthenticated) as refused:
                await identified(Authenticator([scheme]), shown)
            assert refused.value.headers["www-authenticate"].startswith("Bearer realm=")
            assert scheme.name in refused.value.message
