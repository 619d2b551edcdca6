"""The head row of a log in a database: its columns, and how they are read and written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from dragoman.model.caller import Scope
from dragoman.model.events import Received
from dragoman.model.types import TaskState
from dragoman.stores.codec import STATES, decode_canceled, encode
from dragoman.stores.store import Unreadable
from dragoman.stores.task_head import TaskHead
from dragoman.stores.unreadable_rows import DECODING, agrees


class SqlHead(TaskHead):
    """A head row in a database, with the stored values that other stores do not need."""

    FIXED = ("key", "id", "agent", "tenant", "owner", "context")
    USUAL = (
        *("skill", "state", "changed", "last", "version", "born", "replied", "epoch", "holder"),
        *("lease", "turn", "settled", "attempt", "inbox", "cancel_at", "canceled", "hooked"),
        *("size", "ready", "ended"),
    )
    SUSPENDED = ("due", "deadline", "plan")
    """Columns that are empty unless a handler is or was suspended."""
    CHANGING = USUAL + SUSPENDED
    """Its columns, in the order of `restored` and `changing`."""

    __slots__ = ("counted", "ended_at", "key", "latest", "offered", "size")
    key: int
    """The number of the task inside the database; 0 before it is stored."""
    size: int
    """The size of the log in bytes."""
    ended_at: float | None
    offered: float | None
    """Its rank among the ready logs."""
    counted: TaskState | None
    """The state under which it is counted; None before the task has begun."""
    latest: tuple[int, Received] | None
    """The latest message, until its turn begins."""

    def _clear(self) -> None:
        super()._clear()
        self.key = self.size = 0
        self.ended_at = self.offered = self.counted = self.latest = None

    @classmethod
    def restored(cls, columns: Sequence[Any]) -> Self:
        """Make the row from these columns. Raises Unreadable."""
        row = cls.__new__(cls)
        row._clear()
        try:
            row._restore(columns)
        except DECODING as error:
            id = columns[1]
            name = id if isinstance(id, str) else repr(id)
            raise Unreadable("head", name, error) from None
        return row

    def _restore(self, columns: Sequence[Any]) -> None:
        (
            self.key, self.id, agent, tenant, owner, self.context, self.skill, state,
            self.changed, self.last, self.version, born, replied, self.epoch, self.holder,
            self.lease, self.turn, self.settled, self.attempt, inbox, self.cancel_at, canceled,
            hooked, self.size, self.offered, self.ended_at, due, deadline, plan,
        ) = columns  # fmt: skip
        self.scope = Scope(agent, tenant, owner)
        if state not in STATES:
            raise ValueError(f"unknown state {state}")
        self.state = STATES[state]
        self.born, self.replied, self.hooked = bool(born), bool(replied), bool(hooked)
        self.inbox = tuple(map(int, inbox.split(","))) if inbox else ()
        self.canceled = None if canceled is None else decode_canceled(canceled)
        if due is not None:
            self.due = due
        if deadline is not None:
            self.deadline = deadline
        if plan is not None:
            self.waits, self.began, self.private = map(int, plan.split(","))
        self.counted = self.state if self.born else None
        agrees(self)

    def changing(self, lease: float) -> tuple[Any, ...]:
        """Return the values of the columns that change, with this lease."""
        return (
            self.skill, self.state.number, self.changed, self.last, self.version, self.born,
            self.replied, self.epoch, self.holder, lease, self.turn, self.settled,
            self.attempt, self._inbox(), self.cancel_at,
            None if self.canceled is None else encode(self.canceled), self.hooked, self.size,
            self.offered, self.ended_at, *self.suspended(),
        )  # fmt: skip

    def _inbox(self) -> str:
        return ",".join(map(str, self.inbox)) if self.inbox else ""

    def suspended(self) -> tuple[float | None, float | None, str | None]:
        """Return the values of `SUSPENDED`."""
        plan = None
        if self.private or self.began or self.due:
            plan = f"{self.waits},{self.began},{self.private}"
        return self.due or None, self.deadline or None, plan

    def receive(self, received: Received) -> int:
        """Add a message, and keep it for a claim in the same transaction."""
        number = super().receive(received)
        self.latest = (number, received)
        return number
