"""The routes of ARD: search, explore, agents, and what each caller may see of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from dragoman import catalog
from dragoman.registry.entries import Audience, Entry, urn
from dragoman.security.card_keys import CardKey
from dragoman.security.catalog_signatures import verify
from tests.products.registry.ard_parts import RITA, TYPE, entry, fill, registry, search

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = CardKey.generate()
URL = "https://agents.harbour.example"
PRIVATE = Audience(scopes=("travel",))
ENTRIES: list[Entry] = [
    entry(
        "https://ferry.example",
        "Ferry Desk",
        "Books ferries over the sea.",
        tags=("travel", "sea"),
        skill="ferry",
        queries=("a cabin to Turku",),
    ),
    entry("https://bus.example/desk", "Bus Desk", "Books buses.", skill="bus", version="2.0"),
    entry("https://sub.bus.example", "Night Bus", "Books night buses.", skill="bus"),
    entry("https://tax.example", "Tax Clerk", "Files tax returns.", tags=("money",), skill="tax"),
    entry("https://rail.example", "Rail Desk", "Books trains.", audience=PRIVATE, skill="rail"),
    entry("http://10.0.0.7:8000", "Inner Desk", "Books travel inside.", skill="inner"),
    entry("https://new.example", "New Desk", "Books travel soon.", state="pending"),
    entry("https://no.example", "No Desk", "Books travel never.", state="rejected"),
    entry("https://was.example", "Old Desk", "Books travel.", state="changed", skill="old"),
]
FERRY = "urn:air:ferry.example:a2a:agent"
SEEN = [
    "urn:air:bus.example:a2a:at:desk",
    FERRY,
    "urn:air:sub.bus.example:a2a:agent",
    "urn:air:tax.example:a2a:agent",
    "urn:air:was.example:a2a:agent",
]
"""What every caller may see, in the order of the list."""
RAIL = "urn:air:rail.example:a2a:agent"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def http(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A registry with these entries, asked by bob, who may see what is for everybody."""
    folder = tmp_path_factory.mktemp("registry")
    async with registry(folder, *ENTRIES, url=URL, sign=[KEY]) as client:
        yield client


def path(identifier: str) -> str:
    """The path of an entry."""
    return f"/agents/{quote(identifier, safe='')}"


def names(found: dict[str, Any]) -> list[str]:
    """The identifiers of results or items."""
    return [each["identifier"] for each in found.get("results", found.get("items"))]


RITAS = {"authorization": f"Bearer {RITA.identity}"}


# ---- search --------------------------------------------------------------------------------


async def test_a_result(http: httpx.AsyncClient) -> None:
    found = await search(http, "ferry to Turku")
    assert found == {
        "results": [
            {
                "identifier": FERRY,
                "displayName": "Ferry Desk",
                "type": TYPE,
                "url": "https://ferry.example/.well-known/agent-card.json",
                "description": "Books ferries over the sea.",
                "tags": ["travel", "sea"],
                "capabilities": ["ferry"],
                "version": "1.0",
                "updatedAt": found["results"][0]["updatedAt"],
                "score": 100,
                "source": URL,
            }
        ]
    }


async def test_only_what_the_caller_may_see(http: httpx.AsyncClient) -> None:
    """Neither private entries of others, nor those that nobody approved, nor local ones."""
    assert set(names(await search(http, "books travel", pageSize=100))) == {*SEEN} - {
        "urn:air:tax.example:a2a:agent"
    }
    response = await http.post("/search", json={"query": {"text": "rail"}}, headers=RITAS)
    assert names(response.json()) == [RAIL]
    assert names(await search(http, "rail")) == []


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, 5),
        ({"type": TYPE}, 5),
        ({"type": ["application/mcp-server-card+json", TYPE]}, 5),
        ({"type": ["application/mcp-server-card+json"]}, 0),
        ({"type": []}, 0),
        ({"tags": ["sea", "money"]}, 2),
        ({"tags": "sea", "capabilities": ["ferry", "bus"]}, 1),
        ({"tags": ["sea"], "capabilities": ["bus"]}, 0),
        ({"capabilities": ["bus"], "version": ["1.0"]}, 1),
        ({"version": ["1.0", "2.0"]}, 5),
        ({"publisher": ["bus.example"]}, 1),
        ({"publisher": ["bus.example", "SUB.bus.example"]}, 2),
        ({"publisher": ["example"]}, 0),
        ({"publisher": ["rail.example"]}, 0),
    ],
)
async def test_filters(http: httpx.AsyncClient, given: dict[str, Any], found: int) -> None:
    """Values of one key are alternatives; all keys must match."""
    hits = await search(http, "", query={"filter": given}, pageSize=100)
    assert len(hits["results"]) == found


async def test_pages(http: httpx.AsyncClient) -> None:
    every, token = [], ""
    while True:
        page = await search(http, "", pageSize=2, pageToken=token)
        assert len(page["results"]) <= 2
        every += names(page)
        token = page.get("pageToken", "")
        if not token:
            break
    assert every == SEEN


async def test_scores_are_whole_numbers_from_0_to_100(http: httpx.AsyncClient) -> None:
    scores = [each["score"] for each in (await search(http, "book a night bus"))["results"]]
    assert scores[0] == 100 and scores == sorted(scores, reverse=True)
    assert all(isinstance(score, int) and 0 <= score <= 100 for score in scores)


async def test_a_query_with_a_context_and_without_peers(http: httpx.AsyncClient) -> None:
    found = await search(
        http, "ferry", query={"@context": {"a": "https://a.example#"}}, federation="referrals"
    )
    assert names(found) == [FERRY]
    assert found["referrals"] == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"query": {"text": "a", "@context": ' + b"[" * 100_000, "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "missing required field `query`"),
        (b'{"query": {}}', "query.text: is required"),
        (b'{"query": {"text": 7}}', "$.query.text"),
        (b'{"query": {"text": "a", "filter": {"tags": 7}}}', "$.query.filter"),
        (b'{"query": {"text": "a", "filter": {"tags": [7]}}}', "$.query.filter"),
        (b'{"query": {"text": "a", "filter": {"okf:x": "y"}}}', "'okf:x' is not supported"),
        (b'{"query": {"text": "a", "filter": {"metadata.a": "y"}}}', "is not supported"),
        (b'{"query": {"text": "a"}, "pageSize": 0}', "$.pageSize"),
        (b'{"query": {"text": "a"}, "pageSize": 101}', "$.pageSize"),
        (b'{"query": {"text": "a"}, "pageSize": "5"}', "$.pageSize"),
        (b'{"query": {"text": "a"}, "page_size": 5}', "unknown field `page_size`"),
        (b'{"query": {"text": "a"}, "pageToken": "x"}', "page"),
        (b'{"query": {"text": "a"}, "pageToken": "m10"}', "page"),
        (b'{"query": {"text": "a"}, "federation": "all"}', "$.federation"),
        (b'{"query": {"text": "%s"}}' % (b"a" * 2000), "text: must not be longer"),
    ],
)
async def test_a_wrong_search(http: httpx.AsyncClient, body: bytes, text: str) -> None:
    response = await http.post("/search", content=body)
    found = response.json()
    assert (response.status_code, found["errorCode"]) == (400, "INVALID_ARGUMENT"), found
    assert text in found["message"]


async def test_searches_are_posts(http: httpx.AsyncClient) -> None:
    response = await http.get("/search")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert response.json()["errorCode"]


# ---- one agent -----------------------------------------------------------------------------


async def test_an_agent(http: httpx.AsyncClient) -> None:
    response = await http.get(path(FERRY))
    found = response.json()
    assert response.status_code == 200
    assert found["identifier"] == FERRY
    assert found["representativeQueries"] == ["a cabin to Turku", "please ferry", "ferry for two"]
    assert not {"score", "source"} & found.keys()
    assert response.headers["cache-control"] == "private, max-age=60"
    again = await http.get(path(FERRY), headers={"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_an_agent_by_its_old_identifier(http: httpx.AsyncClient) -> None:
    assert (await http.get(path(FERRY.replace("air", "ai", 1)))).json()["identifier"] == FERRY


@pytest.mark.parametrize(
    "identifier",
    [
        "urn:air:ard-conformance.invalid:probe:not-found",
        FERRY.upper().replace("URN:AIR:FERRY.EXAMPLE", "urn:air:ferry.example"),
        RAIL,
        "urn:air:new.example:a2a:agent",
        "urn:air:no.example:a2a:agent",
    ],
)
async def test_an_agent_that_is_not_there_or_not_for_the_caller(
    http: httpx.AsyncClient, identifier: str
) -> None:
    """All look the same."""
    response = await http.get(path(identifier))
    assert response.status_code == 404
    assert response.json() == {
        "errorCode": "NOT_FOUND",
        "message": f"the registry has no entry {identifier!r}",
    }


async def test_a_private_agent_is_there_for_whom_it_is_for(http: httpx.AsyncClient) -> None:
    response = await http.get(path(RAIL), headers=RITAS)
    assert response.json()["identifier"] == RAIL
    assert response.headers["cache-control"].startswith("private")


@pytest.mark.parametrize(
    "segment",
    [
        "not-a-valid-ard-urn",
        quote(quote(FERRY, safe=""), safe=""),
        "urn%3Aair%3Aa.example",
        "urn%3Aair%3Aa.example%3Ab%zz",
        "urn%3Aair%3Aa.example%3A%ff",
        "urn:dragoman:local:10.0.0.7:port-8000:a2a:agent",
        "urn%3Aair%3Aa.example%3Ab%2Fc",
    ],
)
async def test_what_is_no_identifier(http: httpx.AsyncClient, segment: str) -> None:
    """It is decoded once, and then it must be one."""
    request = http.build_request("GET", "/agents/x")
    request.url = request.url.copy_with(raw_path=f"/agents/{segment}".encode())
    response = await http.send(request)
    assert (response.status_code, response.json()["errorCode"]) == (400, "INVALID_ARGUMENT")


async def test_credentials_that_are_wrong(http: httpx.AsyncClient) -> None:
    for headers in ({"authorization": "Bearer nobody"}, {"authorization": ""}):
        response = await http.get("/agents", headers=headers)
        assert (response.status_code, response.json()["errorCode"]) == (401, "UNAUTHENTICATED")
        assert response.json()["message"] and response.headers["www-authenticate"]


# ---- all agents ----------------------------------------------------------------------------


async def test_the_list(http: httpx.AsyncClient) -> None:
    found = (await http.get("/agents")).json()
    assert names(found) == SEEN
    assert found["total"] == 5
    assert all(catalog.read_entry(each).type == TYPE for each in found["items"])
    ritas = (await http.get("/agents", headers=RITAS)).json()
    assert (ritas["total"], RAIL in names(ritas)) == (6, True)


async def test_pages_of_the_list(http: httpx.AsyncClient) -> None:
    first = (await http.get("/agents", params={"pageSize": 3})).json()
    more = {"pageSize": 3, "pageToken": first["pageToken"]}
    rest = (await http.get("/agents", params=more)).json()
    assert names(first) + names(rest) == SEEN
    assert "pageToken" not in rest


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (f"type = '{TYPE}'", 5),
        ("type = 'application/mcp-server-card+json'", 0),
        (f"type='application/x,{TYPE}' AND publisherId = \"ferry.example, tax.example\"", 2),
        ("publisherId = bus.example", 1),
        ("", 5),
    ],
)
async def test_the_filter_of_the_list(http: httpx.AsyncClient, expression: str, found: int) -> None:
    response = await http.get("/agents", params={"filter": expression})
    assert response.json()["total"] == found


@pytest.mark.parametrize(
    "parameters",
    [
        {"filter": "type"},
        {"filter": "type = MCP OR type = A2A"},
        {"filter": "createdAfter > '2026-01-01'"},
        {"filter": "displayName = 'x'"},
        {"filter": "type = a AND type = b"},
        {"pageSize": "0"},
        {"pageSize": "101"},
        {"pageSize": "x"},
        {"pageToken": "x"},
        {"orderBy": "score DESC"},
    ],
)
async def test_a_wrong_list(http: httpx.AsyncClient, parameters: dict[str, str]) -> None:
    response = await http.get("/agents", params=parameters)
    assert (response.status_code, response.json()["errorCode"]) == (400, "INVALID_ARGUMENT")


# ---- explore -------------------------------------------------------------------------------


async def explore(http: httpx.AsyncClient, *facets: dict[str, Any], **query: Any) -> Any:
    """The facets of what this query finds."""
    body: dict[str, Any] = {"resultType": {"facets": facets}}
    response = await http.post("/explore", json=body | ({"query": query} if query else {}))
    assert response.status_code == 200, response.text
    assert response.json()["resultType"] == "facets"
    return response.json()["facets"]


async def test_facets_of_everything(http: httpx.AsyncClient) -> None:
    facets = [{"field": name} for name in ("type", "publisher", "capabilities", "version")]
    found = await explore(http, *facets)
    assert found["type"] == {"buckets": [{"value": TYPE, "count": 5}]}
    assert len(found["publisher"]["buckets"]) == 5
    assert found["capabilities"]["buckets"][0] == {"value": "bus", "count": 2}
    assert found["version"]["buckets"] == [
        {"value": "1.0", "count": 4},
        {"value": "2.0", "count": 1},
    ]


async def test_counts_cover_only_what_the_caller_may_see(http: httpx.AsyncClient) -> None:
    found = await explore(http, {"field": "publisher"}, {"field": "tags"}, {"field": "type"})
    said = str(found)
    for hidden in ("rail", "10.0.0.7", "new.example", "no.example"):
        assert hidden not in said
    assert found["tags"]["buckets"][0] == {"value": "travel", "count": 4}
    body = {"resultType": {"facets": [{"field": "tags"}]}}
    ritas = (await http.post("/explore", json=body, headers=RITAS)).json()["facets"]
    assert ritas["tags"]["buckets"][0] == {"value": "travel", "count": 5}


async def test_facets_of_a_query(http: httpx.AsyncClient) -> None:
    found = await explore(http, {"field": "version"}, text="bus", filter={"tags": ["travel"]})
    counts = {each["value"]: each["count"] for each in found["version"]["buckets"]}
    assert counts == {"1.0": 1, "2.0": 1}
    nothing = await explore(http, {"field": "tags"}, filter={"type": ["text/plain"]})
    assert nothing == {"tags": {"buckets": []}}


async def test_limits_of_facets(http: httpx.AsyncClient) -> None:
    found = await explore(http, {"field": "publisher", "limit": 2})
    assert len(found["publisher"]["buckets"]) == 2
    assert found["publisher"]["otherCount"] == 3
    found = await explore(http, {"field": "capabilities", "minCount": 2})
    assert found["capabilities"] == {"buckets": [{"value": "bus", "count": 2}]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"resultType": {"facets": []}},
        {"resultType": {"facets": [{"field": "secret"}]}},
        {"resultType": {"facets": [{"field": "type", "limit": 0}]}},
        {"resultType": {"facets": [{"field": "type"}] * 21}},
        {"resultType": {"counts": []}},
    ],
)
async def test_a_wrong_explore(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    response = await http.post("/explore", json=body)
    assert (response.status_code, response.json()["errorCode"]) == (400, "INVALID_ARGUMENT")


# ---- the documents -------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, RITAS])
async def test_the_catalog_has_what_everybody_may_see(
    http: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    ai, ard = [await http.get(each, headers=headers) for each in catalog.PATHS]
    assert ai.content == ard.content
    assert (ai.headers["content-type"], ard.headers["content-type"]) == (
        "application/ai-catalog+json",
        "application/json",
    )
    assert ai.headers["cache-control"] == "public, max-age=60"
    own, *rest = catalog.parse(ai.content).entries
    assert (own.type, own.url) == ("application/ai-registry+json", URL)
    assert own.identifier == "urn:air:agents.harbour.example:registry:agents"
    assert [each.identifier for each in rest] == SEEN
    again = await http.get(catalog.PATHS[1], headers={"if-none-match": ard.headers["etag"]})
    assert again.status_code == 304


async def test_the_catalog_is_signed(http: httpx.AsyncClient) -> None:
    document = (await http.get("/.well-known/did.json")).json()
    keys = {each["id"]: each["publicKeyJwk"] for each in document["verificationMethod"]}
    content = (await http.get(catalog.PATHS[0])).content
    assert verify(content, keys) == document["id"] == "did:web:agents.harbour.example"
    assert (await http.get("/.well-known/jwks.json")).json()["keys"] == [KEY.jwk()]


@pytest.mark.parametrize("place", [*catalog.PATHS, "/agents", path(FERRY)])
async def test_documents_have_a_head(http: httpx.AsyncClient, place: str) -> None:
    head, whole = await http.head(place), await http.get(place)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]


@pytest.mark.parametrize(
    "place",
    [
        *("https://a.example", "https://A.example/desk/x", "http://a.example:8000/desk"),
        *("https://a.example/~x/b_c", "https://a.example:8443", "https://xn--a.example"),
    ],
)
async def test_a_server_publishes_the_name_that_a_registry_gives_it(place: str) -> None:
    assert catalog.identifier(place) == urn(place)
    assert catalog.valid(urn(place))


async def test_without_a_url_nothing_is_signed(tmp_path: Path) -> None:
    """Anybody could name the host of somebody else."""
    async with registry(tmp_path, *ENTRIES[:1], sign=[KEY]) as http:
        found = (await http.get(catalog.PATHS[0], headers={"host": "localhost"})).json()
        assert "signature" not in found
        for each in ("/.well-known/did.json", "/.well-known/jwks.json"):
            assert (await http.get(each)).status_code == 404


async def test_the_catalog_follows_the_entries(tmp_path: Path) -> None:
    async with registry(tmp_path, ENTRIES[0]) as http:
        first = await http.get(catalog.PATHS[0])
        fill(tmp_path, ENTRIES[1])
        second = await http.get(catalog.PATHS[0], headers={"if-none-match": first.headers["etag"]})
    assert second.status_code == 200
    assert len(second.json()["entries"]) == len(first.json()["entries"]) + 1


async def test_more_entries_than_one_page(tmp_path: Path) -> None:
    many = [entry(f"https://a{number:03}.example", f"A {number}") for number in range(405)]
    async with registry(tmp_path, *many) as http:
        assert len((await http.get(catalog.PATHS[1])).json()["entries"]) == 406
