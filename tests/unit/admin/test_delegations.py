"""Which tasks a task has begun at other agents, and which ones it serves."""

from __future__ import annotations

import asyncio

from dragoman import Agent, App, Task, TaskState, Turn
from dragoman.admin import AdminThread, Entry, TaskRow, ancestors, delegations
from dragoman.client import Client


async def log(app: App, task: str) -> tuple[TaskRow, list[Entry]]:
    """A row and its log, as an operator reads them."""
    async with AdminThread(app.admin) as admin:
        return await admin.call(lambda store: (store.row(task), list(store.read(task))))


async def test_a_tree_of_delegations() -> None:
    helper = Agent("Helper", description="Helps.")

    @helper.handler
    async def help_(turn: Turn) -> None:
        await turn.emit(turn.ask("Which one?") if turn.text == "ask" else turn.complete("done"))

    office = Agent("Office", description="Delegates.")

    async with App(helper) as inner:

        @office.handler
        async def delegate(turn: Turn) -> str:
            async with turn.connect(app=inner) as client:
                await client.send(turn.text)
                async for _ in client.stream("stream"):
                    pass
                await client.send("later", wait=False)
            return "all sent"

        async with App(office) as app, Client.connect(app=app) as client:
            result = await client.send("ask")
            assert isinstance(result.task, Task)
            _, entries = await log(app, result.task.id)
            found = delegations(entries)
            assert [(each.agent, each.turn) for each in found] == [("Helper", 1)] * 3
            states = [each.state for each in found]
            assert states[:2] == [TaskState.INPUT_REQUIRED, TaskState.COMPLETED]
            assert found[0].seen >= found[0].at and found[0].address
            assert ancestors(entries) == ()
            row, theirs = await log(inner, found[0].task)
            assert row.state is TaskState.INPUT_REQUIRED
            (above,) = ancestors(theirs)
            assert (above.agent, above.task) == ("Office", result.task.id)
            seen = [e for e in entries if getattr(e.event, "kind", "") == "seen"]
            assert seen and all(entry.turn == 0 for entry in seen)
            assert "seen" not in repr(result.task)


async def test_a_durable_handler_says_it_too() -> None:
    helper = Agent("Helper", description="Helps.")

    @helper.handler
    async def help_(turn: Turn) -> str:
        return "done"

    office = Agent("Office", description="Delegates.")
    async with App(helper) as inner:

        @office.skill(durable=True)
        async def delegate(turn: Turn) -> str:
            async with turn.connect(app=inner) as client:
                result = await client.send("x")
            await turn.sleep(0.05)
            return result.text

        async with App(office, poll=0.02) as app, Client.connect(app=app) as client:
            result = await client.send("go")
            assert result.text == "done" and result.task is not None
            _, entries = await log(app, result.task.id)
            (found,) = delegations(entries)
            assert (found.agent, found.state) == ("Helper", TaskState.COMPLETED)
            kinds = [getattr(entry.event, "kind", "") for entry in entries]
            assert kinds.count("seen") == 1  # a replay does not look again
    await asyncio.sleep(0)
