"""Without a model: which skill of the team a message means, and what the message gives it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct

from dragoman import A2AError, Message
from dragoman.client import RemoteSkill
from dragoman.orchestrator.agent_team import Member, slug
from dragoman.orchestrator.plan import Step
from dragoman.orchestrator.skill_search import Match, clearly_best, search

SHOWN = 8
"""How many skills a question lists."""


class Choice(Struct, frozen=True):
    """What a message means: a step, or else a question to the client."""

    step: Step | None = None
    address: str = ""
    question: str = ""
    at: float = 0.0
    """When the step was chosen, as a Unix time."""


def route(
    words: Message, members: Iterable[Member], message: Message, *, complete: bool = True
) -> Choice:
    """The skill for `message`, and the input of that skill. The message names the skill, or only
    this skill accepts its data, or this skill clearly fits the words best. `words` is the last
    message of the client: `message` itself, or the answer to the question which skill to use. If
    the team is not `complete`, its only skill may be the wrong one."""
    team = list(members)
    if not team:
        return Choice(question="No agent is available now. Send any message to try again.")
    data = _data(message)
    skills = [(member, skill) for member in team for skill in member.skills.values()]
    named = _named(words.text, _data(words), skills)
    if len(named) == 1:
        return _chosen(*named[0], message.text, _arguments(data))
    if data is not None:
        fitting = [found for found in named or skills if _takes(found[1], data)]
        if len(fitting) == 1:
            return _chosen(*fitting[0], message.text, data)
        if fitting:
            return Choice(question=_which(fitting, "Several skills take this data"))
    if len(skills) == 1 and complete:
        return _chosen(*skills[0], message.text, data)
    matches = search(words.text, team)
    if (best := clearly_best(matches)) is not None:
        return _chosen(best.member, best.skill, message.text, data)
    return Choice(question=_unclear(matches, skills))


def _data(message: Message) -> Any:
    return next((part.data for part in message.parts if part.data is not UNSET), None)


def _unclear(matches: list[Match], skills: list[tuple[Member, RemoteSkill]]) -> str:
    if matches:
        return _which([(match.member, match.skill) for match in matches], "Several skills fit")
    return _which(skills, "No skill fits this")


def _named(
    text: str, data: Any, skills: list[tuple[Member, RemoteSkill]]
) -> list[tuple[Member, RemoteSkill]]:
    """The skills that the message names: in the field `skill` of its data, or in its words."""
    if isinstance(data, Mapping) and isinstance(data.get("skill"), str):
        wanted = data["skill"]
        return [each for each in skills if wanted in (each[1].id, _full(*each))]
    words = set(re.findall(r"[\w./-]+", text))
    full = [each for each in skills if _full(*each) in words]
    return full or [each for each in skills if each[1].id in words and "_" in each[1].id]


def _takes(skill: RemoteSkill, data: Any) -> bool:
    if skill.input is None or not isinstance(data, Mapping):
        return False
    try:
        skill.check(_arguments(data), partial=False)
    except A2AError:
        return False
    return True


def _arguments(data: Any) -> Any:
    """The data without the name of the skill."""
    if isinstance(data, Mapping) and "skill" in data:
        return {name: value for name, value in data.items() if name != "skill"}
    return data


def _chosen(member: Member, skill: RemoteSkill, text: str, data: Any) -> Choice:
    said = data if data is not None else text
    step = Step(
        slug(skill.id) if skill.id else member.name[:64],
        agent=member.name,
        skill=skill.id,
        input=said,
    )
    return Choice(step, member.address, at=time.time())


def _full(member: Member, skill: RemoteSkill) -> str:
    return f"{member.name}/{skill.id}"


def _which(found: list[tuple[Member, RemoteSkill]], why: str) -> str:
    lines = [
        f"- {_full(member, skill)}: {' '.join(skill.description.split())[:200]}"
        for member, skill in found[:SHOWN]
    ]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return "\n".join([f"{why}. Which one do you mean? Answer with its name.", *lines, *more])
