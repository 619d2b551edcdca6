"""What a card says of the parameters and the result of its skills: one extension for all."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from dragoman.model.to_parts import whole
from dragoman.model.types import AgentCard

SKILL_SCHEMA = "urn:dragoman:skill-schema:v1"
"""The extension. Its `params` have a `SkillSchema` for each skill, by the skill's id."""
PARAMETER = "parameter"
"""In the metadata of a file part: the parameter that the file is for."""
RESULT = "result"
"""The field that holds a result that is not an object."""


class JsonSchema(Struct, frozen=True):
    """The JSON Schema of a value, for a type that is known only at run time:
    `Annotated[dict[str, Any], JsonSchema({"type": "object", …})]`."""

    schema: dict[str, Any]


class FileParameter(Struct, frozen=True, omit_defaults=True):
    """A parameter that takes a file part."""

    description: str = ""
    required: bool = True


class SkillSchema(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The parameters and the result of a skill, as JSON Schema 2020-12."""

    input: dict[str, Any] | None = None
    """The schema of the data part; None if the skill takes any message."""
    output: dict[str, Any] | None = None
    """The schema of the result's data part; None if the result is not data."""
    files: dict[str, FileParameter] = {}
    """The parameters that take file parts."""
    text: str = ""
    """The parameter that the text of the message fills if no data part does."""
    ask: bool = False
    """The agent asks for required fields that are missing; it does not refuse the message."""
    wrapped: bool = False
    """The result is not an object; the data part has it in the field `result`."""


def schemas(card: AgentCard) -> dict[str, SkillSchema]:
    """The schemas on a card, by skill. An entry that cannot be read counts as absent."""
    found: dict[str, SkillSchema] = {}
    for extension in card.capabilities.extensions:
        if extension.uri != SKILL_SCHEMA or not extension.params:
            continue
        for skill, entry in extension.params.items():
            try:  # over gRPC every number is a double
                found[skill] = msgspec.convert(whole(entry), SkillSchema)
            except (msgspec.ValidationError, RecursionError):
                continue
    return found
