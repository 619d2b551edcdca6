"""The artifacts of an executor's turn, also of one that runs again after a crash."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from dragoman import Artifact, TaskArtifactUpdateEvent, Turn
from dragoman.bridges.sdk.executor_state import ExecutorState, saved_state


class Artifacts:
    """The ids of the artifacts of an attempt, and whether a chunk begins an artifact.

    Artifacts keep the ids that the executor gives them. Executors make random ids: in an attempt
    after a crash, each new artifact gets the id of the artifact that the last attempt began in the
    same place, and replaces it.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._known = {artifact.artifact_id for artifact in turn.task.artifacts}
        """Those that can be appended to."""
        self._left: list[str] = []
        """Those that an attempt before this one has begun."""
        self._names: dict[str, str] = {}
        self._begins: ExecutorState | None = None

    def restore(self) -> list[TaskArtifactUpdateEvent]:
        """Look at what the task has at the beginning of the turn. In a later attempt, return events
        that take back what the attempt before it has appended to that."""
        turn, number = self._turn, self._turn.idempotency_key
        now = {artifact.artifact_id: artifact for artifact in turn.task.artifacts}
        found = saved_state(turn)
        if turn.attempt > 1 and found.turn == number:
            before = found.artifacts
        else:
            before = {id: _size(artifact) for id, artifact in now.items()}
            self._begins = replace(found, turn=number, artifacts=before)
        self._left = [id for id in now if id not in before]
        self._known = set(before)
        return list(self._cut(now, before))

    async def begin(self) -> None:
        """Keep it, before the first event of the task. It is kept also if there was nothing: then
        a later attempt gets the task as it is in the log."""
        if self._begins is not None:
            begins, self._begins = self._begins, None
            await begins.save(self._turn)

    def _cut(
        self, now: dict[str, Artifact], before: dict[str, tuple[int, int]]
    ) -> Iterator[TaskArtifactUpdateEvent]:
        for id, size in before.items():
            if id in now and _size(now[id]) != size:
                artifact = _first(now[id], *size)
                yield TaskArtifactUpdateEvent(
                    task_id=self._turn.task.id,
                    context_id=self._turn.context_id,
                    artifact=artifact,
                )

    def identified(self, event: TaskArtifactUpdateEvent) -> TaskArtifactUpdateEvent:
        """The event with the id of this task's artifact. What was not begun is begun."""
        id = event.artifact.artifact_id
        name = self._names.get(id) or self._name(id)
        append = event.append and name in self._known
        self._known.add(name)
        if name != id:
            event = replace(event, artifact=replace(event.artifact, artifact_id=name))
        return event if append is event.append else replace(event, append=append)

    def _name(self, id: str) -> str:
        if id in self._left:
            self._left.remove(id)
        elif self._left and id not in self._known:
            self._names[id] = id = self._left.pop(0)
        return id


def _size(artifact: Artifact) -> tuple[int, int]:
    """How many parts it has, and how many characters of text the last one has."""
    last = artifact.parts[-1].text if artifact.parts else None
    return len(artifact.parts), len(last or "")


def _first(artifact: Artifact, parts: int, characters: int) -> Artifact:
    """The artifact when it had this size: appending extends the last part, or adds parts."""
    kept = list(artifact.parts[:parts])
    if kept and kept[-1].text is not None:
        kept[-1] = replace(kept[-1], text=kept[-1].text[:characters])
    return replace(artifact, parts=tuple(kept))
