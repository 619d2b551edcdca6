"""A merchant on `ampersend-a2a-x402`, in an environment of its own. Its arguments are the URL of
the facilitator and the receiver. It prints its URL."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentSkill, Part, TextPart
from x402_a2a import (
    FacilitatorClient,
    create_x402_agent_card,
    settle_payment,
    verify_payment,
    x402ExtensionConfig,
    x402PaymentRequiredException,
    x402ServerExecutor,
)

FACILITATOR, SHOP = sys.argv[1:3]


class Analyst(AgentExecutor):
    """Works when it is paid."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Ask for ten cents, or work."""
        task = context.current_task
        if task is None or not (task.metadata or {}).get("x402_payment_verified"):
            raise x402PaymentRequiredException.for_service(
                price="$0.10", pay_to_address=SHOP, resource="/analyze", network="base-sepolia"
            )
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.add_artifact([Part(root=TextPart(text="All about it"))])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """It cannot be canceled."""
        raise NotImplementedError


class Merchant(x402ServerExecutor):  # type: ignore[misc]
    """Has the facilitator verify and settle."""

    async def verify_payment(self, payload: Any, requirements: Any) -> Any:
        """Ask the facilitator."""
        return await verify_payment(payload, requirements, FacilitatorClient({"url": FACILITATOR}))

    async def settle_payment(self, payload: Any, requirements: Any) -> Any:
        """Ask the facilitator."""
        return await settle_payment(payload, requirements, FacilitatorClient({"url": FACILITATOR}))


def main() -> None:
    """Serve until standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    skill = AgentSkill(id="analyze", name="analyze", description="Sells.", tags=["x"])
    card = create_x402_agent_card("Merchant", "Sells.", f"{url}/", skills=[skill])
    handler = DefaultRequestHandler(Merchant(Analyst(), x402ExtensionConfig()), InMemoryTaskStore())
    app = A2AStarletteApplication(card, handler).build()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
