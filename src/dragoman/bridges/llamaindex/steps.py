"""The steps of a workflow of LlamaIndex: they wait until what was done before is in the log."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import types
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from workflows import Workflow
from workflows.events import Event, StepState, StepStateChanged, StopEvent, WorkflowIdleEvent
from workflows.handler import WorkflowHandler
from workflows.utils import get_steps_from_instance


class Barrier:
    """Where the steps of a workflow wait until what has been done is in the log."""

    def __init__(self, known: int) -> None:
        self._known = known
        """How many steps had begun in the log: they begin again, and there is nothing to log."""
        self._passes: list[asyncio.Future[None]] = []
        self.reached = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next `open`."""
        if self._known:
            self._known -= 1
            return
        passing = asyncio.get_running_loop().create_future()
        self._passes.append(passing)
        self.reached.set()
        await passing

    def open(self) -> None:
        """Let those pass who wait."""
        passes, self._passes = self._passes, []
        self.reached.clear()
        for passing in passes:
            if not passing.done():
                passing.set_result(None)


BARRIER: ContextVar[Barrier | None] = ContextVar("barrier", default=None)
"""The barrier of the run whose steps run here."""


def with_barrier(workflow: Workflow, names: frozenset[str]) -> Workflow:
    """A copy of a workflow whose steps of these names wait at the barrier before they begin."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def step(*args: Any, **kwargs: Any) -> Any:
            if (barrier := BARRIER.get()) is not None:
                await barrier.wait()
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            return await asyncio.to_thread(function, *args, **kwargs)

        return step

    changed = copy.copy(workflow)
    for name, method in get_steps_from_instance(workflow).items():
        if name in names:
            vars(changed)[name] = types.MethodType(wrapped(method.__func__), changed)
    return changed


class RunningWorkflow:
    """A workflow that runs in this process."""

    def __init__(
        self, handler: WorkflowHandler, barrier: Barrier, said: str, used: Mapping[str, int]
    ) -> None:
        self.handler = handler
        self.barrier = barrier
        self.said = said
        """The end of what it has streamed."""
        self.used = dict(used)
        self.asked: list[Event] = []
        self.moved = True
        """A step has begun since the answers were sent."""
        self._stream = handler.stream_events(expose_internal=True)
        self._next: asyncio.Future[Event] | None = None

    async def events(self) -> AsyncIterator[Event | None]:
        """What the workflow streams, until it ends; None when steps are at the barrier and all that
        was streamed before has been given."""
        while True:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._stream))
            reached = asyncio.ensure_future(self.barrier.reached.wait())
            try:
                await asyncio.wait((self._next, reached), return_when="FIRST_COMPLETED")
            finally:
                reached.cancel()
            if not self._next.done():
                await asyncio.sleep(0)
            if not self._next.done():
                yield None
                continue
            done, self._next = self._next, None
            try:
                event = done.result()
            except StopAsyncIteration:
                return
            if isinstance(event, StepStateChanged) and event.step_state is StepState.RUNNING:
                self.moved = True
            yield event

    async def settle(self) -> None:
        """Wait until the steps that wait have said again for what."""
        async for event in self.events():
            self.barrier.open()
            if isinstance(event, WorkflowIdleEvent | StopEvent):
                return

    async def stop(self) -> None:
        """Stop it, if it has not ended."""
        if self._next is not None:
            self._next.cancel()
        if not self.handler.is_done():
            await self.handler.cancel_run()
