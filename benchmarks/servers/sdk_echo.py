"""The echo agent on a2a-sdk: Starlette, DefaultRequestHandler, and either of its stores."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore
from a2a.types import AgentCard, AgentInterface
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from benchmarks.servers.executor import Echo, described


def card(port: int) -> AgentCard:
    """The agent's card."""
    told = AgentCard()
    told.CopyFrom(described)
    url = f"http://127.0.0.1:{port}/"
    told.supported_interfaces.append(
        AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
    )
    return told


def tasks(store: str) -> InMemoryTaskStore | DatabaseTaskStore:
    """The store at a URL, as the SDK sets it up by default."""
    if store.startswith("memory:"):
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
