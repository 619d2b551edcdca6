"""The result of a send."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct

from dragoman.client.save_files import save
from dragoman.model.approvals import ApprovalRequest, request_in
from dragoman.model.pauses import Pause, pause_of
from dragoman.model.reprs import short
from dragoman.model.types import Artifact, Message, Part, Role, Task, TaskState


class Result(Struct, frozen=True):
    """The result of a send: a task or a direct message."""

    task: Task | None = None
    message: Message | None = None
    progress: Set[str] = frozenset()
    """The ids of messages that a stream sent as progress or questions. None of them is the
    result."""

    def __repr__(self) -> str:
        if self.task is None and self.message is None:
            return "Result()"
        how = f"task={self.task.id!r}, state={self.state}" if self.task else "a direct message"
        return f"Result({how}, text={short(self.text)})"

    @property
    def state(self) -> TaskState | None:
        """The task's state; None for a direct message."""
        return self.task.status.state if self.task else None

    @property
    def ok(self) -> bool:
        """Whether this is the final result: a completed task or a direct message. A question or a
        running task is not ok."""
        if self.task is None:
            return self.message is not None
        return self.task.status.state is TaskState.COMPLETED

    @property
    def pause(self) -> Pause | None:
        """What the task waits for: an answer, a login, an approval, or a payment; None if it does
        not wait for its client."""
        return pause_of(self.task) if self.task is not None else None

    @property
    def grant(self) -> ApprovalRequest | None:
        """The operation that the task asks to approve, see `TaskHandle.approve`; None if it asks
        for none."""
        asking = self.task is not None and self.task.status.state is TaskState.AUTH_REQUIRED
        return request_in(self.task.metadata) if self.task is not None and asking else None

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """The artifacts of the task."""
        return self.task.artifacts if self.task else ()

    @property
    def parts(self) -> Sequence[Part]:
        """The content: of the direct message; else of the artifacts; else of the last status
        message; else of the last message of this turn. If the task asks a question, the
        question."""
        return next(([p for item in found for p in item.parts] for found in self._found()), ())

    @property
    def text(self) -> str:
        """The text of the content. If the content has no text, the text of the last status message
        or of the last message of this turn. The pieces of one artifact are joined."""
        texts = ("\n".join(item.text for item in found if item.text) for found in self._found())
        return next((text for text in texts if text), "")

    @property
    def data(self) -> Any:
        """The first structured part of the content, or None."""
        return next((part.data for part in self.parts if part.data is not UNSET), None)

    @property
    def files(self) -> list[Part]:
        """The file parts of the content, with their content (`raw`) or a `url`."""
        return [part for part in self.parts if part.raw is not None or part.url is not None]

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the files that have content into a folder and return their paths. Only the last
        component of an agent's file name is used, and no existing file is overwritten. Files with
        only a `url` are not downloaded, see `fetch`."""
        return [
            save(Path(folder), part.filename, part.raw)
            for part in self.files
            if part.raw is not None
        ]

    def _found(self) -> list[Sequence[Artifact | Message]]:
        """The candidates for the result, best first."""
        if self.message is not None:
            return [(self.message,)]
        if self.task is None:
            return []
        state, said = self.task.status.state, self.task.status.message
        if not state.settled:
            return [self.artifacts] if self.artifacts else []
        words = [message for message in (said, self._last()) if message is not None]
        if words and state.interrupted:
            return [words[:1]]
        return [*([self.artifacts] if self.artifacts else []), *([word] for word in words)]

    def _last(self) -> Message | None:
        """The agent's last message since the last message to it, as far as the history shows."""
        for message in reversed(self.task.history if self.task else ()):
            if message.role is Role.USER:
                return None
            if message.message_id not in self.progress:
                return message
        return None
