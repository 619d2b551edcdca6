"""Prints events and results of agents, without control characters.

Content goes to standard output, states to standard error. JSON output has the objects of the
protocol.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from dragoman.cli.colors import DIM, RED, hue, paint
from dragoman.cli.terminal_format import json_text, plain, size, word
from dragoman.dialects import v1_0
from dragoman.model.errors import A2AError
from dragoman.model.events import Reply
from dragoman.model.pauses import marks, pause_of
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

FAILED, WAITING, UNPAID = 1, 4, 5
"""Exit statuses. FAILED: the task failed, was rejected or canceled, or a file could not be saved.
WAITING: the agent waits for input. UNPAID: it waits for a payment."""
PAY = "--pay-max pays it, also later: `dragoman task pay`"


class Screen:
    """Prints events and results."""

    def __init__(self, *, as_json: bool = False, folder: str = "", brief: bool = False) -> None:
        self._json = as_json
        self._brief = brief
        """For a chat: print the last message of a task on the line of its state."""
        self._folder = Path(folder) if folder else None
        self._line = False
        """Whether the last line on standard output is still open."""
        self._artifact = ""
        self.unsaved = 0
        """The number of files that could not be saved."""

    # -- events

    def event(
        self, event: Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
    ) -> None:
        """Print one event of a stream."""
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
            self.end_line()
            self._artifact = artifact.artifact_id
            if artifact.name and sys.stdout.isatty():
                print(paint(f"{plain(artifact.name)}:", DIM, sys.stdout))
        self.parts(artifact.parts, open_end=True)

    def _status(self, status: TaskStatus, task: str) -> None:
        message = status.message
        if status.state.settled and not self._brief:
            self.end_line()
            if message is not None and not _is_price(status):
                self._last(message)
            self.note(f"{state(status.state)} task {plain(task)}")
            return
        text = " ".join(self.words(part) for part in message.parts) if message else ""
        self.note(f"{state(status.state)} {text}".rstrip())

    def _last(self, message: Message) -> None:
        """Print the last message of a task. What came of a payment is no part of the answer, if
        that was printed."""
        if self._artifact and marks(message):
            self.note(" ".join(self.words(part) for part in message.parts))
        else:
            self.parts(message.parts)

    # -- results

    def result(self, result: Result) -> int:
        """Print the result of a send, and return the exit status."""
        if self._json:
            print(json_text(v1_0.encode(result.task or result.message)))
            return self.exit_status(result)
        task = result.task
        message = task.status.message if task else None
        if task is not None and result.parts and task.artifacts:
            for artifact in task.artifacts:
                self._chunk(artifact, append=False)
            self.end_line()
            if message is not None and task.status.state.settled:
                self._last(message)
        elif not unpaid(result):
            self.parts(result.parts)
        if task is not None:
            if message is not None and not task.status.state.settled:
                self._status(task.status, task.id)
            self.note(f"{state(task.status.state)} task {plain(task.id)}")
        return self.exit_status(result)

    def exit_status(self, result: Result) -> int:
        """Return the exit status for a result; FAILED if a file could not be saved. If the task
        waits for a payment, print the price."""
        if why := unpaid(result):
            self.note(paint(f"dragoman: {plain(why)}; {PAY}", RED, sys.stderr))
        return exit_status(result) or (FAILED if self.unsaved else 0)

    def parts(self, parts: Iterable[Part], *, open_end: bool = False) -> None:
        """Print content on standard output. Adjacent texts are joined."""
        for part in parts:
            if part.text is not None:
                self._write(part.text)
            else:
                self.end_line()
                print(self.words(part), flush=True)
        if not open_end:
            self.end_line()

    def _write(self, text: str) -> None:
        lines = [plain(line) for line in text.split("\n")]
        print("\n".join(lines), end="", flush=True)
        self._line = bool(lines[-1]) or (self._line and len(lines) == 1)

    def words(self, part: Part) -> str:
        """Format a part in one line. Saves a file if there is a folder for it."""
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
        except OSError as error:  # continue, because other files may be saved
            self.unsaved += 1
            saved = f"not saved: {error.strerror or error}"
            self.note(paint(f"dragoman: {name} was {saved}", RED, sys.stderr))
        return f"<{name}, {size(len(part.raw))}, {saved}>"

    # -- other output

    def note(self, text: str) -> None:
        """Print a line on standard error."""
        self.end_line()
        print(text, file=sys.stderr, flush=True)

    def end_line(self) -> None:
        """End the open line on standard output."""
        if self._line:
            print(flush=True)
            self._line = False


def state(state: TaskState) -> str:
    """Format a state in brackets and its colour."""
    return paint(f"[{word(state)}]", hue(state), sys.stderr)


def unpaid(result: Result) -> str:
    """What the task waits for that words do not answer; empty if it waits for nothing else."""
    pause = result.pause
    return "" if pause is None or pause.in_words else pause.text


def _is_price(status: TaskStatus) -> bool:
    """Whether a status asks for a payment: no script takes that for an answer."""
    pause = pause_of(Task(id="", context_id="", status=status))
    return pause is not None and not pause.in_words


def exit_status(result: Result) -> int:
    """Return the exit status for a result."""
    state = result.state
    if unpaid(result):
        return UNPAID
    if state is None or state is TaskState.COMPLETED:
        return 0
    if state.terminal:
        return FAILED
    return WAITING if state.interrupted else 0


def error_text(error: BaseException) -> str:
    """Format an error in one line, with the fields that it names."""
    text = plain(error)
    if isinstance(error, A2AError):
        missing = [f"{f}: {d}" for f, d in error.violations if f not in error.message]
        text = "; ".join([text, *map(plain, missing)])
    return text
