"""The client of a2a-sdk, on its own httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a.client import Client, ClientConfig, ClientFactory
from a2a.helpers.proto_helpers import new_text_message
from a2a.types import Role, SendMessageRequest, TaskState

from benchmarks.clients import driver


class Sdk:
    """See `driver.Client`. Whether it streams is a matter of the configuration."""

    def __init__(self, blocking: Client, streaming: Client) -> None:
        self._blocking = blocking
        self._streaming = streaming

    async def send(self, text: str) -> str:
        """See `driver.Client`."""
        found = ""
        async for event in self._blocking.send_message(_request(text)):
            assert event.task.status.state == TaskState.TASK_STATE_COMPLETED
            found = event.task.artifacts[0].parts[0].text
        return found

    async def stream(self, text: str) -> list[str]:
        """See `driver.Client`."""
        found, state = [], None
        async for event in self._streaming.send_message(_request(text)):
            if event.HasField("artifact_update"):
                found.append(event.artifact_update.artifact.parts[0].text)
            elif event.HasField("status_update"):
                state = event.status_update.status.state
        assert state == TaskState.TASK_STATE_COMPLETED
        return found


def _request(text: str) -> SendMessageRequest:
    return SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Sdk]:
    """As it comes: JSON-RPC."""
    blocking = await ClientFactory(ClientConfig(streaming=False)).create_from_url(url)
    streaming = await ClientFactory().create_from_url(url)
    async with blocking, streaming:
        yield Sdk(blocking, streaming)


if __name__ == "__main__":
    driver.run(connect)
