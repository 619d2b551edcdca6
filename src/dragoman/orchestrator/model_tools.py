"""The tools that a model gets: one for each typed skill, and some to talk to agents and to plan.

No tool takes an address, a header, or the id of a task or a conversation: a model can reach only
the agents whose names it gets.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman import A2AError
from dragoman.client import RemoteSkill
from dragoman.orchestrator.agent_team import Member, slug
from dragoman.orchestrator.model import ModelAnswer, Tool, ToolCall
from dragoman.orchestrator.plan import InvalidPlan, Step, reference, referred
from dragoman.orchestrator.skill_search import search
from dragoman.prompt_safety import clean, sanitize

SEND, FIND, PLAN, HAND_OFF = "send_message", "find_agents", "make_plan", "hand_off"
DESCRIPTION = 1000
MOST_TOOLS = 64
"""How many skills get a tool of their own."""
PROMPT = 24_000
"""The most characters of all cards in a prompt, and of the schemas of all tools."""
SCHEMA = 6_000
"""The most characters of the schema of a tool."""
DEEPEST = 32
"""How deep schemas and arguments may be nested."""
TEXT = 8_000
"""The most characters that are kept of the text of an answer."""
LARGEST = 200_000
"""The most bytes of a decision."""
ERROR = 300
"""The most characters of what is wrong with a call: there may be many."""
SHORT = 200
"""The most characters of a text in a schema."""
_NEEDLESS = frozenset(("title", "examples", "$comment"))
_KEY = re.compile(r"[\w$.-]{1,64}")


class Decision(Struct, frozen=True, omit_defaults=True):
    """What a model has decided: the steps that it wants, by the calls of its tools."""

    answer: ModelAnswer
    at: float
    """When, as a Unix time."""
    steps: dict[str, list[tuple[Step, str]]] = {}
    """For each call, its steps, each with the address of its agent."""
    results: dict[str, str] = {}
    """For each other call, what it brings: an answer, or what was wrong with the call."""
    replaces: bool = False
    """The steps take the places of those that have not begun."""
    refused: str = ""
    """Why a plan cannot be carried out."""
    hand_off: tuple[str, str] | None = None
    """The name and address of the agent that takes the conversation over."""


class ModelTools:
    """The tools for one question to a model."""

    def __init__(self, members: Mapping[str, Member], text: str, *, most: int) -> None:
        self._members = members
        self._most = most
        """How many steps a plan may have."""
        self._skills: dict[str, tuple[Member, RemoteSkill]] = {}
        shown = _shown(members, text)
        self.cards = "\n\n".join(member.prompt() for member in shown)
        self.hidden = len(members) - len(shown)
        """How many agents the prompt does not name."""
        self.tools = [*self._general(shown), *self._of_skills(shown)] if shown else []

    def _general(self, shown: Sequence[Member]) -> list[Tool]:
        # all names are allowed: agents that `find_agents` shows can be called, too
        agent = {"type": "string", "description": "The name of the agent."}
        if not self.hidden:
            agent["enum"] = [member.name for member in shown]  # type: ignore[assignment]
        found = [
            Tool(
                SEND,
                "Send a message to an agent, and get its answer. Several calls run side by side.",
                _object(
                    {
                        "agent": agent,
                        "text": {"type": "string", "description": "The message, in words."},
                        "data": {"type": "object", "description": "Or the message as data."},
                    },
                    ["agent"],
                ),
            ),
            Tool(
                PLAN,
                "Plan several steps that depend on each other. Steps run as soon as those that "
                "they need are done. It replaces the steps that have not begun. In data, "
                '{"$from": "name/path"} stands for a place in the result of another step.',
                _object({"steps": {"type": "array", "items": _step(agent)}}, ["steps"]),
            ),
        ]
        if self.hidden:
            words = {"type": "string", "description": "What the agent should be able to do."}
            found.append(Tool(FIND, "Find further agents.", _object({"query": words}, ["query"])))
        text = (
            "Let an agent go on with the user directly, until it is done. Use it when the user "
            "wants to talk to that agent."
        )
        found.append(Tool(HAND_OFF, text, _object({"agent": agent}, ["agent"])))
        return found

    def _of_skills(self, shown: Sequence[Member]) -> list[Tool]:
        found: list[Tool] = []
        left = PROMPT
        for member in shown:
            for skill in member.skills.values():
                schema = None if skill.input is None else safe_schema(skill.input)
                size = len(json.dumps(schema))
                if schema is None or size > min(SCHEMA, left) or len(found) == MOST_TOOLS:
                    continue
                left -= size
                name = _tool_name(f"{member.name}__{skill.id}", self._skills)
                self._skills[name] = (member, skill)
                text = sanitize(
                    skill.description, limit=DESCRIPTION, source=f"card of {member.name}"
                )
                found.append(Tool(name, text, schema))
        return found

    # -- calls

    def decide(self, answer: ModelAnswer, number: int) -> Decision:
        """What the model's calls mean. What is wrong with a call is its result. `number` is that
        of the answer; the names of the steps are made of it. A decision is logged, so it has a
        bounded size."""
        answer = replace(answer, text=clean(answer.text, TEXT))
        steps: dict[str, list[tuple[Step, str]]] = {}
        results: dict[str, str] = {}
        replaces, refused, hand_off = False, "", None
        for place, call in enumerate(answer.calls):
            try:
                arguments = _arguments(call)
                if call.name == FIND:
                    results[call.id] = self._find(str(arguments.get("query", "")))
                elif call.name == HAND_OFF:
                    member = self._member(arguments.get("agent"))
                    hand_off = member.name, member.address
                elif call.name == PLAN:
                    steps[call.id] = self._planned(arguments)
                    replaces = True
                else:
                    steps[call.id] = [self._called(call, arguments, f"{number}.{place + 1}")]
            except (InvalidPlan, A2AError) as error:
                # it may quote a card
                why = sanitize(str(error), limit=ERROR, source="a check")
                results[call.id] = f"Error: {why}"
                if call.name == PLAN:
                    refused = clean(str(error), ERROR)
        now = time.time()
        return _bounded(Decision(answer, now, steps, results, replaces, refused, hand_off))

    def _called(self, call: ToolCall, arguments: dict[str, Any], number: str) -> tuple[Step, str]:
        if call.name == SEND:
            member = self._member(arguments.get("agent"))
            said = arguments.get("data") or arguments.get("text")
            if not isinstance(said, str | dict) or not said:
                raise InvalidPlan("give text, or data as an object")
            return Step(f"{member.name}-{number}"[-64:], member.name, input=said), member.address
        if call.name not in self._skills:
            raise InvalidPlan(f"there is no tool {call.name!r}")
        member, skill = self._skills[call.name]
        skill.check(arguments)
        name = f"{slug(skill.id)}-{number}"[-64:]
        return Step(name, member.name, skill.id, arguments), member.address

    def _planned(self, arguments: dict[str, Any]) -> list[tuple[Step, str]]:
        items = arguments.get("steps")
        if not isinstance(items, list) or not items:
            raise InvalidPlan("steps: give at least one step")
        if len(items) > self._most:
            raise InvalidPlan(f"a plan has at most {self._most} steps; this one has {len(items)}")
        found = []
        for item in items:
            if not isinstance(item, dict):
                raise InvalidPlan("steps: each step is an object")
            member = self._member(item.get("agent"))
            skill = str(item.get("skill") or "")
            said = item.get("data") if item.get("data") is not None else item.get("text")
            needs = item.get("needs") or []
            if not isinstance(needs, list) or not all(isinstance(need, str) for need in needs):
                raise InvalidPlan("needs: expected a list of names of steps")
            step = Step(str(item.get("name") or ""), member.name, skill, said, tuple(needs))
            check_step(step, member)
            found.append((step, member.address))
        return found

    def _member(self, name: Any) -> Member:
        if isinstance(name, str) and name in self._members:
            return self._members[name]
        names = ", ".join(self._members) or "none"
        raise InvalidPlan(f"there is no agent {str(name)[:100]!r}; the agents are: {names[:500]}")

    def _find(self, query: str) -> str:
        found = dict.fromkeys(match.member for match in search(query, self._members.values()))
        if not found:
            return "No agent fits."
        return "\n\n".join(f"agent {member.name}:\n{member.prompt()}" for member in list(found)[:5])


def check_step(step: Step, member: Member) -> None:
    """Raise InvalidPlan or an A2AError if the agent has no such skill, or if the input does not fit
    it. What refers to other steps is checked when they are done."""
    if not step.skill:
        return
    skill = member.skills.get(step.skill)
    if skill is None:
        skills = ", ".join(skill[:64] for skill in list(member.skills)[:20]) or "none"
        raise InvalidPlan(
            f"step {step.name!r}: {member.name} has no skill {step.skill!r}; its skills: {skills}"
        )
    if skill.input is None or not isinstance(step.input, Mapping) or reference(step.input):
        return
    known = {key: item for key, item in step.input.items() if not _refers(item)}
    skill.check(known, partial=len(known) < len(step.input))


def _refers(value: Any) -> bool:
    return any(True for _ in referred(value))


def safe_schema(value: Any, depth: int = 0) -> Any:
    """A schema that a model may read: its text is cleaned and cut, and titles are left out. None if
    a name in it could be a sentence, or if it is nested too deep."""
    if isinstance(value, str):
        return clean(value, SHORT)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > DEEPEST:
        return None
    if not isinstance(value, Mapping):
        items = [safe_schema(item, depth + 1) for item in value[:200]]
        return None if _spoiled(value, items) else items
    found = {}
    for key, item in value.items():
        if key in _NEEDLESS and isinstance(item, str | list | tuple):
            continue
        found[key] = safe_schema(item, depth + 1)
        if not _KEY.fullmatch(key) or _spoiled([item], [found[key]]):
            return None
    return found


def _spoiled(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return any(new is None and old is not None for old, new in zip(before, after, strict=False))


def _shown(members: Mapping[str, Member], text: str) -> list[Member]:
    """The agents whose cards fit into a prompt: all of them, or the best by the user's words."""
    if sum(len(member.prompt()) for member in members.values()) <= PROMPT:
        return list(members.values())
    best = dict.fromkeys(match.member for match in search(text, members.values()))
    found, size = [], 0
    for member in (*best, *(each for each in members.values() if each not in best)):
        size += len(member.prompt())
        if size > PROMPT:
            break
        found.append(member)
    return found


def _bounded(decision: Decision) -> Decision:
    """The decision, or one that refuses all calls if it is too large for the log."""
    if len(msgspec.json.encode(decision)) <= LARGEST:
        return decision
    calls = [replace(call, name=call.name[:64], arguments="{}") for call in decision.answer.calls]
    answer = replace(decision.answer, text=clean(decision.answer.text, SHORT), calls=tuple(calls))
    why = "Error: the calls are too large; make fewer, or shorter ones"
    results = {call.id: why for call in calls}
    return Decision(answer, decision.at, results=results, refused=decision.refused)


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(call.arguments or "{}")
    except msgspec.DecodeError as error:
        raise InvalidPlan(f"the arguments are not JSON: {error}") from None
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise InvalidPlan("the arguments must be an object")
    if _too_deep(found):
        raise InvalidPlan(f"the arguments are nested more than {DEEPEST} times")
    return found


def _too_deep(value: Any, left: int = DEEPEST) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    return isinstance(value, list) and (not left or any(_too_deep(v, left - 1) for v in value))


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _step(agent: dict[str, Any]) -> dict[str, Any]:
    return _object(
        {
            "name": {"type": "string", "description": "A short name of its own."},
            "agent": agent,
            "skill": {"type": "string", "description": "The id of the skill, if one is meant."},
            "text": {"type": "string"},
            "data": {"type": "object"},
            "needs": {"type": "array", "items": {"type": "string"}},
        },
        ["name", "agent"],
    )


def _tool_name(text: str, taken: Mapping[str, Any]) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:64]
    free, number = name, 2
    while free in taken:
        free, number = f"{name[:60]}_{number}", number + 1
    return free


def shown_result(value: Any) -> str:
    """A result as a model reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
