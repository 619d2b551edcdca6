"""Messages of A2A as the OpenAI Agents SDK has them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from agents import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from msgspec import UNSET

from dragoman import Part

AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def content(parts: Sequence[Part], *, audio: bool = True) -> list[dict[str, Any]]:
    """A message as the model gets it; without `audio`, sound is a file like others."""
    found: list[dict[str, Any]] = []
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        what, _, form = kind.partition("/")
        if part.text is not None:
            found.append({"type": "input_text", "text": part.text})
        elif part.raw is not None:
            data = base64.b64encode(part.raw).decode()
            url = f"data:{kind};base64,{data}"
            if what == "image":
                found.append({"type": "input_image", "image_url": url, "detail": "auto"})
            elif audio and kind in AUDIO:
                sound = {"data": data, "format": AUDIO[kind]}
                found.append({"type": "input_audio", "input_audio": sound})
            else:
                name = part.filename or f"file.{form}"
                found.append({"type": "input_file", "file_data": url, "filename": name})
        elif part.url is not None:
            image = {"type": "input_image", "image_url": part.url, "detail": "auto"}
            found.append(image if what == "image" else {"type": "input_file", "file_url": part.url})
        elif part.data is not UNSET:
            text = json.dumps(part.data, ensure_ascii=False)
            found.append({"type": "input_text", "text": text})
    return found


def output(parts: Sequence[Part]) -> Any:
    """A message as the result of a tool: text, or a list if there are files."""
    found: list[Any] = []
    for item in content(parts, audio=False):
        kind = item.pop("type")
        if kind == "input_text":
            found.append(ToolOutputText(**item))
        elif kind == "input_image":
            found.append(ToolOutputImage(**item))
        else:
            found.append(ToolOutputFileContent(**item))
    if all(isinstance(each, ToolOutputText) for each in found):
        return "\n".join(each.text for each in found)
    return found
