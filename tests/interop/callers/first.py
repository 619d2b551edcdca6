"""The client of python-a2a, in the form of the first A2A (`tasks/send`): JSON-RPC, without streams
of its own accord."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from caller import Absent, Caller, Refused, Told
from python_a2a import A2AClient, Message, Task, TaskState
from scenes import play


class First(Caller):
    """It sends tasks whose ids it chooses, and knows nothing but text."""

    def __init__(self, url: str) -> None:
        Message.enable_google_a2a_compatibility()
        Task.enable_google_a2a_compatibility()
        self._client = A2AClient(url, timeout=15, google_a2a_compatible=True)

    async def card(self) -> Told:
        card = self._client.agent_card
        return {
            "name": card.name,
            "version": None,
            "transports": ["JSONRPC"],
            "streaming": card.capabilities.get("streaming"),
        }

    async def send(
        self, parts: list[Told], *, task: str = "", context: str = "", wait: bool = True,
        webhook: Told | None = None,
    ) -> Told:  # fmt: skip
        if webhook or not all("text" in part for part in parts):
            raise Absent
        message = {"role": "user", "parts": [{"type": "text", **part} for part in parts]}
        made = Task(id=task or str(uuid4()), session_id=context or str(uuid4()), message=message)
        if not wait:  # it takes a task that has no artifacts yet for one that has ended
            raise Absent
        return _dump(await self._client.send_task_async(made))

    async def get(self, task: str, *, history: int | None = None) -> Told:
        asked = (task,) if history is None else (task, history)
        return _dump(await asyncio.to_thread(self._client.get_task, *asked))

    async def cancel(self, task: str) -> Told:
        return _dump(await asyncio.to_thread(self._client.cancel_task, task))


def _dump(task: Any) -> Told:
    """The task, or what the SDK makes of an error: a task that failed, or one that it invents."""
    said = task.status.message
    if isinstance(said, dict) and "error" in said:
        raise Refused({"message": said["error"]})
    if task.status.state is TaskState.SUBMITTED and task.message is None and not task.history:
        raise Refused({"message": "an invented task"})
    return dict(task.to_dict())


async def connect(url: str, binding: str) -> Caller:
    """Find the card, as the SDK does."""
    return await asyncio.to_thread(First, url)


if __name__ == "__main__":
    play(connect)
