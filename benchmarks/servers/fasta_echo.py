"""The echo agent on fasta2a: in-memory broker and storage, one worker in the same process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Part, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

from benchmarks.servers import script


def artifact(text: str, name: str) -> Artifact:
    """One artifact of one text."""
    return Artifact(artifact_id=str(uuid4()), name=name, parts=[Part(text=text)])


class Echo(Worker[Any]):
    """The agent, in fasta2a's own idiom: publish to the stream, then store the result."""

    async def run_task(self, params: TaskSendParams) -> None:
        """Do what the text says."""
        task_id, context_id = params["id"], params["context_id"]
        await self.storage.update_task(task_id, state="working")
        await self.publish_status(task_id, context_id, "working")
        text = "".join(part.get("text", "") for part in params["message"]["parts"])
        order = script.read(text)
        messages: list[Message] = []
        match order.verb:
            case "stream":
                made = [await self._stream(task_id, context_id, order)]
            case "history":
                made = [artifact(part, name) for name, part in script.artifacts(order)]
                messages = list(self._dialogue(order.messages - 1))
            case _:
                made = [artifact(text, "echo")]
                await self.publish_artifact(task_id, context_id, made[0])
        await self.storage.update_task(
            task_id, state="completed", new_artifacts=made, new_messages=messages
        )

    async def _stream(self, task_id: str, context_id: str, order: script.Order) -> Artifact:
        parts: list[Part] = []
        for number, chunk in enumerate(script.chunks(order)):
            parts.append(Part(text=chunk))
            await self.publish_artifact(
                task_id,
                context_id,
                Artifact(artifact_id="answer", parts=parts[-1:]),
                append=number > 0,
                last_chunk=number == order.size - 1,
            )
            if order.pause is not None:
                await asyncio.sleep(order.pause)
        return Artifact(artifact_id="answer", parts=parts)

    def _dialogue(self, count: int) -> Any:
        for number in range(count):
            asks = number % 2 == 0
            yield Message(
                role="agent" if asks else "user",
                parts=[Part(text=script.QUESTION if asks else script.ANSWER)],
                message_id=str(uuid4()),
            )

    async def cancel_task(self, params: TaskIdParams) -> None:
        """Never asked for here."""
        raise NotImplementedError

    def build_message_history(self, history: list[Message]) -> list[Any]:
        """Not needed by an echo."""
        return history

    def build_artifacts(self, result: Any) -> list[Artifact]:
        """Not needed by an echo."""
        return [result]


def application(port: int) -> FastA2A:
    """The ASGI application with its worker."""
    storage: InMemoryStorage[Any] = InMemoryStorage()
    broker = InMemoryBroker()
    worker = Echo(broker=broker, storage=storage)

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, worker.run():
            yield

    return FastA2A(
        storage=storage,
        broker=broker,
        name="Echo",
        url=f"http://127.0.0.1:{port}",
        lifespan=lifespan,
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )


def main(port: int) -> None:
    """Serve until ended."""
    import uvicorn

    uvicorn.run(
        application(port),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        access_log=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
