"""Foreign catalogs: their agents wait for approval, and their addresses are those of strangers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import App, catalog
from dragoman.cli import main
from dragoman.client import StaticToken
from dragoman.registry import Registry, RegistryError
from dragoman.registry.database import Database
from dragoman.registry.entries import Entry
from dragoman.registry.import_catalog import import_catalog
from dragoman.registry.operations import Operations
from tests.harness.server import served, serving
from tests.products.registry import ard_parts, parts
from tests.products.registry.parts import TOKENS, Desk

CARD = "/.well-known/agent-card.json"


class Site:
    """A host that has documents, by path; it counts who reads them."""

    def __init__(self, documents: dict[str, Any]) -> None:
        self.documents = documents
        self.read: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        self.read.append(scope["path"])
        found = self.documents.get(scope["path"])
        body = found if isinstance(found, bytes) else json.dumps(found).encode()
        status = 404 if found is None else 302 if body.startswith(b"http") else 200
        head = [(b"location", body)] if status == 302 else []
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def site(documents: dict[str, Any]) -> AsyncIterator[str]:
    """The URL of a host with these documents."""
    async with serving(App(mounts={"/": Site(documents)})) as url:
        yield url


@asynccontextmanager
async def registry(folder: Path, *allow: str) -> AsyncIterator[Operations]:
    """An empty registry."""
    async with Operations(Database(f"sqlite:///{folder}/agents.db"), allow=allow) as made:
        yield made


async def entries(made: Operations) -> list[Entry]:
    return await made.database.run(Database.entries)


def item(url: str, **more: Any) -> dict[str, Any]:
    """An entry of a catalog."""
    name = f"urn:air:harbour.example:a2a:{abs(hash(url))}"
    return {"identifier": name, "displayName": "D", "type": catalog.AGENT, "url": url} | more


def listing(*items: Any) -> dict[str, Any]:
    return {"specVersion": "1.0", "entries": items}


async def test_the_agents_of_a_server_wait_for_approval(tmp_path: Path) -> None:
    """The catalog that every server publishes, given by its host."""
    async with Desk().shows() as url, registry(tmp_path, "127.0.0.1") as made:
        found = await import_catalog(made, url)
        (entry,) = await entries(made)
    assert found.waiting == (entry.urn,)
    assert (found.known, found.left) == ((), ())
    assert (entry.state, entry.source, entry.url) == ("pending", "catalog", url)
    assert entry.named_by == f"{url}/.well-known/ard.json"
    assert entry.queries == ("Book me a flight to Lisbon",)
    assert not entry.shown


async def test_an_old_catalog_at_the_old_path(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(Desk().shows())
        old = {"identifier": "urn:ai:a.example:x", "name": "X", "mediaType": catalog.AGENT}
        documents = {catalog.PATHS[0]: listing(old | {"url": desk + CARD})}
        url = await stack.enter_async_context(site(documents))
        made = await stack.enter_async_context(registry(tmp_path, "127.0.0.1"))
        found = await import_catalog(made, url)
        (entry,) = await entries(made)
    assert found.waiting == (entry.urn,)
    assert entry.url == desk  # of the address, not of the name in the catalog
    assert "a.example" not in entry.urn


async def test_what_is_known_does_not_change(tmp_path: Path) -> None:
    """Also what the operator has rejected."""
    async with Desk().shows() as url, registry(tmp_path, "127.0.0.1") as made:
        entry = await made.add(url, "olga", approve=True)
        found = await import_catalog(made, url)
        assert (found.waiting, found.known) == ((), (entry.urn,))
        assert await entries(made) == [entry]
        rejected = await made.reject(entry.urn, "olga")
        found = await import_catalog(made, url)
        assert (found.waiting, found.known) == ((), (entry.urn,))
        assert await entries(made) == [rejected]


async def test_addresses_inside_are_not_reached(tmp_path: Path) -> None:
    """The catalog itself may be inside: the operator has typed its address."""
    inside = Site({CARD: b"{}"})
    async with AsyncExitStack() as stack:
        secret = await stack.enter_async_context(serving(App(mounts={"/": inside})))
        port = secret.rpartition(":")[2]
        places = [
            *(secret, f"https://127.0.0.1:{port}", f"http://localhost:{port}/x"),
            *("https://10.0.0.1", "https://[::1]", "file:///etc/passwd", "not a url"),
            f"https://169.254.169.254{CARD}",
        ]
        documents = {"/catalog.json": listing(*map(item, places))}
        url = await stack.enter_async_context(site(documents))
        made = await stack.enter_async_context(registry(tmp_path))
        found = await import_catalog(made, f"{url}/catalog.json")
        assert await entries(made) == []
    assert [each.identifier for each in found.left] == [item(url)["identifier"] for url in places]
    assert all(each.reason for each in found.left)
    assert found.waiting == found.known == ()
    assert inside.read == []


async def test_what_is_no_agent_is_left(tmp_path: Path) -> None:
    documents = {
        "/catalog.json": listing(
            item("https://a.example", type="application/mcp-server-card+json"),
            item("", data={"name": "inline"}),
        )
    }
    async with site(documents) as url, registry(tmp_path) as made:
        found = await import_catalog(made, f"{url}/catalog.json")
    assert [each.reason for each in found.left] == [
        "it is no A2A agent, but application/mcp-server-card+json",
        "it has no address; its card is in the catalog",
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "there is no catalog: .*/catalog.json: HTTP 404"),
        (b"http://127.0.0.1:1/", "there is no catalog: .*: HTTP 302"),
        (b"{", "not valid JSON"),
        ({"entries": [1]}, r"entries\[0\]: an object is required"),
        (
            listing(item("https://a.example", type=catalog.CATALOG)),
            r"entries\[0\]\.type: a catalog",
        ),
        (listing(*[item("https://a.example")] * 1001), "entries: 1001 are more than 1000"),
        (b" " * (catalog.LARGEST + 1), "larger than"),
    ],
)
async def test_a_catalog_that_is_refused_brings_nothing(
    tmp_path: Path, content: Any, text: str
) -> None:
    async with site({"/catalog.json": content}) as url, registry(tmp_path) as made:
        with pytest.raises(RegistryError, match=text):
            await import_catalog(made, f"{url}/catalog.json")
        assert await entries(made) == []


@pytest.mark.parametrize("url", ["", "catalog.json", "ftp://a.example", "https://a@b.example"])
async def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    async with registry(tmp_path) as made:
        with pytest.raises(RegistryError, match="is not the address of a catalog"):
            await import_catalog(made, url)


# ---- over HTTP, and the command --------------------------------------------------------------


async def test_only_operators_import(tmp_path: Path) -> None:
    """The server takes the same rules for the addresses."""
    async with AsyncExitStack() as stack:
        desk = await stack.enter_async_context(Desk().shows())
        server = await stack.enter_async_context(served(parts.registry(tmp_path, auth=TOKENS)))
        for who in ("reader", "announcer"):
            client = Registry(server.url, auth=StaticToken(who))
            with pytest.raises(RegistryError, match="registry:write"):
                await (await stack.enter_async_context(client)).import_catalog(desk)
        operator = Registry(server.url, auth=StaticToken("operator"))
        await stack.enter_async_context(operator)
        found = await operator.import_catalog(desk)
        assert await operator.entries() == []
    assert [each.reason for each in found.left] == [found.left[0].reason]
    assert "--allow" in found.left[0].reason


async def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", f"sqlite:///{tmp_path}/agents.db"]

    async def typed(*words: str) -> int:
        return await asyncio.to_thread(main, ["registry", "import-catalog", *words])

    async with Desk().shows() as url:
        assert await typed(url, *store) == 0
        assert capsys.readouterr().out.startswith("left out: urn:air:agent.localhost:port-")
        assert await typed(url, *store, "--allow", "127.0.0.1") == 0
        assert capsys.readouterr().out.startswith("pending: urn:dragoman:local:127.0.0.1:port-")
        assert await typed(url, *store, "--json") == 0
        assert len(json.loads(capsys.readouterr().out)["waiting"]) == 1
        assert await typed(f"{url}/nothing", *store) == 1
        assert "there is no catalog" in capsys.readouterr().err


async def test_a_registry_imports_the_catalog_of_another(tmp_path: Path) -> None:
    """What one registry publishes, another takes in; its own entry is no agent."""
    places = [ard_parts.entry(f"https://a{n}.example", f"A {n}") for n in range(3)]
    async with (
        ard_parts.registry(tmp_path / "other", *places, auth=None) as http,
        registry(tmp_path) as made,
    ):
        found = await import_catalog(made, str(http.base_url))
    assert len(found.left) == 4  # nobody is at these addresses
    assert found.left[0].reason == "it is no A2A agent, but application/ai-registry+json"
