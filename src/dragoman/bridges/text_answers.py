"""What the client has answered, for frameworks whose answers are words, or words and files."""

from __future__ import annotations

import json
from typing import Any

from dragoman import Part
from dragoman.bridges.bridge import Answer


def files_of(answer: Answer) -> list[Part]:
    """The files of an answer."""
    return [part for part in answer.parts if part.raw is not None or part.url is not None]


def words_of(answer: Answer) -> str:
    """An answer as text, for a framework that accepts nothing else. The text names the files that
    the agent does not get."""
    said = answer.text if answer.data is None else json.dumps(answer.data, ensure_ascii=False)
    return "\n".join(line for line in (said, *map(_note, files_of(answer))) if line)


def value_of(answer: Answer) -> Any:
    """An answer as a value: data as they are (they have no place for a note), or words."""
    return words_of(answer) if answer.data is None else answer.data


def _note(part: Part) -> str:
    name = f"{part.filename}, " if part.filename else ""
    kind = part.media_type or "application/octet-stream"
    return f"(The user has sent a file, {name}{kind}. It cannot be given to you in an answer.)"
