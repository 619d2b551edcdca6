"""The desk on fasta2a: JSON-RPC only, with its own broker and storage in memory."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar
from uuid import uuid4

from announcing import serve
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

WORKERS = 8
"""Each does one thing at a time, and what is to be canceled needs another one to do it."""

ENDED = ("completed", "failed", "canceled", "rejected")


class Desk(Worker[Any]):
    """Does what the text says: publishes it to the stream, then stores the result."""

    canceled: ClassVar[defaultdict[str, asyncio.Event]] = defaultdict(asyncio.Event)

    async def run_task(self, params: TaskSendParams) -> None:
        """Do it."""
        task, context = params["id"], params["context_id"]
        await self.storage.update_task(task, state="working")
        await self.publish_status(task, context, "working")
        parts = params["message"]["parts"]
        match "".join(part.get("text", "") for part in parts).split():
            case ["ask"]:
                asked = [said("Which?")]
                await self.storage.update_task(task, state="input-required", new_messages=asked)
                return
            case ["wait"]:
                await self.canceled[task].wait()
                return
            case ["fail"]:
                why = [said("as told")]
                await self.storage.update_task(task, state="failed", new_messages=why)
                return
            case ["crash"]:
                raise RuntimeError("as told")
            case ["count", number]:
                parts = [Part(text=f"{n},") for n in range(int(number))]
                for n, part in enumerate(parts):
                    chunk = Artifact(artifact_id="count", parts=[part])
                    await self.publish_artifact(task, context, chunk, append=n > 0)
                    await asyncio.sleep(0.005)
                made = Artifact(artifact_id="count", parts=parts)
            case _:
                made = Artifact(artifact_id=str(uuid4()), name="echo", parts=parts)
                await self.publish_artifact(task, context, made)
        await self.storage.update_task(task, state="completed", new_artifacts=[made])

    async def cancel_task(self, params: TaskIdParams) -> None:
        """End it."""
        task = await self.storage.load_task(params["id"])
        if task is not None and task["status"]["state"] not in ENDED:
            await self.storage.update_task(task["id"], state="canceled")
        self.canceled[params["id"]].set()

    def build_message_history(self, history: list[Message]) -> list[Any]:
        """Not needed here."""
        return history

    def build_artifacts(self, result: Any) -> list[Artifact]:
        """Not needed here."""
        return [result]


def said(text: str) -> Message:
    """What the agent says."""
    return Message(role="agent", parts=[Part(text=text)], message_id=str(uuid4()))


def application(url: str) -> FastA2A:
    """The application whose card says this URL."""
    storage: InMemoryStorage[Any] = InMemoryStorage()
    broker = InMemoryBroker()

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, AsyncExitStack() as stack:
            for _ in range(WORKERS):
                await stack.enter_async_context(Desk(broker=broker, storage=storage).run())
            yield

    return FastA2A(
        storage=storage,
        broker=broker,
        name="Desk",
        url=f"{url}/",
        description="Does what the text says.",
        lifespan=lifespan,
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )


if __name__ == "__main__":
    serve(application)
