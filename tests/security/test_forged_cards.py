"""Hostile servers that show forged cards to a client which wants them signed.

The client must refuse each of them, and ask nobody anything but for the card, and for keys where it
was told to look for them. What a signature covers is all that it may use.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from dragoman import App
from dragoman.client import (
    Client,
    CredentialsNotSent,
    Origins,
    StaticToken,
    Trust,
    TrustedKeys,
    Unverified,
)
from dragoman.dialects.v0_3.card import merged
from dragoman.dialects.v1_0 import decode, encode
from dragoman.model.types import AgentCard
from dragoman.security import card_signatures
from dragoman.security.canonical_card import canonical
from dragoman.security.card_keys import CardKey
from dragoman.security.egress import Egress
from tests.contract.bindings.test_signed_cards import agent
from tests.harness.raw_server import Listener, listening
from tests.harness.recording_app import RecordingApp
from tests.harness.server import serving

CARD, SET = "/.well-known/agent-card.json", "/.well-known/jwks.json"
KEY, OTHER = CardKey.generate("ES256"), CardKey.generate("ES256")
TRUSTED = {"k": KEY.jwk(), "other": OTHER.jwk()}
Card = dict[str, Any]


@dataclass
class CardServers:
    """A good agent, whose card a hostile site shows; and an evil one, to whom nobody may go."""

    good: RecordingApp
    site: RecordingApp
    evil: Listener
    egress: Egress

    @property
    def trap(self) -> str:
        """Where evil is."""
        return f"http://127.0.0.1:{self.evil.port}"

    def card(self) -> Card:
        """What the good one says."""
        found: Card = json.loads(encode(agent().card(self.good.url)))
        return found

    def show(self, card: Card | bytes) -> None:
        """Have the site show this."""
        body = card if isinstance(card, bytes) else json.dumps(card).encode()
        self.site.pages[CARD] = (200, body, "")

    async def refused(
        self, card: Card | bytes, why: str, by: Any = TRUSTED, *, asked: tuple[str, ...] = ()
    ) -> None:
        """The client does not take it, and has asked for nothing else."""
        self.show(card)
        with pytest.raises(Unverified, match=why):
            async with Client.connect(self.site.url, signed_by=by, attempts=1) as client:
                await client.send("hi")
        assert self.site.asked == [CARD, *asked]
        assert self.good.asked == []
        await self.evil.unseen()
        self.site.asked.clear()

    async def taken(self, card: Card | bytes, by: Any = TRUSTED) -> Client:
        """The client takes it, and talks to the good one."""
        self.show(card)
        async with Client.connect(self.site.url, signed_by=by, attempts=1) as client:
            assert (await client.send("hi")).text == "hi"
        assert self.site.asked[0] == CARD
        assert self.good.asked
        await self.evil.unseen()
        self.site.asked.clear()
        self.good.asked.clear()
        return client


@pytest.fixture
async def servers() -> AsyncIterator[CardServers]:
    """All three, on real sockets."""
    async with AsyncExitStack() as stack:
        good, site = RecordingApp(App(agent())), RecordingApp()
        good.url = await stack.enter_async_context(serving(good))
        site.url = await stack.enter_async_context(serving(site, lifespan="off"))
        evil = await stack.enter_async_context(listening())
        local = await stack.enter_async_context(Egress(allow=["127.0.0.1", "localhost"]))
        yield CardServers(good, site, evil, local)


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(card: Card, key: CardKey = KEY, *, loose: Any = None, **header: Any) -> Card:
    """A card with a signature that is right in all but its header, which the signer chose."""
    said = {"alg": "ES256", "kid": "k", "typ": "JOSE"} | header
    protected = encoded(json.dumps(said).encode())
    content = f"{protected}.{encoded(canonical(card))}".encode()
    made = {"protected": protected, "signature": encoded(key.sign(content))}
    return card | {"signatures": [made | ({} if loose is None else {"header": loose})]}


async def test_what_is_good_is_taken(servers: CardServers) -> None:
    await servers.taken(signed(servers.card()))


# ---- other words ---------------------------------------------------------------------------

FIELDS = [
    *("name", "description", "version", "supportedInterfaces", "capabilities"),
    *("defaultInputModes", "defaultOutputModes", "skills"),
]


@pytest.mark.parametrize("name", FIELDS)
async def test_a_field_is_changed_or_dropped(servers: CardServers, name: str) -> None:
    good = signed(servers.card())
    text = json.dumps(good[name])
    changed = json.loads(text.replace(servers.good.url, servers.trap))
    if changed == good[name]:
        changed = [*changed, "x"] if isinstance(changed, list) else (
            changed | {"extendedAgentCard": False} if isinstance(changed, dict) else changed + "x"
        )  # fmt: skip
    await servers.refused(good | {name: changed}, "the card was changed")
    without = {key: value for key, value in good.items() if key != name}
    await servers.refused(without, "the card was changed")


@pytest.mark.parametrize(
    "more",
    [
        {"securitySchemes": {"x": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}},
        {"provider": {"organization": "Bank", "url": "https://bank.example"}},
        {"iconUrl": ""},
        {"documentationUrl": "https://evil.example"},
    ],
)
async def test_a_field_is_added(servers: CardServers, more: Card) -> None:
    await servers.refused(signed(servers.card()) | more, "the card was changed")


async def test_the_signature_of_another_card(servers: CardServers) -> None:
    card = servers.card()
    elsewhere = signed(card | {"name": "Other"})["signatures"]
    await servers.refused(card | {"signatures": elsewhere}, "the card was changed")


async def test_no_signature(servers: CardServers) -> None:
    card = servers.card()
    await servers.refused(card, "the card is not signed")
    for none in ([], {}, "x", None):
        await servers.refused(card | {"signatures": none}, "the card is not signed")


# ---- other keys ----------------------------------------------------------------------------


async def test_the_name_of_another_key(servers: CardServers) -> None:
    await servers.refused(signed(servers.card(), kid="other"), "the key 'other' did not make it")
    await servers.refused(signed(servers.card(), OTHER), "the key 'k' did not make it")
    evil = CardKey.generate("ES256")
    await servers.refused(signed(servers.card(), evil), "the key 'k' did not make it")
    await servers.refused(signed(servers.card(), evil, kid="mine"), "'mine' is not trusted")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"alg": "none"}, "alg 'none' is not accepted"),
        ({"alg": "None"}, "is not accepted"),
        ({"alg": ""}, "is not accepted"),
        ({"alg": "ES512"}, "is not accepted"),
        ({"alg": "RS256"}, "is not for RS256"),
        ({"crit": ["urn:x"], "urn:x": 1}, "critical headers"),
        ({"b64": False}, "critical headers"),
        ({"jwk": KEY.jwk()}, r"its own key \(jwk\)"),
        ({"x5c": ["AAAA"]}, r"its own key \(x5c\)"),
        ({"kid": None}, "it has no kid"),
    ],
)
async def test_headers(servers: CardServers, header: Card, why: str) -> None:
    await servers.refused(signed(servers.card(), **header), why)


async def test_an_algorithm_without_a_signature(servers: CardServers) -> None:
    good = signed(servers.card(), alg="none")
    good["signatures"][0]["signature"] = ""
    await servers.refused(good, "alg 'none' is not accepted")


@pytest.mark.parametrize(
    "secret",
    [
        lambda: KEY.made.as_pem(private=False),
        lambda: json.dumps(KEY.jwk()).encode(),
        lambda: b"",
    ],
    ids=["pem", "jwk", "empty"],
)
async def test_the_public_key_as_a_secret(
    servers: CardServers, secret: Callable[[], bytes]
) -> None:
    card = servers.card()
    protected = encoded(b'{"alg":"HS256","kid":"k"}')
    content = f"{protected}.{encoded(canonical(card))}".encode()
    mac = hmac.digest(secret(), content, hashlib.sha256)
    made = {"protected": protected, "signature": encoded(mac)}
    await servers.refused(card | {"signatures": [made]}, "alg 'HS256' is not accepted")


@pytest.mark.parametrize("name", ["alg", "kid", "jku", "jwk", "crit", "x5u", "b64"])
async def test_headers_that_nobody_protects(servers: CardServers, name: str) -> None:
    loose = {name: KEY.jwk() if name == "jwk" else f"{servers.trap}/jwks.json"}
    await servers.refused(signed(servers.card(), loose=loose), "outside of the protected header")


# ---- keys elsewhere ------------------------------------------------------------------------


def keys_at(servers: CardServers) -> Trust:
    """Trust in the keys at one address of the site, which is reached although it is local."""
    return Trust(jku=[f"{servers.site.url}/keys"], egress=servers.egress)


def key_page() -> bytes:
    return json.dumps({"keys": [KEY.jwk() | {"kid": "k"}]}).encode()


async def test_keys_at_the_address_that_is_trusted(servers: CardServers) -> None:
    servers.site.pages["/keys/set.json"] = (200, key_page(), "")
    await servers.taken(
        signed(servers.card(), jku=f"{servers.site.url}/keys/set.json"), keys_at(servers)
    )


@pytest.mark.parametrize(
    "jku",
    [
        "{evil}/keys/set.json",
        "{site}.evil.example/keys/set.json",
        "{site}@127.0.0.1:{port}/keys/set.json",
        "http://x@127.0.0.1:{own}/keys/set.json",
        "{site}/keys/../set.json",
        "{site}/keys/%2e%2e/set.json",
        "{site}/keys/..%2fset.json",
        "{site}/keys\\@127.0.0.1:{port}/set.json",
        "{site}/keysx/set.json",
        "{site}/KEYS/set.json",
        "http://127.1:{own}/keys/set.json",
        "http://localhost:{own}/keys/set.json",
        "http://localhost:{port}/keys/set.json",
        "file:///etc/passwd",
        "data:application/json,{{}}",
    ],
)
async def test_keys_at_other_addresses(servers: CardServers, jku: str) -> None:
    own = servers.site.url.rpartition(":")[2]
    where = jku.format(evil=servers.trap, site=servers.site.url, port=servers.evil.port, own=own)
    servers.site.pages["/set.json"] = servers.site.pages["/keysx/set.json"] = (200, key_page(), "")
    await servers.refused(signed(servers.card(), jku=where), "are not trusted", keys_at(servers))


async def test_keys_that_have_moved(servers: CardServers) -> None:
    for status in (301, 302, 303, 307, 308):
        servers.site.pages["/keys/set.json"] = (status, b"", f"{servers.trap}/keys/set.json")
        card = signed(servers.card(), jku=f"{servers.site.url}/keys/set.json")
        await servers.refused(
            card, "cannot fetch its keys", keys_at(servers), asked=("/keys/set.json",)
        )


async def test_a_card_that_has_moved(servers: CardServers) -> None:
    servers.site.pages[CARD] = (302, b"", f"{servers.trap}{CARD}")
    with pytest.raises(Exception, match="does not follow redirects"):
        async with Client.connect(servers.site.url, signed_by=TRUSTED, attempts=1):
            pass
    await servers.evil.unseen()


@pytest.mark.parametrize(
    "jku", ["{evil}/jwks.json", "{site}@127.0.0.1:{port}/jwks.json", "{site}/a/../jwks.json"]
)
async def test_first_use_asks_nobody_else(servers: CardServers, jku: str) -> None:
    where = jku.format(evil=servers.trap, site=servers.site.url, port=servers.evil.port)
    servers.site.pages["/jwks.json"] = (200, key_page(), "")
    await servers.refused(signed(servers.card(), jku=where), "cannot be pinned", TrustedKeys())


async def test_first_use_follows_nobody(servers: CardServers) -> None:
    servers.site.pages[SET] = (302, b"", f"{servers.trap}/jwks.json")
    card = signed(servers.card(), jku=servers.site.url + SET)
    await servers.refused(card, "does not follow redirects", TrustedKeys(), asked=(SET,))


# ---- documents that readers differ on ------------------------------------------------------


async def test_a_name_that_is_there_twice(servers: CardServers) -> None:
    good = json.dumps(signed(servers.card()))
    evil = json.dumps(servers.card()["supportedInterfaces"]).replace(servers.good.url, servers.trap)
    for body in (
        f'{{"supportedInterfaces":{evil},{good[1:]}',
        f'{good[:-1]},"supportedInterfaces":{evil}}}',
        f'{good[:-1]},"signatures":[]}}',
        f'{good[:-1]},"supported\\u0049nterfaces":{evil}}}',
    ):
        await servers.refused(body.encode(), "appears twice")


async def test_a_name_in_its_other_spelling(servers: CardServers) -> None:
    evil = json.loads(
        json.dumps(servers.card()["supportedInterfaces"]).replace(servers.good.url, servers.trap)
    )
    await servers.refused(signed(servers.card()) | {"supported_interfaces": evil}, "two spellings")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
        (b'{"x":' * 5_000 + b"1" + b"}" * 5_000, "nested deeper"),
        (b'{"x":"' + b"a" * (2 << 20) + b'"}', "longer than"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'{"signatures":[1],"x":NaN}', "not a JSON number"),
        (b'{"signatures":[1],"x":1e999}', "no canonical form"),
        (b'{"signatures":[1],"x":"\\ud800"}', "no canonical form"),
    ],
    ids=["lists", "objects", "huge", "bytes", "cut", "list", "nan", "infinite", "surrogate"],
)
async def test_what_is_hardly_json(servers: CardServers, body: bytes, why: str) -> None:
    await servers.refused(body, why)


async def test_very_many_signatures(servers: CardServers) -> None:
    """Only the first few are looked at, and few addresses for keys are asked."""
    card = servers.card()
    (good,) = signed(card)["signatures"]
    (bad,) = signed(card, OTHER)["signatures"]
    await servers.refused(card | {"signatures": [{}] * 10_000 + [good]}, "signature 16")
    many = [bad] * (card_signatures.MOST - 1)
    await servers.taken(card | {"signatures": [*many, good]})
    away = [
        signed(card, jku=f"{servers.site.url}/keys/{number}")["signatures"][0]
        for number in range(2 * card_signatures.MOST)
    ]
    asked = tuple(f"/keys/{number}" for number in range(card_signatures.MOST_SETS))
    await servers.refused(
        card | {"signatures": away}, "cannot fetch its keys", keys_at(servers), asked=asked
    )


# ---- what is beside it, and what was before ------------------------------------------------


def whole(servers: CardServers) -> Card:
    """What the good one shows to everybody, with the words of 0.3 beside those of 1.0."""
    return merged(decode(AgentCard, encode(servers.card())))


async def test_what_nobody_has_signed_is_not_used(servers: CardServers) -> None:
    """Only the words of 1.0 are signed: those of 0.3 lead to evil, and nobody goes there."""
    (part,) = signed(servers.card())["signatures"]
    evil = whole(servers) | {
        "url": servers.trap,
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
        "additionalInterfaces": [{"url": servers.trap, "transport": "JSONRPC"}],
        "supportedInterfac\u0435s": [{"url": servers.trap}],
        "security": [{"x": []}],
        "signatures": [part],
    }
    client = await servers.taken(evil)
    assert servers.trap not in encode(client.card).decode()


async def test_all_of_it_is_signed(servers: CardServers) -> None:
    both = signed(whole(servers))
    await servers.taken(both)
    await servers.refused(both | {"url": servers.trap}, "the card was changed")


async def test_only_the_older_words_are_left(servers: CardServers) -> None:
    """Without what was signed, a reader of both might take the rest for an older card."""
    (part,) = signed(servers.card())["signatures"]
    rest = {key: value for key, value in whole(servers).items() if key != "supportedInterfaces"}
    evil = rest | {"url": servers.trap, "signatures": [part]}
    await servers.refused(evil, "the card was changed")
    await servers.refused(evil | {"supportedInterfaces": []}, "the card was changed")


async def test_an_old_card_is_good_as_long_as_its_key(servers: CardServers) -> None:
    """A signature says who, and not when: what is promised is that an old card is refused once
    its key is not trusted any more."""
    old = signed(servers.card() | {"version": "0.0.1"})
    new = signed(servers.card(), OTHER, kid="other")
    await servers.taken(new)
    await servers.taken(old)
    later = {"other": OTHER.jwk()}
    await servers.taken(new, later)
    await servers.refused(old, "'k' is not trusted", later)


async def test_the_card_of_another_place(servers: CardServers) -> None:
    """It is good wherever it is shown, and leads to where it says; but what is secret stays here,
    and who asks for keys by origin does not take it."""
    card = servers.card() | {
        "securitySchemes": {"x": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
        "securityRequirements": [{"schemes": {"x": {"list": []}}}],
    }
    servers.show(signed(card))
    with pytest.raises(CredentialsNotSent):
        async with Client.connect(
            servers.site.url, signed_by=TRUSTED, auth=StaticToken("secret"), attempts=1
        ):
            pass
    servers.site.asked.clear()
    by = Origins({servers.good.url: TRUSTED})
    await servers.refused(signed(servers.card()), f"no pinned key for {servers.site.url}", by)
