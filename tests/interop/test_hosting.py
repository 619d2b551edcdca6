"""The reference SDK finds its way to agents wherever they are served."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotFoundError
from starlette.applications import Starlette
from starlette.routing import Mount

from dragoman import App
from tests.harness.server import serving
from tests.interop.agents import agent, book, echo, reply
from tests.interop.reference import Peer, Speak, asking, gather, kinds, send, state, states

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def converse(peer: Peer) -> None:
    """Every way of asking once: with an answer, as a stream, by path and by query."""
    task = await send(peer.plain, "hello")
    assert state(task) == "completed"
    assert await peer.plain.get_task(pb.GetTaskRequest(id=task.id)) == task
    listed = await peer.plain.list_tasks(pb.ListTasksRequest(context_id=task.context_id))
    assert [item.id for item in listed.tasks] == [task.id]
    events = await gather(peer.live.send_message(asking("hello")))
    assert states(events) == ["submitted", "working", "completed"]
    with pytest.raises(TaskNotFoundError):
        await peer.plain.get_task(pb.GetTaskRequest(id="unknown"))


def addresses(peer: Peer) -> dict[str, str]:
    """Where the card says that the agent is, for each binding."""
    return {item.protocol_binding: item.url for item in peer.card.supported_interfaces}


@pytest.mark.clause("card.interfaces-true")
async def test_agent_alone_is_at_the_root(speak: Speak) -> None:
    async with serving(App(agent(echo))) as url, speak(url) as peer:
        assert addresses(peer) == {"JSONRPC": f"{url}/", "HTTP+JSON": url}
        await converse(peer)


@pytest.mark.clause("card.interfaces-true")
async def test_several_agents_each_under_its_name(speak: Speak) -> None:
    app = App(agent(echo), agent(reply, name="Quick One"), agent(book, key="desk"))
    async with (
        serving(app) as url,
        speak(f"{url}/echo") as parrot,
        speak(f"{url}/quick-one") as quick,
        speak(f"{url}/desk") as desk,
    ):
        assert [peer.card.name for peer in (parrot, quick, desk)] == ["Echo", "Quick One", "Book"]
        assert [peer.card.skills[0].id for peer in (parrot, quick, desk)] == [
            "echo",
            "reply",
            "book",
        ]
        assert addresses(desk) == {"JSONRPC": f"{url}/desk/", "HTTP+JSON": f"{url}/desk"}
        await converse(parrot)
        assert kinds(await gather(quick.live.send_message(asking("hello")))) == ["message"]
        task = await send(desk.plain, "Lyon")
        assert state(task) == "input_required"
        for other in (parrot, quick):
            with pytest.raises(TaskNotFoundError):
                await send(other.plain, "In May", task=task.id)
            listed = await other.plain.list_tasks(pb.ListTasksRequest())
            assert task.id not in [item.id for item in listed.tasks]
        assert state(await send(desk.plain, "In May", task=task.id)) == "input_required"


async def test_agent_mounted_in_another_application(speak: Speak) -> None:
    app = App(agent(echo))

    @asynccontextmanager
    async def lifespan(host: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    host = Starlette(routes=[Mount("/agents/echo", app)], lifespan=lifespan)
    async with serving(host) as url, speak(f"{url}/agents/echo") as peer:
        place = f"{url}/agents/echo"
        assert addresses(peer) == {"JSONRPC": f"{place}/", "HTTP+JSON": place}
        await converse(peer)


async def test_mounted_agent_starts_by_itself(speak: Speak) -> None:
    app = App(agent(echo), agent(book))
    host = Starlette(routes=[Mount("/agents", app)])
    async with serving(host) as url:
        async with speak(f"{url}/agents/echo") as peer:
            await converse(peer)
        await app.stop()


async def test_agent_behind_a_proxy(speak: Speak) -> None:
    """The card tells the address by which the client came, if the proxy is to be trusted."""
    headers = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "agents.example",
        "X-Forwarded-Prefix": "/travel",
    }
    trusting, wary = App(agent(echo), trust_forwarded=True), App(agent(echo))
    async with serving(trusting) as url, speak(url, headers=headers) as peer:
        place = "https://agents.example/travel"
        assert addresses(peer) == {"JSONRPC": f"{place}/", "HTTP+JSON": place}
    async with serving(wary) as url, speak(url, headers=headers) as peer:
        assert addresses(peer) == {"JSONRPC": f"{url}/", "HTTP+JSON": url}
        await converse(peer)
