"""Serves an executor on a2a-sdk's own server: `python sdk_server.py module:Executor PORT`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import uvicorn
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCard, AgentInterface
from starlette.applications import Starlette


def application(executor: Any, card: AgentCard, port: int) -> Starlette:
    """The SDK's server for an executor, as its documentation makes it."""
    told = AgentCard()
    told.CopyFrom(card)
    told.capabilities.streaming = True
    del told.supported_interfaces[:]
    told.supported_interfaces.append(
        AgentInterface(
            url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0"
        )
    )
    handler = DefaultRequestHandler(
        agent_executor=executor() if isinstance(executor, type) else executor,
        task_store=InMemoryTaskStore(),
        agent_card=told,
    )
    return Starlette(routes=[*create_agent_card_routes(told), *create_jsonrpc_routes(handler, "/")])


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    found = import_module(module)
    app = application(getattr(found, name), found.card, int(sys.argv[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="info")
