"""Carries out a plan: calls agents side by side, passes their questions on, and survives a crash.

Every change is an event, and each event is a step of the task's log. When the handler runs
again, the events come from the log and lead to the same plan; only then are the calls that had not
ended made again, each under its own key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import Message, Part, Turn
from dragoman.orchestrator import questions
from dragoman.orchestrator.agent_call import MOST_QUESTIONS, Call, Scan
from dragoman.orchestrator.agent_team import Team, host_of
from dragoman.orchestrator.answers_for_agents import Division, divide
from dragoman.orchestrator.budget import Spent
from dragoman.orchestrator.model import Model
from dragoman.orchestrator.plan import (
    Asks,
    Done,
    Event,
    Failed,
    InvalidPlan,
    Plan,
    PlanStep,
    Proposed,
    Replied,
    Stopped,
    Uncertain,
    Waited,
    apply,
    begun,
    closed,
)
from dragoman.prompt_safety import clean

logger = logging.getLogger("dragoman")

ASK_AFTER = 30.0
"""Seconds that the first question waits for others, while steps are running."""
HOLD = 240.0
"""Seconds without an event after which the handler sleeps, and looks again later."""
FIRST_SLEEP, LAST_SLEEP = 10.0, 900.0
LONGEST_SAVED = 200_000
"""The most bytes of an event that are logged, and of a plan that is the value of the task."""
QUEUE = 64


class _Noted(Struct):
    """An event of a call. `logged` is done when the event is in the log."""

    event: Event
    logged: asyncio.Future[None] | None = None


class _Happened(Struct, frozen=True):
    """An event as it is logged, with its Unix time."""

    event: Event
    at: float


class Rules(Struct, frozen=True, kw_only=True):
    """What an author has decided about the steps of plans."""

    approve: str = ""
    """`plan`: the client approves each version of a plan before it begins."""
    repeatable: Callable[[PlanStep], bool] = lambda step: False
    """Whether a step may be done twice, if nobody knows whether its agent has got the message."""
    scan: Scan | None = None
    ask_after: float = ASK_AFTER
    hold: float = HOLD


class Execution:
    """The plan of one task while it is carried out."""

    def __init__(
        self, turn: Turn, team: Team, spent: Spent, rules: Rules, model: Model | None = None
    ) -> None:
        self.plan = Plan()
        self.spent = spent
        self._turn, self._team, self._rules, self._model = turn, team, rules, model
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._queue: asyncio.Queue[Any] = asyncio.Queue(QUEUE)
        self._logged: asyncio.Future[None] | None = None
        self._said: dict[str, list[Part] | bool] = {}
        """The latest answers of the client, by step."""
        self.direct: set[str] = set()
        """The steps whose agents talk with the client directly."""
        self._question_since = 0.0
        self._ask_now = False
        self._pause = FIRST_SLEEP
        self._saved = 0
        self._at = spent.began.timestamp()
        """The time of the last thing that was logged: a clock that a replay does not change."""

    def propose(self, steps: Sequence[PlanStep], at: float, *, replaces: bool = False) -> None:
        """Add steps to the plan. They come from the log, where they were written at this time."""
        self._at = at
        if replaces and self.plan.version:
            self.spent.rounds += 1
        self.plan = apply(self.plan, Proposed(tuple(steps), replaces))

    def refuse(self, why: str) -> None:
        """Tell the planner why its proposal is refused."""
        self.plan = replace(self.plan, refused=why)

    def close(self) -> None:
        """End the plan: it does not change any more."""
        self.plan = closed(self.plan)

    async def run(self) -> Plan:
        """Run until no step can continue: each is done, has failed, or needs a failed one."""
        try:
            while await self._advance():
                pass
        finally:
            await self._end_calls()
        return self.plan

    async def _advance(self) -> bool:
        """Do what is next. False if nothing is."""
        self._begin()
        running, asking, held = self.plan.named("running"), self._asking, self._held
        if (asking or held) and (not running or self._ask_now):
            await self._end_calls()
            self._ask_now = False
            await (self._ask_for_plan() if held else self._ask(asking))
        elif running:
            happened: _Happened = await self._turn.step("event", self._next, returns=_Happened)
            self._at = happened.at
            await self._take(happened.event)
        return bool(running or asking or held)

    def _begin(self) -> None:
        """Let the steps begin that need nothing any more, and no approval."""
        why = self.spent.over
        if why and not self.plan.stopped and self.plan.pending:
            self.plan = apply(self.plan, Stopped(why))
        held = self._held
        ready = [step for step in self.plan.ready if step not in held]
        left = self.spent.budget.calls - self.spent.calls
        ready = ready[: max(left, 0)]
        self.spent.calls += len(ready)
        self.plan = begun(self.plan, ready, self._at)

    @property
    def _asking(self) -> tuple[PlanStep, ...]:
        """The steps that wait for an answer of the client."""
        return self.plan.named("asking", "unknown")

    @property
    def _held(self) -> list[PlanStep]:
        """The steps that could begin if the client approved them."""
        if self.plan.approved == self.plan.version:
            return []
        return [step for step in self.plan.ready if step.dangerous or self._rules.approve == "plan"]

    async def _take(self, event: Event) -> None:
        self.plan = apply(self.plan, event, self._at)
        if isinstance(event, Waited):
            self._ask_now = event.asks
            if not event.asks:
                await self._end_calls()
                await self._turn.sleep(self._pause)
                self._pause = min(2 * self._pause, LAST_SLEEP)
        else:
            self._pause = FIRST_SLEEP
        if isinstance(event, Done | Failed | Asks | Uncertain):
            call = self._calls.pop(event.step, None)
            if call is not None:
                call.cancel()  # it still runs if its time was over
        if self._logged is not None:
            self._logged.set_result(None)
            self._logged = None

    # -- what happens: only while it happens, not when it is replayed

    async def _next(self) -> _Happened:
        """The next event. Meanwhile, the output of the agents is passed on."""
        return _Happened(await self._event(), time.time())

    async def _event(self) -> Event:
        if self._saved != self.plan.version:
            await self.save()
        for step in self.plan.named("running"):
            if step.name not in self._calls:
                self._calls[step.name] = asyncio.create_task(self._call(step))
        quiet = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._patience(quiet)):
                    item = await self._queue.get()
            except TimeoutError:
                if (event := self._late(quiet)) is not None:
                    return event
                continue
            if not isinstance(item, _Noted):
                await self._turn.emit(item)
                quiet = time.monotonic()
            elif self._runs(item.event):
                self._logged = item.logged
                return item.event

    def _runs(self, event: Any) -> bool:
        """Whether an event is of a step that runs. A call whose time is over may say one more."""
        return self.plan[event.step].state == "running"

    def _patience(self, quiet: float) -> float:
        """Seconds until something must be decided."""
        now = time.monotonic()
        limits = [quiet + self._rules.hold - now, self.spent.left(datetime.now(UTC))]
        limits += [step.until - time.time() for step in self.plan.named("running")]
        if self._asking or self._held:
            self._question_since = self._question_since or now
            limits.append(self._question_since + self._rules.ask_after - now)
        else:
            self._question_since = 0.0
        return max(min(limits), 0.05)

    def _late(self, quiet: float) -> Event | None:
        """What follows from the time that has passed."""
        now = time.monotonic()
        if self.spent.left(datetime.now(UTC)) <= 0:
            running = self.plan.named("running")
            if self.plan.stopped:
                return Failed(running[0].name, "the time is over", goes_on=True)
            return Stopped("the time is over")
        for step in self.plan.named("running"):
            if time.time() >= step.until:
                return _overdue(step)
        if not all(step.delivered for step in self.plan.named("running")):
            return None  # a message is on its way
        if self._question_since and now >= self._question_since + self._rules.ask_after:
            return Waited(asks=True)
        if now >= quiet + self._rules.hold:
            return Waited()
        return None

    async def _call(self, step: PlanStep) -> None:
        """Make the call of a step, and report how it ended."""
        call = Call(
            self._turn,
            self._team,
            step,
            said=self._said.get(step.name),
            others={other.name: other for other in self.plan.steps},
            repeatable=self._rules.repeatable(step),
            scan=self._rules.scan,
            questions=self.spent.budget.calls if step.name in self.direct else MOST_QUESTIONS,
        )
        try:
            event = await call.run(self._note, self._queue.put)
        except Exception:  # such as a function of the author that raises
            logger.exception(
                "the call of %s failed", step.agent, extra={"task": self._turn.task.id}
            )
            event = Failed(step.name, "an internal error")
        if _size(event) > LONGEST_SAVED:
            event = Failed(step.name, "the agent has sent more than can be kept", goes_on=True)
        await self._queue.put(_Noted(event))

    async def _note(self, event: Event) -> None:
        """Log an event of a call that continues after it."""
        if _size(event) > LONGEST_SAVED:
            raise InvalidPlan("the agent has sent more than can be kept")
        logged = asyncio.get_running_loop().create_future()
        await self._queue.put(_Noted(event, logged))
        await logged

    async def _end_calls(self) -> None:
        """Stop following the agents. Their tasks continue."""
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        while not self._queue.empty():
            self._queue.get_nowait()

    async def save(self) -> None:
        """Keep the plan as the value of the task, for people who look at it."""
        self._saved = self.plan.version
        value = msgspec.to_builtins(self.plan)
        if _size(value) > LONGEST_SAVED:
            small = tuple(replace(step, input=None, outcome=None) for step in self.plan.steps)
            value = msgspec.to_builtins(replace(self.plan, steps=small))
        await self._turn.save(value)

    # -- the client

    async def _ask(self, steps: Sequence[PlanStep]) -> None:
        """Pass the questions on, and take the answers."""
        self._question_since = 0.0
        await self._turn.step("save", self.save, returns=type(None))
        for step in steps:
            if step.question is not None and step.question.kind == "approval":
                return await self._ask_approval(step)
        hosts = {step.name: host_of(step.address) for step in steps}
        direct = len(steps) == 1 and steps[0].name in self.direct
        asked = questions.message(self._turn, steps, hosts, direct=direct)
        answer = await self._turn.ask_for(asked)
        if self._too_late(steps):
            return None
        steps = self._in_time(steps)
        if direct and answer.text.strip().lower() == questions.BACK:
            self.plan = apply(self.plan, _came_back(steps[0]), self._at)
            return None
        found = questions.divided(answer, steps)
        if not found and self._model is not None and not self.spent.model_over:
            found = await self._divided_by_model(self._model, answer, steps)
        for step in steps:
            if step.name in found:
                self._reply(step, found[step.name])
        return None

    def _reply(self, step: PlanStep, said: list[Part] | bool) -> None:
        if step.state == "unknown":
            if not (isinstance(said, list) and questions.agrees(said)):
                why = "it is not known whether the agent has got the message"
                self.plan = apply(self.plan, Failed(step.name, why), self._at)
                return
        else:
            self._said[step.name] = said
        self.spent.calls += 1
        self.plan = apply(self.plan, Replied(step.name))

    async def _ask_approval(self, step: PlanStep) -> None:
        """Pass on what an agent wants to be approved. Words approve nothing."""
        assert step.question is not None
        host = host_of(step.address)
        operation = {
            "step": step.name,
            "agent": step.agent,
            "host": host,
            "operation": step.question.operation,
        }
        text = questions.in_words(step, host)
        approved = await self._granted(text, operation)
        if self._in_time([step]) and approved is not None:
            self._reply(step, approved)

    async def _granted(self, text: str, operation: Any) -> bool | None:
        """Whether the client approves; None if it neither approves nor declines."""
        await self._turn.ask_for(self._turn.require_auth(text, operation=operation))
        self._at = self._turn.now().timestamp()
        if await self._turn.granted(operation):
            return True
        approval = self._turn.approval
        return False if approval is not None and not approval.approved else None

    async def _ask_for_plan(self) -> None:
        """Ask the client to approve the dangerous steps of this version of the plan, or all steps.
        Those that the client declines fail."""
        plan, self._question_since = self.plan, 0.0
        waiting = plan.pending
        covered = [step for step in waiting if step.dangerous] or waiting
        listed = [
            {"step": step.name, "agent": step.agent, "skill": step.skill, "input": step.input}
            for step in covered
        ]
        operation = {"plan": plan.version, "steps": listed}
        approved = await self._granted(_plan_in_words(waiting, covered), operation)
        if approved:
            self.plan = replace(plan, approved=plan.version)
        elif approved is not None:
            for step in covered:
                if self.plan[step.name].state == "waiting":
                    self.plan = apply(self.plan, Failed(step.name, "the client did not approve it"))

    def _in_time(self, steps: Sequence[PlanStep]) -> list[PlanStep]:
        """The steps that may continue. The others have exceeded their time, and fail."""
        for step in steps:
            if self._at >= step.until:
                self.plan = apply(self.plan, _overdue(step), self._at)
        return [step for step in steps if self._at < step.until]

    def _too_late(self, steps: Sequence[PlanStep]) -> bool:
        """Whether the time was over before the client answered. Then these steps fail."""
        now = self._turn.now()
        self._at = now.timestamp()
        if self.spent.left(now) > 0:
            return False
        why = "the time is over"
        self.plan = apply(self.plan, Stopped(why))
        for step in steps:
            self.plan = apply(self.plan, Failed(step.name, why, goes_on=True), self._at)
        return True

    async def _divided_by_model(
        self, model: Model, answer: Message, steps: Sequence[PlanStep]
    ) -> dict[str, list[Part]]:
        """Let the model say what the answer means for which question."""
        asked = {step.name: step.question.text for step in steps if step.question is not None}
        found = await self._turn.step("divide", divide, model, answer.text, asked, returns=Division)
        self.spent.model_calls += 1
        self.spent.usage += found.usage
        return {name: [Part(text=text)] for name, text in found.parts.items()}


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _overdue(step: PlanStep) -> Failed:
    why = f"it has taken longer than its {step.seconds:g} seconds"
    return Failed(step.name, why, goes_on=True)


def _came_back(step: PlanStep) -> Failed:
    return Failed(step.name, "the user has come back", goes_on=True)


def _plan_in_words(waiting: Sequence[PlanStep], covered: Sequence[PlanStep]) -> str:
    marked = {step.name for step in covered}
    lines = ["I would do this. Do you approve?"]
    for step in waiting:
        given = clean(msgspec.json.encode(step.input).decode(), 500)
        said = "" if step.input is None else f": {given}"
        mark = "*" if step.name in marked else "-"
        skill = f" {' '.join(clean(step.skill, 64).split())}" if step.skill else ""
        lines.append(f"{mark} {step.name}: {step.agent} ({host_of(step.address)}){skill}{said}")
    if len(marked) < len(waiting):
        lines.append("Your approval is needed for the steps marked *.")
    return "\n".join(lines)
