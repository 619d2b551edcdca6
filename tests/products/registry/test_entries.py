"""The rules: what a card that was fetched does to an entry, and what the operator does."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dragoman import Caller
from dragoman.registry import Entry, RegistryError
from dragoman.registry.card_differences import differences
from dragoman.registry.entries import (
    Audience,
    CardVersion,
    Policy,
    address,
    approve,
    change,
    fetched,
    for_readers,
    has_domain,
    reject,
    remove,
    restore,
    unreachable,
    urn,
)
from tests.products.registry.parts import OPERATOR, READER, TRAVELER, made, stored

URL = "https://flights.example/desk"
ASK, ACCEPT = Policy(), Policy(("*",))
CARD = made("Flight Desk")
KEYS = {"one": {"kty": "EC"}}


def approved(card: CardVersion | None = None) -> Entry:
    entry = fetched(Entry(urn=urn(URL), url=URL), card or stored(CARD), ASK)
    assert entry.state == "pending" and not entry.shown
    return approve(entry)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://Flights.example/", "urn:air:flights.example:a2a:agent"),
        ("https://flights.example", "urn:air:flights.example:a2a:agent"),
        (
            "https://flights.example/desk/.well-known/agent-card.json",
            "urn:air:flights.example:a2a:at:desk",
        ),
        ("https://flights.example:8443", "urn:air:flights.example:port-8443:a2a:agent"),
        ("http://flights.example", "urn:air:flights.example:port-80:a2a:agent"),
        ("http://127.0.0.1:8001/x", "urn:dragoman:local:127.0.0.1:port-8001:a2a:at:x"),
        ("https://[2001:db8::1]/x", "urn:dragoman:local:2001-db8--1:a2a:at:x"),
        ("http://localhost:1", "urn:dragoman:local:localhost:port-1:a2a:agent"),
    ],
)
def test_the_urn_is_of_the_address(url: str, name: str) -> None:
    assert urn(url) == name
    assert Entry(urn=name, url=address(url)).has_domain is name.startswith("urn:air:")


def test_different_addresses_have_different_urns() -> None:
    urls = ("https://a.example", "https://a.example/agent", "https://a.example/at/agent")
    urls += (
        "https://a.example:444",
        "http://a.example",
        "https://a.example/x:y",
        "https://a.example/x/y",
    )
    assert len({urn(url) for url in urls}) == len(urls)


@pytest.mark.parametrize(
    "url",
    [
        "flights",
        "ftp://a.example",
        "https://u:p@a.example",
        "https://a.example/?q=1",
        "https://a.example/#x",
        "https://0x7f.1/",
        "https://flüge.example",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(RegistryError, match="address of an agent"):
        address(url)


def test_hosts_without_a_domain() -> None:
    assert has_domain("a.example")
    for host in ("localhost", "x.localhost", "127.0.0.1", "::1", "intranet"):
        assert not has_domain(host)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        (
            {
                "supportedInterfaces": [
                    {
                        "url": "https://evil.example",
                        "protocolBinding": "JSONRPC",
                        "protocolVersion": "1.0",
                    }
                ]
            },
            "supportedInterfaces",
        ),
        (
            {
                "securitySchemes": {
                    "key": {"apiKeySecurityScheme": {"location": "header", "name": "k"}}
                }
            },
            "securitySchemes",
        ),
        ({"securityRequirements": [{"schemes": {"key": {"list": []}}}]}, "securityRequirements"),
    ],
)
def test_guarded_fields_always_wait(more: dict[str, object], path: str) -> None:
    new = stored(made("Flight Desk", **more))
    after = fetched(approved(), new, ACCEPT)
    assert after.state == "changed" and after.card == CARD and after.candidate == new
    assert [each.path for each in after.differences] == [path]
    assert approve(after).card == new.card


def test_a_skill_that_asks_for_another_scheme_waits() -> None:
    skill = {"id": "do", "name": "Do", "description": "Does it.", "tags": ["doing"]}
    need = {"securityRequirements": [{"schemes": {"key": {"list": ["all"]}}}]}
    after = fetched(approved(), stored(made("Flight Desk", skills=[skill | need])), ACCEPT)
    assert after.state == "changed"
    assert after.differences[0].path == "skills[do].securityRequirements"


def test_equal_ids_of_skills_hide_nothing() -> None:
    skill = {"id": "do", "name": "Do", "description": "Does it.", "tags": ["doing"]}
    need = {"securityRequirements": [{"schemes": {"key": {"list": ["all"]}}}]}
    before = approved(stored(made("Flight Desk", skills=[skill, skill])))
    after = fetched(before, stored(made("Flight Desk", skills=[skill, skill | need])), ACCEPT)
    assert after.state == "changed"
    new = fetched(
        approved(), stored(made("Flight Desk", skills=[skill | need | {"id": "x"}])), ACCEPT
    )
    assert new.state == "changed"


@pytest.mark.parametrize("now", [{}, {"two": {}}, {"one": {}, "two": {}}])
def test_other_keys_always_wait(now: dict[str, dict[str, str]]) -> None:
    after = fetched(approved(stored(CARD, keys=KEYS)), stored(CARD, keys=now), ACCEPT)
    assert after.state == "changed" and after.pins == KEYS
    assert [each.kind for each in after.differences] == ["key"]


def test_other_changes_follow_the_policy() -> None:
    new = stored(made("Flight Desk", version="2.0"))
    assert fetched(approved(), new, ASK).state == "changed"
    assert fetched(approved(), new, ACCEPT).card.version == "2.0"
    assert fetched(approved(), new, Policy(("version",))).card.version == "2.0"
    assert fetched(approved(), new, Policy(("skills",))).state == "changed"
    both = stored(made("Flight Desk!", version="2.0"))
    assert fetched(approved(), both, Policy(("version",))).state == "changed"


def test_new_signatures_of_the_same_keys_are_no_change() -> None:
    before = approved(stored(CARD, keys=KEYS))
    new = stored(CARD, keys=KEYS, document="signed again")
    after = fetched(before, new, ASK)
    assert after.state == "approved" and after.approved == new
    assert change(before, after, "x", "refresh", "now") is None


def test_the_approved_card_comes_back() -> None:
    changed = fetched(approved(), stored(made("Other")), ASK)
    after = fetched(changed, stored(CARD), ASK)
    assert after.state == "approved" and after.candidate is None


def test_a_rejected_change_does_not_ask_again() -> None:
    other = stored(made("Other"))
    after = reject(fetched(approved(), other, ASK))
    assert after.state == "approved" and after.card == CARD
    assert fetched(after, other, ASK).state == "approved"
    third = fetched(after, stored(made("A third")), ASK)
    assert third.state == "changed"


def test_removed_and_rejected_stay_so() -> None:
    pending = fetched(Entry(urn=urn(URL), url=URL), stored(CARD), ASK)
    for gone in (remove(approved()), reject(pending)):
        assert fetched(gone, stored(CARD), ACCEPT) == gone
        assert not gone.shown
    with pytest.raises(RegistryError, match="was removed; add"):
        approve(remove(approved()))
    again = fetched(restore(reject(approved())), stored(CARD), ASK)
    assert again.state == "pending"  # what was approved before does not count
    assert approve(again).shown


def test_a_card_that_cannot_be_fetched() -> None:
    after = unreachable(approved(), "no answer", "later")
    assert after.shown and not after.health.ok and after.health.good
    assert after.health.error == "no answer"
    assert fetched(after, stored(CARD), ASK).health.ok
    with pytest.raises(RegistryError, match="no card to approve"):
        approve(unreachable(Entry(urn=urn(URL), url=URL), "no answer", "later"))


def test_who_may_see_it() -> None:
    assert Audience().admits(READER)
    assert Audience(scopes=("travel",)).admits(TRAVELER)
    assert not Audience(scopes=("travel", "more")).admits(TRAVELER)
    assert not Audience(scopes=("travel",)).admits(READER)
    assert Audience(scopes=("travel",), identities=("rita",)).admits(READER)
    assert not Audience(identities=("rita",)).admits(OPERATOR)
    other = replace(READER, realm="guests")
    assert not Audience(identities=("rita",)).admits(other)
    assert Audience(identities=("rita in guests",)).admits(other)
    assert not Audience(identities=("rita in guests",)).admits(Caller(identity="rita in guests"))
    assert not Audience(identities=("",)).admits(Caller())


def test_what_readers_get() -> None:
    entry = replace(
        fetched(approved(), stored(made("Other")), ASK), named_by="x", audience=Audience(("y",))
    )
    shown = for_readers(entry)
    assert shown.card == CARD and shown.candidate is None and shown.state == "approved"
    assert not shown.named_by and shown.audience.everyone


def test_the_record_of_a_change() -> None:
    before = approved()
    after = replace(before, alias="desk")
    record = change(before, after, "olga", "approve", "now")
    assert record is not None
    assert (record.before, record.after) == ({"alias": ""}, {"alias": "desk"})
    assert change(None, before, "olga", "add", "now").before == {}  # type: ignore[union-attr]


def test_paths_of_differences() -> None:
    skills = [
        {"id": "do", "name": "Do!", "description": "Does it.", "tags": ["doing"]},
        {"id": "more", "name": "More", "description": "Does more.", "tags": ["doing"]},
    ]
    found = differences(
        CARD, made("Flight Desk", skills=skills, documentationUrl="https://x.example")
    )
    assert [(each.path, each.kind) for each in found] == [
        ("skills[do].name", "other"),
        ("skills[more]", "other"),
        ("documentationUrl", "other"),
    ]
    assert (found[0].before, found[0].after) == ("Do", "Do!")
