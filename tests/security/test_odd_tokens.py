"""Tokens that are odd although the issuer's key has signed them, and signatures that are odd."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from dragoman.model.errors import A2AError, Unauthenticated
from dragoman.security import bearer_tokens
from tests.security.test_tokens import (
    CURVE,
    ISSUER,
    JWKS,
    KEY,
    Issuer,
    bearer,
    claims,
    identified,
    raw,
    request,
    signed,
)

NOW = int(time.time())
BIG = 10**400


def part(data: bytes) -> str:
    """As a token has it."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def sealed(body: bytes | str, head: dict[str, Any] | None = None) -> str:
    """A token over these bytes, whatever they are, with a good signature of the issuer's."""
    body = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    said = f"{part(json.dumps(head or {'alg': 'RS256', 'kid': 'one'}).encode())}.{part(body)}"
    mark = KEY.private_key.sign(said.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{said}.{part(mark)}"


def claimed(**more: Any) -> str:
    """A token with these claims, written by hand so that they may be anything."""
    return sealed(json.dumps(claims(**more)))


def written(name: str, text: str) -> str:
    """A token with one claim whose JSON is this text."""
    body = json.dumps(claims(**{name: "@@"}))
    return sealed(body.replace('"@@"', text))


def cut(token: str, signature: str = "") -> str:
    """A token with another signature."""
    return f"{token.rpartition('.')[0]}.{signature}"


ODD = {
    "no signature": cut(signed()),
    "no signature and no dot": signed().rpartition(".")[0],
    "half a signature": cut(signed(), part(b"\x00" * 128)),
    "a signature of nothing": cut(signed(CURVE, "ES256"), part(bytes(64))),
    "a signature of nothing in DER": cut(signed(CURVE, "ES256"), part(bytes.fromhex("3006020100"))),
    "r is the order, s is 1": cut(
        signed(CURVE, "ES256"),
        part(
            bytes.fromhex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551")
            + (1).to_bytes(32, "big")
        ),
    ),
    "a curve's token for the other key": cut(
        raw({"alg": "ES256", "kid": "one"}, claims()), part(bytes(64))
    ),
    **{
        f"alg {alg}": raw({"alg": alg, "kid": "one"}, claims())
        for alg in ("nOnE", "NONE", "none ", "", "rs256", "HS256", "HS512", "RS256\x00")
    },
    **{
        f"alg {alg!r}": raw({"alg": alg, "kid": "one"}, claims())
        for alg in (None, ["none"], {"a": 1}, 0, True)
    },
    **{
        f"kid {kid!r}": raw({"alg": "RS256", "kid": kid}, claims(), b"x" * 256)
        for kid in (
            "../../../../dev/null",
            "/etc/passwd",
            "one' OR '1'='1",
            "one\x00",
            "one\n",
            "ONE",
            "#0",
            "",
            "a" * 8000,
            "http://169.254.169.254/",
            {"one": 1},
            1,
        )
    },
    "a certificate elsewhere": raw(
        {"alg": "RS256", "kid": "one", "x5u": "http://127.0.0.1/x"}, claims(), b"x" * 256
    ),
    "critical, and signed": sealed(
        json.dumps(claims()), {"alg": "RS256", "kid": "one", "crit": ["exp"]}
    ),
    "not encoded": sealed(
        json.dumps(claims()), {"alg": "RS256", "kid": "one", "b64": False, "crit": ["b64"]}
    ),
    "encrypted": "a.b.c.d.e",
    "dots": "...",
    "a word of four bytes": "\U0001f600.e30.e30",
    "expired, then not": sealed(
        json.dumps(claims())[:-1] + f', "exp": {NOW + 999}, "exp": {NOW - 999}}}'
    ),
    "exp in words": claimed(exp=str(NOW + 36_000)),
    "exp true": claimed(exp=True),
    "exp null": written("exp", "null"),
    "exp NaN": written("exp", "NaN"),
    "exp Infinity": written("exp", "Infinity"),
    "exp 1e400": written("exp", "1e400"),
    "exp of 400 digits": written("exp", str(BIG)),
    "exp of 9000 digits": written("exp", "9" * 9000),
    "exp a list": claimed(exp=[NOW + 36_000]),
    "nbf in words": claimed(nbf="0"),
    "nbf of 400 digits": written("nbf", str(BIG)),
    "nbf -1e400": written("nbf", "-1e400"),
    "aud an object": claimed(aud={"flights": True}),
    "aud a number": claimed(aud=1),
    "aud an empty list": claimed(aud=[]),
    "aud a list in a list": claimed(aud=[["flights"]]),
    "iss a list": claimed(iss=[ISSUER]),
    "iss with a slash": claimed(iss=ISSUER + "/"),
    "sub empty": claimed(sub=""),
    "sub a list": claimed(sub=["ann"]),
    "sub a number": claimed(sub=7),
    "tenant a list": claimed(tenant=["blue"]),
    "tenant a number": claimed(tenant=0),
    "tenant false": claimed(tenant=False),
    "scope a number": claimed(scope=7),
    "scope an object": claimed(scope={"book": 1}),
    "scope of lists": claimed(scope=None, scp=[["book"]]),
    "scope that is no text": written("scope", '"\\ud800"'),
    "claims a list": sealed("[]"),
    "claims null": sealed("null"),
    "claims no json": sealed("{"),
    "claims no utf-8": sealed(b'{"sub":"\xff"}'),
    "claims deep": sealed("[" * 5000 + "]" * 5000),
}


@pytest.mark.parametrize("token", ODD.values(), ids=[name[:40] for name in ODD])
async def test_odd_tokens_are_refused_and_nothing_breaks(token: str) -> None:
    scheme = bearer()
    with pytest.raises(Unauthenticated):
        await identified(scheme, request(token))
    assert not len(scheme._book)


async def test_no_key_is_fetched_from_where_a_token_says() -> None:
    issuer = Issuer(KEY)
    scheme = bearer(jwks=f"{ISSUER}/keys", fetch=issuer)
    for name in ("jku", "x5u", "iss"):
        head = {"alg": "RS256", "kid": "mine", name: "http://169.254.169.254/latest"}
        with pytest.raises(Unauthenticated):
            await identified(scheme, request(raw(head, claims(iss="http://169.254.169.254/"))))
    assert issuer.asked == [f"{ISSUER}/keys"]


async def test_what_a_good_token_may_say() -> None:
    """The last of two claims counts, as everywhere in JSON; a tenant that is null is none."""
    twice = sealed(json.dumps(claims())[:-1] + ', "sub": "bob", "tenant": null}')
    found = await identified(bearer(), request(twice))
    assert (found.identity, found.tenant) == ("bob", "")
    spaced = await identified(bearer(), request(claimed(sub="auth0|ann b", scope="")))
    assert (spaced.identity, spaced.scopes) == ("auth0|ann b", frozenset())


async def test_a_key_that_is_withdrawn_takes_its_tokens_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long they say that they are good for: who has stolen a key writes that, too."""
    issuer = Issuer(KEY)
    scheme = bearer(jwks=f"{ISSUER}/keys", fetch=issuer)
    token = signed(exp=NOW + 10 * 365 * 86400)
    assert (await identified(scheme, request(token))).identity == "ann"
    issuer.keys = [CURVE]
    assert (await identified(scheme, request(token))).identity == "ann"  # not known here yet
    later, monotonic = (
        time.time() + bearer_tokens.FRESH + 1,
        time.monotonic() + bearer_tokens.FRESH + 1,
    )
    monkeypatch.setattr("time.time", lambda: later)
    monkeypatch.setattr("time.monotonic", lambda: monotonic)
    with pytest.raises(Unauthenticated):
        await identified(scheme, request(token))


@pytest.mark.parametrize("seed", range(3))
async def test_tokens_with_bytes_changed(seed: int) -> None:
    """No byte of a token can be changed without it being refused, and none breaks anything."""
    import random

    dice = random.Random(seed)
    good = [signed(), signed(CURVE, "ES256"), claimed(tenant="blue")]
    scheme = bearer(jwks=JWKS)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \xff"
    for _ in range(300):
        token = dice.choice(good)
        place = dice.randrange(len(token))
        odd = dice.choice(alphabet)
        if dice.random() < 0.5:
            wrong = token[:place] + odd + token[place + 1 :]
        else:
            wrong = token[:place] + odd * dice.randrange(3) + token[place + dice.randrange(9) :]
        try:
            found = await identified(scheme, request(wrong))
        except A2AError as error:
            assert isinstance(error, Unauthenticated)
            continue
        # the last characters of base64 have bits that say nothing
        assert _same(wrong, token), (wrong, found)


def _same(one: str, other: str) -> bool:
    def parts(token: str) -> list[bytes]:
        return [base64.urlsafe_b64decode(each.strip() + "==") for each in token.split(".")]

    return parts(one) == parts(other)
