"""The worker, as the run of a turn sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.agent.agent import Agent
from dragoman.agent.threads import Threads
from dragoman.bells.bell import Bell
from dragoman.server.loop_pacing import Pace
from dragoman.server.settings import Settings
from dragoman.stores.store import Store

if TYPE_CHECKING:
    from dragoman.server.run import Run


class RunningWorker(Protocol):
    """The part of the worker that a run uses."""

    agents: Mapping[str, Agent]
    store: Store
    bell: Bell
    settings: Settings
    loop: asyncio.AbstractEventLoop
    states: dict[str, Any]
    threads: Threads
    pace: Pace
    timed: Callable[[float], None] | None
    raised: Callable[[BaseException], None] | None
    steps: Callable[[str, str], None] | None
    gate_events: Callable[[str, str], None] | None
    addresses: Mapping[str, str]

    async def hand_back(self, run: Run) -> None:
        """Let another worker try again, or fail the task."""

    def give_back(self, run: Run) -> None:
        """Give up the run because its events cannot be stored."""

    def let_go(self, run: Run) -> None:
        """Give up the run because its claim expired before the handler started."""

    def let_wait(self, run: Run, delay: float) -> None:
        """Give up the run because another turn is first; it is tried again after `delay`."""

    def postpone(self, run: Run, why: BaseException) -> None:
        """Give up the run because this process cannot do it; it is tried again later."""

    def abandon(self, run: Run) -> None:
        """Give up the run because it can write nothing any more."""

    def left(self, run: Run) -> None:
        """The run has ended."""
