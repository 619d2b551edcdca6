"""Recognises requests of clients that deviate from the version they use. docs/dialects.md lists
what the server does for each of them.

| client | deviation | handled in |
|---|---|---|
| fasta2a | uses the methods of 0.3 with the objects of 1.0 | `is_fasta2a`, `v0_3.fasta2a` |
| python-a2a | sends `content` instead of `parts` in 0.1 | `with_parts` |
| JavaScript SDK 0.3 | writes files as bytes, not base64 text | `is_javascript_sdk`, `RAW_FILES` |
| a2a-sdk 0.3 | gets a webhook without its id, or with the id `None` | `v0_3.proto`, the service |
| openagents | sends no `messageId` in 0.3 | `with_message_id` |
| openagents | sends `taskId` and `contextId` next to the message in 0.3 | `v0_3.rpc` |
| some clients of 0.2 | use the method names of 0.1 | `is_0_2_by_its_params` |
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.dialects import protojson
from dragoman.model import clock
from dragoman.model.types import Message


def is_javascript_sdk(user_agent: str) -> bool:
    """Whether a User-Agent header is that of the JavaScript SDK."""
    return user_agent == "node" or user_agent.startswith("grpc-node-js/")


def is_fasta2a(params: bytes) -> bool:
    """Whether fasta2a's client wrote the parameters of a send: its objects have no `kind`."""
    return b'"kind"' not in params


def is_0_2_by_its_params(params: bytes) -> bool:
    """Whether a send of 0.1 has the parameters of 0.2: the message has an id, and there is no task
    id next to it."""
    document = protojson.parse(params)
    message = document.get("message") if isinstance(document, dict) else None
    return isinstance(message, dict) and bool(message.get("messageId")) and not document.get("id")


def with_parts(document: Any) -> Any:
    """Return the send with `parts`, if the client sent `content` instead."""
    message = document.get("message") if isinstance(document, dict) else None
    if not isinstance(message, dict) or message.get("parts") or not message.get("content"):
        return document
    content = message["content"]
    items = content if isinstance(content, list) else [content]
    return {**document, "message": {**message, "parts": [_content_part(item) for item in items]}}


def with_message_id(message: Message, key: str) -> Message:
    """Return the message with an id, if the client sent none. The idempotency key identifies the
    message; without a key every message is new."""
    return message if message.message_id else replace(message, message_id=key or clock.uuid7())


def _content_part(item: Any) -> dict[str, Any]:
    text = item.get("text") if isinstance(item, dict) else item
    if isinstance(text, str):
        return {"type": "text", "text": text}
    return {"type": "data", "data": item}
