"""Catalog documents: read in every spelling, written in the present one, refused if hostile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dragoman import AgentCard, AgentSkill, catalog
from dragoman.catalog import CatalogError

FILES = Path(__file__).parent / "catalogs"
PRESENT, OLD = (json.loads((FILES / name).read_text()) for name in ("present.json", "old.json"))
GOOD = {"identifier": "urn:air:a.example:x", "type": catalog.AGENT, "url": "https://a.example/c"}


def read(document: Any) -> catalog.Catalog:
    """The catalog in this document."""
    return catalog.parse(json.dumps(document).encode())


def one(**changes: Any) -> dict[str, Any]:
    """A catalog with one entry that has these members, too."""
    return {"specVersion": "1.0", "entries": [GOOD | changes]}


@pytest.mark.parametrize("given", [PRESENT, OLD], ids=["present", "old"])
def test_every_spelling_is_read_and_the_present_one_is_written(given: dict[str, Any]) -> None:
    assert json.loads(json.dumps(catalog.document(read(given)))) == PRESENT


def test_the_envelope_of_ard_needs_no_version() -> None:
    assert [each.identifier for each in read({"entries": [GOOD]}).entries] == [GOOD["identifier"]]


def test_a_later_minor_version_and_unknown_members_are_read() -> None:
    found = read({"specVersion": "1.7", "new": 1, "entries": [GOOD | {"@context": {"a": "b"}}]})
    assert found.entries[0].url == GOOD["url"]


def test_an_entry_without_a_name_has_the_end_of_its_identifier() -> None:
    assert read(one()).entries[0].display_name == "x"
    assert read(one(identifier="https://a.example/agents/desk/")).entries[0].display_name == "desk"
    assert read(one(displayName="Desk")).entries[0].display_name == "Desk"


def test_the_present_spelling_wins() -> None:
    found = read(one(name="Old", displayName="New", mediaType="text/plain")).entries[0]
    assert (found.display_name, found.type) == ("New", catalog.AGENT)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "the catalog is not a JSON object"),
        ({}, "entries: a list is required"),
        ({"entries": {}}, "entries: a list is required"),
        ({"specVersion": "2.0", "entries": []}, "specVersion: '2.0' is not supported"),
        ({"specVersion": 1, "entries": []}, "specVersion: '1' is not supported"),
        ({"entries": [], "host": "acme"}, "host: an object is required"),
        ({"entries": [], "host": {}}, "host.displayName: is required"),
        ({"entries": [GOOD, 7]}, "entries[1]: an object is required"),
        ({"entries": [{"type": "a", "url": "b"}]}, "entries[0].identifier: is required"),
        ({"entries": [{"identifier": "a", "url": "b"}]}, "entries[0].type: is required"),
        (one(url=3), "entries[0].url: expected str"),
        (one(url=None), "entries[0]: exactly one of url and data"),
        (one(data={}), "entries[0]: exactly one of url and data"),
        (one(tags="travel"), "entries[0].tags: expected array"),
        (one(tags=["a", 2]), "entries[0].tags[1]: expected str"),
        (one(extensions=[]), "entries[0].extensions: expected object"),
        (one(metadata={"a": 1}, extensions=[1]), "entries[0].extensions: expected object"),
        (one(identifier=""), "entries[0].identifier: expected str of length >= 1"),
        (one(identifier="x" * 3000), "entries[0].identifier: expected str of length <= 2048"),
        (one(type=catalog.CATALOG), "entries[0].type: a catalog in a catalog is not read"),
        (
            one(type="Application/AI-Catalog+json; v=1"),
            "entries[0].type: a catalog in a catalog is not read",
        ),
        ({"entries": [GOOD, GOOD]}, "entries[1].identifier: 'urn:air:a.example:x' appears twice"),
        (
            {"entries": [GOOD, GOOD | {"identifier": "urn:ai:a.example:x"}]},
            "entries[1].identifier: 'urn:air:a.example:x' appears twice",
        ),
        ({"entries": [GOOD] * 1001}, "entries: 1001 are more than 1000"),
    ],
)
def test_a_wrong_document_is_refused_by_the_name_of_its_field(document: Any, text: str) -> None:
    with pytest.raises(CatalogError, match=re.escape(text)):
        read(document)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"entries":[', "not valid JSON"),
        (b'{"entries":[{"identifier":"\\ud800"}]}', "not valid JSON"),
        (b'{"entries":' + b"[" * 100_000, "nested too deeply"),
        (b'{"entries":[' + b" " * catalog.LARGEST + b"]}", "larger than"),
    ],
)
def test_hostile_bytes_are_refused(content: bytes, text: str) -> None:
    with pytest.raises(CatalogError, match=text):
        catalog.parse(content)


def test_a_thousand_entries_with_versions_are_read() -> None:
    entries = [GOOD | {"version": str(number)} for number in range(catalog.MOST)]
    assert len(read({"entries": entries}).entries) == 1000


# ---- identifiers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("agents.example", "urn:air:agents.example:a2a:desk"),
        ("Agents.Example.", "urn:air:agents.example:a2a:desk"),
        ("müller.example", "urn:air:xn--mller-kva.example:a2a:desk"),
        ("desk.prod.svc.cluster.local", "urn:air:desk.prod.svc.cluster.local:a2a:desk"),
        *((host, None) for host in ("localhost", "agent.localhost", "desk", "")),
        *((host, None) for host in ("127.0.0.1", "10.1", "0x7f.1", "::1", "[::1]", "2001:db8::1")),
        *((host, None) for host in ("a..b", "-a.example", "a_b.example", "a b.example", "x" * 260)),
    ],
)
def test_an_identifier_needs_a_domain(host: str, found: str | None) -> None:
    assert catalog.urn(host, "a2a", "desk") == found


def test_an_identifier_is_one_that_ard_accepts() -> None:
    found = catalog.urn("agents.example", "Flight desk", "v1~2")
    assert found == "urn:air:agents.example:Flight-desk:v1-2"
    assert catalog.valid(found)
    assert catalog.publisher(found) == "agents.example"
    with pytest.raises(ValueError, match="name"):
        catalog.urn("agents.example")


@pytest.mark.parametrize(
    "wrong", ["urn:air:a.example", "urn:ai:a.example:x", "x", "urn:air:a.example:x y", ""]
)
def test_other_identifiers_have_no_publisher(wrong: str) -> None:
    assert not catalog.valid(wrong)
    assert catalog.publisher(wrong) == ""


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://agents.example", "urn:air:agents.example:a2a:agent"),
        ("https://agents.example/travel/desk", "urn:air:agents.example:a2a:at:travel:desk"),
        ("https://agents.example/~desk/a%2Fb", "urn:air:agents.example:a2a:at:_7Edesk:a_252Fb"),
        ("https://agents.example:8443/", "urn:air:agents.example:port-8443:a2a:agent"),
        ("http://agents.example", "urn:air:agents.example:port-80:a2a:agent"),
        ("http://127.0.0.1:8000", "urn:air:agent.localhost:port-8000:a2a:agent"),
        ("http://[::1]:8000/x", "urn:air:agent.localhost:port-8000:a2a:at:x"),
        ("http://localhost:8000", "urn:air:agent.localhost:port-8000:a2a:agent"),
        ("http://10.0.0.5:8000", "urn:dragoman:local:10.0.0.5:port-8000:a2a:agent"),
        ("http://desk:8000", "urn:dragoman:local:desk:port-8000:a2a:agent"),
    ],
)
def test_an_agent_has_the_identifier_of_its_address(url: str, found: str) -> None:
    assert catalog.identifier(url) == found
    assert catalog.valid(found) == found.startswith("urn:air:")


# ---- entries of cards ----------------------------------------------------------------------


def skill(key: str, *examples: str) -> AgentSkill:
    """A skill with these examples."""
    tags = ("travel", key)
    return AgentSkill(id=key, name=key, description=f"Does {key}.", tags=tags, examples=examples)


def test_the_entry_of_a_card_has_the_examples_of_all_skills() -> None:
    card = AgentCard(
        name="Desk",
        description="Books.",
        version="1.2.0",
        supported_interfaces=(),
        capabilities={},  # type: ignore[arg-type]
        default_input_modes=("text/plain",),
        default_output_modes=("text/plain",),
        skills=(skill("a", "a1", "a2", "a3", "a4"), skill("b", "b1"), skill("c", "c1", "a1", "")),
    )
    found = catalog.entry(card, "https://a.example/card", "urn:air:a.example:a2a:agent")
    assert found == catalog.CatalogEntry(
        identifier="urn:air:a.example:a2a:agent",
        display_name="Desk",
        type="application/a2a-agent-card+json",
        url="https://a.example/card",
        description="Books.",
        tags=("travel", "a", "b", "c"),
        capabilities=("a", "b", "c"),
        representative_queries=("a1", "b1", "c1", "a2", "a3"),
        version="1.2.0",
    )
