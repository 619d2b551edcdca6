"""Finds the skills of a team that fit a text: by rare words that text and card share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

from dragoman.client import RemoteSkill
from dragoman.orchestrator.agent_team import Member

_WORD = re.compile(r"[^\W_]+")
COMMON = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "for", "from", "how", "i"),
        *("in", "is", "it", "me", "my", "of", "on", "or", "please", "that", "the", "this", "to"),
        *("us", "want", "we", "what", "with", "would", "you", "your"),
    )
)
ENDINGS = ("ings", "ing", "ers", "ies", "ed", "er", "es", "s", "e")
WEIGHTS = {"name": 3.0, "tags": 2.5, "examples": 1.5, "description": 1.0}
SATURATION = 1.2
AHEAD = 1.5
"""How many times better than the second the first must be to be taken without a question."""


class Match(Struct, frozen=True):
    """A skill that fits."""

    score: float
    member: Member
    skill: RemoteSkill


def search(text: str, members: Iterable[Member]) -> list[Match]:
    """The skills that share a word with the text, best first."""
    wanted = set(_words(text))
    skills = [(member, skill) for member in members for skill in _skills(member)]
    documents = [_document(member, skill) for member, skill in skills]
    holding = Counter(word for document in documents for word in document)
    found = []
    for (member, skill), document in zip(skills, documents, strict=True):
        score = 0.0
        for word in wanted & document.keys():
            rare = math.log(1 + len(skills) / holding[word])
            score += rare * document[word] / (document[word] + SATURATION)
        if score > 0:
            found.append(Match(score, member, skill))
    return sorted(found, key=lambda match: (-match.score, match.member.name, match.skill.id))


def clearly_best(matches: list[Match]) -> Match | None:
    """The first match, if it is clearly ahead of the second."""
    if not matches:
        return None
    first, *others = matches
    return first if not others or first.score >= AHEAD * others[0].score else None


def _skills(member: Member) -> Iterable[RemoteSkill]:
    card = member.card
    return member.skills.values() or [
        RemoteSkill(id="", name=card.name, description=card.description)
    ]


def _document(member: Member, skill: RemoteSkill) -> Mapping[str, float]:
    fields = {
        "name": f"{skill.name} {skill.id} {member.card.name}",
        "tags": " ".join(skill.tags),
        "examples": " ".join(skill.examples),
        "description": f"{skill.description} {member.card.description}",
    }
    found: dict[str, float] = {}
    for field, text in fields.items():
        for word in set(_words(text[:2000])):
            found[word] = found.get(word, 0.0) + WEIGHTS[field]
    return found


def _words(text: str) -> Iterable[str]:
    for word in _WORD.findall(text.casefold()):
        if word not in COMMON:
            yield _stem(word)


def _stem(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word
