"""Messages of LangChain: made of the parts of a message of the client, and found in a state."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage
from msgspec import UNSET

from dragoman import Part
from dragoman.bridges.saved_state import GONE, is_gone


def content_of(parts: Sequence[Part]) -> Any:
    """Text, and files as content blocks."""
    blocks: list[Any] = []
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        what = kind.partition("/")[0]
        what = what if what in ("image", "audio", "video") else "file"
        if part.text is not None:
            blocks.append({"type": "text", "text": part.text})
        elif part.raw is not None:
            data = base64.b64encode(part.raw).decode()
            blocks.append({"type": what, "base64": data, "mime_type": kind})
        elif part.url is not None:
            blocks.append({"type": what, "url": part.url, "mime_type": kind})
        elif part.data is not UNSET:
            text = json.dumps(part.data, ensure_ascii=False)
            blocks.append({"type": "text", "text": text})
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


def parts_of(blocks: Iterable[Any]) -> list[Part]:
    """The parts that `content_of` made blocks of."""
    found = []
    for block in blocks:
        if not isinstance(block, Mapping):
            found.append(Part(text=str(block)))
        elif isinstance(block.get("text"), str):
            found.append(Part(text=block["text"]))
        else:
            found.extend(_file(block))
    return found


def files_of(message: AIMessage) -> Iterator[Part]:
    """The files that a model made."""
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("base64"), str):
            yield from _file(block)


def _file(block: Mapping[str, Any]) -> Iterator[Part]:
    kind = block.get("mime_type") or "application/octet-stream"
    if isinstance(block.get("base64"), str):
        yield Part(raw=base64.b64decode(block["base64"]), media_type=kind)
    elif isinstance(block.get("url"), str):
        yield Part(url=block["url"], media_type=kind)


def without_gone(messages: Iterable[Any]) -> list[Any]:
    """The messages, with a note instead of each file that is gone."""
    found = []
    for message in messages:
        content = getattr(message, "content", None)
        if isinstance(content, list):
            message = message.model_copy(update={"content": list(map(_present, content))})
        found.append(message)
    return found


def _present(block: Any) -> Any:
    data = block.get("base64") if isinstance(block, Mapping) else None
    return {"type": "text", "text": GONE} if isinstance(data, str) and is_gone(data) else block


def messages_of(values: Any) -> list[Any]:
    """The messages of a state, or of a change of it."""
    found = values.get("messages", ()) if isinstance(values, Mapping) else ()
    return list(found) if isinstance(found, list | tuple) else [found]
