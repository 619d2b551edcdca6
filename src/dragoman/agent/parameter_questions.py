"""Questions for missing parameters: what `ask=True` asks, and how an answer in lines is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.model import clock
from dragoman.model.json_schema import DIALECT, alternatives, kind_of, resolved
from dragoman.model.parameter_types import inlined
from dragoman.model.skill_extension import SKILL_SCHEMA, FileParameter
from dragoman.model.types import Message, Part, Role

ASKS = "asks"
"""In the question's metadata under the extension: the names of what is missing."""
_LINE = re.compile(r"\s*[-*]?\s*([^\W\d][\w-]*)\s*[:=]\s*(.*?)\s*")
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


def question(
    missing: Sequence[str], schema: Mapping[str, Any], files: Mapping[str, FileParameter]
) -> Message:
    """Ask for these parameters: in words, and by the schema of the missing fields."""
    known = schema.get("properties", {})
    fields = {name: known[name] for name in missing if name in known}
    lines = ["Please give these parameters, as data or as lines of the form `name: value`:"]
    for name in missing:
        said = [] if name in fields else ["a file"]
        if name in fields:
            said += [_kind(fields[name], schema)]
        inner = resolved(fields[name], schema) if name in fields else {}
        about = files[name].description if name in files else inner.get("description", "")
        words = f"{name} ({', '.join(filter(None, said))})" if any(said) else name
        lines.append(f"{words}: {about}" if about else words)
    parts = [Part(text="\n".join(lines))]
    if fields:
        asked = {
            "$schema": DIALECT,
            "type": "object",
            "properties": fields,
            "required": list(fields),
        }
        if "$defs" in schema:
            asked["$defs"] = schema["$defs"]
        parts.append(Part(data=inlined(asked)))
    return Message(
        message_id=clock.uuid7(),
        role=Role.AGENT,
        parts=tuple(parts),
        metadata={SKILL_SCHEMA: {ASKS: list(missing)}},
    )


def asked(message: Message) -> Sequence[str]:
    """The parameters that an agent's message asks for; empty if it is no such question."""
    mark = (message.metadata or {}).get(SKILL_SCHEMA)
    names = mark.get(ASKS) if isinstance(mark, dict) else None
    return names if isinstance(names, list) else ()


def lines(text: str, names: Sequence[str], schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that lines such as `nights: 2` give. Other lines count for nothing."""
    known = {name.lower().replace("-", "_"): name for name in names}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        name = known.get(match[1].lower().replace("-", "_")) if match else None
        if match is not None and name is not None and match[2]:
            yield name, parsed(match[2], schema.get("properties", {}).get(name, {}), schema)


def parsed(text: str, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The value that a text means for a field of this schema. What it cannot mean stays text."""
    kind = kind_of(schema, root)
    if kind == "string":
        return text
    if kind == "boolean" and text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _kind(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """What to give, in a word or two."""
    (found, *others) = alternatives(schema, root) or [{}]
    if isinstance(found.get("enum"), list) and not others:
        return "one of " + ", ".join(
            item if isinstance(item, str) else json.dumps(item) for item in found["enum"]
        )
    kind = kind_of(schema, root)
    return {"string": "text", "integer": "whole number", "boolean": "yes or no"}.get(kind, kind)
