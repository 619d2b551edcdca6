"""The client of the reference SDK, 1.x: JSON-RPC, HTTP+JSON and gRPC."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from caller import Caller, Told
from google.protobuf.json_format import MessageToDict, ParseDict
from scenes import play


class Reference(Caller):
    """A client that waits, and one that streams."""

    def __init__(self, card: pb.AgentCard, http: httpx.AsyncClient, binding: str) -> None:
        self._card = card
        self._http = http
        self._binding = binding
        self._plain = self._client(streaming=False)
        self._live = self._client(streaming=True)

    def _client(self, *, streaming: bool) -> Client:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self._http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[self._binding],
        )
        return ClientFactory(config).create(self._card)

    async def card(self) -> Told:
        interfaces = self._card.supported_interfaces
        return {
            "name": self._card.name,
            "version": next(
                one.protocol_version for one in interfaces if one.protocol_binding == self._binding
            ),
            "transports": sorted({one.protocol_binding for one in interfaces}),
            "streaming": self._card.capabilities.streaming,
        }

    async def send(
        self, parts: list[Told], *, task: str = "", context: str = "", wait: bool = True,
        webhook: Told | None = None,
    ) -> Told:  # fmt: skip
        request = _asking(parts, task, context)
        request.configuration.return_immediately = not wait
        if webhook:
            hook = pb.TaskPushNotificationConfig(**webhook)
            request.configuration.task_push_notification_config.CopyFrom(hook)
        async for event in self._plain.send_message(request):
            return dump(event)
        raise AssertionError("no answer")

    async def stream(self, parts: list[Told]) -> AsyncIterator[Told]:
        async for event in self._live.send_message(_asking(parts)):
            yield dump(event)

    async def subscribe(self, task: str) -> AsyncIterator[Told]:
        async for event in self._live.subscribe(pb.SubscribeToTaskRequest(id=task)):
            yield dump(event)

    async def get(self, task: str, *, history: int | None = None) -> Told:
        return dump(await self._plain.get_task(pb.GetTaskRequest(id=task, history_length=history)))

    async def list(self, context: str) -> list[Told]:
        found = await self._plain.list_tasks(pb.ListTasksRequest(context_id=context))
        return [dump(task) for task in found.tasks]

    async def cancel(self, task: str) -> Told:
        return dump(await self._plain.cancel_task(pb.CancelTaskRequest(id=task)))

    async def add_webhook(self, task: str, webhook: Told) -> Told:
        config = pb.TaskPushNotificationConfig(task_id=task, **webhook)
        return dump(await self._plain.create_task_push_notification_config(config))

    async def webhook(self, task: str, id: str) -> Told:
        request = pb.GetTaskPushNotificationConfigRequest(task_id=task, id=id)
        return dump(await self._plain.get_task_push_notification_config(request))

    async def webhooks(self, task: str) -> list[Told]:
        request = pb.ListTaskPushNotificationConfigsRequest(task_id=task)
        found = await self._plain.list_task_push_notification_configs(request)
        return [dump(config) for config in found.configs]

    async def delete_webhook(self, task: str, id: str) -> None:
        request = pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id=id)
        await self._plain.delete_task_push_notification_config(request)

    async def extended_card(self) -> Told:
        return dump(await self._plain.get_extended_agent_card(pb.GetExtendedAgentCardRequest()))

    async def close(self) -> None:
        await self._plain.close()
        await self._live.close()


def _asking(parts: list[Told], task: str = "", context: str = "") -> pb.SendMessageRequest:
    message = pb.Message(
        message_id=str(uuid4()), role=pb.ROLE_USER, task_id=task, context_id=context,
        parts=[_part(part) for part in parts],
    )  # fmt: skip
    return pb.SendMessageRequest(message=message)


def _part(part: Told) -> pb.Part:
    if "text" in part:
        return pb.Part(text=part["text"])
    if "data" in part:
        return ParseDict(part, pb.Part())
    if "bytes" in part:
        held = pb.Part(raw=base64.b64decode(part["bytes"]))
    else:
        held = pb.Part(url=part["url"])
    held.filename, held.media_type = part["name"], part["type"]
    return held


def dump(value: Any) -> Told:
    """What it is in JSON."""
    found: Told = MessageToDict(value)
    return found


async def connect(url: str, binding: str) -> Caller:
    """Find the card, as the SDK does."""
    http = httpx.AsyncClient(timeout=15, trust_env=False)
    return Reference(await A2ACardResolver(http, url).get_agent_card(), http, binding)


if __name__ == "__main__":
    play(connect)
