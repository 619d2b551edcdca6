"""Federation: other registries are asked, and trusted with nothing."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import App, catalog
from dragoman.cli import main
from dragoman.registry.federation import LARGEST, Federation, Found, merge
from dragoman.security.card_keys import CardKey
from tests.harness.server import serving
from tests.products.registry.ard_parts import (
    Peer,
    entry,
    fill,
    finds,
    registry,
    respond,
    result,
    search,
)

FERRY = entry("https://ferry.example", "Ferry Desk", "Books ferries.", skill="ferry")
BUS = entry("https://bus.example", "Bus Desk", "Books travel by bus.", skill="bus")
QUERY = {"text": "travel"}


def names(found: dict[str, Any]) -> list[str]:
    return [each["displayName"] for each in found["results"]]


async def test_results_of_others_are_merged_and_marked(tmp_path: Path) -> None:
    answer = finds(result("https://air.example", "Air Desk"), result("https://x.example", "X"))
    async with Peer(answer) as peer, registry(tmp_path, FERRY, BUS, peers=[peer.url]) as http:
        own = str(http.base_url).rstrip("/")
        found = await search(http, "travel", query={"filter": {"tags": ["travel"]}}, pageSize=3)
    sources = [(each["displayName"], each["source"]) for each in found["results"]]
    assert sources == [("Bus Desk", own), ("Air Desk", peer.url), ("Ferry Desk", own)]
    assert [each["score"] for each in found["results"]] == [100, 100, 98]
    (asked,) = peer.asked
    assert asked == {
        "query": {"text": "travel", "filter": {"tags": ["travel"]}},
        "federation": "none",
        "pageSize": 3,
    }


async def test_pages_of_merged_results(tmp_path: Path) -> None:
    many = [result(f"https://p{number}.example", f"P{number}") for number in range(5)]
    async with (
        Peer(finds(*many)) as peer,
        registry(tmp_path, FERRY, BUS, peers=[peer.url]) as http,
    ):
        every, token = [], ""
        for _ in range(4):
            page = await search(http, "travel", pageSize=2, pageToken=token)
            every += names(page)
            token = page.get("pageToken", "")
        assert not token
    assert sorted(every) == ["Bus Desk", "Ferry Desk", "P0", "P1", "P2", "P3", "P4"]
    assert [asked["pageSize"] for asked in peer.asked] == [2, 4, 6, 8]


@pytest.mark.parametrize("mode", ["none", "referrals"])
async def test_nobody_is_asked_unless_the_caller_wants_it(tmp_path: Path, mode: str) -> None:
    async with (
        Peer(finds(result("https://air.example"))) as peer,
        registry(tmp_path, FERRY, BUS, peers=[peer.url]) as http,
    ):
        found = await search(http, "travel", federation=mode)
    assert names(found) == ["Bus Desk", "Ferry Desk"]
    assert peer.asked == []
    if mode == "referrals":
        (referral,) = found["referrals"]
        assert referral["url"] == f"{peer.url}/search"
        assert referral["type"] == "application/ai-registry+json"
        assert referral["identifier"] and referral["displayName"]
    else:
        assert "referrals" not in found


async def test_results_of_others_are_no_entries(tmp_path: Path) -> None:
    """They are shown in the search, and nowhere else."""
    async with (
        Peer(finds(result("https://air.example", "Air Desk"))) as peer,
        registry(tmp_path, FERRY, peers=[peer.url]) as http,
    ):
        assert "Air Desk" in names(await search(http))
        assert "Air Desk" not in names(await search(http, federation="none"))
        listed = (await http.get("/agents")).json()
        assert [each["displayName"] for each in listed["items"]] == ["Ferry Desk"]
        assert (await http.get("/agents/urn%3Aair%3Aair.example%3Aa2a%3Aagent")).status_code == 404
        assert "air.example" not in (await http.get(catalog.PATHS[0])).text
        own = await http.post("/registry/search", json={"text": "travel"})
        assert "Ferry Desk" in own.text and "Air Desk" not in own.text


async def test_the_command_takes_peers_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[App] = []
    monkeypatch.setattr("dragoman.cli.serve.serve_app", lambda app, _: made.append(app) or 0)
    (tmp_path / "key.pem").write_bytes(CardKey.generate().pem())
    monkeypatch.setenv("DRAGOMAN_CARD_KEYS", str(tmp_path / "key.pem"))
    store = f"sqlite:///{fill(tmp_path, FERRY)}/agents.db"
    async with Peer(finds(result("https://air.example", "Air Desk"))) as peer:
        words = ["--store", store, "--peer", peer.url, "--url", "https://agents.example"]
        assert main(["registry", "serve", *words]) == 0
        async with serving(made[0]) as url, httpx.AsyncClient(base_url=url) as http:
            assert names(await search(http)) == ["Ferry Desk", "Air Desk"]
            document = (await http.get(catalog.PATHS[1])).json()
    assert document["signature"]["signer"] == "did:web:agents.example"


# ---- registries that misbehave ---------------------------------------------------------------


async def hangs(_: str, __: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def drips(_: str, __: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


async def floods(_: str, __: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b'{"results": ["')
    while not writer.is_closing():
        writer.write(b"x" * 65536)
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "error"),
    [(hangs, "no answer within 0.3 s"), (drips, "no answer within 0.3 s"), (floods, "larger than")],
)
async def test_a_registry_that_hangs_or_floods(answer: Any, error: str) -> None:
    good = finds(result("https://air.example"))
    async with AsyncExitStack() as stack:
        bad, peer = [await stack.enter_async_context(Peer(each)) for each in (answer, good)]
        federation = Federation([bad.url, peer.url], timeout=0.3)
        await stack.enter_async_context(federation)
        begun = time.monotonic()
        first, second = await federation.search(QUERY, 10)
        assert time.monotonic() - begun < 1.5
    assert (first.found, error in first.error) == ((), True), first.error
    assert [each.source for each in second.found] == [peer.url]


async def test_a_search_waits_two_seconds_for_a_registry_that_hangs(tmp_path: Path) -> None:
    async with Peer(hangs) as bad, registry(tmp_path, FERRY, peers=[bad.url]) as http:
        begun = time.monotonic()
        assert names(await search(http)) == ["Ferry Desk"]
        assert 1.9 < time.monotonic() - begun < 4
    assert len(bad.asked) == 1


def raw(body: bytes, status: int = 200) -> Any:
    async def answer(_: str, __: bytes, writer: asyncio.StreamWriter) -> None:
        await respond(writer, body, status)

    return answer


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (raw(b"", 500), "HTTP 500"),
        (raw(b"{}", 404), "HTTP 404"),
        (raw(b"no"), "not valid JSON"),
        (raw(b"\xff"), "not valid JSON"),
        (raw(b"[" * 100_000), "not valid JSON"),
        (raw(b"[]"), "no list of results"),
        (raw(b'{"results": {}}'), "no list of results"),
        (raw(b" " * (LARGEST + 1)), "larger than"),
    ],
)
async def test_a_broken_answer_finds_nothing(answer: Any, error: str) -> None:
    async with Peer(answer) as peer, Federation([peer.url]) as federation:
        (found,) = await federation.search(QUERY, 10)
    assert found.found == ()
    assert error in found.error


async def test_a_registry_that_is_away() -> None:
    async with Peer(hangs) as peer:
        pass
    async with Federation([peer.url]) as federation:
        (found,) = await federation.search(QUERY, 10)
    assert found.error and not found.found


async def test_broken_results_are_left_out_and_old_spellings_are_read() -> None:
    old = {"identifier": "urn:ai:old.example:x", "name": "Old", "mediaType": catalog.AGENT}
    answer = finds(
        *(None, 7, "x", [], {}, {"identifier": "urn:air:a.example:x"}),
        result("https://a.example", type="application/mcp-server-card+json"),
        result("https://b.example", type=catalog.CATALOG),
        {**result("https://c.example"), "url": None, "data": {}},
        result("https://d.example", displayName=7),
        {**old, "url": "https://old.example"},
        result("https://e.example", "E"),
    )
    async with Peer(answer) as peer, Federation([peer.url]) as federation:
        (found,) = await federation.search(QUERY, 100)
        (few,) = await federation.search(QUERY, 11)
    shown = [(each.entry.identifier, each.entry.display_name) for each in found.found]
    assert shown == [("urn:air:old.example:x", "Old"), ("urn:air:e.example:a2a:agent", "E")]
    assert len(few.found) == 1  # no more than were asked for


async def test_five_registries_are_asked_at_once() -> None:
    together = asyncio.Barrier(5)

    async def answer(path: str, _: bytes, writer: asyncio.StreamWriter) -> None:
        await together.wait()
        place = f"https://p{path.split('/')[1]}.example"
        await respond(writer, json.dumps({"results": [result(place)]}).encode())

    async with Peer(answer) as peer:
        urls = [f"{peer.url}/{number}" for number in range(10)]
        async with Federation(urls, timeout=10) as federation:
            answers = await federation.search(QUERY, 10)
    assert [each.source for each in answers] == urls  # in the order of the list
    assert all(len(each.found) == 1 for each in answers)
    assert peer.most == 5


# ---- where it must not lead ------------------------------------------------------------------

INSIDE = (
    *("http://127.0.0.1:{port}/x", "https://127.0.0.1:{port}/x", "https://localhost:{port}"),
    *("https://[::1]:{port}", "https://10.0.0.1", "https://169.254.169.254/latest"),
    *("https://[::ffff:127.0.0.1]:{port}", "https://2130706433", "https://desk.internal"),
    *("http://public.example", "file:///etc/passwd", "https://a@b.example", "grpc://a.example"),
)


async def test_results_that_lead_inside_are_left_out() -> None:
    async with Peer(hangs) as inside:
        port = inside.url.rpartition(":")[2]
        places = [url.format(port=port) for url in INSIDE]
        places = [{**result("https://a.example"), "url": url} for url in places]
        good = result("https://good.example", "Good")
        async with Peer(finds(*places, good)) as peer, Federation([peer.url]) as federation:
            (found,) = await federation.search(QUERY, 100)
    assert [each.entry.display_name for each in found.found] == ["Good"]
    assert inside.asked == []


async def test_results_may_lead_where_the_operator_allows(tmp_path: Path) -> None:
    place = {**result("https://a.example", "Inner"), "url": "http://127.0.0.1:4711/desk"}
    async with Peer(finds(place)) as peer:
        async with registry(tmp_path / "a", FERRY, peers=[peer.url]) as http:
            assert names(await search(http)) == ["Ferry Desk"]
        allow = ["127.0.0.1:4711"]
        async with registry(tmp_path / "b", FERRY, peers=[peer.url], allow=allow) as http:
            assert names(await search(http)) == ["Ferry Desk", "Inner"]


async def test_only_the_listed_address_is_reached() -> None:
    """Neither a redirect nor a listed name that resolves to this machine leads elsewhere."""
    async with Peer(finds(result("https://a.example"))) as inside:

        async def redirect(_: str, __: bytes, writer: asyncio.StreamWriter) -> None:
            head = f"HTTP/1.1 307 X\r\nlocation: {inside.url}/search\r\ncontent-length: 0\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()

        async with Peer(redirect) as peer, Federation([peer.url]) as federation:
            (found,) = await federation.search(QUERY, 10)
        assert found.error == "the answer is HTTP 307"
        assert inside.asked == []


async def test_what_cannot_be_listed() -> None:
    for wrong in ("ftp://a.example", "a.example", "https://a@b.example", "https://", "https://a?b"):
        with pytest.raises(ValueError, match=r"URL|host|credentials"):
            Federation([wrong])
    with pytest.raises(ValueError, match="at most 50"):
        Federation([f"https://a{number}.example" for number in range(51)])


async def test_registries_that_list_each_other(tmp_path: Path) -> None:
    """One level: nobody asks further, so there is no loop, and nothing is found twice."""
    first, second = 0, 0
    async with AsyncExitStack() as stack:

        async def begin(name: str, port: int, *peers: str) -> httpx.AsyncClient:
            own = FERRY if name == "a" else BUS
            return await stack.enter_async_context(
                registry(tmp_path / name, own, port=port, peers=peers, auth=None)
            )

        first, second = free(), free()
        urls = [f"http://127.0.0.1:{port}" for port in (first, second)]
        one = await begin("a", first, urls[1], urls[0])  # it lists itself, too
        two = await begin("b", second, urls[0])
        for http in (one, two):
            found = await search(http, "books")
            assert sorted(names(found)) == ["Bus Desk", "Ferry Desk"]


def free() -> int:
    """A port that is free now."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def test_no_registry_takes_the_name_of_an_entry_here(tmp_path: Path) -> None:
    """Nor brings back what the operator has rejected or removed."""
    answer = finds(
        result("https://ferry.example", "Other words for it"),
        {**result("https://ferry.example", "Squatter"), "url": "https://evil.example"},
        result("https://no.example", "Rejected"),
        result("https://was.example", "Removed"),
        {
            **result("https://x.example", "Renamed"),
            "url": "https://no.example/.well-known/agent.json",
        },
        result("https://new.example", "New"),
    )
    rejected = entry("https://no.example", "No", state="rejected")
    removed = entry("https://was.example", "Was", state="removed")
    async with (
        Peer(answer) as peer,
        registry(tmp_path, FERRY, rejected, removed, peers=[peer.url]) as http,
    ):
        found = await search(http, pageSize=20)
    assert names(found)[0] == "Ferry Desk"
    assert "Other words for it" not in names(found)
    assert "Squatter" not in names(found)
    assert not {"Rejected", "Removed", "Renamed"} & {*names(found)}
    assert "New" in names(found)


# ---- merging ---------------------------------------------------------------------------------


def ranked(source: str, *agents: str) -> list[Found]:
    """A list of a registry, best first."""
    return [
        Found(
            catalog.CatalogEntry(
                identifier=f"urn:air:{name}.example:x",
                display_name=f"{name} of {source}",
                type=catalog.AGENT,
                url=f"https://{name}.example",
            ),
            source,
        )
        for name in agents
    ]


def order(*lists: list[Found]) -> list[str]:
    return [each.entry.display_name for each in merge(*lists)]


def test_ranks_are_merged_and_agreement_counts() -> None:
    assert order(ranked("a", "p", "q"), ranked("b", "r", "q")) == ["q of a", "p of a", "r of b"]


def test_scores_of_others_do_not_count() -> None:
    loud = [Found(each.entry, "b", 1e9) for each in ranked("b", "r")]
    assert order(ranked("a", "p"), loud) == ["p of a", "r of b"]


def test_a_list_has_one_vote_for_each_agent() -> None:
    assert order(ranked("a", "p", "q"), ranked("b", "q", "r", "r", "r", "r", "r")) == [
        *("q of a", "p of a", "r of b")
    ]


def test_merged_scores_are_from_0_to_100() -> None:
    merged = merge(ranked("a", *"pqrs"), ranked("b", *"tuvw"))
    scores = [each.score for each in merged]
    assert scores[0] == 100 and scores == sorted(scores, reverse=True) and scores[-1] > 0
    assert merge() == [] and merge([], []) == []
