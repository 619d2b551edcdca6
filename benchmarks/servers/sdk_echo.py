"""The echo agent on a2a-sdk: Starlette, DefaultRequestHandler, and either of its stores."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from benchmarks.servers import script


class Echo(AgentExecutor):
    """The agent, in the SDK's own idiom."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do what the text says."""
        task = context.current_task
        if task is None:
            assert context.message is not None
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        text = context.get_user_input()
        order = script.read(text)
        match order.verb:
            case "stream":
                await self._stream(updater, order)
            case "clock":
                await self._tick(updater, order)
            case "ask":
                question = updater.new_agent_message([new_text_part(script.QUESTION)])
                await updater.requires_input(question)
                return
            case "artifacts":
                for name, part in script.artifacts(order):
                    await updater.add_artifact([new_text_part(part)], name=name)
            case _:
                await updater.add_artifact([new_text_part(text)], name="echo")
        await updater.complete()

    async def _stream(self, updater: TaskUpdater, order: script.Order) -> None:
        for number, chunk in enumerate(script.chunks(order)):
            await updater.add_artifact(
                [new_text_part(chunk)],
                artifact_id="answer",
                append=number > 0,
                last_chunk=number == order.size - 1,
            )
            if order.pause is not None:
                await asyncio.sleep(order.pause)

    async def _tick(self, updater: TaskUpdater, order: script.Order) -> None:
        number = 0
        async for chunk in script.ticks(order):
            await updater.add_artifact(
                [new_text_part(chunk)], artifact_id="answer", append=number > 0
            )
            number += 1

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Never asked for here."""
        raise NotImplementedError


def card(port: int) -> AgentCard:
    """The agent's card."""
    return AgentCard(
        name="Echo",
        description="Echoes.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(
                url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="echo", description="Echoes.", tags=["echo"])],
    )


def tasks(store: str) -> InMemoryTaskStore | DatabaseTaskStore:
    """The store at a URL, as the SDK sets it up by default."""
    if store == "memory:":
        return InMemoryTaskStore()
    store = store.replace("sqlite:", "sqlite+aiosqlite:")
    store = store.replace("postgresql:", "postgresql+asyncpg:")
    return DatabaseTaskStore(create_async_engine(store))


def cluster(store: str) -> tuple[VersionedDatabaseTaskStore, DatabaseTaskEventStream]:
    """The store that replicas share, and the stream of its events, as the SDK sets them up."""
    engine = create_async_engine(store.replace("postgresql:", "postgresql+asyncpg:"))
    return VersionedDatabaseTaskStore(engine), DatabaseTaskEventStream(engine)


def application(port: int, store: str, manner: str) -> Starlette:
    """The ASGI application: as it comes, one that also speaks 0.3, or one of several replicas."""
    described = card(port)
    stored: InMemoryTaskStore | DatabaseTaskStore | VersionedDatabaseTaskStore
    events = None
    if manner == "cluster":
        stored, events = cluster(store)
    else:
        stored = tasks(store)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # first requests that come at once would each make the table
        if not isinstance(stored, InMemoryTaskStore):
            await stored.initialize()
        yield

    handler = DefaultRequestHandler(
        agent_executor=Echo(), task_store=stored, agent_card=described, event_stream=events
    )
    calls = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=manner == "older")
    return Starlette(routes=[*create_agent_card_routes(described), *calls], lifespan=lifespan)


def main(port: int, store: str, manner: str = "") -> None:
    """Serve until ended."""
    import uvicorn

    uvicorn.run(
        application(port, store, manner),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
