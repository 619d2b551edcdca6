"""Output of agents on a terminal, without control characters, and in pipes.

Content goes to standard output, states to standard error; JSON is the wire's own objects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from dragoman.cli.colors import DIM, RED, hue, paint
from dragoman.cli.text_table import json_text, plain, size, word
from dragoman.dialects import v1_0
from dragoman.model.errors import A2AError
from dragoman.model.events import Reply
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

if TYPE_CHECKING:
    from dragoman.client import Result

FAILED, ASKED = 1, 4
"""Exit statuses: the task failed, was refused or canceled, or a file could not be saved; the agent
waits for something."""


class Screen:
    """Shows events and results, one after the other."""

    def __init__(self, *, as_json: bool = False, folder: str = "", brief: bool = False) -> None:
        self._json = as_json
        self._brief = brief
        """Somebody talks with the agent: what it says last is told with its state."""
        self._folder = Path(folder) if folder else None
        self._line = False
        """The cursor stands behind a text that has no end yet."""
        self._artifact = ""
        self.unsaved = 0
        """How many files could not be saved."""

    # -- events

    def event(
        self, event: Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
    ) -> None:
        """One event of a stream."""
        if self._json:
            shown = Reply(event) if isinstance(event, Message) else event
            print(json_text(v1_0.response(shown)), flush=True)
        elif isinstance(event, TaskArtifactUpdateEvent):
            self._chunk(event.artifact, event.append)
        elif isinstance(event, TaskStatusUpdateEvent):
            self._status(event.status, event.task_id)
        elif isinstance(event, Task):
            for artifact in event.artifacts:
                self._chunk(artifact, append=False)
            self._status(event.status, event.id)
        else:
            self.parts(event.parts)

    def _chunk(self, artifact: Artifact, append: bool) -> None:
        if artifact.artifact_id != self._artifact or not append:
            self.rest()
            self._artifact = artifact.artifact_id
            if artifact.name and sys.stdout.isatty():
                print(paint(f"{plain(artifact.name)}:", DIM, sys.stdout))
        self.parts(artifact.parts, open_end=True)

    def _status(self, status: TaskStatus, task: str) -> None:
        said = status.message
        if status.state.settled and not self._brief:
            self.rest()
            self.parts(said.parts if said else ())
            self.note(f"{state(status.state)} task {plain(task)}")
            return
        text = " ".join(self.words(part) for part in said.parts) if said else ""
        self.note(f"{state(status.state)} {text}".rstrip())

    # -- results

    def result(self, result: Result) -> int:
        """What a send came to; the exit status that it deserves."""
        if self._json:
            print(json_text(v1_0.encode(result.task or result.message)))
            return verdict(result.state)
        task = result.task
        said = task.status.message if task else None
        if task is not None and result.parts and task.artifacts:
            for artifact in task.artifacts:
                self._chunk(artifact, append=False)
            self.rest()
            if said is not None and task.status.state.settled:
                self.parts(said.parts)
        else:
            self.parts(result.parts)
        if task is not None:
            if said is not None and not task.status.state.settled:
                self._status(task.status, task.id)
            self.note(f"{state(task.status.state)} task {plain(task.id)}")
        return self.verdict(result.state)

    def verdict(self, state: TaskState | None) -> int:
        """The exit status that a state deserves, if all files were saved."""
        return verdict(state) or (FAILED if self.unsaved else 0)

    def parts(self, parts: Iterable[Part], *, open_end: bool = False) -> None:
        """Content, on standard output. Texts that follow each other are one."""
        for part in parts:
            if part.text is not None:
                self._write(part.text)
            else:
                self.rest()
                print(self.words(part), flush=True)
        if not open_end:
            self.rest()

    def _write(self, text: str) -> None:
        lines = [plain(line) for line in text.split("\n")]
        print("\n".join(lines), end="", flush=True)
        self._line = bool(lines[-1]) or (self._line and len(lines) == 1)

    def words(self, part: Part) -> str:
        """A part in a line. A file is saved if there is a folder for it."""
        if part.text is not None:
            return plain(part.text.rstrip("\n").replace("\n", " "))
        if part.data is not UNSET:
            return plain(msgspec.json.encode(part.data).decode())
        name = plain(part.filename or "file")
        if part.raw is None:
            return f"<{name} at {plain(part.url)}>"
        if self._folder is None:
            return f"<{name}, {size(len(part.raw))}>"
        from dragoman.client.save_files import save

        try:
            saved = f"saved as {plain(save(self._folder, part.filename, part.raw))}"
        except OSError as error:  # the others may be saved
            self.unsaved += 1
            saved = f"not saved: {error.strerror or error}"
            self.note(paint(f"dragoman: {name} was {saved}", RED, sys.stderr))
        return f"<{name}, {size(len(part.raw))}, {saved}>"

    # -- beside the content

    def note(self, text: str) -> None:
        """A line on standard error."""
        self.rest()
        print(text, file=sys.stderr, flush=True)

    def rest(self) -> None:
        """End the line that is open."""
        if self._line:
            print(flush=True)
            self._line = False


def state(state: TaskState) -> str:
    """A state in brackets and its colour."""
    return paint(f"[{word(state)}]", hue(state), sys.stderr)


def verdict(state: TaskState | None) -> int:
    """The exit status that a state deserves."""
    if state is None or state is TaskState.COMPLETED:
        return 0
    if state.terminal:
        return FAILED
    return ASKED if state.interrupted else 0


def complaint(error: BaseException) -> str:
    """An error in a line, with the fields that it blames."""
    text = plain(error)
    if isinstance(error, A2AError):
        missing = [f"{f}: {d}" for f, d in error.violations if f not in error.message]
        text = "; ".join([text, *map(plain, missing)])
    return text
