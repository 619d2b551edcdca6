"""Gates: code that runs around the handler of a skill, in the same durable turn.

A gate may ask the client before the handler runs, in as many messages as it takes. It decides
whether the handler runs, and it gets the status with which the handler ends the task before that
status is logged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec.structs import replace

from dragoman.model import clock
from dragoman.model.types import (
    AgentExtension,
    Message,
    Metadata,
    Part,
    Role,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

if TYPE_CHECKING:
    from dragoman.agent.turn import Turn
    from dragoman.stores.reservations import Reservation


class GateStore(Protocol):
    """The store of the agent, as a gate sees it. In `Gate.enter`, call its methods in a step."""

    agent: str
    """The key of the agent."""
    skill: str
    """The id of the skill; empty for the default handler."""

    async def reserve(self, space: str, key: str, value: bytes, *, keep: float | None) -> bytes:
        """Do what `App.reserve` does: store a value under a space and key, if there is none, and
        return the value that is stored."""

    async def release(self, space: str, key: str) -> bool:
        """Do what `App.release` does: delete the value under a space and key. Returns whether there
        was one."""

    def reservations(self, space: str, prefix: str = "") -> AsyncIterator[Reservation]:
        """Yield the reservations of a space whose keys begin with `prefix`, in the order of their
        keys."""

    async def task_state(self, task: str) -> TaskState | None:
        """Return the state of a task of this agent; None if it does not exist any more."""

    def report(self, event: str, result: str = "ok", **about: str) -> None:
        """Count an event in `dragoman_gate_events_total`, and write it to the audit log, if there
        is one. There must be few different events. What it is `about` is only in the audit log, and
        must not be secret."""


class GatedWork(GateStore, Protocol):
    """The handler behind a gate, as the gate sees it."""

    saved: Any
    """The value that the gate has kept for this task in an earlier turn, or in this one with
    `save`; None if there is none. The handler has its own, see `Turn.saved`."""

    async def run(self, timeout: float | None = None) -> TaskStatusUpdateEvent | None:
        """Run the handler and return the status with which it ended the task; None if it waits for
        the client. The status is logged when the gate returns, and not at all if the gate raises an
        exception or has ended the task itself.

        A durable handler continues where it was. Any other handler runs again after a crash only
        as often as the agent's `retries` allow; then the status is `failed`. What the gate does
        after `run` finds the same status when the turn runs again. If the task is canceled, the
        status is `canceled`, and the gate has the rest of the grace period. If the worker must give
        the task to another one, CancelledError is raised, which the gate lets pass.

        A handler that is not durable is canceled after `timeout` seconds; then the status is
        `failed`."""

    def publish(self) -> None:
        """Have the output of the handler logged when the gate returns, before the status. Only a
        gate with `holds_output` needs to call it."""

    async def save(self, value: Any) -> None:
        """Keep a JSON value or bytes for the later turns of this task. Clients never see it. It is
        durable when this returns."""

    async def private_metadata(self) -> Metadata:
        """Return the private metadata of the message that the turn has read last: the answer of
        `turn.ask_for`, else the message of the turn. See `PrivateMetadata`. Call it in a step, and
        do not return the values from there. They are kept for 7 days; then they are missing."""

    async def private_parts(self) -> Sequence[Part]:
        """Return the private parts of that message. See `PrivateParts`, and `private_metadata`."""

    def conclude(
        self, metadata: Metadata, text: str = "", *, extensions: Sequence[str] = ()
    ) -> None:
        """Add metadata and extensions to the message of the status that ends the task, however it
        ends in this turn. A status without a message gets one with this text. The last call
        counts."""


@runtime_checkable
class Gate(Protocol):
    """Runs around the handler of a skill: `@agent.skill(gate=…)`."""

    def extensions(self, skill: str) -> Sequence[AgentExtension]:
        """Return the extensions of the card that this gate needs for a skill. The card requires an
        extension if all handlers of the agent have a gate that requires it; parameters are
        merged."""

    async def enter(self, turn: Turn, work: GatedWork) -> None:
        """Run in place of the handler, as a durable handler does: with steps, `turn.ask_for` and
        `turn.emit`. Call `work.run()` at most once."""


@runtime_checkable
class PrivateMetadata(Protocol):
    """A gate that has this reads metadata of messages that nobody else may see: for example a
    signature, or a code that may be used once."""

    @property
    def private_metadata(self) -> Collection[str]:
        """The keys. In all messages to the agent, their values are taken out before the message is
        logged: handlers, the history of the task, streams, webhooks and the console do not have
        them. `GatedWork.private_metadata` returns them."""


@runtime_checkable
class OutputGate(Protocol):
    """A gate that has this may hold back the output of its handler."""

    @property
    def holds_output(self) -> bool:
        """Whether nothing of what the handler says and returns is logged before the gate returns,
        and nothing at all unless it has called `work.publish()`. The handler must return its
        output: it is no generator, it is not durable, and it does not ask its client."""


@runtime_checkable
class MaintainedGate(Protocol):
    """A gate that has this looks after what it has stored, also when no task runs."""

    async def maintain(self, store: GateStore) -> None:
        """Do what is due. It is called after the start, and then every minute, in each process that
        runs turns of the agent. If several processes must not do the same at once, it reserves a
        key for a short time. An exception is logged."""


@runtime_checkable
class PrivateParts(Protocol):
    """A gate that has this reads parts of messages that nobody else may see."""

    def is_private(self, part: Part) -> bool:
        """Whether nobody else may see this part. In all messages to the agent, an empty data part
        is logged instead of such parts. `GatedWork.private_parts` returns them."""


class Conclusion:
    """What a gate adds to the last status."""

    def __init__(self, metadata: Metadata, text: str, extensions: Sequence[str]) -> None:
        self._metadata, self._text, self._extensions = metadata, text, tuple(extensions)

    def added_to(self, event: TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        """The status with the additions."""
        message = event.status.message or Message(
            message_id=clock.uuid7(),
            context_id=event.context_id,
            task_id=event.task_id,
            role=Role.AGENT,
            parts=(Part(text=self._text or "Done"),),
        )
        listed = dict.fromkeys((*message.extensions, *self._extensions))
        message = replace(
            message,
            metadata={**(message.metadata or {}), **self._metadata},
            extensions=tuple(listed),
        )
        status: TaskStatus = replace(event.status, message=message)
        return replace(event, status=status)


def card_extensions(gates: Mapping[str, Gate | None]) -> Iterable[AgentExtension]:
    """The extensions that the gates of an agent's handlers need, by the ids of their skills."""
    found: dict[str, AgentExtension] = {}
    required: dict[str, int] = {}
    for skill, gate in gates.items():
        for one in gate.extensions(skill) if gate is not None else ():
            known = found.get(one.uri, one)
            found[one.uri] = replace(known, params=_merged(known.params, one.params))
            required[one.uri] = required.get(one.uri, 0) + one.required
    return [replace(one, required=required[uri] == len(gates)) for uri, one in found.items()]


def private_keys(gates: Iterable[object]) -> frozenset[str]:
    """The keys of metadata that gates want to be private."""
    found: set[str] = set()
    for gate in gates:
        if isinstance(gate, PrivateMetadata):
            found.update(gate.private_metadata)
    return frozenset(found)


def private_tests(gates: Iterable[object]) -> tuple[Callable[[Part], bool], ...]:
    """The tests of gates whether parts are private; each once."""
    found = {id(gate): gate.is_private for gate in gates if isinstance(gate, PrivateParts)}
    return tuple(found.values())


def holds_output(gate: object) -> bool:
    """Whether a gate holds back the output of its handler."""
    return isinstance(gate, OutputGate) and gate.holds_output


def _merged(first: Metadata | None, second: Metadata | None) -> Metadata | None:
    """Both; where both have an object, its fields."""
    if first is None or second is None:
        return second if first is None else first
    merged: dict[str, Any] = dict(first)
    for name, value in second.items():
        known = merged.get(name)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[name] = {**known, **value} if both else value  # type: ignore[dict-item]
    return merged
