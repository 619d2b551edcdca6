"""Colours for terminals. NO_COLOR turns them off, FORCE_COLOR turns them on."""

from __future__ import annotations

import os
from typing import TextIO

from dragoman.model.types import TaskState

BOLD, DIM, RED, GREEN, YELLOW, BLUE, CYAN = "1", "2", "31", "32", "33", "34", "36"


def paint(text: str, style: str, stream: TextIO) -> str:
    """Add a style to the text, if this stream shows colours."""
    return f"\033[{style}m{text}\033[0m" if text and coloured(stream) else text


def coloured(stream: TextIO) -> bool:
    """Whether this stream shows colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def hue(state: TaskState) -> str:
    """Return the colour of a state."""
    if state is TaskState.COMPLETED:
        return GREEN
    if state.terminal:
        return RED
    return YELLOW if state.interrupted else DIM
