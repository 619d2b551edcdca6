"""The desk on the reference SDK before 1.0: all three bindings in 0.3, JSON-RPC alone in 0.2, with
webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import httpx
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, TextPart
from a2a.utils import new_agent_text_message, new_task
from announcing import grpc_server, serve
from desk import work
from starlette.applications import Starlette

OLDEST = version("a2a-sdk").startswith("0.2.")


class Desk(AgentExecutor):
    """Does what the text says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do it."""
        assert context.message is not None
        task, text = context.current_task, context.get_user_input()
        if text.startswith("say "):
            await event_queue.enqueue_event(new_agent_text_message(text[4:]))
            return
        if task is None:
            task = new_task(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await work(updater, text, context.message.parts, said, final=True)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End it."""
        assert context.current_task is not None
        task = context.current_task
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()


def said(text: str) -> Part:
    """A part that is text."""
    return Part(root=TextPart(text=text))


def described(url: str) -> AgentCard:
    """The card; gRPC is added when its address is known."""
    interfaces: dict[str, Any] = {
        "preferred_transport": "JSONRPC",
        "additional_interfaces": [
            AgentInterface(url=f"{url}/rpc", transport="JSONRPC"),
            AgentInterface(url=f"{url}/rest", transport="HTTP+JSON"),
        ],
    }
    return AgentCard(
        name="Desk",
        description="Does what the text says.",
        version="1.0.0",
        url=f"{url}/rpc",
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="desk", name="desk", description="Works.", tags=["desk"])],
        supports_authenticated_extended_card=True,
        **({} if OLDEST else interfaces),
    )


def application(url: str) -> Starlette:
    """The application whose card says this URL."""
    card, extended = described(url), described(url)
    extended.description = "Known to few."
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Desk(),
        task_store=InMemoryTaskStore(),
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
    )
    rpc = A2AStarletteApplication(card, handler, extended)
    if OLDEST:
        return rpc.build(rpc_url="/rpc")

    # the environment of 0.2 has none of these
    from a2a.grpc.a2a_pb2_grpc import add_A2AServiceServicer_to_server
    from a2a.server.apps import A2ARESTFastAPIApplication
    from a2a.server.request_handlers import GrpcHandler

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        def register(server: object) -> None:
            add_A2AServiceServicer_to_server(GrpcHandler(card, handler), server)

        async with grpc_server(url, register) as address:
            for each in (card, extended):
                each.additional_interfaces.append(AgentInterface(url=address, transport="GRPC"))
            yield

    app = rpc.build(rpc_url="/rpc", lifespan=lifespan)
    app.mount(
        "/rest", A2ARESTFastAPIApplication(card, handler, extended_agent_card=extended).build()
    )
    return app


if __name__ == "__main__":
    serve(application)
