"""What a tool asks, as questions to the client of the agent, and what the answers mean.

A question has the server's words and, as data, the JSON Schema of its answer. It is answered by
data, or by lines of the form `name: value`; a form with one field also by words alone. The words
`decline` and `cancel` alone mean what MCP calls so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import mcp.types as mcp
from msgspec import UNSET, Struct

from dragoman import A2AError, Message, Part
from dragoman.client import RemoteSkill
from dragoman.mcp.client.tool_definitions import LONGEST_NOTE, too_deep
from dragoman.prompt_safety import clean, clean_schema
from dragoman.security.address_policy import EgressRefused, parse
from dragoman.security.client_network import loopback

LONGEST = 4000
"""The most characters of a question."""
LARGEST = 64 << 10
DECLINE, CANCEL = "decline", "cancel"
DECLINED = "the user has declined to answer"
"""What a server of agents as tools says for it."""
NO = ("no", "n")
WORDS = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
_LINE = re.compile(r"\s*[-*]?\s*([^\s:=]+)\s*[:=]\s*(.*?)\s*")

Action: TypeAlias = Literal["accept", "decline", "cancel"]


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tool asks, as it is logged."""

    text: str
    schema: dict[str, Any] | None = None
    """The JSON Schema of the answer; None if the client is sent to a URL."""
    url: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The schemas of the fields that it asks for."""
        found = (self.schema or {}).get("properties")
        return found if isinstance(found, dict) else {}

    def parts(self) -> tuple[Part, ...]:
        """The parts of the question."""
        if self.schema is None:
            return (Part(text=f"{self.text}\n\nOpen {self.url} and answer when you are done."),)
        if not self.fields:
            return (Part(text=f"{self.text}\n\nAnswer yes or no."),)
        lines = [self.text, "", "Answer with data, or with lines of the form `name: value`:"]
        lines += [_line(name, inner) for name, inner in self.fields.items()]
        return Part(text="\n".join(lines)), Part(data=self.schema)


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer, as it is logged."""

    action: Action
    content: dict[str, Any] | None = None

    def result(self) -> mcp.ElicitResult:
        """As MCP has it."""
        return mcp.ElicitResult(action=self.action, content=self.content)


class NotUnderstood(ValueError):
    """The answer does not fit the question. The text says why, and may be shown."""


def question(params: mcp.ElicitRequestParams) -> Question:
    """The question of a tool. Raises ValueError if it must not be passed on."""
    text = clean(params.message, LONGEST).strip() or "The tool asks for more."
    if isinstance(params, mcp.ElicitRequestFormParams):
        asked = params.requested_schema
        if too_deep(asked) or len(json.dumps(asked)) > LARGEST:
            raise ValueError("The question of the tool is too large")
        return Question(text=text, schema={**clean_schema(asked, LONGEST_NOTE), "type": "object"})
    try:
        target = parse(params.url)
    except EgressRefused as error:
        raise ValueError(f"The tool asks to open an address that is refused: {error}") from None
    if target.scheme != "https" and not loopback(target.host):
        raise ValueError("The tool asks to open an address that is refused: the URL is not https")
    return Question(text=text, url=params.url)


def reply(asked: Question, message: Message) -> Reply:
    """What the client's answer means. Raises NotUnderstood."""
    words = message.text.strip().strip(".!").lower()
    data = data_of(message)
    if data is None and words in (DECLINE, DECLINED):
        return Reply(action="decline")
    if data is None and words == CANCEL:
        return Reply(action="cancel")
    if isinstance(data, dict) and set(data) == {"action"} and "action" not in asked.fields:
        if data["action"] in (DECLINE, CANCEL):
            return Reply(action=data["action"])
        data = {}
    if asked.schema is None:
        return Reply(action="accept")
    if not asked.fields:
        refused = data is None and words in NO
        return Reply(action="decline") if refused else Reply(action="accept", content={})
    content = _content(asked.fields, message.text) if data is None else _data(asked.fields, data)
    check(asked.schema, content)
    return Reply(action="accept", content=content)


def data_of(message: Message) -> Any:
    """The first data of a message; None if it has none."""
    return next((whole(part.data) for part in message.parts if part.data is not UNSET), None)


def whole(value: Any) -> Any:
    """Convert 2.0 to 2, also inside: some clients send every number as a float."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return value


def check(schema: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Raise NotUnderstood if the content does not fit the schema."""
    form = RemoteSkill(id="answer", name="", description="", input=dict(schema))
    try:
        form.check(content)
    except A2AError as error:
        raise NotUnderstood(error.message.removeprefix("answer: ")) from None


def _data(fields: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """The fields that data give. A form of one text may stand for a question that needs more than a
    form can hold; then the text is the data as JSON."""
    if len(fields) == 1:
        ((name, inner),) = fields.items()
        text = isinstance(inner, dict) and inner.get("type") == "string"
        if text and not (isinstance(data, dict) and name in data):
            return {name: data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}
    if not isinstance(data, dict):
        raise NotUnderstood("expected an object with the fields of the question")
    return data


def _content(fields: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The fields that a text gives."""
    known = {name.lower(): name for name in fields}
    found: dict[str, Any] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        name = known.get(match[1].lower()) if match else None
        if match is not None and name is not None:
            found[name] = _value(match[2], fields[name])
    if not found and len(fields) == 1:
        ((name, inner),) = fields.items()
        return {name: _value(text.strip(), inner)}
    return found


def _value(text: str, schema: Any) -> Any:
    """What a text means as a value of this schema. What it cannot mean stays text."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "boolean":
        return WORDS.get(text.lower(), text)
    if kind == "array" and not text.startswith("["):
        return [item.strip() for item in text.split(",")]
    if kind in ("integer", "number", "array"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _line(name: str, schema: Any) -> str:
    schema = schema if isinstance(schema, dict) else {}
    kinds = {"string": "text", "integer": "whole number", "boolean": "yes or no"}
    kind = schema.get("type")
    said = kinds.get(kind, kind) if isinstance(kind, str) else ""
    if choices := _choices(schema):
        said = f"one of {', '.join(choices)}"
    about = " ".join(clean(str(schema.get("description", "")), 300).split())
    words = f"{clean(name, 100)} ({said})" if said else clean(name, 100)
    return f"{words}: {about}" if about else words


def _choices(schema: Mapping[str, Any]) -> Sequence[str]:
    values = schema.get("enum")
    if not isinstance(values, list):
        titled = schema.get("oneOf")
        found = titled if isinstance(titled, list) else []
        values = [item.get("const") for item in found if isinstance(item, dict)]
    return [clean(str(value), 100) for value in values[:50]]
