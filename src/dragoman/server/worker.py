"""The worker: claims tasks that have an unprocessed message, runs them, and renews the claims.

It communicates only through the store. The bell just saves the wait for the next poll, so a worker
in another process works the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

from dragoman.agent import running_step
from dragoman.agent.agent import Agent
from dragoman.agent.threads import Threads
from dragoman.bells.bell import Bell
from dragoman.model import clock
from dragoman.model.errors import Unavailable
from dragoman.model.events import Entry
from dragoman.model.types import TaskState, TaskStatusUpdateEvent
from dragoman.server.failed_turns import failed, stack_of
from dragoman.server.loop_pacing import Pace
from dragoman.server.run import Run
from dragoman.server.settings import Settings
from dragoman.stores.store import NOBODY, Claim, Head, Owner, Store, owner_of
from dragoman.telemetry.logs import logger
from dragoman.telemetry.metrics import Metrics
from dragoman.telemetry.otel import About, Spans

PATIENCE = 1 / 3
"""The part of a lease to wait for a renewal before the worker tries again."""
RESERVED = 10
"""One slot of this many is never given to an owner who has all the others."""
LATER = 30.0
"""How many seconds pass before a turn is tried again that the code here cannot run."""
RETURNED = {"": "shutdown", "drain": "shutdown", "deadline": "deadline", "store": "store"}
"""Why a turn is returned before its end, as its log says it."""
CLAIMS = 64
"""The most tasks of one claim, so that other workers get some, too."""


class Worker:
    """Runs the turns of some agents. Start it with `run`, end it with `drain`."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        store: Store,
        bell: Bell,
        settings: Settings,
        *,
        metrics: Metrics | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.agents = agents
        self.metrics = metrics
        self.spans = spans
        self.timed: Callable[[float], None] | None = (
            None if metrics is None else metrics.append.at().observe
        )
        """Receives the seconds of each append, for metrics."""
        self.raised: Callable[[BaseException], None] | None = None
        """Receives the errors of handlers, for tests."""
        self.steps: Callable[[str, str], None] | None = (
            None if metrics is None else metrics.steps.add
        )
        """Counts the steps of an agent by their result, if metrics are kept."""
        self.gate_events: Callable[[str, str], None] | None = (
            None if metrics is None else metrics.gate_events.add
        )
        """Counts the events of an agent's gates."""
        self._waits = {} if metrics is None else {key: metrics.claim.at(key) for key in agents}
        self.store = store
        self.bell = bell
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.id = f"worker:{clock.uuid7()}"
        self.addresses: Mapping[str, str] = {}
        """The URLs at which others reach the agents, as far as they are known."""
        self.states: dict[str, Any] = {}
        """The values that the agents' lifespans yielded."""
        self.runs: dict[str, Run] = {}
        self._fair_share = max(1, settings.max_running // 2)
        """The most runs of one owner while others wait."""
        self._most_alone = settings.max_running - settings.max_running // RESERVED
        """The most runs of one owner even if nobody else waits, so that the next owner need not
        wait for a turn to end."""
        self._shares: dict[Owner, int] = {}
        """The number of runs of each owner."""
        self.threads = Threads(settings.threads)
        self.pace = Pace()
        """Lets one large output be encoded at a time."""
        self._zombies: set[asyncio.Task[None]] = set()
        self._draining = False
        self._drained = asyncio.Event()
        self._claims: dict[asyncio.Future[Sequence[Claim]], int] = {}
        """The claims in progress, and how many tasks each may bring."""
        self._look_scheduled = False
        self._doubtful = False
        """The response of a claim was lost: the store may have claims for this worker that it does
        not know."""
        self._settling = False
        """Such claims are being released."""
        self._given_up: set[tuple[str, int]] = set()
        """Claims whose turns started and that are not handed back yet."""
        self._overdue: set[Run] = set()
        """Runs past their deadline and grace period, whose tasks are being ended without the
        handler."""
        self._returned: list[asyncio.Future[Any]] = []
        self._look_again = False
        self.ended = self.failed = self.lost = 0
        """How many runs have ended, how many of them have failed their task, and how many had lost
        their claim."""
        self._context = contextvars.copy_context()
        # an application that is started inside of a step: its turns are not part of that step
        self._context.run(running_step.enter, None)

    async def run(self) -> None:
        """Work until drained."""
        topics = [f"work:{key}" for key in self.agents]
        with self.bell.listeners.on_ring(self.look, *topics):
            async with asyncio.TaskGroup() as group:
                beat = group.create_task(self._tick())
                self.look()
                await self._drained.wait()
                beat.cancel()

    async def drain(self, grace: float) -> None:
        """Stop claiming, let running turns end, and stop them after the grace period. If the store
        hangs, do not wait for it: leases expire."""
        self._draining = True
        patience = self.settings.cancel_grace
        if self._claims:
            await asyncio.wait(list(self._claims), timeout=patience)
        if self._doubtful and not self._claims:
            with suppress(Unavailable, TimeoutError):  # leases expire
                async with asyncio.timeout(patience):
                    await self._release_unknown()
        if self._returned:
            await asyncio.wait(list(self._returned), timeout=patience)
        tasks = [run.task for run in self.runs.values()]
        if tasks and grace > 0:
            await asyncio.wait(tasks, timeout=grace)
        for run in list(self.runs.values()):
            run.stop("drain")
        tasks = [run.task for run in self.runs.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=min(grace, patience))
        # A canceled turn has its cancel grace, even if the drain is shorter.
        canceled = [run.task for run in self.runs.values() if run.reason == "cancel"]
        if canceled:
            await asyncio.wait(canceled, timeout=patience)
        if left := list(self.runs.values()):
            back = [asyncio.ensure_future(self.hand_back(run)) for run in left]
            _, hanging = await asyncio.wait(back, timeout=patience)
            for giving in hanging:
                giving.cancel()
            for run in left:
                self.abandon(run)
        self._drained.set()

    @property
    def stuck(self) -> list[str]:
        """The handlers that still run although they were canceled."""
        return [task.get_name() for task in self._zombies if not task.done()]

    def left(self, run: Run) -> None:
        """A run has ended: its slot is free."""
        run.turn._end(run.handler.name)
        if self.runs.get(run.claim.head.id) is run:
            if self.metrics is not None:
                took = time.monotonic() - (run.deadline - run.limit)
                self.metrics.turn.at(run.agent.key, run.outcome).observe(took)
            self.ended += 1
            if run.lost:
                self.lost += 1
            elif run.state is TaskState.FAILED:
                self.failed += 1
            full = len(self.runs) >= self._most_alone
            del self.runs[run.claim.head.id]
            owner = owner_of(run.claim.head.scope)
            self._shares[owner] -= 1
            if not self._shares[owner]:
                del self._shares[owner]
            if full:
                self.look()

    # -- claiming

    def look(self) -> None:
        """Claim waiting tasks, as far as there are free slots."""
        if not self._claims:
            self._look()
        elif not self._look_scheduled:
            # While a claim is in progress, another one takes what arrived since. All rings of one
            # moment share one claim.
            self._look_scheduled = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_scheduled = False
        coming = sum(self._claims.values()) if self._claims else 0
        taken = len(self.runs) + coming
        room = min(CLAIMS, self.settings.max_running - taken)
        passing, spare = NOBODY, room
        if taken + room > self._fair_share:  # otherwise no owner can exceed half
            passing = frozenset(each for each, n in self._shares.items() if n >= self._fair_share)
            most = max((n for n in self._shares.values() if n < self._fair_share), default=0)
            room = min(room, self._fair_share - most - coming)
            spare = max(self._most_alone - max(self._shares.values(), default=0) - coming, 0)
        if room <= 0 or self._draining or self._doubtful:
            self._look_again = True
            return
        self._look_again = False
        until = time.monotonic() + self.settings.lease
        future = self.store.claim(self.agents, self.id, self.settings.lease, room, passing, spare)
        if future.done():
            self._claimed(future, room, until)
        else:
            self._claims[future] = room
            future.add_done_callback(partial(self._claimed, room=room, until=until))

    def _claimed(self, future: asyncio.Future[Sequence[Claim]], room: int, until: float) -> None:
        self._claims.pop(future, None)
        if error := future.exception():
            away = isinstance(error, Unavailable)
            self._doubtful = True
            logger.error(
                "cannot claim tasks; retrying: %s",
                error,
                exc_info=None if away else error,
            )
            return
        claims = future.result()
        if self._draining or time.monotonic() > until:  # they came too late
            for claim in claims:
                self._return(self._release(claim.head, None, begun=False))
            return
        for claim in claims:
            self.begin(claim, until)
        if self._look_again or len(claims) == room:
            self.look()

    def begin(self, claim: Claim, until: float = math.inf) -> Run:
        """Start a run for a claim. `until` is when the lease expires by the local clock, if it is
        not renewed."""
        if before := self.runs.get(claim.head.id):  # an earlier run whose lease expired unnoticed
            self.abandon(before)
        if self._waits and claim.attempt == 1:
            waited = time.time() - clock.seconds(claim.received.at)
            self._waits[claim.head.scope.agent].observe(waited if waited > 0 else 0.0)
        run = Run(self, claim)
        run.held_until = until
        self.runs[claim.head.id] = run
        owner = owner_of(claim.head.scope)
        self._shares[owner] = self._shares.get(owner, 0) + 1
        life = run.perform() if self.spans is None else self._traced(run, self.spans)
        # A fresh context: the handler must not see the context variables of the request.
        run.task = self.loop.create_task(life, context=self._context.copy())
        return run

    async def _traced(self, run: Run, spans: Spans) -> None:
        """Run it in a span."""
        claim = run.claim
        about: About = {
            "a2a.agent": run.agent.key,
            "gen_ai.agent.name": run.agent.name,
            "a2a.skill": claim.received.skill,
            "a2a.task.id": claim.head.id,
            "gen_ai.conversation.id": claim.head.context,
            "a2a.attempt": claim.attempt,
        }
        trace = claim.received.trace
        with spans.open("CONSUMER", f"turn {run.agent.key}", about, trace, apart=True) as span:
            await run.perform()
            span.set_attribute("a2a.outcome", run.outcome)
            if run.outcome in ("failed", "lost"):
                spans.failed(span, run.outcome, run.error or run.reason)

    # -- renewing claims

    async def _tick(self) -> None:
        """Look for work, renew leases, and find cancels and lost claims, even if no bell rings."""
        with self.bell.listeners.listen(self.id) as listener:
            while True:
                await listener.wait(self.settings.poll)
                try:
                    self.look()
                    self._check_deadlines()
                    self._check_claims()
                    if self.runs:
                        await self._renew()
                except Unavailable as error:
                    logger.error("cannot renew claims; retrying: %s", error)
                except Exception:
                    logger.exception("cannot renew claims; retrying")

    def _check_claims(self) -> None:
        """Release claims whose response was lost."""
        if self._doubtful and not self._claims and not self._settling:
            self._settling = True
            self._return(self._release_unknown())

    async def _release_unknown(self) -> None:
        """Release claims whose response was lost; their turns never started."""
        try:
            running = {(run.claim.head.id, run.claim.epoch) for run in self.runs.values()}
            for head in await self.store.held(self.id):
                if (head.id, head.epoch) not in running | self._given_up:
                    logger.warning("the response to a claim came too late", extra={"task": head.id})
                    await self._release(head, None, begun=False)
            self._doubtful = False
        finally:
            self._settling = False
        self.look()

    async def _renew(self) -> None:
        """Renew all claims in one call. Nothing else delays the next renewal."""
        runs = dict(self.runs)
        # A run with a written final event holds no claim any more.
        claims = [run.claim for run in runs.values() if not run.over]
        asked, lease = time.monotonic(), self.settings.lease
        patience = max(lease * PATIENCE, self.settings.poll)
        try:
            async with asyncio.timeout(patience):
                renewal = await self.store.renew(claims, lease)
        except TimeoutError:  # perhaps only this connection hangs
            raise Unavailable(f"The store did not answer within {patience:g} s") from None
        lost = set(renewal.lost)
        for task, run in runs.items():
            if task not in lost:
                run.held_until = asked + lease
            # Otherwise it has released the claim itself.
            elif run.stopping or not (run.over or run.closing):
                self.abandon(run)
        for task in renewal.canceling:
            runs[task].stop("cancel")

    def _check_deadlines(self) -> None:
        """Stop the turns past their deadline, and end those that do not stop."""
        now, grace = time.monotonic(), self.settings.cancel_grace
        for run in list(self.runs.values()):
            if now > run.deadline + grace:
                if run not in self._overdue:
                    self._overdue.add(run)
                    self._return(self._end_overdue(run))
            elif now > run.deadline:
                run.stop("deadline")

    async def _end_overdue(self, run: Run) -> None:
        """End the task without its handler, which ignores the cancellation."""
        event = run.turn.fail(run.words("deadline"))
        assert isinstance(event, TaskStatusUpdateEvent)
        text = f"{run.words('deadline')}, and its handler ignored the cancellation"
        note = failed(run.claim.head, "deadline", text, stack=stack_of(run.task))
        try:
            await self._release(run.claim.head, event, note=note)
            self.abandon(run)
        finally:
            self._overdue.discard(run)

    def give_back(self, run: Run) -> None:
        """Give up a run whose events cannot be stored, so that it can be tried again."""
        self._return(self.hand_back(run))
        self.abandon(run)

    def _return(self, job: Coroutine[Any, Any, None]) -> None:
        giving = asyncio.ensure_future(job)
        self._returned.append(giving)
        giving.add_done_callback(self._given)

    def _given(self, giving: asyncio.Future[None]) -> None:
        self._returned.remove(giving)
        if error := giving.exception():  # the lease will expire
            logger.error("cannot release a claim: %s", error)

    def let_go(self, run: Run) -> None:
        """Give up a run whose claim expired before the handler started."""
        logger.warning("a claim expired before its turn started", extra={"task": run.claim.head.id})
        run.lost = run.turn.canceled = True
        self._return(self._release(run.claim.head, None, begun=False))

    async def hand_back(self, run: Run) -> None:
        """Let another worker try again if the agent allows it, else fail the task."""
        event = None
        durable = run.handler.durable and run.reason == "drain"
        # A released task with a pending cancel is canceled.
        if run.claim.attempt > run.agent.retries and run.reason != "cancel" and not durable:
            event = run.turn.fail(run.words(run.reason or "drain"))
        note = None
        if run.reason in RETURNED and not durable:
            note = failed(run.claim.head, RETURNED[run.reason], run.words(run.reason))
        key = run.claim.head.id, run.claim.epoch
        self._given_up.add(key)
        try:
            await self._release(run.claim.head, event, begun=not durable, note=note)  # type: ignore[arg-type]
            self._given_up.discard(key)
        except Unavailable as error:  # then its lease expires
            logger.error("cannot return a turn to the queue: %s", error)

    def let_wait(self, run: Run, delay: float) -> None:
        """Return a turn that must wait for another one of its context."""
        run.lost = run.turn.canceled = True
        self._return(self._release(run.claim.head, None, begun=False, delay=delay))

    def postpone(self, run: Run, why: BaseException) -> None:
        """Return a turn that the code of this process cannot run. It is tried again later, since a
        corrected deployment may run it."""
        logger.error(
            "handler %s: cannot continue its task; trying again in %g s: %s",
            *(run.handler.name, LATER, why),
            extra={"task": run.claim.head.id},
        )
        if self.metrics is not None:
            self.metrics.postponed.add(run.agent.key)
        self._return(self._release(run.claim.head, None, begun=False, delay=LATER))

    async def _release(
        self,
        head: Head,
        event: TaskStatusUpdateEvent | None,
        *,
        begun: bool = True,
        delay: float = 0.0,
        note: Entry | None = None,
    ) -> None:
        """Release a claim, and wake the readers and workers concerned."""
        if await self.store.revoke(head, event, begun=begun, delay=delay, note=note) is not None:
            self.bell.ring(head.id)
            if event is None and not delay:
                self.bell.ring(f"work:{head.scope.agent}")

    def abandon(self, run: Run) -> None:
        """Give up a run that can write nothing any more. Its handler may still compute."""
        run.lost = True
        run.wake()
        run.turn.canceled = True  # for a handler in a thread, which cannot be interrupted
        self.left(run)
        for task in run.tasks():
            if task.done():
                continue
            task.set_name(run.handler.name)
            self._zombies.add(task)
            task.add_done_callback(self._zombies.discard)
            task.cancel()
            if not run.closing:  # a turn that asks or sleeps has ended already
                logger.warning(
                    "handler %s continues after its task was taken over",
                    run.handler.name,
                    extra={"task": run.claim.head.id},
                )


def blamed(frame: FrameType) -> str | None:
    """Return the name of the handler that a frame of the event loop's stack belongs to."""
    if frame.f_code is Run.perform.__code__:
        run: Run = frame.f_locals["self"]
        return f"handler {run.handler.name} (task {run.claim.head.id})"
    return None
