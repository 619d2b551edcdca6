"""Pages of lists, and how much of a task a response has."""

from __future__ import annotations

import base64
import binascii

import msgspec
from msgspec.structs import replace

from dragoman.model import clock
from dragoman.model.errors import InvalidParams
from dragoman.model.types import Task


def trimmed(task: Task, history: int | None, artifacts: bool = True) -> Task:
    """The task with at most `history` messages."""
    if history is None:
        return task if artifacts else replace(task, artifacts=())
    kept = task.history[-history:] if history else ()
    return replace(task, history=kept, artifacts=task.artifacts if artifacts else ())


def not_negative(field: str, value: int | None) -> None:
    """Raise InvalidParams if a number is negative."""
    if value is not None and value < 0:
        raise InvalidParams.at(field, "must not be negative")


def since(text: str | None) -> str:
    """Return the time after which a list begins; empty if there is none. Raises InvalidParams."""
    try:
        return clock.ceiling(text) if text else ""
    except ValueError as error:
        raise InvalidParams.at("statusTimestampAfter", str(error)) from None


def encode_cursor(cursor: tuple[str, str]) -> str:
    """Return the page token of a position."""
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def decode_cursor(token: str) -> tuple[str, str]:
    """Return the position of a page token. Raises InvalidParams."""
    try:
        raw = base64.urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        return msgspec.json.decode(raw, type=tuple[str, str])
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        raise InvalidParams.at("pageToken", "is not a page token of this list") from None
