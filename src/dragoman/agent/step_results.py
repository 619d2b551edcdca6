"""The results of steps as a log keeps them: values as JSON, and errors."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.agent.user_error import UserError
from dragoman.model.events import Private

LARGEST = 256 * 1024
"""The most bytes of one value."""
PLAIN = (type(None), bool, int, float, str, list, tuple, dict)
"""What JSON gives back as it was."""


class StepFailed(Exception):
    """A step has failed for good. The text names the error; a replay raises the same."""


class StepUncertain(Exception):
    """The process ended while a step with `once=True` ran: it may or may not have had its effect.
    The handler decides what to do."""


class Unusable(Exception):
    """The step returned a value that cannot be logged, or that is not of its type."""


def check_step(name: str, retries: int, timeout: float | None) -> None:
    """Refuse what no step can have; TypeError, ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"step: the name must be a string, not {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"step {name!r}: the name cannot be encoded as UTF-8") from None
    if retries < 0:
        raise ValueError(f"step {name!r}: retries must be at least 0")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"step {name!r}: timeout must be greater than 0")


def check_time(what: str, seconds: float) -> float:
    """Refuse a time that never comes; ValueError."""
    if not math.isfinite(seconds):
        raise ValueError(f"{what} must be a finite number of seconds, not {seconds}")
    return seconds


def returned_type(call: Callable[..., Any]) -> Any:
    """The type that a call is annotated with; None if there is none."""
    try:
        found = typing.get_type_hints(call).get("return")
    except (NameError, TypeError):
        return None
    return type(None) if found is None and "return" in _annotated(call) else found


def _annotated(call: Callable[..., Any]) -> dict[str, Any]:
    return getattr(call, "__annotations__", {})


def encoded_result(value: Any, kind: Any, name: str) -> bytes:
    if kind is None and not isinstance(value, PLAIN):
        what = type(value).__name__
        raise Unusable(
            f"step {name!r} returns {what}, but does not say so; annotate the function, or say "
            f"returns={what}"
        )
    try:
        return encoded(value, f"step {name!r}")
    except (TypeError, ValueError) as error:
        raise Unusable(str(error)) from error


def encoded(value: Any, what: str) -> bytes:
    """A value as it is stored; TypeError, ValueError."""
    try:
        data = msgspec.json.encode(value, enc_hook=_jsonable)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{what}: the value cannot be stored as JSON: {error}") from error
    if len(data) > LARGEST:
        raise ValueError(f"{what}: the value has {len(data)} bytes; at most {LARGEST} are kept")
    return data


def _jsonable(value: Any) -> Any:
    if hasattr(value, "model_dump"):  # pydantic, which is not imported for this
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")


def decoded_result(data: bytes, kind: Any, name: str) -> Any:
    """A stored value as one of this type; without a type, as JSON gives it. Unusable."""
    try:
        if kind is None or kind is Any:
            return msgspec.json.decode(data)
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(data)
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        what = getattr(kind, "__name__", str(kind))
        raise Unusable(f"step {name!r}: the result is not of the type {what}: {error}") from error


def logged_result(entry: Private, kind: Any, name: str) -> Any:
    """The result that is in the log; what the step raised, or Unusable."""
    if entry.kind in ("failed", "uncertain"):
        raise logged_error(entry, name)
    return decoded_result(bytes(entry.value), kind, name)


def logged_error(entry: Private, name: str) -> Exception:
    if entry.kind == "uncertain":
        return StepUncertain(f"step {name!r} was running when its process ended")
    kind, text, shown = msgspec.json.decode(entry.value, type=tuple[str, str, bool])
    return UserError(text) if shown else StepFailed(f"step {name!r}: {kind}: {text}")
