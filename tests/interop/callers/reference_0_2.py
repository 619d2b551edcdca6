"""The client of the reference SDK, 0.2: JSON-RPC, with the card in its old place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
from a2a import types
from a2a.client import A2ACardResolver, A2AClient
from a2a.utils.constants import EXTENDED_AGENT_CARD_PATH
from caller import Caller, Refused, Told
from plain import old
from scenes import play


class Reference(Caller):
    """It can neither subscribe nor list, and knows one webhook of a task."""

    def __init__(self, card: types.AgentCard, http: httpx.AsyncClient, url: str) -> None:
        self._card = card
        self._http = http
        self._url = url
        self._client = A2AClient(http, card)

    async def card(self) -> Told:
        card = self._card
        return {
            "name": card.name,
            "version": card.protocol_version,
            "transports": sorted({card.preferred_transport or "JSONRPC"}),
            "streaming": card.capabilities.streaming,
        }

    async def send(
        self, parts: list[Told], *, task: str = "", context: str = "", wait: bool = True,
        webhook: Told | None = None,
    ) -> Told:  # fmt: skip
        given: Told = {
            "blocking": wait,
            "acceptedOutputModes": [],
            "pushNotificationConfig": webhook,
        }
        params = {"message": _message(parts, task, context), "configuration": given}
        request = types.SendMessageRequest.model_validate({"id": "1", "params": params})
        return _result(await self._client.send_message(request))

    async def stream(self, parts: list[Told]) -> AsyncIterator[Told]:
        params = {"message": _message(parts)}
        request = types.SendStreamingMessageRequest.model_validate({"id": "1", "params": params})
        async for event in self._client.send_message_streaming(request):
            yield _result(event)

    async def get(self, task: str, *, history: int | None = None) -> Told:
        params = types.TaskQueryParams(id=task, historyLength=history)
        return _result(await self._client.get_task(types.GetTaskRequest(id="1", params=params)))

    async def cancel(self, task: str) -> Told:
        params = types.TaskIdParams(id=task)
        request = types.CancelTaskRequest(id="1", params=params)
        return _result(await self._client.cancel_task(request))

    async def add_webhook(self, task: str, webhook: Told) -> Told:
        params = {"taskId": task, "pushNotificationConfig": webhook}
        request = types.SetTaskPushNotificationConfigRequest.model_validate(
            {"id": "1", "params": params}
        )
        made = _result(await self._client.set_task_callback(request))
        return dict(made["pushNotificationConfig"])

    async def webhook(self, task: str, id: str) -> Told:
        params = types.GetTaskPushNotificationConfigParams(id=task, pushNotificationConfigId=id)
        request = types.GetTaskPushNotificationConfigRequest(id="1", params=params)
        got = _result(await self._client.get_task_callback(request))
        return dict(got["pushNotificationConfig"])

    async def extended_card(self) -> Told:
        resolver = A2ACardResolver(self._http, self._url)
        found = await resolver.get_agent_card(relative_card_path=EXTENDED_AGENT_CARD_PATH)
        return dict(found.model_dump(mode="json"))

    async def close(self) -> None:
        await self._http.aclose()


def _message(parts: list[Told], task: str = "", context: str = "") -> Told:
    return {
        "messageId": str(uuid4()),
        "role": "user",
        "parts": [old(part) for part in parts],
        "taskId": task or None,
        "contextId": context or None,
    }


def _result(answer: Any) -> Told:
    """What was answered; errors are values here."""
    found = answer.root.model_dump(mode="json", by_alias=True, exclude_none=True)
    if "error" in found:
        raise Refused(found["error"])
    return dict(found["result"])


async def connect(url: str, binding: str) -> Caller:
    """Find the card, as the SDK does."""
    http = httpx.AsyncClient(timeout=15, trust_env=False)
    return Reference(await A2ACardResolver(http, url).get_agent_card(), http, url)


if __name__ == "__main__":
    play(connect)
