"""Writes files that an agent has sent, under safe names."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path

LONGEST_NAME, LONGEST_SUFFIX = 200, 20
"""The most bytes of a file name, and of its suffix. File systems allow 255 in all, and a number may
have to be added."""
DEVICES = {
    *("CON", "PRN", "AUX", "NUL"),
    *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10)),
}
"""Names that Windows reserves for devices, with any suffix."""


def save(folder: Path, name: str, content: bytes) -> Path:
    """Write the content into the folder, which is made if it is missing, and return the path.
    Existing files are never overwritten. A file without a usable name is called `file`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = safe_name(name) or ("file", "")
    for number in count():
        path = folder / f"{stem}{f'-{number}' if number else ''}{suffix}"
        try:
            file = path.open("xb")  # follows no links
        except FileExistsError:
            continue
        try:
            with file:
                file.write(content)
        except OSError:
            path.unlink()
            raise
        return path
    raise AssertionError


def safe_name(name: str) -> tuple[str, str] | None:
    """Make an agent's file name safe and split it into stem and suffix: only the last component,
    shortened to what file systems allow; None if nothing is left."""
    last = re.split(r"[/\\]", name)[-1]
    safe = "".join(mark for mark in last if mark.isprintable()).lstrip(".")
    if not safe:
        return None
    if safe.partition(".")[0].rstrip().upper() in DEVICES:
        safe = f"_{safe}"
    path = Path(safe)
    stem, suffix = path.stem, path.suffix
    if len(suffix.encode()) > LONGEST_SUFFIX:
        stem, suffix = safe, ""
    room = LONGEST_NAME - len(suffix.encode())
    return stem.encode()[:room].decode(errors="ignore"), suffix
