"""Why a user's module could not be imported, without the frames that are not the user's."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

import dragoman

OURS = tuple(str(Path(str(module.__file__)).parent) for module in (dragoman, importlib))
"""The folders of code that only stands between the command and the module."""


def failure(name: str, error: BaseException) -> str:
    """The traceback of a failed import as text, below a line that says what failed."""
    found = traceback.TracebackException.from_exception(error)
    link: traceback.TracebackException | None = found
    while link is not None:
        link.stack = traceback.StackSummary.from_list(
            [frame for frame in link.stack if not frame.filename.startswith((*OURS, "<frozen"))]
        )
        link = link.__cause__ or link.__context__
    lines = "".join(found.format()).rstrip("\n")
    return f"{name}: the module cannot be imported\n{lines}"
