"""Keys that are taken on first use, and keys that are known for an origin."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.client import Client, Origins, TransportRequest, Trust, TrustedKeys, Unverified
from dragoman.dialects.v1_0 import encode
from dragoman.model.caller import Caller
from dragoman.security.card_keys import CardKey
from dragoman.security.card_signatures import signatures
from tests.client.transports import Answer, Script
from tests.contract.bindings.test_signed_cards import agent
from tests.harness.server import serving

CARD, SET = "/.well-known/agent-card.json", "/.well-known/jwks.json"
OLD, NEW, EVIL = CardKey.generate("ES256"), CardKey.generate("EdDSA"), CardKey.generate("ES256")


class Home:
    """An address that is the agent's, whoever answers there."""

    def __init__(self) -> None:
        self.port = 0

    @asynccontextmanager
    async def shows(self, *keys: CardKey) -> AsyncIterator[str]:
        """The agent with these keys in its settings, at the same address each time."""
        with TemporaryDirectory() as folder:
            files = [Path(folder) / key.kid for key in keys]
            for file, key in zip(files, keys, strict=True):
                file.write_bytes(key.pem())
            served = App(
                agent(),
                card_keys=tuple(map(str, files)),
                identify=lambda _: Caller(identity="ann"),
            )
            async with serving(served, port=self.port) as url:
                self.port = int(url.rpartition(":")[2])
                yield url

    async def card(self, *keys: CardKey) -> dict[str, Any]:
        """The card as it is with these keys."""
        async with self.shows(*keys) as url, httpx.AsyncClient(base_url=url) as http:
            found: dict[str, Any] = (await http.get(CARD, headers={"a2a-version": "1.0"})).json()
            return found


@pytest.fixture
def home() -> Home:
    """An address."""
    return Home()


@pytest.fixture
def pins(tmp_path: Path) -> TrustedKeys:
    """Kept in a file."""
    return TrustedKeys(tmp_path / "state" / "pins.json")


async def taken(url: str, by: Any, **options: Any) -> str:
    """The agent's answer, if its card is taken."""
    async with Client.connect(url, signed_by=by, attempts=1, **options) as client:
        return (await client.send("hi")).text


async def refused(url: str, by: Any, match: str, **options: Any) -> str:
    """Why its card is not."""
    with pytest.raises(Unverified, match=match) as caught:
        await taken(url, by, **options)
    return str(caught.value)


def names(book: TrustedKeys, url: str) -> set[str]:
    """The thumbprints that are pinned there."""
    return set(book.known().get(url, {}))


# ---- first use -----------------------------------------------------------------------------


async def test_the_first_card_decides(
    home: Home, pins: TrustedKeys, caplog: pytest.LogCaptureFixture
) -> None:
    async with home.shows(OLD) as url:
        for _ in range(2):
            assert await taken(url, pins) == "hi"
        said = [record.getMessage() for record in caplog.records if "pinned" in record.message]
        assert said == [f"pinned {url} to {OLD.thumbprint}, first contact"]
        async with Client.connect(url, signed_by=pins) as client:
            assert (await client.extended_card()).description == "For ann."
    assert pins.path is not None
    assert names(pins, url) == {OLD.thumbprint}
    assert stat.S_IMODE(pins.path.stat().st_mode) == 0o600
    assert '"d"' not in pins.path.read_text()
    async with home.shows(EVIL) as url:
        text = await refused(url, pins, f"pinned to {OLD.thumbprint}, .* by {EVIL.thumbprint}")
        assert f"`dragoman card trust --forget {url}` or edit {pins.path}" in text
        assert names(pins, url) == {OLD.thumbprint}
        assert pins.forget(f"{url}/")
        assert not pins.forget(url)
        assert await taken(url, pins) == "hi"
        assert names(pins, url) == {EVIL.thumbprint}


async def test_without_a_file_it_is_kept_by_the_object(home: Home) -> None:
    pins = TrustedKeys()
    async with home.shows(OLD) as url:
        assert await taken(url, pins) == "hi"
    async with home.shows(EVIL) as url:
        await refused(url, pins, rf"pins\.forget\('{url}'\)")
        assert await taken(url, TrustedKeys()) == "hi"


async def test_what_was_signed_stays_signed(home: Home, pins: TrustedKeys) -> None:
    async with home.shows() as url:
        await refused(url, pins, "the card is not signed")  # nor is it taken at first
        assert names(pins, url) == set()
    async with home.shows(OLD) as url:
        assert await taken(url, pins) == "hi"
    async with home.shows() as url:
        await refused(url, pins, f"pinned to {OLD.thumbprint}, but this card is signed by nobody")


async def test_origins_are_apart(home: Home, pins: TrustedKeys) -> None:
    async with home.shows(OLD) as one, Home().shows(EVIL) as two:
        assert await taken(one, pins) == await taken(two, pins) == "hi"
        assert (names(pins, one), names(pins, two)) == ({OLD.thumbprint}, {EVIL.thumbprint})


async def test_not_over_plain_http() -> None:
    transport = Script(lambda _: Answer(encode(_signed("http://agent.example", OLD))))
    url = "http://agent.example"
    await refused(
        url, TrustedKeys(), "over plain http, anyone on the network path", transport=transport
    )
    assert [request.url for request in transport.asked] == [url + CARD]


async def test_not_without_an_address(home: Home, pins: TrustedKeys, tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(await home.card(OLD)))
    await refused(str(file), pins, "pinned by the address of a card")


def _signed(url: str, *keys: CardKey, jku: str | None = None) -> dict[str, Any]:
    card = agent().card(url)
    made = signatures(card, keys, f"{url}{SET}" if jku is None else jku)
    found: dict[str, Any] = json.loads(encode(card))
    return found | {"signatures": json.loads(encode(made))}


class Site(Script):
    """An origin on https that shows a card and a set of keys."""

    def __init__(
        self, card: dict[str, Any], keys: Sequence[CardKey] = (), status: int = 200
    ) -> None:
        self.card, self.keys, self.status = card, keys, status
        super().__init__(self._page)

    def _page(self, request: TransportRequest) -> Any:
        if request.url.endswith(CARD):
            return Answer(encode(self.card))
        moved = {"location": "https://evil.example/"}
        return Answer(
            encode({"keys": [key.jwk() for key in self.keys]}), status=self.status, headers=moved
        )


A = "https://a.example"


@pytest.mark.parametrize(
    "jku",
    [
        *("", "https://evil.example/jwks.json", "https://a.example.evil.example/jwks.json"),
        *("https://a.example@evil.example/", "https://a.example:444/", "http://a.example/"),
        *("https://x@a.example/jwks.json", "https://a.example/x/../y", "https://a.example/%2e./y"),
        *("https://a.example\\@evil.example/", "https://a.example/#", "//a.example/", "/jwks.json"),
        *("https://a.exampl\u0435/jwks.json", "https://a.example/ x"),
    ],
)
async def test_only_the_origin_itself_is_asked_for_keys(jku: str) -> None:
    site = Site(_signed(A, OLD, jku=jku), [OLD])
    await refused(
        A, TrustedKeys(), "the keys of https://a.example cannot be pinned", transport=site
    )
    assert [request.url for request in site.asked] == [A + CARD]


@pytest.mark.parametrize(
    ("status", "keys", "why"),
    [
        (302, [OLD], "cannot fetch its keys at .*: .*answered 302.*does not follow redirects"),
        (404, [OLD], "cannot fetch its keys at .*: .*answered 404"),
        (200, [], "cannot be pinned: the signatures of its card name no available key"),
        (200, [EVIL], "is not trusted"),
    ],
)
async def test_keys_that_cannot_be_had(status: int, keys: list[CardKey], why: str) -> None:
    site, book = Site(_signed(A, OLD), keys, status), TrustedKeys()
    await refused(A, book, why, transport=site)
    assert {request.url for request in site.asked} == {A + CARD, A + SET}
    assert not book.known()


async def test_keys_that_have_not_signed_are_not_pinned() -> None:
    book = TrustedKeys()
    async with Client.connect(
        A, signed_by=book, transport=Site(_signed(A, OLD), [OLD, EVIL]), attempts=1
    ):
        assert names(book, A) == {OLD.thumbprint}


# ---- other keys ----------------------------------------------------------------------------


async def test_a_key_is_replaced(
    home: Home, pins: TrustedKeys, caplog: pytest.LogCaptureFixture
) -> None:
    away = TrustedKeys()
    async with home.shows(OLD) as url:
        assert await taken(url, pins) == await taken(url, away) == "hi"
    async with home.shows(OLD, NEW) as url:
        for _ in range(2):
            assert await taken(url, pins) == "hi"
        assert names(pins, url) == {OLD.thumbprint, NEW.thumbprint}
        text = f"pinned {url} to {NEW.thumbprint}, a key that a pinned key signed"
        assert caplog.text.count(text) == 1
    async with home.shows(NEW) as url:
        assert await taken(url, pins) == "hi"
        await refused(url, away, f"pinned to {OLD.thumbprint}, .* by {NEW.thumbprint}")


async def test_nobody_puts_his_own_key_beside_an_old_card(home: Home) -> None:
    """A signature does not cover those beside it: a card of yesterday, signed once more by whoever
    has taken the place of the agent, is good, but his key is not."""
    card, book = _signed(A, OLD), TrustedKeys()
    async with Client.connect(A, signed_by=book, transport=Site(card, [OLD])):
        pass
    both = card | {"signatures": card["signatures"] + _signed(A, EVIL, OLD)["signatures"][:1]}
    site = Site(both, [OLD, EVIL])
    async with Client.connect(A, signed_by=book, transport=site):
        assert names(book, A) == {OLD.thumbprint}
        assert [request.url for request in site.asked] == [A + CARD]
    await refused(A, book, "was pinned", transport=Site(_signed(A, EVIL), [EVIL]))


async def test_an_heir_that_cannot_be_had_yet(caplog: pytest.LogCaptureFixture) -> None:
    book = TrustedKeys()
    async with Client.connect(A, signed_by=book, transport=Site(_signed(A, OLD), [OLD])):
        pass
    both = _signed(A, OLD, NEW)
    for site in (Site(both, [NEW], 503), Site(both, [OLD])):
        async with Client.connect(A, signed_by=book, transport=site, attempts=1):
            assert names(book, A) == {OLD.thumbprint}
    assert caplog.text.count("has a new key, which cannot be fetched yet") == 2
    # who is vouched for, but has not signed
    alone = both | {"signatures": both["signatures"][:1]}
    async with Client.connect(A, signed_by=book, transport=Site(alone, [OLD, NEW])):
        assert names(book, A) == {OLD.thumbprint}


# ---- the file ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"https://a.example": []}', '{"https://a.example": {"x": {}}}'),
        json.dumps({A: {OLD.thumbprint: {"jwk": EVIL.jwk()}}}),
        json.dumps({A: {OLD.thumbprint: {"jwk": {"kty": "oct", "k": "AAAA"}}}}),
    ],
)
async def test_a_file_that_is_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    file.write_text(text)
    with pytest.raises(
        ValueError, match=rf"{file}: is not a valid file of pinned keys .*delete it"
    ):
        await taken(A, TrustedKeys(file), transport=Site(_signed(A, OLD), [OLD]))
    with pytest.raises(ValueError, match="is not a valid file of pinned keys"):
        TrustedKeys(file).forget(A)
    assert file.read_text() == text


WRITER = """
import sys
from dragoman.client import TrustedKeys
from dragoman.security.card_keys import CardKey

book, key = TrustedKeys(sys.argv[1]), CardKey.generate("EdDSA")
for number in range(25):
    book._pin(f"https://{sys.argv[2]}-{number}.example", [key])
    book._pin("https://all.example", [key])
"""


async def test_processes_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pins.json"
    writers = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(file), f"p{number}")
        for number in range(4)
    ]
    assert [await writer.wait() for writer in writers] == [0] * 4
    book = TrustedKeys(file).known()
    assert len(book) == 4 * 25 + 1
    assert len(book["https://all.example"]) == 1  # who came first has chosen
    assert {item.name for item in tmp_path.iterdir()} == {"pins.json", "pins.json.lock"}


async def test_who_comes_second_is_judged_by_the_first(pins: TrustedKeys) -> None:
    """Both have found nothing pinned; one of them was quicker."""
    site = Site(_signed(A, EVIL), [EVIL])
    asked = site.send

    async def send(request: TransportRequest) -> Any:
        if request.url.endswith(SET):
            pins._pin(A, [OLD])
        return await asked(request)

    site.send = send  # type: ignore[method-assign]
    await refused(A, pins, f"pinned to {OLD.thumbprint}", transport=site)


async def test_what_is_forgotten_has_no_heirs(pins: TrustedKeys) -> None:
    """Somebody has the origin forgotten while its new key is on its way."""
    pins._pin(A, [OLD])
    site = Site(_signed(A, OLD, NEW), [OLD, NEW])
    asked = site.send

    async def send(request: TransportRequest) -> Any:
        if request.url.endswith(SET):
            assert pins.forget(A)
        return await asked(request)

    site.send = send  # type: ignore[method-assign]
    async with Client.connect(A, signed_by=pins, transport=site):
        assert names(pins, A) == set()


# ---- keys by origin ------------------------------------------------------------------------


async def test_keys_of_each_origin(home: Home) -> None:
    async with home.shows(OLD) as one, Home().shows(NEW) as two, Home().shows() as three:
        known = {one: OLD, two: {NEW.kid: NEW.jwk()}}
        by = Origins(known)
        assert await taken(one, by) == await taken(two, by) == "hi"
        await refused(one, Origins({one: NEW, two: OLD}), "or the card was changed|not for")
        await refused(three, by, f"no pinned key for {three}")
        assert await taken(three, Origins(known, others="accept")) == "hi"
        await refused(one, Origins({one: EVIL}, others="accept"), "or the card was changed")
        await refused(three, Origins(known, others=TrustedKeys()), "the card is not signed")
        await refused(three, Origins(known, others=Trust([OLD])), "the card is not signed")


async def test_a_card_without_an_address_has_no_origin(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_text(json.dumps(await home.card(OLD)))
    await refused(str(file), Origins({A: OLD}), "no pinned key for a card without an address")


@pytest.mark.parametrize("name", ["a.example", "", "https://a.example/path"])
def test_what_is_no_origin(name: str) -> None:
    with pytest.raises(ValueError, match="is not an origin such as"):
        Origins({name: OLD})


def test_what_goes_for_others() -> None:
    with pytest.raises(ValueError, match="must be refuse or accept"):
        Origins({}, others="allow")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("by", "signed"),
    [
        (OLD, True),
        (TrustedKeys(), True),
        (Origins({A: OLD}, others="accept"), True),
        (Origins({"https://b.example": OLD}, others="accept"), False),
        (None, False),
    ],
    ids=["key", "first use", "known origin", "accepted", "nothing asked"],
)
async def test_whether_a_paused_task_is_of_a_signed_agent(by: Any, signed: bool) -> None:
    site = Site(_signed(A, OLD), [OLD])
    async with Client.connect(A, signed_by=by, transport=site) as client:
        assert client._connection.verified is signed
    if not isinstance(by, TrustedKeys | Origins):  # these need an address
        async with Client.connect(client.card, signed_by=by, transport=site) as client:
            assert client._connection.verified is signed
