"""The handler behind a gate: runs it, and holds back the status with which it ends the task."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from dragoman.agent.durable import Journal
from dragoman.agent.gate import Conclusion, Gate
from dragoman.agent.saved_values import decode_saved, encode_saved
from dragoman.model import clock
from dragoman.model.events import Private
from dragoman.model.types import Metadata, Part, TaskState, TaskStatusUpdateEvent
from dragoman.server.gate_store import StoreOfGate
from dragoman.server.private_metadata import Aside, read
from dragoman.server.replay import GATE_SAVED
from dragoman.server.run_writes import HeldEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dragoman.server.run import Run


class Ending(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a handler that is not durable has ended its task."""

    status: TaskStatusUpdateEvent | None = None
    """None if it waits for its client."""
    held: tuple[HeldEvent, ...] = ()
    """Its output, if that is held back."""


_ending = msgspec.json.Decoder(Ending).decode


class Work(StoreOfGate):
    """See `dragoman.GatedWork`."""

    def __init__(self, run: Run, saved: bytes | None) -> None:
        worker, agent = run.worker, run.agent.key
        audits = worker.settings.audit
        super().__init__(worker.store, agent, run.turn.skill, worker.gate_events, audits=audits)
        self._run = run
        self.saved: Any = None if saved is None else decode_saved(saved)
        self._began = False

    @property
    def _journal(self) -> Journal:
        journal = self._run.journal
        assert journal is not None, "a turn with a gate is durable"
        return journal

    async def run(self, timeout: float | None = None) -> TaskStatusUpdateEvent | None:
        """See `GatedWork.run`."""
        if self._began:
            raise RuntimeError("a gate runs its handler at most once")
        self._began = True
        run = self._run
        handler = run.handler
        if timeout is not None and handler.continues:
            raise ValueError("run: timeout: the handler is durable")
        run.withholds, run.holds, run.held = True, handler.holds, []
        try:
            if run.reason == "cancel" and handler.cancel is not None:
                await handler.stop(run.turn, run, run.worker.threads)
                raise asyncio.CancelledError("the task is canceled")
            if handler.continues:
                self._journal.pass_on()
                await run.work()
            else:
                attempt = partial(self._attempt, timeout=timeout)
                ending = _ending(await self._journal.work(attempt))
                run.withheld, run.held = ending.status, list(ending.held)
        except asyncio.CancelledError as error:
            if run.lost or run.reason not in ("cancel", "deadline"):
                raise  # another worker continues
            self._stopped(error)
        finally:
            run.withholds = False
        return run.withheld

    def _stopped(self, error: asyncio.CancelledError) -> None:
        """The task was canceled, or the time is up: the gate does what is left to do."""
        run = self._run
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
        if run.reason == "cancel":
            event = run.turn._status(TaskState.CANCELED, None, None)
        else:
            run.note_stop(error)
            event = run.turn._status(TaskState.FAILED, run.words("deadline"), None)
        run.withheld = run.withheld or event  # type: ignore[assignment]

    async def _attempt(self, attempt: int, *, timeout: float | None) -> bytes:
        """Run a handler that is not durable: it knows nothing of the turn's journal."""
        run = self._run
        if attempt > run.agent.retries + 1:
            times = "" if attempt == 2 else f" (attempt {attempt - 1})"
            words = f"The worker stopped before the agent finished{times}"
            run.withheld = run.turn._status(TaskState.FAILED, words, None)  # type: ignore[assignment]
        else:
            turn, journal, sends = run.turn, run.journal, run.turn._sends
            run.journal = turn._journal = turn._sends = None
            turn._forget_events()  # of the gate: a replay makes them again, and does not emit them
            run.detached = True
            try:
                async with asyncio.timeout(timeout):
                    await run.work()
            except TimeoutError:
                words = "The agent did not finish in the time it has"
                run.withheld = run.turn._status(TaskState.FAILED, words, None)  # type: ignore[assignment]
            finally:
                run.journal = turn._journal = journal
                turn._sends, run.detached = sends, False
        return msgspec.json.encode(Ending(run.withheld, tuple(run.held)))

    def publish(self) -> None:
        """See `GatedWork.publish`."""
        self._run.published = True

    async def save(self, value: Any) -> None:
        """See `GatedWork.save`."""
        data = encode_saved(value, "save")

        async def save() -> bytes:
            self._run.record(Private(kind=GATE_SAVED, value=Raw(data), at=clock.now()))
            return b"null"

        await self._journal.keep("dragoman.gate_save", save)
        self.saved = decode_saved(data)

    def _audit(self, event: str, result: str, **about: str) -> None:
        self._run.audit(event, result, **about)

    async def private_metadata(self) -> Metadata:
        """See `GatedWork.private_metadata`."""
        return (await self._aside()).metadata

    async def private_parts(self) -> Sequence[Part]:
        """See `GatedWork.private_parts`."""
        return (await self._aside()).parts

    async def _aside(self) -> Aside:
        turn = self._run.turn
        return await read(self._run.worker.store, turn._heard or turn._received)

    def conclude(
        self, metadata: Metadata, text: str = "", *, extensions: Sequence[str] = ()
    ) -> None:
        """See `GatedWork.conclude`."""
        self._run.conclusion = Conclusion(metadata, text, extensions)


async def enter(run: Run, gate: Gate, saved: bytes | None) -> None:
    """Run a gate, and append the status that it has held back when it returns or is canceled."""
    try:
        await gate.enter(run.turn, Work(run, saved))
    except asyncio.CancelledError:
        if run.published or not run.holds:
            run.let_go_of_status()
        raise
    run.let_go_of_status()
