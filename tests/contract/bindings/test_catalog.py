"""The catalog that a server publishes of its own agents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from dragoman import Agent, AgentCard, App, Caller, Turn, catalog
from dragoman.bindings.agent_endpoint import CARDS
from dragoman.model.types import AgentProvider
from dragoman.security.card_keys import CardKey
from dragoman.security.catalog_signatures import verify
from tests.harness.server import serving

AI, ARD, DID = (*catalog.PATHS, "/.well-known/did.json")
CARD = "/.well-known/agent-card.json"
KEY = CardKey.generate()


def desk(name: str = "Ferry Desk", **options: Any) -> Agent:
    """An agent with two skills; one caller sees more."""
    agent = Agent(name, description=f"{name} books.", version="2.4.0", **options)

    @agent.skill(tags=["travel"], examples=["a night ferry to Turku", "when does the last boat go"])
    async def timetable(turn: Turn) -> str:
        """Knows when ferries go."""
        return turn.text

    @agent.skill(tags=["travel", "cabin"], examples=["a cabin for four"])
    async def cabins(turn: Turn) -> str:
        """Books cabins."""
        return turn.text

    agent.handler(timetable)

    @agent.extended_card
    def more(caller: Caller, card: AgentCard) -> AgentCard:
        secret = replace(card.skills[0], id="hidden", examples=("the hidden skill",))
        return replace(card, skills=(*card.skills, secret))

    return agent


@asynccontextmanager
async def reading(app: App, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, which is served."""
    async with serving(app) as url, httpx.AsyncClient(base_url=url, **options) as http:
        yield http


@pytest.mark.parametrize(("path", "kind"), [(AI, catalog.CATALOG), (ARD, "application/json")])
async def test_the_catalog_of_one_agent(path: str, kind: str) -> None:
    agent = desk(provider=AgentProvider(url="https://h.example", organization="Harbour"))
    app = App(agent, url="https://desk.example")
    async with reading(app) as http:
        response = await http.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, kind)
        assert response.json() == {
            "specVersion": "1.0",
            "host": {"displayName": "Harbour", "identifier": "desk.example"},
            "entries": [
                {
                    "identifier": "urn:air:desk.example:a2a:agent",
                    "displayName": "Ferry Desk",
                    "type": "application/a2a-agent-card+json",
                    "url": f"https://desk.example{CARD}",
                    "description": "Ferry Desk books.",
                    "tags": ["travel", "cabin"],
                    "capabilities": ["timetable", "cabins"],
                    "representativeQueries": [
                        "a night ferry to Turku",
                        "a cabin for four",
                        "when does the last boat go",
                    ],
                    "version": "2.4.0",
                }
            ],
        }
        assert catalog.parse(response.content).entries[0].publisher == "desk.example"


async def test_several_agents_are_in_one_catalog() -> None:
    app = App(desk(), desk("Bus Desk"))
    async with reading(app) as http:
        entries = catalog.parse((await http.get(ARD)).content).entries
        url = str(http.base_url).rstrip("/")
        port = url.rpartition(":")[2]
        assert [(each.identifier, each.url) for each in entries] == [
            (f"urn:air:agent.localhost:port-{port}:a2a:at:{key}", f"{url}/{key}{CARD}")
            for key in ("ferry-desk", "bus-desk")
        ]
        for each in entries:  # the card is there
            assert (await http.get(each.url)).json()["name"] == each.display_name
        assert (await http.get(f"/ferry-desk{ARD}")).status_code == 404


async def test_what_only_known_callers_may_see_is_not_published() -> None:
    """Even when one of them asks."""
    app = App(desk(), identify=lambda request: Caller(identity=request.headers.get("x-user", "")))
    async with reading(app) as http:
        stranger = await http.get(AI)
        http.headers["x-user"] = "ann"
        known = await http.get(AI)
        extended = await http.get("/extendedAgentCard", headers={"a2a-version": "1.0"})
    assert "the hidden skill" in extended.text
    assert stranger.status_code == 200
    assert known.content == stranger.content
    assert "hidden" not in known.text and "ann" not in known.text


async def test_caching() -> None:
    async with reading(App(desk())) as http:
        first = await http.get(AI, headers={"origin": "https://page.example"})
        tag = first.headers["etag"]
        again = await http.get(ARD, headers={"if-none-match": tag})
        head = await http.head(AI)
        other = await http.get(AI, headers={"if-none-match": '"x"'})
    assert first.headers["cache-control"] == "public, max-age=300"
    assert first.headers["access-control-allow-origin"] == "*"
    assert (again.status_code, again.content) == (304, b"")
    assert (head.status_code, head.headers["etag"], head.content) == (200, tag, b"")
    assert other.status_code == 200


@pytest.mark.parametrize("path", [AI, ARD])
@pytest.mark.parametrize("verb", ["POST", "PUT", "DELETE"])
async def test_the_catalog_is_only_read(path: str, verb: str) -> None:
    async with reading(App(desk())) as http:
        response = await http.request(verb, path)
    assert (response.status_code, response.headers["allow"]) == (405, "GET, HEAD")


async def test_it_is_made_once_for_each_address() -> None:
    made = 0

    def count(content: bytes) -> bytes:
        nonlocal made
        made += 1
        return KEY.sign(content)

    remote = CardKey.remote(count, alg="ES256", public=KEY.jwk())
    async with reading(App(desk(), sign=[remote], trusted_hosts=["*.example"])) as http:
        made = 0  # one was for the check at the start
        hosts = [f"h{number}.example" for number in range(CARDS + 1)]
        for host in (*hosts, hosts[-1], hosts[-1]):
            text = (await http.get(AI, headers={"host": host})).text
            assert f"urn:air:{host}:port-80:a2a:agent" in text
    assert made == len(hosts)


# ---- signed --------------------------------------------------------------------------------


async def test_it_is_signed_in_the_name_of_the_host() -> None:
    app = App(desk(), url="https://desk.example", sign=[KEY])
    async with reading(app) as http:
        content = (await http.get(AI)).content
        found = (await http.get(DID)).json()
        assert (await http.get(ARD)).content == content
    keys = {method["id"]: method["publicKeyJwk"] for method in found["verificationMethod"]}
    assert verify(content, keys) == found["id"] == "did:web:desk.example"
    assert json.loads(content)["host"]["identifier"] == found["id"]
    assert KEY.jwk()["x"] in str(found) and '"d"' not in json.dumps(found)


async def test_without_a_domain_it_is_signed_for_the_address() -> None:
    async with reading(App(desk(), sign=[KEY])) as http:
        content = (await http.get(AI)).content
        keys = (await http.get("/.well-known/jwks.json")).json()
        assert (await http.get(DID)).status_code == 404
    url = str(http.base_url).rstrip("/")
    assert verify(content, keys) == url
    about = json.loads(content)["signature"]
    assert (about["signer"], about["profile"]) == (url, "urn:dragoman:card-keys:v1")


async def test_it_is_not_signed_for_the_host_of_somebody_else() -> None:
    async with reading(App(desk(), sign=[KEY], trusted_hosts=["desk.example"])) as http:
        for path in (AI, ARD, DID):
            response = await http.get(path, headers={"host": "evil.example"})
            assert response.status_code == 421
    app = App(desk(), sign=[KEY], trust_forwarded=True)  # any host is accepted
    async with reading(app) as http:
        for path in (AI, ARD, DID):
            response = await http.get(path, headers={"x-forwarded-host": "evil.example"})
            assert response.status_code == 421


async def test_an_unsigned_server_has_no_did() -> None:
    async with reading(App(desk(), url="https://desk.example")) as http:
        assert (await http.get(DID)).status_code == 404
        assert "signature" not in (await http.get(AI)).json()


async def test_a_signer_that_fails_publishes_nothing() -> None:
    calls = 0

    def fail(content: bytes) -> bytes:
        nonlocal calls
        calls += 1
        if calls > 1:  # the check at the start succeeds
            raise OSError("the key service is away")
        return KEY.sign(content)

    remote = CardKey.remote(fail, alg="ES256", public=KEY.jwk())
    async with reading(App(desk(), sign=[remote])) as http:
        response = await http.get(AI)
    assert response.status_code == 503
    assert response.headers["retry-after"]


async def test_card_and_catalog_follow_the_skills() -> None:
    agent = desk()
    async with serving(App(agent, store="memory:")) as url, httpx.AsyncClient(base_url=url) as web:

        async def skills() -> tuple[set[str], str]:
            card = (await web.get(CARD)).json()
            return {each["id"] for each in card["skills"]}, (await web.get(ARD)).text

        first, listed = await skills()
        assert first == {"timetable", "cabins"}
        assert "a cabin for four" in listed
        agent.remove_skill("cabins")
        second, listed = await skills()
        assert second == {"timetable"}
        assert "a cabin for four" not in listed
