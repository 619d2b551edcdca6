"""The desk on the reference SDK: all three bindings, with webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Role
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from announcing import grpc_server, serve
from desk import work
from starlette.applications import Starlette


class Desk(AgentExecutor):
    """Does what the text says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do it."""
        assert context.message is not None
        task, text = context.current_task, context.get_user_input()
        if text.startswith("say "):
            await event_queue.enqueue_event(new_text_message(text[4:], role=Role.ROLE_AGENT))
            return
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await work(updater, text, context.message.parts, new_text_part)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End it."""
        assert context.current_task is not None
        task = context.current_task
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()


def application(url: str) -> Starlette:
    """The application whose card says this URL."""
    card = AgentCard(
        name="Desk",
        description="Does what the text says.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=f"{url}{path}", protocol_binding=name, protocol_version="1.0")
            for name, path in (("JSONRPC", "/rpc"), ("HTTP+JSON", "/rest"))
        ],
        capabilities=AgentCapabilities(
            streaming=True, push_notifications=True, extended_agent_card=True
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="desk", name="desk", description="Works.", tags=["desk"])],
    )
    extended = AgentCard()
    extended.CopyFrom(card)
    extended.description = "Known to few."
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Desk(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        extended_agent_card=extended,
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(trust_env=False), configs),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        def register(server: object) -> None:
            add_A2AServiceServicer_to_server(GrpcHandler(handler), server)

        async with grpc_server(url, register) as address:
            for each in (card, extended):
                each.supported_interfaces.add(
                    url=address, protocol_binding="GRPC", protocol_version="1.0"
                )
            yield

    return Starlette(
        lifespan=lifespan,
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/rpc"),
            *create_rest_routes(handler, path_prefix="/rest"),
        ],
    )


if __name__ == "__main__":
    serve(application)
