"""Cards that clients share, kept as HTTP says."""

from __future__ import annotations

import pytest

from dragoman.client import CardCache, Client, discovery
from dragoman.client.transport import TransportRequest, TransportResponse
from dragoman.dialects import v1_0
from tests.client.transports import Answer, Script, card


def site(age: str) -> Script:
    """Serves a card that may be kept so long."""

    def answer(request: TransportRequest) -> TransportResponse:
        headers = {"content-type": "application/json", "cache-control": age, "etag": '"1"'}
        if request.headers.get("if-none-match") == '"1"':
            return Answer(b"", status=304, headers=headers)
        return Answer(v1_0.encode(card()), headers=headers)

    return Script(answer)


async def connected(transport: Script, card_cache: CardCache, **options: object) -> None:
    async with Client.connect(
        "http://agent", transport=transport, card_cache=card_cache, **options
    ) as client:  # type: ignore[arg-type]
        assert client.card == card()


@pytest.mark.parametrize(
    ("age", "tags"),
    [("max-age=60", []), ("max-age=0", ['"1"']), ("no-cache", ['"1"']), ("no-store", [None])],
)
async def test_fresh_for_max_age_then_asked_for_by_its_tag(
    age: str, tags: list[str | None]
) -> None:
    transport, card_cache = site(age), CardCache()
    await connected(transport, card_cache)
    await connected(transport, card_cache)
    assert [request.headers.get("if-none-match") for request in transport.asked] == [None, *tags]


async def test_asked_for_again_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, card_cache = site("max-age=60"), CardCache()
    await connected(transport, card_cache)
    now = discovery.time.monotonic() + 61
    monkeypatch.setattr("dragoman.client.discovery.time.monotonic", lambda: now)
    await connected(transport, card_cache)
    assert len(transport.asked) == 2


async def test_what_one_is_shown_by_name_is_not_shared() -> None:
    transport, card_cache = site("max-age=60"), CardCache()
    await connected(transport, card_cache, headers={"x-who": "ann"}, insecure=True)
    await connected(transport, card_cache)
    assert len(transport.asked) == 2


def test_it_has_an_end() -> None:
    card_cache = CardCache(2)
    for name in "abc":
        card_cache.put(name, card(), "", 0.0)
    assert list(card_cache.known) == ["b", "c"]
