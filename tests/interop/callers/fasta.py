"""The client of fasta2a: JSON-RPC, to send, to stream and to get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
from caller import Absent, Caller, Refused, Told
from fasta2a.client import A2AClient
from fasta2a.schema import Message, MessageSendConfiguration, Part
from scenes import play


class Fasta(Caller):
    """Its values are dictionaries with the names of Python."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = A2AClient(url, http_client=httpx.AsyncClient(timeout=15))

    async def card(self) -> Told:
        found = await asyncio.to_thread(A2AClient, self._url, fetch_card=True)
        card = found.agent_card
        assert card is not None
        interfaces = card["supported_interfaces"]
        return {
            "name": card["name"],
            "version": interfaces[0]["protocol_version"],
            "transports": sorted({one["protocol_binding"] for one in interfaces}),
            "streaming": card["capabilities"].get("streaming"),
        }

    async def send(
        self, parts: list[Told], *, task: str = "", context: str = "", wait: bool = True,
        webhook: Told | None = None,
    ) -> Told:  # fmt: skip
        if webhook:
            raise Absent
        given = MessageSendConfiguration(accepted_output_modes=["text/plain"], blocking=wait)
        answer = await self._client.send_message(
            _message(parts, task, context), configuration=given
        )
        return _result(answer)

    async def stream(self, parts: list[Told]) -> AsyncIterator[Told]:
        async for event in self._client.stream_message(_message(parts)):
            yield _result(event)

    async def get(self, task: str, *, history: int | None = None) -> Told:
        if history is not None:
            raise Absent
        return _result(await self._client.get_task(task))

    async def close(self) -> None:
        await self._client.http_client.aclose()


def _message(parts: list[Told], task: str = "", context: str = "") -> Message:
    made = Message(role="user", parts=[_part(part) for part in parts], message_id=str(uuid4()))
    if task:
        made["task_id"] = task
    if context:
        made["context_id"] = context
    return made


def _part(part: Told) -> Part:
    if "text" in part or "data" in part:
        return Part(**part)
    held = {"raw": part["bytes"]} if "bytes" in part else {"url": part["url"]}
    return Part(**held, filename=part["name"], media_type=part["type"])


def _result(answer: Any) -> Told:
    """What was answered; errors are values here."""
    if "error" in answer:
        raise Refused(answer["error"])
    return dict(_camel(answer["result"]))


def _camel(value: Any) -> Any:
    """The names of JSON; what is data is left alone."""
    if isinstance(value, list):
        return [_camel(one) for one in value]
    if isinstance(value, dict):
        return {_name(key): each if key == "data" else _camel(each) for key, each in value.items()}
    return value


def _name(snake: str) -> str:
    first, *rest = snake.split("_")
    return first + "".join(word.capitalize() for word in rest)


async def connect(url: str, binding: str) -> Caller:
    """It does not look at the card if it is not told to."""
    return Fasta(url)


if __name__ == "__main__":
    play(connect)
