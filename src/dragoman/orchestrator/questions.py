"""Questions of several agents as one message to the client, and its answer divided among them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman import Message, Part, Role
from dragoman.orchestrator.plan import PlanStep, Question

QUESTIONS = "urn:dragoman:questions:v1"
"""The key of the metadata of a message that asks: its questions, each with name, agent, host, kind,
text, and the schema of the answer if there is one."""
_LINE = re.compile(r"\s*[-*]?\s*([\w.-]{1,64})\s*[:=]\s*(.*)")
_SECRET = re.compile(
    r"pass.?(word|wort|phrase|code)|kennwort|\bpins?\b|\bcvv|secret|credential|token|(api|private).?key",
    re.IGNORECASE,
)
"""The words of a question that wants a secret. Not every such question is found."""
WARNING = "do not send a password or key here"
BACK = "/back"
"""What the client says to end a talk with an agent that has taken over."""
YES = frozenset(("yes", "y", "ok", "okay", "sure", "approve", "accept", "allow", "repeat", "again"))


def in_words(step: PlanStep, host: str) -> str:
    """One question, for people. Every line of the agent is marked as its own."""
    assert step.question is not None
    what = {
        "question": "asks",
        "login": f"needs you to log in there; {WARNING}",
        "approval": "asks for your approval",
        "uncertain": "may have got a message",
    }[step.question.kind]
    if step.question.kind == "question" and _wants_secret(step.question):
        what = f"{what}; {WARNING}"
    lines = step.question.text.splitlines() or [""]
    said = "\n".join(f"> {line}" for line in lines)
    if step.question.kind == "uncertain":
        return f"{step.name}: {step.agent} ({host}) {what}. {step.question.text} (yes or no)"
    return f"{step.name}: {step.agent} ({host}) {what}:\n{said}"


def _wants_secret(question: Question) -> bool:
    schema = "" if question.schema is None else msgspec.json.encode(question.schema).decode()
    return bool(_SECRET.search(question.text) or _SECRET.search(schema))


def message(
    turn: Any, steps: Sequence[PlanStep], hosts: Mapping[str, str], *, direct: bool = False
) -> Any:
    """The event that asks all these questions: in words, and as data in the metadata of its
    message. With `direct`, it says how to come back."""
    words = [in_words(step, hosts.get(step.name, "")) for step in steps]
    if direct:
        words = [f"{words[0]}\n({BACK} ends the talk with this agent)"]
    if len(steps) > 1:
        names = ", ".join(f"`{step.name}: …`" for step in steps)
        words.append(f"Answer in lines of the form {names}.")
    asked = [_described(step, hosts.get(step.name, "")) for step in steps]
    said = Message(
        message_id=str(turn.uuid()),
        role=Role.AGENT,
        parts=(Part(text="\n\n".join(words)),),
        metadata={QUESTIONS: asked},
    )
    return turn.ask(said)


def _described(step: PlanStep, host: str) -> dict[str, Any]:
    question = step.question or Question("question", "")
    found = {
        "name": step.name,
        "agent": step.agent,
        "host": host,
        "kind": question.kind,
        "text": question.text,
    }
    return {**found, "schema": question.schema} if question.schema else found


def divided(answer: Message, steps: Sequence[PlanStep]) -> dict[str, list[Part]]:
    """What the answer says to which question, by the names of the steps: fields of data and lines
    of text by name; everything to the only question. Empty if that is not clear."""
    names = {step.name: step for step in steps}
    found: dict[str, list[Part]] = {}
    rest: list[Part] = []
    for part in answer.parts:
        data = part.data
        if data is not UNSET and isinstance(data, Mapping) and data and names.keys() >= data.keys():
            for name, value in data.items():
                found.setdefault(name, []).append(_part(value))
        elif part.text is not None and (lines := _lines(part.text, names)):
            for name, text in lines.items():
                found.setdefault(name, []).append(Part(text=text))
        else:
            rest.append(part)
    if not found and len(steps) == 1:
        return {steps[0].name: list(answer.parts)}
    if rest and len(found) == 1:  # such as a file that comes with the only answer
        next(iter(found.values())).extend(part for part in rest if part.text is None)
    return found


def agrees(parts: Sequence[Part]) -> bool:
    """Whether an answer means yes."""
    words = " ".join(part.text for part in parts if part.text)
    return words.strip().strip(".!").lower() in YES


def _part(value: Any) -> Part:
    return Part(text=value) if isinstance(value, str) else Part(data=value)


def _lines(text: str, names: Mapping[str, Any]) -> dict[str, str]:
    """The lines `name: value` of a text. Lines without a name belong to the one before."""
    known = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match and match[1].lower() in known:
            current = known[match[1].lower()]
            found[current] = match[2].strip()
        elif current:
            found[current] = f"{found[current]}\n{line}"
    return {name: value.strip() for name, value in found.items() if value.strip()}
