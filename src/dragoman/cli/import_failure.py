"""Formats the error of a failed import, with only the frames of the user's code."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

import dragoman

OURS = tuple(str(Path(str(module.__file__)).parent) for module in (dragoman, importlib))
"""The folders whose frames are left out of the traceback."""


def failure(name: str, error: BaseException) -> str:
    """Return a line that names the module, followed by the traceback."""
    found = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = found
    while link is not None:
        link.stack = traceback.StackSummary.from_list(
            [frame for frame in link.stack if not frame.filename.startswith((*OURS, "<frozen"))]
        )
        link = link.__cause__ or link.__context__
    lines = "".join(found.format()).rstrip("\n")
    return f"{name}: the module cannot be imported\n{lines}"
