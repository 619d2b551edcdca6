"""Skills by name and with types: what the card says of them, and calls that are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from dragoman.client.result import Result
from dragoman.client.upload import File
from dragoman.model import to_parts
from dragoman.model.errors import InvalidAgentResponse, InvalidParams
from dragoman.model.json_schema import problems
from dragoman.model.skill_extension import PARAMETER, RESULT, FileParameter, SkillSchema, schemas
from dragoman.model.types import AgentCard, Part

FILES = (File, Part, bytes, bytearray, memoryview)


class RemoteSkill(Struct, frozen=True, kw_only=True):
    """A skill of an agent, as its card describes it."""

    id: str
    name: str
    description: str
    tags: Sequence[str] = ()
    examples: Sequence[str] = ()
    input: dict[str, Any] | None = None
    """The JSON Schema of its parameters; None if the card has none."""
    output: dict[str, Any] | None = None
    """The JSON Schema of its result; None if the card has none."""
    files: dict[str, FileParameter] = {}
    """The parameters that take files."""
    ask: bool = False
    """The agent asks for parameters that are missing."""
    wrapped: bool = False
    """The result is not an object; the data has it in the field `result`."""

    def check(self, arguments: Mapping[str, Any], *, partial: bool = False) -> None:
        """Raise InvalidParams, which names each parameter that is unknown, missing or wrong. With
        `partial`, none is missing: the task or its agent knows the others."""
        partial = partial or self.ask
        found: list[tuple[str, str]] = []
        data = {name: item for name, item in arguments.items() if name not in self.files}
        if self.input is not None:
            schema = {**self.input, "required": []} if partial else self.input
            found += problems(schema, to_parts.plain(data))
        elif self.files and data:
            found += [(name, "is unknown") for name in data]
        for name, file in self.files.items():
            value = arguments.get(name)
            if value is None:
                if file.required and not partial:
                    found.append((name, "is required"))
            elif not isinstance(value, FILES):
                kind = type(value).__name__
                found.append((name, f"expected a File, a Part or bytes, got {kind}"))
        if found:
            found = [(path.removeprefix(".") or self.id, what) for path, what in found]
            text = "; ".join(f"{path}: {what}" for path, what in found)
            raise InvalidParams(f"{self.id}: {text}", violations=found)

    def parts(self, arguments: Mapping[str, Any]) -> list[Part | File]:
        """The parts of a message with these arguments."""
        data, files = {}, []
        for name, value in arguments.items():
            if isinstance(value, FILES) and (name in self.files or self.input is None):
                files.append(_file(name, value))
            elif name not in self.files:
                data[name] = value
        found: list[Part | File] = []
        if data or not files:
            found.append(Part(data=to_parts.plain(data)))
        return found + files


class SkillNotCompleted(Exception):
    """The call of a skill brought no result: its task failed, was rejected or canceled, or asks for
    something. `result` has the task."""

    def __init__(self, skill: str, result: Result) -> None:
        state = result.state.name.lower().replace("_", "-") if result.state else "unknown"
        text = f"{skill}: the task is {state}"
        pause = result.pause
        why = result.text if pause is None or pause.in_words else pause.text
        super().__init__(f"{text}: {why}" if why else text)
        self.result = result


def skills(card: AgentCard) -> dict[str, RemoteSkill]:
    """The skills on a card, by id."""
    known = schemas(card)
    found = {}
    for skill in card.skills:
        schema = known.get(skill.id, SkillSchema())
        found[skill.id] = RemoteSkill(
            id=skill.id,
            name=skill.name,
            description=skill.description,
            tags=skill.tags,
            examples=skill.examples,
            input=schema.input,
            output=schema.output,
            files=schema.files,
            ask=schema.ask,
            wrapped=schema.wrapped,
        )
    return found


def find(card: AgentCard, id: str) -> RemoteSkill:
    """The skill with this id. If there is none, raises InvalidParams, which names the skills of the
    card."""
    known = skills(card)
    if id in known:
        return known[id]
    if card.capabilities.extended_agent_card:  # it may have more skills; the agent decides
        return RemoteSkill(id=id, name=id, description=id)
    names = ", ".join(known) or "none"
    raise InvalidParams.at("skill", f"unknown skill {id!r}; the skills are: {names}")


def _file(name: str, value: Any) -> Part | File:
    if isinstance(value, File):
        return File(value.path, name=value.name, media_type=value.media_type, parameter=name)
    (part,) = to_parts.parts(value)
    return replace(part, metadata={**(part.metadata or {}), PARAMETER: name})


def typed(skill: RemoteSkill, result: Result, returns: Any) -> Any:
    """The result of a skill as this type; UNSET means the plain data, else the text."""
    if returns is Result:
        return result
    if not result.ok:
        raise SkillNotCompleted(skill.id, result)
    if returns is str:
        return result.text
    if returns is bytes:
        raw = next((part.raw for part in result.files if part.raw is not None), None)
        if raw is None:
            raise InvalidAgentResponse(f"{skill.id}: the result has no file with content")
        return raw
    parts = [part.data for part in result.parts if part.data is not UNSET]
    data = to_parts.whole(parts[0]) if parts else None
    if skill.wrapped and isinstance(data, dict):
        data = data.get(RESULT)
    if returns is UNSET:
        return data if parts else result.text or None
    from dragoman.model.parameter_types import DataType, WrongData

    try:
        return DataType(returns).convert(data)
    except WrongData as error:
        found = [f"{path.removeprefix('.')}: {what}" for path, what in error.problems]
        text = "; ".join(item.removeprefix(": ") for item in found)
        raise InvalidAgentResponse(f"{skill.id}: the result does not fit: {text}") from None
