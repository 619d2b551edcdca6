"""Formats output for terminals, and parses arguments: tables, sizes, times and progress.

The content of tasks is not trusted, so control characters in it must not reach the terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from contextlib import suppress
from shutil import get_terminal_size

from dragoman.model import clock
from dragoman.model.types import TaskState
from dragoman.model.units import parse_duration

_UNUSUAL = re.compile(r"[^ -~\n]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def plain(text: object) -> str:
    """Escape everything that is not printable, line breaks included."""
    return "".join(
        mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in str(text)
    )


def json_text(text: str | bytes) -> str:
    """Escape control characters in a JSON text with JSON's own escapes, so that its value stays the
    same."""
    found = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return _UNUSUAL.sub(_escaped, found)


def _escaped(match: re.Match[str]) -> str:
    mark = match[0]
    if mark in "\t\r":  # JSON allows these only between values, where a space is equivalent
        return " "
    if mark.isprintable():
        return mark
    return json.dumps(mark)[1:-1] if mark != "\x7f" else "\\u007f"


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format rows as aligned columns below their names."""
    cells = [[plain(cell) for cell in row] for row in (names, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) - 2 > get_terminal_size().columns:
        return _records(cells)
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _records(cells: Sequence[Sequence[str]]) -> str:
    """Format each cell on its own line, for terminals that are too narrow for columns."""
    names, *rows = cells
    width = max(map(len, names))
    return "\n\n".join(
        "\n".join(f"{n.ljust(width)}  {cell}" for n, cell in zip(names, row, strict=True))
        for row in rows
    )


def size(number: float) -> str:
    """Format a number of bytes, rounded."""
    if number < 1024:
        return f"{number} B"
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1024 or unit == "GiB":
            break
    return f"{number:.1f} {unit}"


def word(state: TaskState) -> str:
    """Return a state as it is written on the command line."""
    return state.name.lower().replace("_", "-")


def count(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def when(seconds: float) -> str:
    """Format a Unix time."""
    return clock.stamp(seconds)


def duration(text: str) -> float:
    """Parse an argument such as 90m or 30d to seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Parse an argument such as 90m, or a plain number of seconds."""
    try:
        return float(text)
    except ValueError:
        return duration(text)


def moment(text: str) -> str:
    """Parse an argument such as 1h (ago) or 2026-01-31T12:00:00Z to a timestamp of the protocol."""
    with suppress(ValueError):
        return clock.stamp(max(time.time() - parse_duration(text), 0))
    try:
        return clock.ceiling(f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text)
    except ValueError:
        raise ArgumentTypeError(
            f"{text!r} is not a time; use 1h or 30d (ago), 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None


class Meter:
    """A progress line on the terminal; prints nothing if standard error is not a terminal."""

    def __init__(self) -> None:
        self._on = sys.stderr.isatty()
        self._next = 0.0
        self._width = 0

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        """Show a text, at most ten times a second."""
        if not self._on or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.1
        print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
        self._width = max(self._width, len(text))

    def part(self, what: str, done: int, of: int) -> None:
        """Show how much is done, with the percentage."""
        self.show(f"{what}: {done} of {of} ({done * 100 // of} %)" if of else f"{what} …")
