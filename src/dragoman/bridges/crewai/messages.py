"""The client's message as CrewAI takes it, and what CrewAI returns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from msgspec import UNSET
from pydantic import BaseModel

from dragoman import Part, UserError
from dragoman.bridges.bridge import Answer
from dragoman.bridges.text_answers import words_of


def said(answer: Answer) -> tuple[str, bool]:
    """What the client has said, and whether it approves."""
    return words_of(answer), answer.approved


def data_of(parts: Sequence[Part]) -> dict[str, Any]:
    """The data of a message, by their names."""
    found = [part.data for part in parts if part.data is not UNSET]
    return {name: value for data in found if isinstance(data, dict) for name, value in data.items()}


def message_of(parts: Sequence[Part]) -> tuple[str, dict[str, Any]]:
    """The client's message: a text, and files by their names."""
    lines, files = [], {}
    for number, part in enumerate(parts, 1):
        if part.text is not None:
            lines.append(part.text)
        elif part.data is not UNSET:
            lines.append(json.dumps(part.data, ensure_ascii=False))
        else:
            files[part.filename or f"file {number}"] = _file(part)
    return "\n".join(lines), files


def _file(part: Part) -> Any:
    """A file of the message as CrewAI takes it."""
    try:
        files: Any = import_module("crewai_files")
    except ImportError:
        raise UserError("This agent takes no files: crewai-files is not installed") from None
    if part.raw is None:
        return files.File(source=files.FileUrl(url=part.url))

    class Typed(files.FileBytes):
        """A file whose type the client has said; CrewAI would guess it."""

        @property
        def content_type(self) -> str:
            return part.media_type or str(super().content_type)

    return files.File(source=Typed(data=part.raw, filename=part.filename or None))


def result_of(output: Any) -> tuple[str, Any]:
    """The text of what an agent or a crew returns, and what of it is structured."""
    if isinstance(model := output.pydantic, BaseModel):
        return str(output.raw), model.model_dump(mode="json")
    return str(output.raw), getattr(output, "json_dict", None)
