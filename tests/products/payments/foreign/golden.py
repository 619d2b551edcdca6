"""What foreign ends send, as it was recorded: the metadata of their messages, a file for each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dragoman import Role, Task
from dragoman.payments.extension import STATUS

FOLDER = Path(__file__).parent / "golden"
RECORD = bool(os.environ.get("GOLDEN_RECORD"))
"""Whether the files are written anew."""


def golden(name: str) -> Any:
    """The recorded messages of a foreign end: metadata by status."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def check(name: str, found: Any) -> None:
    """See that a foreign end still sends what was recorded, but for the values."""
    if RECORD:
        (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    assert shape(found) == shape(golden(name))


def shape(value: Any) -> Any:
    """The keys of a value, and the types of what they have."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


def said(task: Task) -> dict[str, Any]:
    """The metadata of the messages with which an agent speaks of payments, by status."""
    messages = [*task.history, task.status.message]
    agents = [one for one in messages if one is not None and one.role is Role.AGENT]
    found = [dict(one.metadata) for one in agents if one.metadata]
    return {one[STATUS]: one for one in found if STATUS in one}
