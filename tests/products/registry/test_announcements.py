"""Agents that announce themselves, and where they, and the cards of others, may lead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App
from dragoman.client import StaticToken
from dragoman.registry import Registry, RegistryError
from dragoman.registry.operations import MOST_WAITING
from tests.harness.server import served, serving
from tests.products.registry.parts import TOKENS, Desk, opened, registry, states


class Slow:
    """An agent that keeps its first visitor waiting."""

    def __init__(self) -> None:
        agent = Agent("Slow", description="Takes its time.", version="1.0")
        agent.handler(lambda turn: "done")
        self._app = App(agent)
        self.gate, self.reached = asyncio.Event(), asyncio.Event()
        self.requests: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Wait, and pass it on."""
        if scope["type"] == "http":
            self.requests.add(f"{scope['method']} {scope['path']}")
            if not self.reached.is_set():
                self.reached.set()
                await self.gate.wait()
        await self._app(scope, receive, send)

    async def drain(self) -> None:
        """As `App.drain`."""
        await self._app.drain()


async def test_announcements_wait(tmp_path: Path) -> None:
    desk = Desk()
    options = {"allow": ["127.0.0.1"], "auth": [TOKENS]}
    async with served(registry(tmp_path, **options)) as server, desk.shows() as url:
        announcer = Registry(server.url, auth=StaticToken("announcer"))
        operator = Registry(server.url, auth=StaticToken("operator"))
        urn, state = await announcer.announce(url, ["Fly me to Rome"])
        assert state == "pending" and not (await announcer.search()).total
        entry = (await operator.details(urn)).entry
        assert (entry.source, entry.named_by) == ("announced", "agents")
        await operator.remove(urn)
        assert (await announcer.announce(url)) == (urn, "removed")  # it stays so
        assert (await operator.add(url)).entry.state == "pending"
        await operator.reject(urn)
        assert (await announcer.announce(url)) == (urn, "rejected")
        with pytest.raises(RegistryError, match="was rejected; add"):
            await operator.refresh(urn)
        await announcer.close()
        await operator.close()


async def test_so_many_entries_may_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator must decide about some first; what the operator adds is not counted."""
    assert MOST_WAITING == 1000
    monkeypatch.setattr("dragoman.registry.operations.MOST_WAITING", 1)
    first, second = Desk(), Desk()
    async with (
        opened(tmp_path, allow=["127.0.0.1"]) as client,
        first.shows() as one,
        second.shows() as two,
    ):
        urn, _ = await client.announce(one)
        with pytest.raises(RegistryError, match="must approve or reject some first"):
            await client.announce(two)
        assert await client.announce(one) == (urn, "pending")
        await client.approve(urn)
        assert (await client.announce(two))[1] == "pending"
        assert (await client.add(two)).entry.state == "pending"


async def test_announcements_that_lead_to_private_addresses(tmp_path: Path) -> None:
    desk = Desk()
    async with opened(tmp_path) as client, desk.shows() as url:
        for where in (url, f"http://localhost:{desk.port}", "https://10.0.0.7", "http://[::1]:1"):
            with pytest.raises(RegistryError, match="must not be used"):
                await client.announce(where)
        assert not await states(client)


async def test_a_public_card_that_names_private_addresses(tmp_path: Path) -> None:
    """The card is at an allowed address; its interfaces are not."""
    desk = Desk()
    async with (
        desk.shows(url="http://127.0.0.2:9") as url,
        opened(tmp_path, allow=[f"127.0.0.1:{desk.port}"]) as client,
    ):
        with pytest.raises(RegistryError, match=r"its card names http://127\.0\.0\.2:9"):
            await client.announce(url)
        assert not await states(client)


async def test_a_card_that_names_another_private_host(tmp_path: Path) -> None:
    """The operator has typed one address, not what the card there says."""
    desk = Desk()
    async with opened(tmp_path) as client, desk.shows(url="http://10.0.0.7") as url:
        with pytest.raises(RegistryError, match=r"its card names http://10\.0\.0\.7.*--allow"):
            await client.add(url, approve=True)
        assert not await states(client)
    async with opened(tmp_path, allow=["10.0.0.7"]) as client, desk.shows(url="http://10.0.0.7"):
        assert (await client.add(url)).entry.state == "pending"


async def test_a_card_may_name_other_ports_of_the_typed_host(tmp_path: Path) -> None:
    desk = Desk()
    async with opened(tmp_path) as client, desk.shows(url="http://localhost:9") as url:
        assert (await client.add(url)).entry.state == "pending"


async def test_a_known_agent_whose_card_leads_inside_keeps_its_approved_card(
    tmp_path: Path,
) -> None:
    desk = Desk()
    async with opened(tmp_path, accept=["*"]) as client:
        async with desk.shows() as url:
            await client.add(url, approve=True, alias="desk")
        async with desk.shows(url="http://10.0.0.7"):
            with pytest.raises(RegistryError, match="must not be used"):
                await client.refresh("desk")
            entry = (await client.details("desk")).entry
            assert (entry.state, entry.health.ok) == ("approved", False)
            assert entry.card.supported_interfaces[0].url.startswith(url)


async def test_squatting_names(tmp_path: Path) -> None:
    good, bad = Desk(), Desk()
    async with (
        opened(tmp_path) as client,
        good.shows(name="Flight Desk") as one,
        bad.shows(name="Fl\N{LATIN SMALL LETTER DOTLESS I}ght Desk") as two,
    ):
        first = (await client.add(one, approve=True, alias="flights")).entry
        second = await client.add(two)
        assert second.entry.urn != first.urn  # the name gives it nothing
        assert any(f"looks like that of {first.urn}" in each for each in second.warnings)
        with pytest.raises(RegistryError, match="belongs to another entry"):
            await client.approve(second.entry.urn, alias="flights")
        assert (await client.get("flights")).url == one


# -- while a card is being fetched


async def test_an_entry_that_is_removed_meanwhile_stays_so(tmp_path: Path) -> None:
    slow = Slow()
    async with opened(tmp_path) as client, serving(slow) as url:
        slow.reached.set()
        urn = (await client.add(url, approve=True)).entry.urn
        slow.reached.clear()
        refreshing = asyncio.create_task(client.refresh(urn))
        await slow.reached.wait()
        await client.remove(urn)
        slow.gate.set()
        assert (await refreshing).state == "removed"
        assert await states(client) == {urn: "removed"}
        assert [each.what for each in await client.changes(urn)] == ["remove", "add"]


async def test_agents_are_sent_no_message(tmp_path: Path) -> None:
    """Whatever is done with an entry, its agent is asked for the card only."""
    agent = Slow()
    agent.gate.set()
    async with opened(tmp_path, interval=0.1) as client, serving(agent) as url:
        await client.add(url, approve=True, alias="slow")
        await client.refresh("slow")
        await client.search("slow", healthy=True)
        agent.reached.clear()
        await agent.reached.wait()  # it is refreshed by itself
        await client.remove("slow")
    assert agent.requests == {"GET /.well-known/agent-card.json"}


async def test_an_announcement_that_the_operator_overtakes(tmp_path: Path) -> None:
    slow = Slow()
    async with opened(tmp_path, allow=["127.0.0.1"]) as client, serving(slow) as url:
        announcing = asyncio.create_task(client.announce(url))
        await slow.reached.wait()
        urn = (await client.add(url)).entry.urn
        await client.reject(urn)
        slow.gate.set()
        assert await announcing == (urn, "rejected")
        assert (await client.details(urn)).entry.source == "operator"


async def test_what_others_have_named_is_fetched_by_the_rules_of_today(tmp_path: Path) -> None:
    """The operator allows the address no longer: approval does not make it the operator's."""
    desk = Desk()
    async with desk.shows() as url:
        async with opened(tmp_path, allow=["127.0.0.1"]) as client:
            urn, _ = await client.announce(url)
            await client.approve(urn, alias="desk")
            assert (await client.refresh("desk")).health.ok
        async with opened(tmp_path) as client:
            with pytest.raises(RegistryError, match="must not be used"):
                await client.refresh("desk")
            entry = (await client.details("desk")).entry
            assert (entry.state, entry.health.ok) == ("approved", False)
