"""Clients that do otherwise than the version they speak, and how a request of theirs is recognised.
docs/dialects.md lists what is done for each of them.

| client | what it does | where it is handled |
|---|---|---|
| fasta2a | uses the methods of 0.3 with the objects of 1.0 | `is_fasta2a`, `v0_3.mixed` |
| python-a2a | in 0.1 sends `content`, and no `parts` | `with_parts` |
| JavaScript SDK 0.3 | writes the bytes of a file, not base64 text | `is_javascript_sdk`, `BARE` |
| a2a-sdk 0.3 | gets a webhook without its id, or with the id `None` | `v0_3.proto`, the service |
| openagents | in 0.3 sends no `messageId` | the service |
| openagents | in 0.3 sends `taskId` and `contextId` beside the message | `v0_3.rpc` |
| some of 0.2 | use the method names of 0.1 | `is_0_2_by_its_params` |
"""

from __future__ import annotations

from typing import Any

from dragoman.dialects import protojson


def is_javascript_sdk(user_agent: str) -> bool:
    """Whether a user agent is the JavaScript SDK."""
    return user_agent == "node" or user_agent.startswith("grpc-node-js/")


def is_fasta2a(params: bytes) -> bool:
    """Whether the parameters of a send are from fasta2a's client: its objects have no `kind`."""
    return b'"kind"' not in params


def is_0_2_by_its_params(params: bytes) -> bool:
    """Whether only the method's name is of 0.1: the message has an id of its own, and no task is
    named."""
    document = protojson.parse(params)
    message = document.get("message") if isinstance(document, dict) else None
    return isinstance(message, dict) and bool(message.get("messageId")) and not document.get("id")


def with_parts(document: Any) -> Any:
    """The same send with `parts`, where a client has sent the `content` of its message instead."""
    message = document.get("message") if isinstance(document, dict) else None
    if not isinstance(message, dict) or message.get("parts") or not message.get("content"):
        return document
    content = message["content"]
    items = content if isinstance(content, list) else [content]
    return {**document, "message": {**message, "parts": [_content_part(item) for item in items]}}


def _content_part(item: Any) -> dict[str, Any]:
    text = item.get("text") if isinstance(item, dict) else item
    if isinstance(text, str):
        return {"type": "text", "text": text}
    return {"type": "data", "data": item}
