"""Other agents that a test delegates to: one of ours that keeps receipts, one of ours that gets no
keys, and one on the reference SDK, which knows none. They do the same, and count what they do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from a2a.helpers.proto_helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from a2a.types import Role as SdkRole
from starlette.applications import Starlette

from dragoman import Agent, App, Message, Part, Role, TaskState, Turn
from dragoman.client import Client
from tests.harness.server import serving

PIECES = ("one ", "two ", "three ", "four ")


class RemoteAgent:
    """Does what the words of a text say: `ask` asks, `say` replies without a task, `pieces` writes
    piece by piece, `large` writes much; at `gate` it waits. It works with or without a client."""

    url = ""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        """How often it was run, by the text."""
        self.requests: list[str] = []
        """The methods and paths of all requests."""
        self.gate = asyncio.Event()
        self.reached = asyncio.Event()
        """It waits at its gate."""
        self.keys: list[str] = []
        """The keys of all sends."""
        self.failing = 0
        """How many of the next sends get no answer."""

    def run(self, text: str) -> None:
        """Note that it runs."""
        self.runs[text] += 1

    async def hold(self, text: str) -> None:
        """Wait, if the text says so."""
        if "gate" in text:
            self.reached.set()
            await self.gate.wait()

    def close_gate(self) -> None:
        """Have the next one wait again."""
        self.gate.clear()
        self.reached.clear()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RemoteAgent]:
        """Serve it on a port."""
        async with self._serving() as self.url:
            yield self
            self.gate.set()

    def _serving(self) -> Any:
        raise NotImplementedError

    async def states(self) -> list[TaskState]:
        """How its tasks stand."""
        async with Client.connect(self.url) as client:
            return [task.status.state async for task in client.list()]

    def _noting(self, app: Any, *, keyless: bool = False) -> Any:
        async def noted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.requests.append(f"{scope['method']} {scope['path']}")
                kept = [pair for pair in scope["headers"] if pair[0] != b"idempotency-key"]
                keys = [pair[1].decode() for pair in scope["headers"] if pair not in kept]
                self.keys += keys
                if keys and self.failing:
                    self.failing -= 1
                    raise ConnectionError("the line is dead")
                if keyless:
                    scope = {**scope, "headers": kept}
            await app(scope, receive, send)

        return noted


class WithReceipts(RemoteAgent):
    """One of ours."""

    keyless = False

    def __init__(self) -> None:
        super().__init__()
        self.agent = Agent("Remote", description="Does what the text says.")
        self.agent.handler(reply=True)(self.work)
        self.agent.skill(self.double)
        self.app = App(self.agent, idempotency="off", drain_timeout=0.0, poll=0.02)

    def _serving(self) -> Any:
        return serving(self._noting(self.app, keyless=self.keyless))

    async def work(self, turn: Turn) -> AsyncIterator[Any]:
        """Do it."""
        text = turn.text
        self.run(text)
        if "say" in text:
            yield Message(message_id="m", role=Role.AGENT, parts=(Part(text=_said(text)),))
            return
        yield turn.working(f"began {text}")
        await self.hold(text)
        if "ask" in text:
            yield turn.ask("Which?")
            return
        if "login" in text:
            yield turn.require_auth("May I?", operation={"do": "it"})
            return
        if "pieces" in text:
            for number, piece in enumerate(PIECES):
                yield turn.write(piece)
                yield turn.working(f"wrote {piece}")
                await asyncio.sleep(0)
                if number == 1:
                    await self.hold("gate")
            return
        yield turn.artifact(_said(text))

    async def double(self, turn: Turn, number: int) -> int:
        """Double a number."""
        self.run(f"double {number}")
        return 2 * number


class WithoutReceipts(WithReceipts):
    """One of ours behind a proxy that drops the keys."""

    keyless = True


class Reference(RemoteAgent):
    """One on the reference SDK."""

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[str]:
        card = AgentCard(
            name="Remote",
            description="Does what the text says.",
            version="1.0.0",
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="work", name="work", description="Works.", tags=["work"])],
        )
        handler = DefaultRequestHandler(
            agent_executor=_Executor(self), task_store=InMemoryTaskStore(), agent_card=card
        )
        app = Starlette(
            routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")]
        )
        async with serving(self._noting(app)) as url:
            card.supported_interfaces.append(
                AgentInterface(url=f"{url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0")
            )
            yield url


class _Executor(AgentExecutor):
    def __init__(self, remote: Reference) -> None:
        self._remote = remote

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do what the text says."""
        assert context.message is not None
        remote, text = self._remote, context.get_user_input()
        remote.run(text)
        if "say" in text:
            await event_queue.enqueue_event(new_text_message(_said(text), role=SdkRole.ROLE_AGENT))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)

        def message(said: str) -> Any:
            return updater.new_agent_message([new_text_part(said)])

        if "unread" in text:  # it works on the message, and shows its old question
            await updater.add_artifact([new_text_part("unread")], artifact_id="unread")
            await remote.hold("gate")
        await updater.start_work(message(f"began {text}"))
        await remote.hold(text)
        if "ask" in text:
            await updater.requires_input(message("Which?"))
            return
        if "login" in text:
            await updater.requires_auth(message("May I?"))
            return
        if "pieces" in text:
            for number, piece in enumerate(PIECES):
                part = new_text_part(piece)
                await updater.add_artifact([part], artifact_id="pieces", append=number > 0)
                await updater.start_work(message(f"wrote {piece}"))
                if number == 1:
                    await remote.hold("gate")
        else:
            await updater.add_artifact([new_text_part(_said(text))], name="said")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End it."""
        task = context.current_task
        assert task is not None
        await TaskUpdater(event_queue, task.id, task.context_id).cancel()


def _said(text: str) -> str:
    return "x" * 300_000 if "large" in text else f"did {text}"


REMOTES: dict[str, Callable[[], RemoteAgent]] = {
    "receipts": WithReceipts,
    "no receipts": WithoutReceipts,
    "reference": Reference,
}
