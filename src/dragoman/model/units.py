"""Durations and sizes as people write them: 45s, 90m, 30d, 64KiB, 16MiB."""

from __future__ import annotations

import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([a-zA-Z]+)", re.ASCII)


def parse_duration(text: str) -> float:
    """The seconds of a text such as 90m. ValueError if it is not a duration."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration; use 45s, 90m or 12h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(text: str) -> int:
    """The bytes of a text such as 16MiB. ValueError if it is not a size in whole bytes."""
    match = _QUANTITY.fullmatch(text.strip())
    number = float(match[1]) * _BYTES.get(match[2], 0.5) if match is not None else 0.5
    if match is None or match[2] not in _BYTES or number % 1:
        raise ValueError(f"{text!r} is not a size; use 64KiB, 16MiB or 1GiB")
    return int(number)


def show_duration(seconds: float) -> str:
    """Seconds as `parse_duration` reads them, in the largest unit that has no fraction."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{int(seconds // _SECONDS[unit])}{unit}"
    return f"{seconds:.15g}s"


def show_size(number: int) -> str:
    """Bytes as `parse_size` reads them, in the largest unit that has no fraction."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if number and number % _BYTES[unit] == 0:
            return f"{number // _BYTES[unit]}{unit}"
    return f"{number}B"
