"""A checkpointer that keeps the newest checkpoint, so that a step of the task can have it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
)
from msgspec import Struct

Typed = tuple[str, bytes]
"""A value as LangGraph serializes it: its type and its bytes."""

CHECKPOINT = {"id", "channel_values", "channel_versions", "versions_seen"}
"""What a checkpoint has."""


class _Newest(Struct):
    """The newest checkpoint of a namespace, and the writes that are pending on it."""

    id: str
    checkpoint: Typed
    metadata: Typed
    writes: list[tuple[str, str, Typed, int]] = []


class Saver(BaseCheckpointSaver[int]):
    """Keeps the newest checkpoint of one thread in memory, and can be written down."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, _Newest] = {}

    def dumps(self) -> bytes:
        """Everything, as bytes."""
        return msgspec.msgpack.encode(self._newest) if self._newest else b""

    @classmethod
    def loads(cls, data: bytes) -> Saver:
        """What `dumps` wrote; raises an error if it cannot be read."""
        saver = cls()
        saver._newest = msgspec.msgpack.decode(data, type=dict[str, _Newest])
        for newest in saver._newest.values():
            missing = CHECKPOINT - set(saver.serde.loads_typed(newest.checkpoint))
            if missing:
                raise ValueError(f"the checkpoint has no {', '.join(missing)}")
            for typed in (newest.metadata, *(value for _, _, value, _ in newest.writes)):
                saver.serde.loads_typed(typed)
        return saver

    def clear(self) -> None:
        """Forget everything."""
        self._newest.clear()

    @property
    def values(self) -> dict[str, Any]:
        """The values of the graph's channels."""
        newest = self._newest.get("")
        found = self.serde.loads_typed(newest.checkpoint)["channel_values"] if newest else {}
        return dict(found)

    def set_value(self, channel: str, value: Any) -> None:
        """Change the value of a channel."""
        newest = self._newest[""]
        checkpoint = self.serde.loads_typed(newest.checkpoint)
        values = {**checkpoint["channel_values"], channel: value}
        newest.checkpoint = self.serde.dumps_typed({**checkpoint, "channel_values": values})

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """See `BaseCheckpointSaver.get_tuple`."""
        where = config["configurable"]
        namespace = where.get("checkpoint_ns", "")
        newest = self._newest.get(namespace)
        wanted = get_checkpoint_id(config)
        if newest is None or (wanted and wanted != newest.id):
            return None
        found = {"checkpoint_ns": namespace, "checkpoint_id": newest.id}
        return CheckpointTuple(
            config={"configurable": {"thread_id": where["thread_id"], **found}},
            checkpoint=self.serde.loads_typed(newest.checkpoint),
            metadata=self.serde.loads_typed(newest.metadata),
            pending_writes=[
                (task, channel, self.serde.loads_typed(value))
                for task, channel, value, _ in newest.writes
            ],
        )

    def list(self, config: Any, **_: Any) -> Iterator[CheckpointTuple]:
        """See `BaseCheckpointSaver.list`: the newest is all that there is."""
        found = self.get_tuple(config) if config else None
        if found is not None:
            yield found

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """See `BaseCheckpointSaver.put`."""
        where = config["configurable"]
        namespace = where.get("checkpoint_ns", "")
        # the runs of subgraphs that belong to the checkpoint before have ended
        begins = f"{namespace}|" if namespace else ""
        for name in [name for name in self._newest if name.startswith(begins)]:
            if ":" in name[len(begins) :]:
                del self._newest[name]
        self._newest[namespace] = _Newest(
            checkpoint["id"],
            self.serde.dumps_typed(checkpoint),
            self.serde.dumps_typed(dict(metadata)),
        )
        found = {"checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]}
        return {"configurable": {"thread_id": where["thread_id"], **found}}

    def put_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `BaseCheckpointSaver.put_writes`."""
        where = config["configurable"]
        newest = self._newest.get(where.get("checkpoint_ns", ""))
        if newest is None or newest.id != where["checkpoint_id"]:
            return
        for index, (channel, value) in enumerate(writes):
            place = WRITES_IDX_MAP.get(channel, index)
            known = [w for w in newest.writes if (w[0], w[3]) == (task_id, place)]
            if known and place >= 0:
                continue
            newest.writes = [w for w in newest.writes if w not in known]
            newest.writes.append((task_id, channel, self.serde.dumps_typed(value), place))

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        """See `get_tuple`."""
        return self.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        for found in self.list(config, **options):
            yield found

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """See `put`."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `put_writes`."""
        self.put_writes(config, writes, task_id, task_path)
