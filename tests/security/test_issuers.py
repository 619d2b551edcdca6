"""Issuers on a real network: answers that come in pieces, are too large or too slow, and errors
that last."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from dragoman import App
from dragoman.model.errors import Unauthenticated, Unavailable
from dragoman.security import Bearer, Introspection, bearer_tokens, introspection, issuer_requests
from tests.harness.raw_server import Listener, Visit, listening
from tests.harness.server import serving
from tests.security.scheme_requests import doorman, identified, request, said, send

KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
SEGMENT = 1400


def padded(document: Any, size: int) -> bytes:
    """The document as JSON of so many bytes."""
    found = json.dumps(document).encode()
    return found[:-1] + b" " * (size - len(found)) + found[-1:]


JWKS = padded({"keys": [KEY.as_dict(private=False)]}, 4896)


def token(**more: Any) -> str:
    """A good token."""
    claims = {"iss": "https://id.example", "aud": "flights", "sub": "ann"}
    return jwt.encode(
        {"alg": "ES256", "kid": "one"}, {**claims, "exp": int(time.time()) + 600, **more}, KEY
    )


class Answers:
    """What an issuer answers; it may change."""

    def __init__(self, body: bytes, status: str = "200 OK") -> None:
        self.body, self.status = body, status
        self.pause = 0.005
        self.length = True


@contextlib.asynccontextmanager
async def issuing(answers: Answers) -> AsyncIterator[Listener]:
    """An issuer that answers in segments, as a network does."""
    found: list[Listener] = []

    async def talk(visit: Visit) -> None:
        while True:
            found[0].requests.append(await visit.request())
            body = answers.body
            length = f"Content-Length: {len(body)}\r\n" if answers.length else ""
            await visit.send(f"HTTP/1.1 {answers.status}\r\n{length}\r\n".encode())
            for start in range(0, len(body), SEGMENT):
                await asyncio.sleep(answers.pause)
                await visit.send(body[start : start + SEGMENT])
            if not answers.length:
                return

    async with listening(talk) as listener:
        found.append(listener)
        yield listener


def bearer(listener: Listener) -> Bearer:
    """Tokens whose keys are there."""
    url = f"http://127.0.0.1:{listener.port}/keys"
    return Bearer(issuer="https://id.example", audience="flights", jwks=url)


def asking(listener: Listener) -> Introspection:
    """Tokens about which this one is asked."""
    url = f"http://127.0.0.1:{listener.port}/"
    return Introspection(url=url, client_id="a", client_secret="b")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Keep()
    logging.getLogger("dragoman").addHandler(handler)
    yield found
    logging.getLogger("dragoman").removeHandler(handler)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let time pass."""
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + seconds)


# ---- whole answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [True, False])
async def test_a_key_set_that_comes_in_segments(length: bool) -> None:
    answers = Answers(JWKS)
    answers.length = length
    async with issuing(answers) as issuer:
        app = App(doorman(), auth=bearer(issuer), drain_timeout=0.0)
        async with serving(app) as url:
            assert said(await send(url, token())) == "ann:"


async def test_an_answer_about_a_token_that_comes_in_segments() -> None:
    async with issuing(Answers(padded({"active": True, "sub": "ann"}, 4896))) as issuer:
        assert (await identified(asking(issuer), request("t"))).identity == "ann"


@pytest.mark.parametrize("make", [bearer, asking])
async def test_an_answer_that_is_too_large(
    make: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (bearer_tokens, introspection):
        monkeypatch.setattr(module, "LARGEST", 4000)
    good = {"active": True, "sub": "ann", "keys": [KEY.as_dict(private=False)]}
    async with issuing(Answers(padded(good, 4001))) as issuer:
        with pytest.raises(Unavailable):
            await identified(make(issuer), request(token()))
        assert "larger than 4000 bytes" in lines[-1]
    async with issuing(Answers(padded(good, 4000))) as issuer:
        assert (await identified(make(issuer), request(token()))).identity == "ann"


@pytest.mark.parametrize("make", [bearer, asking])
async def test_an_answer_that_takes_too_long(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drips: each piece comes in time, and all of it does not."""
    for module in (bearer_tokens, introspection):
        monkeypatch.setattr(module, "PATIENCE", 0.3)
    answers = Answers(JWKS * 200)
    answers.pause = 0.05
    async with issuing(answers) as issuer, asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await identified(make(issuer), request(token()))


# ---- errors that last ------------------------------------------------------------------------


async def test_invented_tokens_while_the_issuer_fails(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key is known: few fetches and few log lines, whatever is invented."""
    answers = Answers(b"{}", "500 Oh")
    async with issuing(answers) as issuer:
        scheme = bearer(issuer)
        for n in range(300):
            with pytest.raises(Unavailable) as refused:
                await identified(scheme, request(token(jti=str(n))))
            assert refused.value.headers["retry-after"] == "1"
        assert len(issuer.requests) == 1
        assert len(lines) == 1
        # the pauses grow, up to their limit
        pauses = []
        for n in range(8):
            pause = scheme._keys._backoff.left()
            pauses.append(round(pause))
            later(monkeypatch, pause - 0.1)
            with pytest.raises(Unavailable):
                await identified(scheme, request(token(jti=f"before {n}")))
            assert len(issuer.requests) == n + 1
            later(monkeypatch, 0.2)
            with pytest.raises(Unavailable):
                await identified(scheme, request(token(jti=f"after {n}")))
            assert len(issuer.requests) == n + 2
        assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
        # and the issuer's first good answer ends them
        answers.body, answers.status = JWKS, "200 OK"
        later(monkeypatch, issuer_requests.LONGEST_PAUSE + 1)
        assert (await identified(scheme, request(token()))).identity == "ann"
        assert scheme._keys._backoff.left() == 0


async def test_many_invented_tokens_at_once_while_the_issuer_fails(lines: list[str]) -> None:
    async with issuing(Answers(b"{}", "500 Oh")) as issuer:
        scheme = bearer(issuer)
        found = await asyncio.gather(
            *(identified(scheme, request(token(jti=str(n)))) for n in range(100)),
            return_exceptions=True,
        )
        assert {type(error) for error in found} == {Unavailable}
        assert len(issuer.requests) == 1
        assert len(lines) == 1


async def test_invented_tokens_while_nobody_can_be_asked_about_them(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(b"{}", "500 Oh")
    async with issuing(answers) as issuer:
        scheme = asking(issuer)
        for n in range(300):
            with pytest.raises(Unavailable) as refused:
                await identified(scheme, request(f"invented {n}"))
            assert 1 <= int(refused.value.headers["retry-after"]) <= 5
        assert len(issuer.requests) == introspection.FAILURES
        assert len(lines) == 1
        # after the pause one request finds out how the issuer is
        later(monkeypatch, 1.1)
        found = await asyncio.gather(
            *(identified(scheme, request(f"more {n}")) for n in range(20)), return_exceptions=True
        )
        assert {type(error) for error in found} == {Unavailable}
        assert len(issuer.requests) == introspection.FAILURES + 1
        answers.body, answers.status = b'{"active":true,"sub":"ann"}', "200 OK"
        later(monkeypatch, 2.1)
        assert (await identified(scheme, request("good"))).identity == "ann"
        assert (await identified(scheme, request("better"))).identity == "ann"


async def test_one_answer_that_fails_is_no_reason_to_pause() -> None:
    answers = Answers(b"{}", "500 Oh")
    async with issuing(answers) as issuer:
        scheme = asking(issuer)
        for n in range(3):
            answers.body, answers.status = b"{}", "500 Oh"
            for failing in range(introspection.FAILURES - 1):
                with pytest.raises(Unavailable):
                    await identified(scheme, request(f"bad {n} {failing}"))
            answers.body, answers.status = b'{"active":false}', "200 OK"
            with pytest.raises(Unauthenticated):
                await identified(scheme, request(f"unknown {n}"))
