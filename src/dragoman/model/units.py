"""Durations and sizes as people write them: 45s, 90m, 30d, 64KiB, 16MiB."""

from __future__ import annotations

import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([a-zA-Z]+)", re.ASCII)


def parse_duration(text: str) -> float:
    """Parse a duration such as 90m to seconds. Raises ValueError if it is not a duration."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration; use 45s, 90m or 12h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(text: str) -> int:
    """Parse a size such as 16MiB to bytes. Raises ValueError if it is not a size in whole bytes."""
    match = _QUANTITY.fullmatch(text.strip())
    number = float(match[1]) * _BYTES.get(match[2], 0.5) if match is not None else 0.5
    if match is None or match[2] not in _BYTES or number % 1:
        raise ValueError(f"{text!r} is not a size; use 64KiB, 16MiB or 1GiB")
    return int(number)


def show_duration(seconds: float) -> str:
    """Format seconds as `parse_duration` reads them, in the largest unit without a fraction."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{seconds:.15g}s"


def show_size(number: int) -> str:
    """Format bytes as `parse_size` reads them, in the largest unit without a fraction."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number and number % _BYTES[unit] == 0:
            return f"{number // _BYTES[unit]}{unit}"
    return f"{number}B"
