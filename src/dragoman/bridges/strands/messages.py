"""Values of Strands: content blocks of messages, and the snapshot that the next run begins with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from msgspec import UNSET
from strands import Snapshot
from strands.types.session import decode_bytes_values, encode_bytes_values

from dragoman import Part, UserError
from dragoman.bridges.bridge import Run
from dragoman.bridges.saved_state import GONE, LIMIT, without_gone
from dragoman.bridges.strands.agent_copies import remembering

FORMATS = {
    "image": {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"},
    "video": {
        "mp4": "mp4", "webm": "webm", "quicktime": "mov", "x-matroska": "mkv", "mpeg": "mpeg",
        "x-flv": "flv", "x-ms-wmv": "wmv", "3gpp": "three_gp",
    },
    "audio": {
        "mpeg": "mp3", "mp3": "mp3", "wav": "wav", "x-wav": "wav", "ogg": "ogg", "flac": "flac",
        "aac": "aac", "mp4": "mp4", "webm": "webm",
    },
}  # fmt: skip
"""What Strands calls the format of a media type."""
DOCUMENTS = {
    "pdf": "application/pdf",
    "csv": "text/csv",
    "doc": "application/msword",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xls": "application/vnd.ms-excel",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "html": "text/html",
    "md": "text/markdown",
    "txt": "text/plain",
}
"""The media type of a document's format."""


def content(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """The client's message as content blocks."""
    found: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        if part.text is not None:
            found.append({"text": part.text})
        elif part.raw is not None:
            found.append(_block(part, {"bytes": part.raw}, number))
        elif part.url is not None and part.url.startswith("s3://"):
            found.append(_block(part, {"location": {"type": "s3", "uri": part.url}}, number))
        elif part.url is not None:
            found.append({"text": part.url})  # models of Strands load no other URLs
        elif part.data is not UNSET:
            found.append({"text": json.dumps(part.data, ensure_ascii=False)})
    return found


def _block(part: Part, source: dict[str, Any], number: int) -> dict[str, Any]:
    """A file as a content block."""
    kind = part.media_type.partition(";")[0].strip().lower()
    what, _, form = kind.partition("/")
    if (known := FORMATS.get(what, {}).get(form)) is not None:
        return {what: {"format": known, "source": source}}
    suffix = PurePath(part.filename).suffix.removeprefix(".").lower()
    known = next((name for name, media in DOCUMENTS.items() if media == kind), "")
    if not known and suffix in DOCUMENTS:
        known = suffix
    if not known and (what == "text" or kind == "application/json"):
        known = "txt"
    if not known:
        raise UserError(f"The agent cannot read a file of the type {kind or 'unknown'}")
    # models take few characters in the name of a document
    name = "".join(c if c.isalnum() else "-" for c in PurePath(part.filename).stem)
    return {"document": {"format": known, "name": name or f"file-{number + 1}", "source": source}}


def file(block: dict[str, Any]) -> Part | None:
    """The file in a content block; None if there is none."""
    for what in (*FORMATS, "document"):
        raw = block.get(what, {}).get("source", {}).get("bytes")
        if raw is not None:
            form = block[what]["format"]
            kinds = {name: kind for kind, name in reversed(FORMATS.get(what, {}).items())}
            kind = (
                DOCUMENTS.get(form, "") if what == "document" else f"{what}/{kinds.get(form, form)}"
            )
            return Part(raw=raw, media_type=kind, filename=block[what].get("name", ""))
    return None


def encoded(run: Run, agent: Any, number: int, usage: dict[str, int], kept: bool) -> bytes:
    """What the next run needs. Beyond the limit, the oldest files are dropped, then the oldest
    messages. If a session manager has `kept` the rest, it is not much."""
    others = {
        name: other.take_snapshot(preset="session").to_dict()
        for name, other in remembering(agent).items()
    }
    if len(json.dumps(encode_bytes_values(others), default=str)) > LIMIT // 2:
        others = {}  # they begin anew
    data = {"run": number, "usage": usage, "agents": others}
    if kept:
        return _bytes(agent.take_snapshot(include=["state"], app_data=data), state={})
    snapshot = agent.take_snapshot(preset="session", app_data=data)

    def encode(messages: list[Any]) -> bytes:
        return _bytes(snapshot, messages=messages)

    messages = snapshot.data["messages"]
    for message in messages:
        if len(run.pack(encode(messages))) <= LIMIT:
            break
        message["content"] = [_without_file(block) for block in message["content"]]
    return run.fitting(messages, encode, _starts)


def _bytes(snapshot: Snapshot, **changes: Any) -> bytes:
    found = {**snapshot.to_dict(), "data": {**snapshot.data, **changes}}
    return json.dumps(encode_bytes_values(found), ensure_ascii=False, default=str).encode()


def decoded(data: bytes) -> Snapshot:
    """What `encoded` wrote; raises an error if it cannot be read."""
    found = json.loads(without_gone(data, _note))
    snapshot = Snapshot.from_dict(decode_bytes_values(found))
    if "state" not in snapshot.data:
        raise ValueError("the snapshot has no state")  # Strands ignores what it does not know
    return snapshot


def _starts(message: Any) -> bool:
    """Whether a message of the user begins here, so that no tool result is without its call."""
    return message["role"] == "user" and not any("toolResult" in b for b in message["content"])


def _note(block: dict[str, Any]) -> dict[str, Any] | None:
    """A note instead of a file that is gone."""
    return {"text": GONE} if {*FORMATS, "document"} & set(block) else None


def _without_file(block: dict[str, Any]) -> dict[str, Any]:
    """A content block without the bytes of a file."""
    if "toolResult" in block:
        result = block["toolResult"]
        content = [_without_file(each) for each in result["content"]]
        return {**block, "toolResult": {**result, "content": content}}
    return block if file(block) is None else {"text": GONE}
