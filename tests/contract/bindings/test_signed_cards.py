"""A card that is served with signatures, and how clients verify it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwk
from msgspec.structs import replace

from dragoman import Agent, App, Turn
from dragoman.bindings import card as binding
from dragoman.client import CardCache, Client, Trust, Unverified, discovery
from dragoman.dialects.v1_0 import decode, encode
from dragoman.model.caller import Caller
from dragoman.model.types import AgentCard
from dragoman.security.canonical_card import canonical
from dragoman.security.card_signatures import verify
from dragoman.server.settings import SettingsError
from tests.client.transports import Answer, Script
from tests.harness.server import BINDINGS, serving

CARD = "/.well-known/agent-card.json"
OLD, NEW = jwk.ECKey.generate_key("P-256"), jwk.OKPKey.generate_key("Ed25519")
TRUST = {"old": OLD.as_pem(private=False), "new": NEW.as_pem(private=False)}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two keys: a JWK, and one that is going to replace it."""
    for name, key in (("old", OLD), ("new", NEW)):
        (tmp_path / name).write_text(json.dumps(key.as_dict(private=True) | {"kid": name}))
    return [str(tmp_path / "old"), str(tmp_path / "new")]


def agent() -> Agent:
    """One with a card for those who are known."""
    made = Agent("Signed", description="Vouched for.")

    @made.skill(tags=["x"])
    async def answer(turn: Turn) -> str:
        """Say it again."""
        return turn.text

    @made.extended_card
    def more(caller: Caller, card: AgentCard) -> AgentCard:
        return replace(card, description=f"For {caller.identity}.")

    return made


def app(files: list[str], **options: Any) -> App:
    """It is served so."""
    return App(
        agent(), card_keys=tuple(files), identify=lambda _: Caller(identity="ann"), **options
    )


async def test_each_form_has_its_signatures(files: list[str]) -> None:
    async with serving(app(files)) as url, httpx.AsyncClient(base_url=url) as http:
        new = (await http.get(CARD, headers={"a2a-version": "1.0"})).json()
        everybody = (await http.get(CARD)).json()
        old = (await http.get(CARD, headers={"a2a-version": "0.3"})).json()
        again = await http.get(CARD)
    assert len(new["signatures"]) == 2
    assert len(everybody["signatures"]) == 4
    assert "signatures" not in old
    assert again.json() == everybody  # signed once
    for kid, key in TRUST.items():
        assert verify(new, {kid: key}).form == "whole"
        one, whole = (
            verify(everybody | {"signatures": part}, {kid: key}).form
            for part in (everybody["signatures"][:2], everybody["signatures"][2:])
        )
        assert (one, whole) == ("1.0", "whole")
    assert canonical(everybody, "1.0") == canonical(new)


async def test_the_reference_takes_it(files: list[str]) -> None:
    theirs = pytest.importorskip("a2a.utils.signing", exc_type=ImportError)
    from a2a.client import A2ACardResolver

    check = theirs.create_signature_verifier(lambda kid, _: TRUST[kid], ["ES256", "EdDSA"])
    async with serving(app(files)) as url, httpx.AsyncClient() as http:
        await A2ACardResolver(http, url).get_agent_card(signature_verifier=check)


async def test_without_keys_nothing_is_signed() -> None:
    async with serving(App(agent())) as url, httpx.AsyncClient(base_url=url) as http:
        assert "signatures" not in (await http.get(CARD)).json()


async def test_keys_are_read_when_it_starts(files: list[str], tmp_path: Path) -> None:
    for name, text in (("missing", None), ("empty", ""), ("public", TRUST["old"].decode())):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises((SettingsError, ValueError), match=r"card_keys|not sign"):
            await App(agent(), card_keys=(str(tmp_path / name),)).start()


# ---- the client ----------------------------------------------------------------------------


@pytest.mark.parametrize("bindings", [["JSONRPC"], ["HTTP+JSON"]])
async def test_a_client_that_wants_it_signed(files: list[str], bindings: list[str]) -> None:
    async with (
        serving(app(files)) as url,
        Client.connect(url, signed_by=TRUST, bindings=bindings) as client,
    ):
        assert (await client.send("hi")).text == "hi"
        assert len(client.card.signatures) == 2
        assert (await client.extended_card()).description == "For ann."


async def test_an_extended_card_over_grpc(files: list[str]) -> None:
    """Through protobuf and back, what was signed is still the same."""
    pytest.importorskip("grpc")
    served = app(files, grpc_port=0, bindings=BINDINGS)
    async with (
        serving(served) as url,
        Client.connect(url, signed_by=TRUST, bindings=["GRPC"], insecure=True) as client,
    ):
        assert client.interface.protocol_binding == "GRPC"
        card = await client.extended_card()
        assert card.description == "For ann."
        assert [verify(card, {kid: key}).form for kid, key in TRUST.items()] == ["whole"] * 2
        assert (await client.send("hi")).text == "hi"


async def test_the_reference_takes_an_extended_card_over_grpc(files: list[str]) -> None:
    theirs = pytest.importorskip("a2a.utils.signing", exc_type=ImportError)
    grpc = pytest.importorskip("grpc")
    from a2a.types import a2a_pb2, a2a_pb2_grpc

    check = theirs.create_signature_verifier(lambda kid, _: TRUST[kid], ["ES256", "EdDSA"])
    served = app(files, grpc_port=0)
    async with serving(served), grpc.aio.insecure_channel(f"127.0.0.1:{_port(served)}") as channel:
        stub = a2a_pb2_grpc.A2AServiceStub(channel)
        card = await stub.GetExtendedAgentCard(
            a2a_pb2.GetExtendedAgentCardRequest(), metadata=(("a2a-version", "1.0"),)
        )
        assert len(card.signatures) == 2
        check(card)
        card.description = "Forged."
        with pytest.raises(theirs.InvalidSignaturesError):
            check(card)


def _port(served: App) -> int:
    return served.endpoints["signed"].grpc


async def refused(target: Any, match: str, signed_by: Any = TRUST, **options: Any) -> None:
    """The client does not go on."""
    with pytest.raises(Unverified, match=match):
        async with Client.connect(target, signed_by=signed_by, **options):
            pass


async def test_what_the_client_refuses(files: list[str], tmp_path: Path) -> None:
    async with serving(App(agent())) as url:
        await refused(url, f"{url}.*: the card is not signed")
        async with Client.connect(url) as client:  # who does not ask takes it
            assert client.card.name == "Signed"
    async with serving(app(files)) as url, httpx.AsyncClient(base_url=url) as http:
        await refused(url, "the key 'old' is not trusted", {"other": TRUST["old"]})
        text = (await http.get(CARD, headers={"a2a-version": "1.0"})).text
    file = tmp_path / "card.json"
    file.write_text(text.replace("Vouched for.", "Forged."))
    await refused(str(file), "the card was changed")
    file.write_text(text)
    async with Client.connect(str(file), signed_by=Trust(TRUST)) as client:
        await refused(replace(client.card, name="Forged"), "the card was changed")
        async with Client.connect(client.card, signed_by=TRUST["new"]):
            pass


async def test_only_what_is_signed_is_used(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(app(files)) as url, httpx.AsyncClient(base_url=url) as http:
        document = (await http.get(CARD)).json()
    evil = [{"url": "https://evil.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]
    for name in ("supported_interfaces", "supportedInterfaces"):
        forged = Script(lambda _, name=name: Answer(encode(document | {name: evil})))
        await refused(url, "two spellings|was changed", transport=forged)
    # beside the fields of 1.0 somebody may write what he likes: it is not looked at
    part = document | {"signatures": document["signatures"][:2], "url": "https://evil.example"}
    script = Script(lambda _: Answer(encode(part)))
    seen: list[Any] = []
    read = discovery.understood
    monkeypatch.setattr(discovery, "understood", lambda *a: (seen.append(a[0]), read(*a))[1])
    async with Client.connect(url, signed_by=TRUST, transport=script) as client:
        assert [set(found) & {"url", "preferredTransport"} for found in seen] == [set()]
        assert {item.url for item in client.card.supported_interfaces} == {url, f"{url}/"}


async def test_what_others_have_taken_does_not_count() -> None:
    card_cache = CardCache()
    async with serving(App(agent())) as url:
        async with Client.connect(url, card_cache=card_cache):
            assert card_cache.known
        await refused(url, "the card is not signed", card_cache=card_cache)


async def test_an_extended_card_that_is_not_signed(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = app(files)

    async def plain(*_: Any) -> AgentCard:
        return decode(AgentCard, encode(agent().card("https://a.example")))

    monkeypatch.setattr(made.endpoints["signed"], "_extended", plain)
    async with serving(made) as url, Client.connect(url, signed_by=TRUST) as client:
        with pytest.raises(Unverified, match="the card is not signed"):
            await client.extended_card()


def test_older_forms_carry_none() -> None:
    assert {name for name, form in binding.FORMS.items() if form is binding._v1_0} == {"1.0"}
