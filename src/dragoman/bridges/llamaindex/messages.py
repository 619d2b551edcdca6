"""The values of the bridge to LlamaIndex: what a message, an answer and a result are there."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace
from pydantic import BaseModel, PydanticUserError, ValidationError, create_model
from workflows import Workflow
from workflows.context import JsonSerializer
from workflows.events import Event, HumanResponseEvent, StartEvent, StopEvent

from dragoman import Part, UserError
from dragoman.bridges.bridge import Answer, Question, question_about
from dragoman.bridges.saved_state import GONE
from dragoman.bridges.text_answers import files_of, words_of

TEXTS = ("user_msg", "message", "query", "question", "input", "text")
"""Names of fields that take the text of a message, if there are several fields."""
WORDS = ("prefix", "question", "message", "msg", "text", "prompt", "description")
"""Names of fields that have the words of a question."""


def joined(context: Any, messages: Sequence[Any]) -> bytes:
    """A context and the messages of a memory, as JSON."""
    return json.dumps({"context": context, "messages": messages}).encode()


def fields_of(event: Event) -> dict[str, Any]:
    """The fields of an event: those of its class, and others."""
    own = {name: getattr(event, name) for name in type(event).model_fields}
    return {**own, **dict(event.items())}


class AskingEvent(Struct, frozen=True):
    """An event that has asked."""

    kind: str
    """The name of the class of the event that answers it."""
    fields: dict[str, Any]
    approval: bool


def answer_class(workflow: Workflow, waiters: Sequence[Mapping[str, Any]], number: int) -> str:
    """The name of the class of the event that answers a question."""
    if waiters:
        return str(waiters[min(number, len(waiters) - 1)]["waiting_for_event"])
    taken = [kind for kind in workflow.events if issubclass(kind, HumanResponseEvent)]
    kind = taken[0] if len(taken) == 1 else HumanResponseEvent
    return f"{kind.__module__}.{kind.__qualname__}"


def question_of(id: str, found: Mapping[str, Any], kind: str) -> Question:
    """What an event asks. One that names a tool and its arguments asks for an approval."""
    told = json.loads(json.dumps({key: found[key] for key in found}, default=str))
    asked = question_about(id, told, WORDS, json.dumps(told) if told else f"{kind}?")
    tool, arguments = found.get("tool_name"), found.get("tool_kwargs")
    if not isinstance(tool, str) or not isinstance(arguments, Mapping):
        return asked
    words = asked.text if asked.data else ""
    operation = {"tool": tool, "arguments": json.loads(json.dumps(arguments, default=str))}
    call = f"{tool} with {json.dumps(operation['arguments'], ensure_ascii=False)}"
    text = f"{words} ({call})" if words else f"May I call {call}?"
    return Question(id, text, approval=True, operation=operation)


def response(asked: AskingEvent, answer: Answer) -> Event:
    """An answer as the workflow takes it. It has the fields of the question, by which a step knows
    the answer to its own question."""
    kind: Any = JsonSerializer().resolve_class(asked.kind)
    data = answer.data if isinstance(answer.data, dict) else {}
    files = [_file(part) for part in files_of(answer)] if "files" in kind.model_fields else []
    text = answer.text if files else words_of(replace(answer, data=None))
    given: dict[str, Any] = {"response": text}
    if files:
        given["files"] = files
    if asked.approval:
        said = "yes" if answer.approved else "no"
        given = {"response": said, "approved": answer.approved, "reason": answer.text}
        return _filled(kind, {**asked.fields, **given})
    wanted = [name for name, field in kind.model_fields.items() if field.is_required()]
    wanted = [name for name in wanted if name != "files"]
    if len(wanted) == 1:
        given[wanted[0]] = text
    # no data of the client's approve anything, or answer another question
    given |= {key: value for key, value in data.items() if key != "approved"}
    return _filled(kind, {**given, **asked.fields})


def _filled(kind: Any, fields: Mapping[str, Any]) -> Event:
    try:
        event: Event = kind(**fields)
    except ValidationError:
        names = ", ".join(kind.model_fields)
        raise UserError(f"The answer must have data with the fields {names}") from None
    return event


def start_event(kind: type[StartEvent], parts: Sequence[Part], name: str) -> StartEvent:
    """The start event of a workflow that is no agent."""
    fields = kind.model_fields
    found = next((part.data for part in parts if part.data is not UNSET), None)
    given = dict(found) if isinstance(found, dict) else {}
    text = "\n".join(part.text for part in parts if part.text is not None)
    files = [_file(part) for part in parts if part.raw is not None or part.url is not None]
    if not name:
        required = [each for each, field in fields.items() if field.is_required()]
        only = next((few for few in (list(fields), required) if len(few) == 1), [])
        name = next((each for each in (*only, *TEXTS) if each in fields or not fields), "")
    if name and name not in given and (text or not given):
        given[name] = text
    if files:
        if fields and "files" not in fields:
            raise UserError("This agent takes text and data, no files")
        given["files"] = files
    try:
        if not fields or set(given) & set(fields):
            return kind(**given)
    except ValidationError:
        pass
    raise UserError(f"The message must have data with the fields {', '.join(fields)}")


def _file(part: Part) -> dict[str, Any]:
    """A file as fields that an event can keep."""
    about = {"name": part.filename, "media_type": part.media_type}
    if part.raw is not None:
        return {**about, "base64": base64.b64encode(part.raw).decode()}
    return {**about, "url": part.url}


def block_of(llms: Any, part: Part) -> Any:
    """A part of the client's message as a model gets it."""
    if part.text is not None:
        return llms.TextBlock(text=part.text)
    if part.data is not UNSET:
        return llms.TextBlock(text=json.dumps(part.data, ensure_ascii=False))
    media = part.media_type or "application/octet-stream"
    what, _, kind = media.partition("/")
    raw, url = part.raw, part.url
    if what == "image":
        return llms.ImageBlock(image=raw, url=url, image_mimetype=media)
    if what == "audio":
        return llms.AudioBlock(audio=raw, url=url, format=kind)
    if what == "video":
        return llms.VideoBlock(video=raw, url=url, video_mimetype=media)
    return llms.DocumentBlock(data=raw, url=url, title=part.filename, document_mimetype=media)


def output_of(workflow: Workflow, about: Any) -> type[BaseModel] | None:
    """The type of a workflow's structured results, `about` which its agent may say more; None if
    they are text, or of any type."""
    for each in (workflow, about):
        if (found := getattr(each, "output_cls", None)) is not None:
            return found if issubclass(found, BaseModel) else None
    kind = workflow.stop_event_class
    fields: dict[str, Any] = {name: (f.annotation, f) for name, f in kind.model_fields.items()}
    if not fields or [each for each, _ in fields.values()] == [str]:
        return None  # one text is the text of the answer
    if kind.__module__.startswith(("workflows.", "llama_index.")):
        return None
    try:
        # events have a serializer of their own, whose schema says nothing
        made = create_model(kind.__name__, __doc__=kind.__doc__, **fields)
        made.model_json_schema()
    except PydanticUserError:
        return None  # JSON Schema has no word for a type of it
    return made


def note_of(block: dict[str, Any]) -> dict[str, Any] | None:
    """A note instead of a block whose file is gone."""
    return {"block_type": "text", "text": GONE} if "block_type" in block else None


def parts_of(result: Any) -> tuple[str, list[Part], Any]:
    """What a workflow returns: text, files and a structured result."""
    structured = getattr(result, "structured_response", None)
    within = (result, getattr(result, "response", None), getattr(result, "message", None))
    message: Any = next((each for each in within if hasattr(each, "blocks")), None)
    if message is not None:
        files = [file for block in message.blocks for file in file_of(block)]
        return str(message.content or ""), files, structured or None
    if isinstance(result, StopEvent):
        result = result.model_dump(mode="json")
        if len(result) == 1 and isinstance(only := next(iter(result.values())), str):
            result = only
    if result is None or isinstance(result, str):
        return result or "", [], None
    if isinstance(result, bytes):
        return "", [Part(raw=result, media_type="application/octet-stream")], None
    if isinstance(result, BaseModel):
        return "", [], result.model_dump(mode="json")
    if isinstance(result, dict | list | tuple | int | float):
        return "", [], json.loads(json.dumps(result, default=_plain))
    return str(result), [], None


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


def file_of(block: Any) -> list[Part]:
    """The file of a block of a model's answer; none if it is no file."""
    what = getattr(block, "block_type", "")
    if what not in ("image", "audio", "video", "document"):
        return []
    if what == "audio":
        media = f"audio/{block.format or 'wav'}"
    else:
        media = getattr(block, f"{what}_mimetype")
    held = getattr(block, "data" if what == "document" else what)
    if held is None and block.url is not None:
        return [Part(url=str(block.url), media_type=media or "")]
    data = getattr(block, f"resolve_{what}")().read()
    return [Part(raw=data, media_type=media or "application/octet-stream")]


def count(used: dict[str, int], raw: Any) -> None:
    """Count a response of a model, with what its provider says about tokens."""
    used["requests"] = used.get("requests", 0) + 1
    found = raw if isinstance(raw, dict) else {}
    usage = found.get("usage") or found.get("usage_metadata") or {}
    for key, names in (
        ("input_tokens", ("input_tokens", "prompt_tokens", "prompt_token_count")),
        ("output_tokens", ("output_tokens", "completion_tokens", "candidates_token_count")),
    ):
        for name in names:
            tokens = usage.get(name) if isinstance(usage, dict) else getattr(usage, name, None)
            if isinstance(tokens, int):
                used[key] = used.get(key, 0) + tokens
                break
