"""Graphs of LangGraph of several kinds: breakpoints."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import UNSET

from dragoman import TaskState
from dragoman.client import Client, Result
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

C, AUTH = TaskState.COMPLETED, TaskState.AUTH_REQUIRED
PATIENCE = 60.0
KINDS = ["before", "after", "nested", "inside", "remembering_gated"]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Serves a graph."""
    desks = []

    def serve(served: str) -> Desk:
        desk = Desk(Framework("langgraph", "langgraph_kinds", served), tmp_path)
        desks.append(desk)
        try:
            desk.start()
        except Absent as absent:
            pytest.skip(f"langgraph cannot be installed: {absent}")
        return desk

    yield serve
    for desk in desks:
        desk.stop()


async def approved(client: Client, asked: Result) -> Result:
    assert asked.task is not None
    assert asked.grant is not None
    return await client.task(asked.task.id).approve(asked.grant)


async def declined(client: Client, asked: Result) -> Result:
    assert asked.task is not None
    assert asked.grant is not None
    return await client.task(asked.task.id).decline(asked.grant)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_breakpoint_needs_an_approval(serve: Callable[..., Desk], kind: str) -> None:
    desk = serve(kind)
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        asked = await client.send("delete")
        assert asked.state is AUTH
        assert "tools" in asked.text or kind == "inside"
        assert "/tmp/x" in asked.text or kind == "inside", "the client sees what it approves"
        assert desk.done == ["model"]
        assert asked.task is not None
        asked = await client.send("yes", task=asked.task.id)
        assert asked.state is AUTH, "words approve nothing"
        desk.kill()
        desk.start()
        assert desk.done == ["model"]
        result = await approved(client, asked)
        while kind == "after" and result.state is AUTH:
            result = await approved(client, result)
        assert result.state is C
        assert desk.done == ["model", "delete", "model"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_declined_does_not_run(serve: Callable[..., Desk], kind: str) -> None:
    desk = serve(kind)
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        for number in (1, 2):  # the conversation goes on
            result = await declined(client, await client.send("delete", context="c"))
            while kind == "after" and result.state is AUTH:
                result = await declined(client, result)
            assert result.state is C
            assert "eclined" in result.text
            assert "delete" not in desk.done
            assert desk.done.count("model") >= number


async def test_each_breakpoint_is_asked_about(serve: Callable[..., Desk]) -> None:
    desk = serve("everywhere")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        result = await client.send("delete")
        for done in ([], ["model"], ["model", "delete"]):
            assert result.state is AUTH
            assert desk.done == done
            result = await approved(client, result)
        assert result.state is C
        assert desk.done == ["model", "delete", "model"]


async def ended(desk: Desk) -> None:
    """Wait until the server has ended by itself, and start it again."""
    async with asyncio.timeout(PATIENCE):
        while desk.running:
            await asyncio.sleep(0.02)
    await asyncio.to_thread(desk.start)


async def test_a_breakpoint_that_was_not_logged_needs_an_approval(
    serve: Callable[..., Desk],
) -> None:
    """With a checkpointer of the user's own."""
    desk = serve("lost_before_breakpoint")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url, attempts=30) as client:
        sending = asyncio.create_task(client.send("delete", context="c"))
        await ended(desk)
        asked = await sending
        assert asked.state is AUTH
        assert desk.done == ["model", "lost"]
        result = await approved(client, asked)
        assert result.state is C
        assert desk.done == ["model", "lost", "delete", "model"]


async def test_a_message_is_not_added_twice(serve: Callable[..., Desk]) -> None:
    """A process ends after the graph has ended, and before that is logged."""
    desk = serve("lost_at_the_end")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url, attempts=30) as client:
        sending = asyncio.create_task(client.send("one", context="c"))
        await ended(desk)
        assert (await sending).state is C
        assert desk.done == ["once", "lost"]
        result = await client.send("two", context="c")
        assert result.text == "message 3"


@pytest.mark.parametrize("kind", ["endless", "remembering_endless"])
async def test_a_loop_ends_at_the_limit_of_the_graph(serve: Callable[..., Desk], kind: str) -> None:
    desk = serve(kind)
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        result = await client.send("go")
        assert result.state is TaskState.FAILED
        assert result.text == "The graph did not end within 5 steps"
        assert 5 <= len(desk.done) <= 7


async def test_a_conversation_that_has_become_large_goes_on(serve: Callable[..., Desk]) -> None:
    """Its oldest messages are forgotten, also in the middle of a turn."""
    desk = serve("growing")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        said = []
        for number in range(1, 9):
            result = await client.send(f"m{number}", context="c")
            assert result.state is C
            said.append(result.text)
    assert said[0].endswith("1 messages from m1")
    assert said[-1].endswith("messages from m6") or said[-1].endswith("messages from m7")


async def test_a_state_that_is_too_large_says_so(serve: Callable[..., Desk]) -> None:
    desk = serve("too_large")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        result = await client.send("go", context="c")
        assert result.state is TaskState.FAILED
        assert result.task is not None
        said = result.task.status.message
        assert said is not None
        assert "compile the graph with a checkpointer of your own" in said.text


async def test_runs_of_subgraphs_that_have_ended_are_not_kept(serve: Callable[..., Desk]) -> None:
    desk = serve("subgraphs")
    sizes = []
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        for _ in range(4):
            result = await client.send("delete", context="c")
            assert result.state is C
            sizes.append(state_size(desk))
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) < 270, "each turn adds its messages, and nothing else"


async def test_the_log_of_a_superstep_has_what_is_new(serve: Callable[..., Desk]) -> None:
    desk = serve("steady")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        assert (await client.send("go")).state is C
    with closing(sqlite3.connect(desk.folder / "desk.db")) as store:
        sizes = [size for (size,) in store.execute("SELECT length(body) FROM entry")]
    large = [size for size in sizes if size > 30_000]
    assert len(large) == 2, "the text that is streamed, and the superstep of the model"
    assert sum(sizes) - sum(large) < 30_000, "20 other supersteps"


def state_size(desk: Desk) -> int:
    """The size of what is kept of the only conversation."""
    with closing(sqlite3.connect(desk.folder / "desk.db")) as store:
        ((size,),) = store.execute("SELECT length(body) FROM context_value")
    return int(size)


async def test_a_subgraph_with_a_memory_of_its_own_takes_each_message(
    serve: Callable[..., Desk],
) -> None:
    desk = serve("remembering")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        for number in (1, 2):
            result = await client.send("delete", context="c")
            assert result.state is C
            assert desk.done == ["model", "delete", "model"] * number


async def test_the_client_gets_all_of_a_structured_interrupt(serve: Callable[..., Desk]) -> None:
    desk = serve("choosing")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        asked = await client.send("go")
        assert asked.text == "Which city?"
        assert asked.task is not None
        assert asked.task.status.message is not None
        data = [part.data for part in asked.task.status.message.parts if part.data is not UNSET]
        assert data == [{"options": ["Rome", "Oslo"]}]
        result = await client.send("Rome", task=asked.task.id)
        assert result.text == "To Rome"


async def test_your_own_checkpointer_waits_for_one_task(serve: Callable[..., Desk]) -> None:
    """The graph has one place in a conversation. A task that runs while another one waits moves
    it: the answer to that one is refused, and not taken for something else."""
    desk = serve("own_choosing")
    async with asyncio.timeout(PATIENCE), Client.connect(desk.url) as client:
        asked = [await client.send("go", context="c") for _ in range(2)]
        late, result = [
            await client.send("Rome", task=each.task.id) for each in asked if each.task is not None
        ]
        assert late.state is TaskState.FAILED
        assert "does not wait for this answer any more" in late.text
        assert (result.state, result.text) == (C, "To Rome")
