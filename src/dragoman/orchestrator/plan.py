"""A plan: which agents do what, in which order, and how far they are.

A plan is a value. What happens to it is an event, and `apply` folds one event into it; the events
are logged, so a plan can be built again from its log after a crash.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

State: TypeAlias = Literal["waiting", "running", "asking", "done", "failed", "skipped", "unknown"]
Kind: TypeAlias = Literal["question", "approval", "login", "uncertain"]
REF = "$from"
"""The key of a reference in JSON: `{"$from": "flight/reference"}`."""
NAME = re.compile(r"[\w.-]{1,64}")
"""The name of a step: clients answer questions in lines `name: value`."""
WHOLE, TEXT, FILES = "", "text", "files"
"""What a reference without a path means, and two paths that every result has."""


class InvalidPlan(ValueError):
    """A plan that cannot be carried out. The text names the step and says what is wrong."""


class Ref(Struct, frozen=True):
    """A place in the input of a step where the result of an earlier step goes."""

    step: str
    path: str = WHOLE
    """A place in the structured result, such as `seats/0`; `text` or `files`; empty for the whole
    result."""


class Step(Struct, frozen=True):
    """A step that a planner proposes."""

    name: str
    """A short name, unique in the plan. Clients see it in questions."""
    agent: str = ""
    """The name of the agent in the team; may be empty if only one agent has the skill."""
    skill: str = ""
    input: Any = None
    """Text, or the arguments of the skill as an object. `Ref` stands for an earlier result."""
    needs: tuple[str, ...] = ()
    """The steps that must be done before. Those that `input` refers to are added."""
    dangerous: bool = False
    """The client must approve this step before it begins."""
    seconds: float = 0.0
    """How long the step may take, with the answers to its questions; 0: as long as the task."""


class Outcome(Struct, frozen=True, omit_defaults=True):
    """What a step has brought."""

    text: str = ""
    data: Any = None
    files: int = 0
    """How many files the result has."""
    large: bool = False
    """The result is not copied here: it is fetched from the agent when it is needed."""


class Question(Struct, frozen=True, omit_defaults=True):
    """What a step waits for."""

    kind: Kind
    text: str
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer, if the agent gave one."""
    operation: Any = None
    """What is to be approved."""


class PlanStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a plan, and how far it is."""

    name: str
    agent: str
    address: str = ""
    """Where the agent is. A name may pass to another agent, an address does not."""
    skill: str = ""
    input: Any = None
    """JSON; references are objects with the key `$from`."""
    needs: tuple[str, ...] = ()
    dangerous: bool = False
    seconds: float = 0.0
    """How long it may take; 0: as long as the task."""
    state: State = "waiting"
    sending: bool = False
    """A message is being sent to an agent that does not recognise repeated messages."""
    delivered: bool = False
    """The agent has the latest message."""
    task: str = ""
    """The id of the task at the agent."""
    context: str = ""
    asked: int = 0
    """How many questions the step has asked."""
    messages: int = 0
    """How many messages were sent to the agent."""
    began: float = 0.0
    """When the first of them was due, as a Unix time."""
    took: float = 0.0
    """The seconds until it ended."""
    question: Question | None = None
    outcome: Outcome | None = None
    error: str = ""
    abandoned: bool = False
    """It has failed here, and the agent's task continues."""

    @property
    def until(self) -> float:
        """The Unix time at which it must have ended."""
        return self.began + self.seconds if self.seconds else math.inf

    @property
    def goes_on(self) -> bool:
        """Whether the agent has a task for it that has not ended."""
        return bool(self.task) and (
            self.abandoned or self.state in ("running", "asking", "unknown")
        )


class Plan(Struct, frozen=True, omit_defaults=True):
    """The steps of a task, in the order in which they were planned."""

    version: int = 0
    """Grows by one when a planner changes the plan."""
    steps: tuple[PlanStep, ...] = ()
    approved: int = 0
    """The version whose dangerous steps the client has approved."""
    stopped: str = ""
    """Why no further step may begin; empty if steps may."""
    refused: str = ""
    """Why the last proposal of the planner was refused."""

    def __getitem__(self, name: str) -> PlanStep:
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    def named(self, *states: State) -> tuple[PlanStep, ...]:
        """The steps in these states."""
        return tuple(step for step in self.steps if step.state in states)

    @property
    def pending(self) -> tuple[PlanStep, ...]:
        """The steps that have not begun, without those that need one that brings nothing."""
        lost = {step.name for step in self.named("failed", "skipped")}
        left = self.named("waiting")
        while found := {step.name for step in left if lost.intersection(step.needs)}:
            lost |= found
            left = tuple(step for step in left if step.name not in lost)
        return left

    @property
    def ready(self) -> tuple[PlanStep, ...]:
        """The steps that may begin: all that they need is done."""
        done = {step.name for step in self.named("done")}
        return tuple(
            step
            for step in self.named("waiting")
            if not self.stopped and done.issuperset(step.needs)
        )


# ---- events --------------------------------------------------------------------------------


class Proposed(Struct, frozen=True, tag="proposed"):
    """A planner has added steps, or has replaced those that have not begun."""

    steps: tuple[PlanStep, ...]
    replaces: bool = False


class Sending(Struct, frozen=True, tag="sending"):
    """A message is about to be sent to an agent that does not recognise repeated messages."""

    step: str


class Known(Struct, frozen=True, tag="known"):
    """The agent has named its task."""

    step: str
    task: str
    context: str = ""


class Done(Struct, frozen=True, tag="done"):
    """A step has brought its result."""

    step: str
    outcome: Outcome


class Failed(Struct, frozen=True, tag="failed"):
    """A step has brought nothing."""

    step: str
    error: str
    goes_on: bool = False
    """The agent's task has not ended, and must be canceled."""


class Asks(Struct, frozen=True, tag="asks"):
    """An agent asks before it continues."""

    step: str
    question: Question


class Uncertain(Struct, frozen=True, tag="uncertain"):
    """Nobody knows whether the agent has got a message."""

    step: str


class Replied(Struct, frozen=True, tag="replied"):
    """The client has answered a question."""

    step: str


class Waited(Struct, frozen=True, tag="waited"):
    """Nothing has happened for a while. `asks`: the questions so far are passed on now."""

    asks: bool = False


class Stopped(Struct, frozen=True, tag="stopped"):
    """No further step may begin."""

    why: str


Event: TypeAlias = (
    Proposed | Sending | Known | Done | Failed | Asks | Uncertain | Replied | Waited | Stopped
)


def apply(plan: Plan, event: Event, at: float = 0.0) -> Plan:
    """The plan after this event, which happened at this Unix time. Steps that need a failed
    step keep waiting: the planner may change them, until `closed` skips them."""
    match event:
        case Proposed():
            kept = plan.steps
            if event.replaces:
                kept = tuple(step for step in plan.steps if step.state != "waiting")
            steps = (*kept, *event.steps)
            return replace(plan, version=plan.version + 1, steps=steps, refused="")
        case Stopped():
            return closed(replace(plan, stopped=event.why))
        case Waited():
            return plan
        case _:
            changed = _changed(plan[event.step], event)
            if changed.began and changed.state in ("done", "failed"):
                changed = replace(changed, took=max(at - changed.began, 0.0))
            steps = tuple(changed if step.name == event.step else step for step in plan.steps)
            return replace(plan, steps=steps)


def begun(plan: Plan, steps: Iterable[PlanStep], at: float = 0.0) -> Plan:
    """The plan when these steps have begun, at this Unix time."""
    names = {step.name for step in steps}
    return replace(
        plan,
        steps=tuple(
            replace(step, state="running", messages=1, began=at) if step.name in names else step
            for step in plan.steps
        ),
    )


def closed(plan: Plan) -> Plan:
    """The plan in its final form: steps that have not begun are skipped."""
    return replace(
        plan,
        steps=tuple(
            replace(step, state="skipped") if step.state == "waiting" else step
            for step in plan.steps
        ),
    )


def _changed(step: PlanStep, event: Event) -> PlanStep:
    match event:
        case Sending():
            return replace(step, sending=True)
        case Known():
            context = event.context or step.context
            return replace(step, task=event.task, context=context, sending=False, delivered=True)
        case Done():
            return replace(step, state="done", outcome=event.outcome, sending=False, question=None)
        case Failed():
            return replace(
                step,
                state="failed",
                error=event.error,
                abandoned=event.goes_on,
                sending=False,
                question=None,
            )
        case Asks():
            return replace(
                step,
                state="asking",
                question=event.question,
                asked=step.asked + 1,
                sending=False,
            )
        case Uncertain():
            text = "It is not known whether the agent has got the message. Send it again?"
            return replace(step, state="unknown", question=Question("uncertain", text))
        case Replied():
            return replace(
                step,
                state="running",
                question=None,
                sending=False,
                delivered=False,
                messages=step.messages + (step.state != "unknown"),
            )
        case _:
            raise AssertionError(event)


# ---- checks --------------------------------------------------------------------------------


def planned(
    steps: Sequence[Step], plan: Plan, *, most: int, replaces: bool = False
) -> tuple[PlanStep, ...]:
    """The proposed steps as steps of this plan. Raises InvalidPlan if names clash, or if a step
    needs one that is not there, needs itself, or needs one that can bring nothing any more."""
    there = {step.name: step for step in plan.steps if not (replaces and step.state == "waiting")}
    names = {step.name for step in steps}
    if len(there) + len(steps) > most:
        raise InvalidPlan(
            f"a plan has at most {most} steps; this one has {len(there) + len(steps)}"
        )
    taken = Counter(name.lower() for name in [*there, *(step.name for step in steps)])
    found = []
    for step in steps:
        if not NAME.fullmatch(step.name):
            raise InvalidPlan(
                f"step {step.name[:64]!r}: a name has 1 to 64 letters, digits, dots, hyphens and "
                "underscores"
            )
        if taken[step.name.lower()] > 1:
            raise InvalidPlan(f"step {step.name!r}: another step has this name")
        if not 0 <= step.seconds < math.inf:
            raise InvalidPlan(f"step {step.name!r}: seconds must not be less than 0")
        needs = tuple(dict.fromkeys((*step.needs, *referred(step.input))))
        for need in needs:
            if need not in there and need not in names:
                raise InvalidPlan(f"step {step.name!r} needs {need!r}, which is no step")
            if need in there and there[need].state in ("failed", "skipped"):
                raise InvalidPlan(f"step {step.name!r} needs {need!r}, which has no result")
        found.append(
            PlanStep(
                name=step.name,
                agent=step.agent,
                skill=step.skill,
                input=as_json(step.input),
                needs=needs,
                dangerous=step.dangerous,
                seconds=step.seconds,
            )
        )
    _check_order(found)
    return tuple(found)


def _check_order(steps: Sequence[PlanStep]) -> None:
    left = {step.name: set(step.needs) for step in steps}
    while left:
        free = [name for name, needs in left.items() if not needs & left.keys()]
        if not free:
            raise InvalidPlan(f"the steps {', '.join(left)} need each other")
        for name in free:
            del left[name]


# ---- references ----------------------------------------------------------------------------


def as_json(value: Any) -> Any:
    """An input with its references as JSON."""
    match value:
        case Ref():
            return {REF: f"{value.step}/{value.path}" if value.path else value.step}
        case Mapping():
            return {key: as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
        case _:
            return value


def reference(value: Any) -> Ref | None:
    """The reference that a value of an input is; None if it is another value."""
    if isinstance(value, Ref):
        return value
    if isinstance(value, Mapping) and value.keys() == {REF} and isinstance(value[REF], str):
        step, _, path = value[REF].partition("/")
        return Ref(step, path)
    return None


def referred(value: Any) -> Iterable[str]:
    """The names of the steps that an input refers to."""
    if (ref := reference(value)) is not None:
        yield ref.step
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from referred(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from referred(item)


def look_up(ref: Ref, outcome: Outcome) -> Any:
    """What a reference stands for. Raises InvalidPlan if the result has no such place."""
    if ref.path == TEXT or (ref.path == WHOLE and outcome.data is None):
        return outcome.text
    found = outcome.data
    for name in filter(None, ref.path.split("/")):
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (KeyError, IndexError, TypeError, ValueError):
            raise InvalidPlan(f"the result of {ref.step!r} has no {ref.path!r}") from None
    return found


def resolved(value: Any, outcomes: Mapping[str, Outcome]) -> Any:
    """An input with the results in the places of the references. Raises InvalidPlan."""
    if (ref := reference(value)) is not None:
        return look_up(ref, outcomes[ref.step])
    if isinstance(value, Mapping):
        return {key: resolved(item, outcomes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolved(item, outcomes) for item in value]
    return value
