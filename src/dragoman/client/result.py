"""What a send came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct

from dragoman.grants import Grant, asked
from dragoman.types import Artifact, Message, Part, Task, TaskState


class Result(Struct, frozen=True):
    """A task, or a direct message."""

    task: Task | None = None
    message: Message | None = None

    @property
    def state(self) -> TaskState | None:
        """The task's state; None for a direct message."""
        return self.task.status.state if self.task else None

    @property
    def grant(self) -> Grant | None:
        """What the task asks to be approved, see `Remote.approve`; None if it asks nothing such."""
        asking = self.task is not None and self.task.status.state is TaskState.AUTH_REQUIRED
        return asked(self.task.metadata) if self.task is not None and asking else None

    @property
    def artifacts(self) -> Sequence[Artifact]:
        """What the task has produced."""
        return self.task.artifacts if self.task else ()

    @property
    def parts(self) -> Sequence[Part]:
        """The content: of the direct message; else of the artifacts, or, without any, of what the
        agent said last. A question is asked by what was said last, whatever was produced before."""
        if self.message is not None:
            return self.message.parts
        if self.task is None:
            return ()
        said = self.task.status.message
        if self.artifacts and not (said and self.task.status.state.interrupted):
            return [part for artifact in self.artifacts for part in artifact.parts]
        return said.parts if said else ()

    @property
    def text(self) -> str:
        """The text of the content; the pieces of one artifact are one text."""
        if self.artifacts and self.parts and self.parts[0] is self.artifacts[0].parts[0]:
            texts = ("".join(p.text or "" for p in item.parts) for item in self.artifacts)
            return "\n".join(text for text in texts if text)
        return "\n".join(part.text for part in self.parts if part.text is not None)

    @property
    def data(self) -> Any:
        """The first structured part of the content, or None."""
        return next((part.data for part in self.parts if part.data is not UNSET), None)

    @property
    def files(self) -> list[Part]:
        """The parts of the content that are files, by content (`raw`) or by `url`."""
        return [part for part in self.parts if part.raw is not None or part.url is not None]
