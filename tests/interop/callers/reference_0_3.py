"""The client of the reference SDK, 0.3: JSON-RPC, HTTP+JSON and gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    GetTaskPushNotificationConfigParams,
    Message,
    MessageSendConfiguration,
    PushNotificationConfig,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
)
from caller import Caller, Told
from plain import old
from scenes import play


class Reference(Caller):
    """A client that waits, and one that streams. It cannot list, nor delete webhooks."""

    def __init__(self, card: AgentCard, http: httpx.AsyncClient, binding: str) -> None:
        self._card = card
        self._http = http
        self._binding = binding
        self._plain = self._client(streaming=False)
        self._live = self._client(streaming=True)

    def _client(self, **config: Any) -> Client:
        made = ClientConfig(
            httpx_client=self._http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_transports=[self._binding],
            **config,
        )
        return ClientFactory(made).create(self._card)

    async def card(self) -> Told:
        card = self._card
        announced = [one.transport for one in card.additional_interfaces or []]
        return {
            "name": card.name,
            "version": card.protocol_version,
            "transports": sorted({card.preferred_transport or "JSONRPC", *announced}),
            "streaming": card.capabilities.streaming,
        }

    async def send(
        self, parts: list[Told], *, task: str = "", context: str = "", wait: bool = True,
        webhook: Told | None = None,
    ) -> Told:  # fmt: skip
        client = self._plain
        if webhook:  # one that is given with a call is broken over the transports with protobuf
            hooks = [PushNotificationConfig(**webhook)]
            client = self._client(streaming=False, push_notification_configs=hooks)
        given = MessageSendConfiguration(blocking=wait)
        async for event in client.send_message(_message(parts, task, context), configuration=given):
            return _told(event)
        raise AssertionError("no answer")

    async def stream(self, parts: list[Told]) -> AsyncIterator[Told]:
        async for event in self._live.send_message(_message(parts)):
            yield _told(event)

    async def subscribe(self, task: str) -> AsyncIterator[Told]:
        async for event in self._live.resubscribe(TaskIdParams(id=task)):
            yield _told(event)

    async def get(self, task: str, *, history: int | None = None) -> Told:
        return dump(await self._plain.get_task(TaskQueryParams(id=task, history_length=history)))

    async def cancel(self, task: str) -> Told:
        return dump(await self._plain.cancel_task(TaskIdParams(id=task)))

    async def add_webhook(self, task: str, webhook: Told) -> Told:
        config = TaskPushNotificationConfig(
            task_id=task, push_notification_config=PushNotificationConfig(**webhook)
        )
        made = await self._plain.set_task_callback(config)
        return dump(made.push_notification_config)

    async def webhook(self, task: str, id: str) -> Told:
        params = GetTaskPushNotificationConfigParams(id=task, push_notification_config_id=id)
        return dump((await self._plain.get_task_callback(params)).push_notification_config)

    async def extended_card(self) -> Told:
        return dump(await self._plain.get_card())

    async def close(self) -> None:
        await self._plain.close()
        await self._live.close()


def _message(parts: list[Told], task: str = "", context: str = "") -> Message:
    return Message.model_validate(
        {
            "messageId": str(uuid4()),
            "role": "user",
            "parts": [old(part) for part in parts],
            "taskId": task or None,
            "contextId": context or None,
        }
    )


def dump(value: Any) -> Told:
    """What it is in JSON."""
    found: Told = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _told(event: Any) -> Told:
    """The SDK tells the task so far with each update of it."""
    if isinstance(event, tuple):
        task, update = event
        return dump(task if update is None else update)
    return dump(event)


async def connect(url: str, binding: str) -> Caller:
    """Find the card, as the SDK does."""
    http = httpx.AsyncClient(timeout=15, trust_env=False)
    card = await A2ACardResolver(http, url).get_agent_card()
    return Reference(card, http, binding)


if __name__ == "__main__":
    play(connect)
