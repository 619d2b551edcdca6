"""The orchestrator: an agent that has other agents do the work, and puts the results together."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, TypeAlias

from msgspec import Struct, convert
from msgspec.structs import replace

from dragoman import A2AError, Agent, AgentError, App, RemoteTask, Turn, UserError
from dragoman.client import Client
from dragoman.orchestrator.agent_call import LINEAGE, Scan
from dragoman.orchestrator.agent_team import INSIDE, Eligible, Given, Member, Team, host_of
from dragoman.orchestrator.budget import Budget, Payer, Spent
from dragoman.orchestrator.cancel_remote_tasks import cancel_later, canceler
from dragoman.orchestrator.function_model import FunctionModel
from dragoman.orchestrator.in_process_agents import inner_app
from dragoman.orchestrator.model import Model
from dragoman.orchestrator.model_loop import REFUSED, ModelLoop
from dragoman.orchestrator.model_tools import check_step
from dragoman.orchestrator.plan import InvalidPlan, Plan, PlanStep, Step, planned
from dragoman.orchestrator.plan_execution import Execution, Rules
from dragoman.orchestrator.routing import Choice, route

logger = logging.getLogger("dragoman")

Which: TypeAlias = Collection[str] | Callable[[PlanStep], bool]
"""Some steps: by the ids of their skills, `agent/skill`, or a function."""
Planner: TypeAlias = Callable[..., Any]
"""`plan(turn, members)` returns steps. With a third parameter it is called again with the plan when
nothing runs any more, until it returns no steps, or a text: the answer. Its steps replace those
that have not begun. If they are refused, `plan.refused` says why, and it is called again."""

SOURCES = "urn:dragoman:sources:v1"
"""The key of the metadata of the final status: which agents the results come from."""
LATE = 3600.0
"""Seconds for which a task waits for an answer after its time, to end with what it has."""
TRIES = 5
"""How often the client is asked which skill it means."""


class Proposal(Struct, frozen=True, omit_defaults=True):
    """What a plan function has returned."""

    at: float
    """When, as a Unix time."""
    steps: tuple[PlanStep, ...] = ()
    answer: str = ""
    refused: str = ""
    """Why its steps cannot be carried out."""
    failed: bool = False
    """It has raised an exception."""


class Orchestrator(Agent):
    """An agent that has a team of other agents. With a model, the model decides which agents to
    call; with a plan function, the function does; without either, each message goes to the skill
    that fits it best."""

    def __init__(
        self,
        name: str,
        *,
        agents: Iterable[Given],
        description: str = "",
        model: Model | Callable[..., Any] | None = None,
        plan: Planner | None = None,
        instructions: str = "",
        eligible: Eligible | None = None,
        approve: Literal["", "plan"] = "",
        dangerous: Which = (),
        repeatable: Which = (),
        scan: Scan | None = None,
        budget: Budget | None = None,
        wallet: Payer | None = None,
        tags: Sequence[str] = ("orchestrator",),
        examples: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """`dangerous` steps need the client's approval, with `approve="plan"` each plan does.
        `repeatable` steps may be done twice, if it is not known whether an agent has got a message.
        `wallet` pays for the calls, at most `budget.money` for a task.
        Other options are those of `Agent`; `connections` has the credentials for the team."""
        if approve not in ("", "plan"):
            raise AgentError("Orchestrator: approve must be empty or 'plan'")
        if plan is not None and model is not None:
            raise AgentError("Orchestrator: give a model or a plan function, not both")
        given = tuple(agents)
        if not given:
            raise AgentError("Orchestrator: agents must not be empty")
        super().__init__(
            name,
            description=description or f"{name}: has other agents do the work.",
            input_modes=options.pop("input_modes", ("text/plain", "application/json", "*/*")),
            **options,
        )
        self.budget = budget or Budget()
        if (wallet is None) != (not self.budget.money):
            raise AgentError("Orchestrator: wallet needs budget=Budget(money='…'), and vice versa")
        payer = wallet.part(self.budget.money) if wallet is not None else None
        self.team = Team(given, may=eligible, options=self.connection, answer=payer)
        """The agents that may be called."""
        self._inside: App | None = None
        """Serves the agents in this process, and the one that cancels tasks."""
        self._running: dict[str, Execution] = {}
        """What is carried out now, by the ids of the tasks."""
        self._model = FunctionModel(model) if callable(model) else model
        self._plan = plan
        self._instructions = instructions
        self._dangerous = _which(dangerous)
        self._rules = Rules(approve=approve, repeatable=_which(repeatable), scan=scan)
        self.skill(
            id=self.key,
            name=name,
            description=self.description,
            tags=tuple(tags),
            examples=tuple(examples),
            durable=True,
            one_at_a_time="context",
            timeout=self.budget.seconds + LATE,
        )(_Handler(self._work, self._cancel))

    @asynccontextmanager
    async def opened(self, app: App) -> AsyncIterator[Any]:
        """See `Agent.opened`: also the agents of the team that run in this process."""
        served = [*self.team.local, canceler(self.connection, key=self._canceler)]
        async with AsyncExitStack() as stack:
            inner = inner_app(app, self.key, served)
            self._inside = await stack.enter_async_context(inner)
            stack.push_async_callback(self.team.close)
            yield await stack.enter_async_context(super().opened(app))

    @property
    def _canceler(self) -> str:
        """The key of the agent that cancels tasks: other orchestrators use the same store."""
        return f"{self.key}.canceler"

    def connection(self, address: str) -> Mapping[str, Any]:
        """See `Agent.connection`. Agents in this process are called without a network."""
        if address.startswith(INSIDE):
            return {"app": self._inside}
        return super().connection(address)

    async def _work(self, turn: Turn) -> None:
        spent = Spent(self.budget, turn.now())
        passed = turn.metadata.get(LINEAGE)
        passed = passed.get("path") if isinstance(passed, Mapping) else ()
        if isinstance(passed, list | tuple) and len(passed) > self.budget.depth:
            await turn.emit(turn.reject(f"The request was passed on {len(passed)} times"))
            return
        execution = Execution(turn, self.team, spent, self._rules, self._model)
        answer, broken = None, ""
        self._running[turn.task.id] = execution
        try:
            answer = await self._decide(turn, execution)
        except UserError as error:  # what other agents do must end, and be named
            broken = str(error)
        except InvalidPlan:  # of a plan function
            await self._leave(turn, execution)
            raise
        finally:
            self._running.pop(turn.task.id, None)
        await self._leave(turn, execution)
        await self._end(turn, execution, answer, broken)

    async def _decide(self, turn: Turn, execution: Execution) -> str | None:
        """Do the work, and return the answer; None if a budget has ended it."""
        if self._plan is not None:
            return await self._by_plan(turn, execution, self._plan)
        if self._model is not None:
            return await self._by_model(turn, execution, self._model)
        return await self._by_words(turn, execution)

    async def _cancel(self, turn: Turn) -> None:
        """The client has canceled the task: have canceled what it began."""
        execution = self._running.get(turn.task.id)
        plan = execution.plan if execution else convert(turn.saved or {}, Plan)
        ended = {step.task for step in plan.steps if not step.goes_on}
        begun = [remote for remote in turn.delegated if remote.id not in ended]
        known = {remote.id for remote in begun}
        left = [remote for remote in _going_on(plan) if remote.id not in known]
        await self._abandon(turn, [*begun, *left])

    async def _leave(self, turn: Turn, execution: Execution) -> None:
        """Save the plan for the last time, and have tasks canceled that other agents run."""
        execution.close()
        await turn.step("save", execution.save, returns=type(None))
        if left := _going_on(execution.plan):
            await turn.step("abandon", self._abandon, turn, left, returns=type(None))

    async def _abandon(self, turn: Turn, remotes: Sequence[RemoteTask]) -> None:
        """Have these tasks of other agents canceled, also if that takes a day."""
        if not remotes:
            return
        where = f"{INSIDE}{self._canceler}" if self.team.local else INSIDE
        try:
            async with Client.connect(where, **self.connection(INSIDE)) as client:
                await cancel_later(client, remotes, turn.task.id)
        except (A2AError, OSError, TimeoutError):
            ids = ", ".join(remote.id for remote in remotes)
            logger.exception("cannot cancel %s", ids, extra={"task": turn.task.id})

    # -- three ways to decide

    async def _by_model(self, turn: Turn, execution: Execution, model: Model) -> str | None:
        async def members() -> dict[str, Member]:
            return await self.team.members(turn.caller)

        about = {
            "name": self.name,
            "description": self.description,
            "instructions": self._instructions,
        }
        loop = ModelLoop(
            turn, execution, model, members=members, about=about, dangerous=self._dangerous
        )
        answer = await loop.run()
        return None if answer is None else ""

    async def _by_plan(self, turn: Turn, execution: Execution, planner: Planner) -> str:
        again, refused = len(inspect.signature(planner).parameters) > 2, 0
        while True:
            plan = execution.plan

            async def propose(plan: Plan = plan) -> Proposal:
                try:
                    return await self._proposed(turn, planner, plan, again)
                except (UserError, A2AError):
                    raise
                except Exception:
                    task = {"task": turn.task.id}
                    logger.exception("the plan function raised an exception", extra=task)
                    return Proposal(time.time(), failed=True)

            proposal: Proposal = await turn.step("plan", propose, returns=Proposal)
            if proposal.failed:
                raise InvalidPlan("the plan function raised an exception; the log has it")
            if proposal.refused:
                refused += 1
                if not again or refused > REFUSED:
                    raise InvalidPlan(proposal.refused)
                execution.refuse(proposal.refused)
                continue
            if proposal.answer or not proposal.steps:
                return proposal.answer
            execution.propose(proposal.steps, proposal.at, replaces=True)
            await execution.run()
            if not again or execution.plan.stopped:
                return ""

    async def _proposed(self, turn: Turn, planner: Planner, plan: Plan, again: bool) -> Proposal:
        members = await self.team.members(turn.caller)
        found = planner(turn, members, plan) if again else planner(turn, members)
        found = await found if inspect.isawaitable(found) else found
        now = time.time()
        if found is None or isinstance(found, str):
            return Proposal(now, answer=found or "")
        try:
            steps = [_with_agent(step, members) for step in found]
            for step in steps:
                check_step(step, members[step.agent])
            checked = planned(steps, plan, most=self.budget.steps, replaces=True)
        except (InvalidPlan, A2AError) as error:
            return Proposal(now, refused=str(error))
        ready = [
            replace(
                step,
                address=members[step.agent].address,
                dangerous=step.dangerous or self._dangerous(step),
            )
            for step in checked
        ]
        return Proposal(now, tuple(ready))

    async def _by_words(self, turn: Turn, execution: Execution) -> str:
        said = turn.message
        for _ in range(TRIES):

            async def choose(words: Any = said) -> Choice:
                members = await self.team.members(turn.caller)
                complete = self.team.complete(members)
                return route(words, members.values(), turn.message, complete=complete)

            choice: Choice = await turn.step("route", choose, returns=Choice)
            if choice.step is not None:
                break
            said = await turn.ask_for(choice.question)
        else:
            raise UserError("It is not clear which skill is meant")
        try:
            (step,) = planned([choice.step], execution.plan, most=1)
        except InvalidPlan as error:
            raise UserError(str(error)) from error
        step = replace(step, address=choice.address)
        execution.propose([replace(step, dangerous=self._dangerous(step))], choice.at)
        await execution.run()
        return ""

    # -- the end

    async def _end(self, turn: Turn, execution: Execution, answer: str | None, broken: str) -> None:
        """End the task: with the results and their sources, or with what went wrong."""
        plan = execution.plan
        metadata = {SOURCES: _sources(plan)} if plan.steps else None
        failed = plan.named("failed")
        if broken:
            await turn.emit(turn.fail(f"{broken}\n{_summary(plan)}".strip(), metadata=metadata))
        elif answer is None or plan.stopped:
            why = plan.stopped or execution.spent.over
            text = f"Stopped: {why}.\n{_summary(plan)}".strip()
            end = turn.complete if plan.named("done") else turn.fail
            await turn.emit(end(text, metadata=metadata))
        elif failed and self._model is None and not answer:
            await turn.emit(turn.fail(_summary(plan), metadata=metadata))
        else:
            await turn.emit(turn.complete(answer or None, metadata=metadata))


class _Handler:
    """Runs tasks, and ends one when its client cancels it."""

    def __init__(
        self, run: Callable[[Turn], Awaitable[None]], cancel: Callable[[Turn], Awaitable[None]]
    ) -> None:
        self._run, self._cancel = run, cancel

    async def run(self, turn: Turn) -> None:
        """Work on a task."""
        await self._run(turn)

    async def cancel(self, turn: Turn) -> None:
        """End it."""
        await self._cancel(turn)


def _going_on(plan: Plan) -> list[RemoteTask]:
    """The tasks of other agents that have not ended."""
    return [RemoteTask(step.address, step.task) for step in plan.steps if step.goes_on]


def _with_agent(step: Step, members: dict[str, Member]) -> Step:
    """The step with its agent: the one that has the skill, if the planner named none."""
    if not isinstance(step, Step):
        raise InvalidPlan(f"a plan function returns steps, got {type(step).__name__}")
    names = ", ".join(members) or "none"
    if step.agent:
        if step.agent not in members:
            raise InvalidPlan(
                f"step {step.name!r}: there is no agent {step.agent!r}; the agents are: {names}"
            )
        return step
    having = [member.name for member in members.values() if step.skill in member.skills]
    if len(having) != 1:
        raise InvalidPlan(
            f"step {step.name!r}: {len(having)} agents have the skill {step.skill!r}; the agents "
            f"are: {names}"
        )
    return replace(step, agent=having[0])


def _which(given: Which) -> Callable[[PlanStep], bool]:
    if callable(given):
        return given
    if isinstance(given, str):
        raise AgentError(f"Orchestrator: expected a list of skills, such as [{given!r}]")
    names = frozenset(given)
    return lambda step: step.skill in names or f"{step.agent}/{step.skill}" in names


def _sources(plan: Plan) -> list[dict[str, str]]:
    return [
        {
            "step": step.name,
            "agent": step.agent,
            "host": host_of(step.address),
            "state": step.state,
            **({"task": step.task} if step.task else {}),
        }
        for step in plan.steps
    ]


def _summary(plan: Plan) -> str:
    """How far each step is, in words."""
    lines = []
    for step in plan.steps:
        who = f"{step.agent}, {host_of(step.address)}"
        # on one line: an agent's words must not look like the line of another step
        why = f": {' '.join(step.error.split())}" if step.error else ""
        lines.append(f"{step.name} ({who}): {step.state}{why}")
    return "\n".join(lines)
