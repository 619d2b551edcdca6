"""The keys of a card that is served: where others find them, and who signs."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.client import Client
from dragoman.security.card_keys import CardKey, key_set
from dragoman.security.card_signatures import HEIRS, verify
from dragoman.server.settings import SettingsError
from tests.contract.bindings.test_signed_cards import agent, app
from tests.harness.server import serving

CARD, SET = "/.well-known/agent-card.json", "/.well-known/jwks.json"
V1 = {"a2a-version": "1.0"}
ALGS = ("ES256", "ES384", "EdDSA", "RS256", "PS256")
KEYS = {alg: CardKey.generate(alg) for alg in ALGS}
PRIVATE = {"d", "p", "q", "dp", "dq", "qi", "oth", "k"}


def headers(card: dict[str, Any]) -> list[dict[str, Any]]:
    """What its signatures say of themselves."""
    return [
        json.loads(base64.urlsafe_b64decode(item["protected"] + "=="))
        for item in card["signatures"]
    ]


# ---- the set -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["pem", "jwk"])
@pytest.mark.parametrize("alg", ALGS)
async def test_only_public_halves_are_shown(alg: str, form: str, tmp_path: Path) -> None:
    key, file = KEYS[alg], tmp_path / "key"
    private = key.made.as_dict(private=True) | {"alg": alg, "kid": "one", "note": "mine"}
    file.write_bytes(key.pem() if form == "pem" else json.dumps(private).encode())
    async with (
        serving(App(agent(), card_keys=(str(file),))) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        answer = await http.get(SET)
        card = (await http.get(CARD)).json()
    (shown,) = answer.json()["keys"]
    public = {"EC": {"crv", "x", "y"}, "OKP": {"crv", "x"}, "RSA": {"n", "e"}}[shown["kty"]]
    assert set(shown) - {"alg"} == {"kty", "kid", "use"} | public
    secrets = [private[name] for name in PRIVATE & set(private)]
    assert secrets
    assert not any(secret in answer.text for secret in secrets)
    assert verify(card, key_set(answer.content)).thumbprint == key.thumbprint


async def test_how_it_is_served() -> None:
    served = App(agent(), sign=[KEYS["ES256"]], cors=("https://page.example",))
    async with serving(served) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get(SET, headers={"origin": "https://page.example"})
        assert answer.headers["content-type"] == "application/jwk-set+json"
        assert answer.headers["cache-control"] == "public, max-age=300"
        assert answer.headers.get_list("access-control-allow-origin") == ["*"]
        again = await http.get(SET, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await http.post(SET)).status_code == 405
        head = await http.head(SET)
        assert (head.status_code, head.content) == (200, b"")


async def test_without_keys_there_is_none() -> None:
    async with serving(App(agent())) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get(SET)).status_code == 404


async def test_each_of_several_agents_has_its_own() -> None:
    other = Agent("Other", description="Another.")

    @other.skill(tags=["x"])
    async def answer(turn: Turn) -> str:
        """Say it again."""
        return turn.text

    async with (
        serving(App(agent(), other, sign=[KEYS["ES256"]])) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        for key in ("signed", "other"):
            card = (await http.get(f"/{key}{CARD}", headers=V1)).json()
            assert headers(card)[0]["jku"] == f"{url}/{key}{SET}"
            assert verify(card, key_set((await http.get(f"/{key}{SET}")).content))
        assert (await http.get(SET)).status_code == 404


@pytest.mark.parametrize(
    ("told", "jku"),
    [("", None), ("https://keys.example/set.json", "https://keys.example/set.json")],
)
async def test_where_signatures_say_that_it_is(told: str, jku: str | None) -> None:
    served = App(agent(), sign=[KEYS["ES256"]], card_jku=told)
    async with serving(served) as url, httpx.AsyncClient(base_url=url) as http:
        for each in headers((await http.get(CARD)).json()):
            assert each.get("jku") == jku


async def test_keys_vouch_for_each_other() -> None:
    one, two = KEYS["ES256"], KEYS["EdDSA"]
    async with (
        serving(App(agent(), sign=[one, two])) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        card = (await http.get(CARD, headers=V1)).json()
    assert [each[HEIRS] for each in headers(card)] == [[two.thumbprint], [one.thumbprint]]
    assert [verify(card, {key.kid: key}).heirs for key in (one, two)] == [
        (two.thumbprint,),
        (one.thumbprint,),
    ]


# ---- for whom ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, V1])
async def test_no_signature_for_a_host_that_a_caller_made_up(form: Mapping[str, str]) -> None:
    """Else anybody could have a card signed that leads to himself."""
    async with (
        serving(App(agent(), sign=[KEYS["ES256"]], trust_forwarded=True)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example"):
            answer = await http.get(CARD, headers={**form, "host": host})
            assert (answer.status_code, "signatures" in answer.text) == (421, False)
        for host in ("localhost:1", "[::1]:1", "127.0.0.1"):
            assert (await http.get(CARD, headers={**form, "host": host})).status_code == 200
    bare = App(agent(), trust_forwarded=True)
    async with serving(bare) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.get(CARD, headers={"host": "evil.example"})
        assert (answer.status_code, "signatures" in answer.json()) == (200, False)


async def test_hosts_that_are_listed_and_an_address_that_is_set() -> None:
    listed = App(agent(), sign=[KEYS["ES256"]], trusted_hosts=("a.example", "*.b.example"))
    async with serving(listed) as url, httpx.AsyncClient(base_url=url) as http:
        for host, status in (("a.example", 200), ("x.b.example", 200), ("evil.example", 421)):
            assert (await http.get(CARD, headers={"host": host})).status_code == status
    fixed = App(agent(), sign=[KEYS["ES256"]], url="https://a.example/x", trust_forwarded=True)
    async with serving(fixed) as url, httpx.AsyncClient(base_url=url) as http:
        for name in ("host", "x-forwarded-host"):
            # also once it has been signed for somebody else
            for host in ("evil.example", "a.example", "localhost", "127.0.0.1:1", "evil.example"):
                answer = await http.get(CARD, headers={**V1, name: host})
                if host == "evil.example":
                    assert (answer.status_code, "signatures" in answer.text) == (421, False)
                    continue
                assert headers(answer.json())[0]["jku"] == f"https://a.example/x{SET}"
        # one header of two that is no host does not hide the other
        both = {**V1, "host": "evil.example", "x-forwarded-host": "localhost:99999"}
        assert (await http.get(CARD, headers=both)).status_code == 421


async def test_an_extended_card_is_for_the_same_hosts() -> None:
    made = app([], sign=[KEYS["ES256"]], url="https://a.example", trust_forwarded=True)
    path, ann = "/extendedAgentCard", {**V1, "x-user": "ann"}
    async with serving(made) as url, httpx.AsyncClient(base_url=url) as http:
        assert (await http.get(path, headers={**ann, "host": "a.example"})).status_code == 200
        assert (await http.get(path, headers={**ann, "host": "evil.example"})).status_code == 421


# ---- who signs -----------------------------------------------------------------------------


class Kms:
    """Signs elsewhere, when it likes to."""

    def __init__(self) -> None:
        self.key = KEYS["ES256"]
        self.calls = 0
        self.works = True
        self.free = threading.Event()
        self.free.set()

    def __call__(self, content: bytes) -> bytes:
        self.calls += 1
        assert self.free.wait(10)
        if not self.works:
            raise ConnectionError("the service is down")
        return self.key.sign(content)

    def remote(self, **options: Any) -> CardKey:
        """The key as the application has it."""
        return CardKey.remote(self, alg="ES256", **({"public": self.key.jwk()} | options))


async def test_what_signs_elsewhere_stops_nobody() -> None:
    kms = Kms()
    async with (
        serving(App(agent(), sign=[kms.remote()])) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        kms.free.clear()
        before = kms.calls
        cards = [asyncio.create_task(http.get(CARD, headers=V1)) for _ in range(5)]
        while kms.calls == before:
            await asyncio.sleep(0.005)
        assert (await http.get("/healthz")).status_code == 200  # while it is being signed
        assert not any(card.done() for card in cards)
        kms.free.set()
        found = {(await card).content for card in cards}
        await http.get(CARD, headers=V1)
        keys = (await http.get(SET)).content
    assert len(found) == 1
    assert kms.calls == before + 1  # once for all of them
    assert verify(found.pop(), key_set(keys)).thumbprint == kms.key.thumbprint


async def test_a_card_is_never_shown_without_its_signature(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kms = Kms()
    made = App(agent(), sign=[kms.remote()])
    async with (
        serving(made) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        kms.works = False
        before = kms.calls
        for form in ({}, V1, V1):
            answer = await http.get(CARD, headers=form)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "service is down" not in answer.text
        assert kms.calls == before + 1  # and is left alone for a while
        assert "the service is down" in caplog.text
        kms.works = True
        assert (await http.get(CARD)).status_code == 503
        made.endpoints["signed"].signer._failed = 0.0  # the while is over
        assert len((await http.get(CARD, headers=V1)).json()["signatures"]) == 1


async def test_an_extended_card_is_signed_once() -> None:
    kms = Kms()
    made = app([], sign=[kms.remote()])
    async with serving(made) as url, Client.connect(url, signed_by=kms.key) as client:
        before = kms.calls
        for _ in range(3):
            assert (await client.extended_card()).description == "For ann."
        assert kms.calls == before + 1


def broken(_: bytes) -> bytes:
    raise ConnectionError("the service is down")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            lambda: [CardKey.remote(broken, alg="ES256", public=KEYS["ES256"].jwk())],
            "service is down",
        ),
        (
            lambda: [Kms().remote(public=CardKey.generate("ES256").jwk())],
            "does not match its public",
        ),
        (lambda: [Kms().remote(public=None, kid="k")], "clients cannot find the key 'k'.*public="),
        (lambda: [KEYS["ES256"], KEYS["ES256"]], "two keys have the kid"),
        (lambda: [CardKey.load(KEYS["ES256"].jwk())], "it can verify, but not sign"),
    ],
)
async def test_it_does_not_start(keys: Callable[[], list[CardKey]], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        await App(agent(), sign=keys()).start()


async def test_a_key_that_nobody_finds_will_do_where_none_looks() -> None:
    hidden = Kms().remote(public=None, kid="k")
    async with (
        serving(App(agent(), sign=[hidden], card_jku="")) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        assert verify((await http.get(CARD)).content, {"k": KEYS["ES256"].jwk()}).kid == "k"
        assert (await http.get(SET)).status_code == 404


async def test_an_agent_without_skills_is_not_signed() -> None:
    bare = Agent("Bare", description="Says nothing of what it can.")

    @bare.handler
    async def answer(turn: Turn) -> str:
        return turn.text

    with pytest.raises(
        SettingsError, match=r"agent 'bare': .*skills: must not be empty.*@agent\.skill"
    ):
        await App(bare, sign=[KEYS["ES256"]]).start()


async def test_what_is_no_address_of_keys() -> None:
    with pytest.raises(
        SettingsError, match=r"^card_jku: must be own or a URL, not .keys\.example."
    ):
        await App(agent(), sign=[KEYS["ES256"]], card_jku="keys.example").start()


async def test_a_file_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """Where the first request starts the application, the log has the reason in a line."""
    transport = httpx.ASGITransport(App(agent(), card_keys=("no.pem",)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get(CARD)).status_code == 503
    (record,) = (each for each in caplog.records if "cannot start" in each.getMessage())
    assert record.getMessage().endswith("card_keys: no.pem: No such file or directory")
    assert record.exc_info is None


def test_what_is_no_key() -> None:
    with pytest.raises(TypeError, match="sign expects keys"):
        App(agent(), sign=["key.pem"])  # type: ignore[list-item]
