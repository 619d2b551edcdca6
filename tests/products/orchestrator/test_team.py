"""The team: what its members may be, and what happens when they come, change, move and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Caller, Settings, Turn
from dragoman.client import Client, fetch_card
from dragoman.client.transport import HTTPTransport
from dragoman.model.types import SecurityRequirement, StringList
from dragoman.orchestrator import Orchestrator, Step, Team, agent_team
from dragoman.registry import Registry
from tests.client.authorization_server import presiding
from tests.client.fake_user import robot
from tests.client.protected_agent import guarded
from tests.harness.server import serving
from tests.products.orchestrator.office import Worker, eventually, office, said, sources, texts
from tests.products.registry.parts import registry


def everybody(turn: Turn, members: Any) -> list[Step]:
    """A step for each member."""
    return [Step(name, name, input=f"hello {name}") for name in members]


def one(turn: Turn, members: Any) -> list[Step]:
    """One step, for the only member."""
    (name,) = members
    return [Step("out", name, input="A")]


class Town:
    """Agents at addresses that stay the same."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def open(self, agent: Any, port: int = 0) -> str:
        """Serve an agent."""
        return await self._stack.enter_async_context(serving(agent, port=port))


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    """A place for agents."""
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        yield Town(stack)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards are fetched again for each task."""
    monkeypatch.setattr(agent_team, "AGE", 0.0)


async def card_of(url: str) -> tuple[Any, bytes]:
    """The card of an agent, and its document."""
    transport = HTTPTransport()
    try:
        found = await fetch_card(url, transport)
    finally:
        await transport.close()
    return found.card, found.document


async def test_every_kind_of_member(town: Town, tmp_path: Path) -> None:
    names = ("Address", "Card", "Paper", "Client", "Found", "Known", "Local")
    workers = {name: Worker(name) for name in names}
    urls = {name: await town.open(workers[name]) for name in names[:-1]}
    card, _ = await card_of(urls["Card"])
    (tmp_path / "card.json").write_bytes((await card_of(urls["Paper"]))[1])
    async with (
        serving(registry(tmp_path)) as place,
        Registry(place) as known,
        Client.connect(urls["Client"]) as client,
    ):
        await known.add(urls["Found"], approve=True)
        await known.add(urls["Known"], approve=True, alias="known")
        desk = Orchestrator(
            "Desk",
            agents=[
                urls["Address"],
                card,
                str(tmp_path / "card.json"),
                client,
                known.query("found"),
                known["known"],
                workers["Local"].agent,
            ],
            plan=everybody,
        )
        async with office(desk) as caller:
            result = await caller.send("go")
    assert texts(result) == {each.lower(): f"did hello {each.lower()}" for each in names}, said(
        result
    )
    assert desk.team.absent == {}


async def test_what_the_registry_approves_joins_the_team(
    town: Town, tmp_path: Path, unhurried: None
) -> None:
    flight, hotel = Worker("Flight"), Worker("Hotel")
    async with serving(registry(tmp_path)) as place, Registry(place) as known:
        await known.add(await town.open(flight), approve=True)
        waiting = await known.add(await town.open(hotel))
        asking = Registry(place)
        desk = Orchestrator("Desk", agents=[asking.query()], plan=everybody)
        async with office(desk) as caller:
            assert sources(await caller.send("go")) == {"flight": "done"}
            await known.approve(waiting.entry.urn)
            assert sources(await caller.send("go")) == {"flight": "done", "hotel": "done"}
            await known.remove(waiting.entry.urn)
            assert sources(await caller.send("go")) == {"flight": "done"}


async def test_a_registry_that_is_away_changes_nothing(
    town: Town, tmp_path: Path, unhurried: None
) -> None:
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(serving(registry(tmp_path)))
        async with Registry(place) as known:
            await known.add(await town.open(Worker("Flight")), approve=True)
        desk = Orchestrator("Desk", agents=[Registry(place).query()], plan=everybody)
        async with office(desk) as caller:
            assert sources(await caller.send("go")) == {"flight": "done"}
            await stack.aclose()
            assert sources(await caller.send("go")) == {"flight": "done"}
    assert len(desk.team.absent) == 1


async def test_absent_members_are_left_out_until_they_come(town: Town, unhurried: None) -> None:
    async with serving(Worker("Nobody")) as nowhere:
        port = int(nowhere.rpartition(":")[2])
    here = await town.open(Worker("Here"))
    desk = Orchestrator("Desk", agents=[nowhere, here], plan=everybody)
    async with office(desk) as caller:
        assert sources(await caller.send("go")) == {"here": "done"}
        assert list(desk.team.absent) == [nowhere]
        await town.open(Worker("Late"), port)
        assert sources(await caller.send("go")) == {"late": "done", "here": "done"}


async def test_absent_members_are_asked_again_soon(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when all cards are fetched again. The others do not wait for it."""
    monkeypatch.setattr("dragoman.orchestrator.agent_team.ABSENT", 0.0)
    async with serving(Worker("Nobody")) as nowhere:
        port = int(nowhere.rpartition(":")[2])
    here = await town.open(Worker("Here"))
    async with office(Orchestrator("Desk", agents=[nowhere, here], plan=everybody)) as caller:
        assert sources(await caller.send("go")) == {"here": "done"}
        await town.open(Worker("Late"), port)

        async def came() -> bool:
            return sources(await caller.send("go")) == {"late": "done", "here": "done"}

        await eventually(came)


async def test_an_agent_that_is_away_is_waited_for_while_cards_are_fetched(
    town: Town, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refresh that has not ended says nothing about it."""
    monkeypatch.setattr(agent_team, "OVERDUE", 0.01)
    monkeypatch.setattr(agent_team, "FIRST_PAUSE", 0.05)
    async with serving(Worker("Nobody")) as nowhere:
        port = int(nowhere.rpartition(":")[2])
    agents = Team([nowhere, await town.open(Worker("Here"))])
    assert [*await agents.members(Caller())] == ["here"]
    looking = asyncio.create_task(agents.member(Caller(), f"{nowhere}/"))
    done, _ = await asyncio.wait([looking], timeout=0.1)
    assert not done
    await town.open(Worker("Late"), port)
    found = await looking
    assert found is not None and found.name == "late"
    await agents.close()


async def test_the_last_card_of_an_agent_that_is_away(
    unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts for an hour; then the agent is absent like one that was never there."""
    monkeypatch.setattr(Settings, "card_age", 0)
    async with AsyncExitStack() as stack:
        agents = Team([await stack.enter_async_context(serving(Worker("Flight")))])
        assert [*await agents.members(Caller())] == ["flight"]
        await stack.aclose()
    assert [*await agents.members(Caller())] == ["flight"] and len(agents.absent) == 1
    monkeypatch.setattr(agent_team, "FORGOTTEN", 0.0)
    assert [*await agents.members(Caller())] == []
    await agents.close()


def clerk(skill: str) -> App:
    """An agent with this skill."""
    agent = Agent("Clerk", description="Works.")

    @agent.skill(id=skill)
    async def work(turn: Turn) -> str:
        """Works."""
        return "done"

    return App(agent, drain_timeout=0.0)


async def test_cards_are_read_again(unhurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "card_age", 0)  # agents let clients keep their cards
    seen: list[set[str]] = []

    def plan(turn: Turn, members: Any) -> str:
        seen.append(set(members["clerk"].skills))
        return "done"

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(clerk("book")))
        desk = Orchestrator("Desk", agents=[url], plan=plan)
        async with office(desk) as caller:
            await caller.send("go")
            await stack.aclose()
            async with serving(clerk("sell"), port=int(url.rpartition(":")[2])):
                await caller.send("go")
    assert seen == [{"book"}, {"sell"}]


async def test_an_agent_that_has_moved_begins_anew(unhurried: None) -> None:
    """It gets a new conversation, and sees no id of the old one."""
    async with AsyncExitStack() as stack:
        old, new = Worker("Flight"), Worker("Flight")
        first = await stack.enter_async_context(serving(old))
        second = await stack.enter_async_context(serving(new))
        where = [first]

        class Found:
            async def find(self) -> list[str]:
                return where

        async with office(Orchestrator("Desk", agents=[Found()], plan=one)) as caller:
            task = (await caller.send("go")).task
            assert task is not None
            where[:] = [second]
            result = await caller.send("go", context=task.context_id)
            where[:] = [first]
            await caller.send("go", context=task.context_id)
    assert result.ok, said(result)
    assert len(old.contexts) == 2
    assert len(set(old.contexts)) == 1
    assert new.contexts not in (old.contexts[:1], [task.context_id])


async def test_tokens_have_the_scopes_of_the_skill(town: Town) -> None:
    """The orchestrator logs in itself, at each agent by its address, and asks for what the skill
    needs."""
    async with presiding() as authority, guarded(authority.identify) as agent:

        @agent.agent.skill(id="book")
        async def book(turn: Turn) -> str:
            """Books."""
            return f"{turn.caller.identity}: {' '.join(sorted(turn.caller.scopes))}"

        card = agent.demand({"it": authority.scheme("client")}, {"it": ()})
        needs = (SecurityRequirement(schemes={"it": StringList(list=("talk",))}),)
        agent.card = replace(
            card, skills=tuple(replace(each, security_requirements=needs) for each in card.skills)
        )

        def plan(turn: Turn, members: Any) -> list[Step]:
            (name,) = members
            return [Step("typed", name, "book", input="A"), Step("free", name, input="B")]

        desk = Orchestrator(
            "Desk",
            agents=[agent.url],
            plan=plan,
            connections={agent.url: {"auth": robot(authority)}},
        )
        async with office(desk) as caller:
            result = await caller.send("go")
    assert {each.name: each.text for each in result.artifacts} == {
        "typed": "robot: talk",
        "who": "robot:",
    }, said(result)


@asynccontextmanager
async def started(desk: Orchestrator, **settings: Any) -> AsyncIterator[Client]:
    """The orchestrator under an App that reads its settings from the environment."""
    async with App(desk, drain_timeout=0.0, **settings) as app, Client.connect(app=app) as client:
        yield client


async def test_settings_of_the_environment_are_not_for_agents_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as limits for callers: all calls inside come from one caller."""
    monkeypatch.setenv("DRAGOMAN_QUOTA_TASKS", "1")
    monkeypatch.setenv("DRAGOMAN_STORE", f"sqlite:///{tmp_path / 'tasks.db'}")
    workers = [Worker(name) for name in ("A", "B", "C")]
    desk = Orchestrator("Desk", agents=[each.agent for each in workers], plan=everybody)
    async with started(desk) as client:
        result = await client.send("go")
    assert sources(result) == {"a": "done", "b": "done", "c": "done"}


async def test_callers_do_not_see_the_tasks_inside() -> None:
    """Also if the same agent is served to them."""
    flight = Worker("Flight")
    desk = Orchestrator("Desk", agents=[flight.agent], plan=one)
    async with App(desk, flight.agent, drain_timeout=0.0, poll=0.02) as app:
        async with Client.connect(f"http://inside/{desk.key}", app=app) as caller:
            assert (await caller.send("go")).ok
        async with Client.connect(f"http://inside/{flight.agent.key}", app=app) as caller:
            await caller.send("mine")
            found = [task.artifacts[0].parts[0].text async for task in caller.list(artifacts=True)]
    assert found == ["did mine"]
    assert flight.heard == ["A", "mine"]


async def test_an_agent_that_hangs_does_not_hold_up_the_others(
    town: Town, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_team, "OVERDUE", 0.05)
    gate = asyncio.Event()
    gate.set()
    quick = Worker("Quick")
    here = await town.open(quick)

    class Found:
        async def find(self) -> list[str]:
            await gate.wait()
            return []

    def plan(turn: Turn, members: Any) -> list[Step]:
        return [Step("out", "quick", input="A")]

    async with office(Orchestrator("Desk", agents=[Found(), here], plan=plan)) as caller:
        assert (await caller.send("go")).ok
        gate.clear()
        assert (await caller.send("go")).ok
        gate.set()
    assert quick.heard == ["A", "A"]


@pytest.mark.parametrize("away", ["agent", "registry"])
async def test_a_restart_while_somebody_is_away(
    tmp_path: Path, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that is under way waits for an agent, or for the registry that knows it."""
    monkeypatch.setattr(agent_team, "FIRST_PAUSE", 0.1)
    flight = Worker("Flight")
    settings = {"drain_timeout": 0.0, "poll": 0.02, "store": f"sqlite:///{tmp_path / 'tasks.db'}"}
    async with asyncio.timeout(30), AsyncExitStack() as registries, AsyncExitStack() as agents:
        place = await registries.enter_async_context(serving(registry(tmp_path)))
        url = await agents.enter_async_context(serving(flight))
        async with Registry(place) as known:
            await known.add(url, approve=True)

        def travel() -> Orchestrator:
            given = Registry(place).query() if away == "registry" else url
            plan = [Step("out", "flight", input="gate")]
            return Orchestrator("Desk", agents=[given], plan=lambda turn, members: plan)

        async with App(travel(), **settings) as app, Client.connect(app=app) as client:
            task = (await client.send("go", wait=False)).task
            assert task is not None
            await flight.reached.wait()
            await asyncio.sleep(0.1)
        flight.gate.set()
        await (registries if away == "registry" else agents).aclose()
        desk = travel()
        async with App(desk, **settings) as app, Client.connect(app=app) as client:
            while not desk.team.absent:
                await asyncio.sleep(0.02)
            back: Any = registry(tmp_path) if away == "registry" else flight
            port = int((place if away == "registry" else url).rpartition(":")[2])
            async with serving(back, port=port):
                found = await client.task(task.id).wait()
    assert found.status.state.name == "COMPLETED", found.status.message
    assert flight.heard == ["gate"]
