"""Serves an agent or a team of Agno. Each call of its model is a step inside of the run: a turn
that is run again makes none of them twice."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Unpack

import msgspec
from agno.agent import Agent as AgnoAgent
from agno.db.in_memory import InMemoryDb
from agno.media import Audio, File, Image, Video
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.session import AgentSession, TeamSession
from agno.team import Team
from msgspec import UNSET, Struct
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import to_json, to_jsonable_python

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.saved_state import GONE, LIMIT, has_gone, without_gone
from dragoman.bridges.steps import Steps, digest
from dragoman.bridges.text_answers import value_of, words_of

__all__ = ["serve"]


MEDIA = ("images", "videos", "audio", "files")
EVERY = 1000
"""How many runs of a conversation are shown to a model that is shown its history by the bridge."""


def serve(
    agent: AgnoAgent | Team,
    *,
    dependencies: dict[str, Any] | None = None,
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve an agent or a team. `dependencies` are given to each of its runs. A database of the
    agent's keeps the conversations; without one, or with one in memory, they are kept here."""
    return bridge.serve(Agno(agent, dependencies), **options)


class ConversationState(Struct, frozen=True):
    """What an agent needs to continue."""

    session: dict[str, Any] | None = None
    """The conversation; None if a database of the user's has it."""
    pending: str = ""
    """The id of a run that waits for answers."""


class Agno:
    """See `bridge.Framework`."""

    package = "agno"
    logs_steps = False  # a run is a step, with the steps of the model inside

    def __init__(self, agent: AgnoAgent | Team, dependencies: dict[str, Any] | None) -> None:
        self._agent = agent
        self._dependencies = dependencies
        self._own = agent.db is not None and not isinstance(agent.db, InMemoryDb)
        """A database of the user's keeps the conversations."""
        self._prefix = "Team" if isinstance(agent, Team) else ""
        self.name = agent.name or ""
        self.description = agent.description or ""
        kind = agent.output_schema
        self.output = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        kept, session = run.load(self._loaded) or (ConversationState(), None)
        steps = Steps(run)
        agent, db = self._copy(session, steps)
        about: dict[str, Any] = {
            "session_id": run.session,
            "user_id": agent.user_id or _caller(run),
            "stream": True,
            "stream_events": True,
            "yield_run_output": True,
        }
        if self._dependencies is not None:
            about["dependencies"] = self._dependencies
        if kept.pending:
            waiting = await agent.aget_run_output(kept.pending, run.session)
            if waiting is None:
                raise UserError("The run that has asked is not in the agent's database any more")
            requirements = waiting.requirements or []
            _resolve(requirements, run.answers)
            stream = agent.acontinue_run(run_id=kept.pending, requirements=requirements, **about)
        else:
            text, media = _input(run.parts)
            stream = agent.arun(text, run_id=steps.key, **media, **about)
        output = await self._stream(run, stream)
        latest = None if db is None else _json(db.get_session(run.session, deserialize=False))
        if output.is_paused:
            state = _fitting(run, latest, output.run_id)
            return Outcome(state=state, questions=tuple(_questions(output.active_requirements)))
        for part in _files(output):
            await run.file(part)
        structured = output.content is not None and not isinstance(output.content, str)
        used = output.metrics
        return Outcome(
            state=_fitting(run, latest),
            result=_json(output.content) if structured else None,
            usage={
                name: count
                for name in ("input_tokens", "output_tokens")
                if (count := getattr(used, name, 0))
            },
        )

    def _loaded(self, data: bytes) -> tuple[ConversationState, AgentSession | TeamSession | None]:
        """What an agent needs to continue; raises an error if Agno cannot read it."""
        kept = _decoded(data)
        if kept.session is None:
            return kept, None
        session = (TeamSession if self._prefix else AgentSession).from_dict(kept.session)
        if session is None:
            raise ValueError("it is no session")
        return kept, session

    def _copy(
        self, session: AgentSession | TeamSession | None, steps: Steps
    ) -> tuple[Any, InMemoryDb | None]:
        """The agent for one run, and the database that has the conversation, if it is ours."""
        if self._own:
            agent, db = self._agent.deep_copy(), None
        else:
            db = InMemoryDb()
            if session is not None:
                db.upsert_session(session)
            update: dict[str, Any] = {"db": db}
            if self._agent.db is None:  # it says nothing about history
                update |= {"add_history_to_context": True, "num_history_runs": EVERY}
            agent = self._agent.deep_copy(update=update)
        agent.initialize_team() if isinstance(agent, Team) else agent.initialize_agent()
        if isinstance(agent.model, Model):
            agent.model = _logged(agent.model, steps)
        return agent, db

    async def _stream(self, run: Run, stream: Any) -> Any:
        """Report what a run streams, until it ends; its output."""
        output: Any = None
        said = False
        async with aclosing(stream):
            async for event in stream:
                kind = getattr(event, "event", None)
                if kind is None:
                    output = event
                elif kind == f"{self._prefix}RunContent":
                    if isinstance(event.content, str) and event.content_type == "str":
                        said = said or bool(event.content)
                        await run.write(event.content)
                elif kind == f"{self._prefix}RunError":
                    if event.error_type in ("input_check_error", "output_check_error"):
                        raise UserError("A guardrail of the agent has stopped it")
                    raise RuntimeError(event.content)
                elif kind.removeprefix("Team") == "ToolCallStarted":
                    await run.tool(event.tool.tool_name)
                elif kind.removeprefix("Team") == "ToolCallCompleted":
                    await run.detail(f"{event.tool.tool_name} returned {event.tool.result}")
        if output is None:
            raise RuntimeError("the run has ended without an output")
        if not said and not output.is_paused and isinstance(output.content, str):
            await run.write(output.content)  # it was not streamed, such as a tool's result
        return output


def _caller(run: Run) -> str:
    """Under which name the framework keeps what it remembers about a user."""
    caller = run.turn.caller
    return digest(to_json((caller.tenant, caller.qualified)))


def _input(parts: Sequence[Part]) -> tuple[str, dict[str, Any]]:
    """The client's message as the agent takes it: text, and media by their kinds."""
    texts: list[str] = []
    media: dict[str, Any] = {name: [] for name in MEDIA}
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        what, _, form = kind.partition("/")
        source: dict[str, Any] = {}
        if part.text is not None:
            texts.append(part.text)
        elif part.raw is not None:
            source = {"content": part.raw}
        elif part.url is not None:
            source = {"url": part.url}
        elif part.data is not UNSET:
            texts.append(json.dumps(part.data, ensure_ascii=False))
        if not source:
            continue
        if what == "image":
            media["images"].append(Image(**source, mime_type=kind, format=form))
        elif what == "audio":
            media["audio"].append(Audio(**source, mime_type=kind, format=form))
        elif what == "video":
            media["videos"].append(Video(**source, mime_type=kind, format=form))
        else:
            known = kind if kind in File.valid_mime_types() else None
            media["files"].append(File(**source, mime_type=known, filename=part.filename or None))
    return "\n".join(texts), {name: some for name, some in media.items() if some}


def _files(output: Any) -> Iterator[Part]:
    """The files that a run has made."""
    defaults = {"images": "image/png", "videos": "video/mp4", "audio": "audio/wav"}
    made = [
        (item, defaults.get(name, "application/octet-stream"))
        for name in MEDIA
        for item in getattr(output, name, None) or ()
    ]
    if (spoken := getattr(output, "response_audio", None)) is not None:
        made.append((spoken, defaults["audio"]))
    for item, default in made:
        named: dict[str, Any] = {"media_type": item.mime_type or default}
        if filename := getattr(item, "filename", None):
            named["filename"] = filename
        if item.url:
            yield Part(url=item.url, **named)
        elif content := item.get_content_bytes():
            yield Part(raw=content, **named)


def _questions(requirements: Sequence[Any]) -> Iterator[Question]:
    """What the requirements of a run ask."""
    for needed in requirements:
        tool = needed.tool_execution
        arguments = tool.tool_args or {}
        if needed.needs_confirmation:
            text = f"May I call {tool.tool_name} with {json.dumps(arguments, ensure_ascii=False)}?"
            operation = {"tool": tool.tool_name, "arguments": _json(arguments)}
            yield Question(needed.id, text, approval=True, operation=operation)
        elif needed.needs_user_feedback:
            for number, asked in enumerate(needed.user_feedback_schema):
                labels = ", ".join(option.label for option in asked.options or ())
                text = f"{asked.question} ({labels})" if labels else asked.question
                yield Question(f"{needed.id}:{number}", text)
        elif needed.needs_user_input:
            for number, field in enumerate(needed.user_input_schema or ()):
                if field.value is None:
                    yield Question(f"{needed.id}:{number}", field.description or f"{field.name}?")
        elif needed.needs_external_execution:
            asked = arguments.get("question")
            text = asked if isinstance(asked, str) else f"{tool.tool_name}: {json.dumps(arguments)}"
            yield Question(needed.id, text)


def _resolve(requirements: Sequence[Any], answers: Sequence[Answer]) -> None:
    """Give the answers to the requirements that asked for them."""
    given = {answer.id: answer for answer in answers}
    for needed in requirements:
        answer = given.get(needed.id)
        if needed.needs_confirmation:
            if answer is not None and answer.approved:
                needed.confirm()
            else:
                needed.reject(answer.text if answer is not None and answer.text else None)
        elif needed.needs_user_feedback:
            asked = enumerate(needed.user_feedback_schema)
            chosen = {
                each.question: _chosen(each, given.get(f"{needed.id}:{number}", Answer("")))
                for number, each in asked
            }
            needed.provide_user_feedback(chosen)
        elif needed.needs_user_input:
            fields = enumerate(needed.user_input_schema or ())
            values = {
                field.name: _typed(field, found)
                for number, field in fields
                if (found := given.get(f"{needed.id}:{number}")) is not None
            }
            needed.provide_user_input(values)
        elif needed.needs_external_execution and answer is not None:
            needed.set_external_execution_result(words_of(answer))


def _typed(field: Any, answer: Answer) -> Any:
    """The value of a field, of its type if the words can be read as one."""
    value = value_of(answer)
    if isinstance(value, dict) and field.name in value:
        value = value[field.name]
    try:
        return TypeAdapter(field.field_type).validate_python(value)
    except ValidationError:
        return value


def _chosen(asked: Any, answer: Answer) -> list[str]:
    """The options that an answer names; else its words."""
    words = answer.data if isinstance(answer.data, list) else re.split(r"[,;\n]", answer.text)
    said = {str(word).strip().lower() for word in words}
    found = [option.label for option in asked.options or () if option.label.lower() in said]
    return found or [words_of(answer)]


def _logged(model: Model, steps: Steps) -> Model:
    """A copy of a model, whose responses are steps of the task."""

    def name(messages: Sequence[Message]) -> str:
        said = [
            (each.role, each.get_content_string(), each.tool_calls, each.tool_call_id)
            for each in messages
            if each.role != "system"  # it may tell the time
        ]
        return f"model:{digest(to_json(said, serialize_unknown=True))}"

    async def respond(*, messages: list[Message], **options: Any) -> ModelResponse:
        """See `Model.ainvoke`."""

        async def ask() -> ModelResponse:
            return await model.ainvoke(messages=messages, **options)

        return await steps.call(name(messages), ask, _dumped, _loaded)

    def stream(
        *, messages: list[Message], assistant_message: Message, **options: Any
    ) -> AsyncIterator[ModelResponse]:
        """See `Model.aprocess_response_stream`."""

        async def ask(give: Callable[[Any], None]) -> list[Any]:
            deltas = []
            async for delta in model.aprocess_response_stream(
                messages=messages, assistant_message=assistant_message, **options
            ):
                deltas.append(delta)
                give(delta)
            return deltas

        def dump(deltas: list[ModelResponse]) -> Any:
            found = [_dumped(delta) for delta in deltas]
            if UNSET in found:
                return UNSET
            return {"deltas": _joined(found), "message": _json(assistant_message.to_dict())}

        def again(found: dict[str, Any]) -> Iterator[ModelResponse]:
            message = Message.from_dict(found["message"])
            for field in message.model_fields_set - {"id"}:
                setattr(assistant_message, field, getattr(message, field))
            return map(_loaded, found["deltas"])

        return steps.stream(name(messages), ask, dump, lambda found: found, again)

    made = copy.copy(model)  # its clients stay with the model itself
    made.ainvoke = respond
    made.aprocess_response_stream = stream
    return made


def _dumped(response: ModelResponse) -> Any:
    """A response as JSON; UNSET if it has media, which the framework cannot read back."""
    if any((response.audio, response.images, response.videos, response.audios, response.files)):
        return UNSET
    if response.tool_executions:
        return UNSET
    found = _json(response.to_dict())
    return {key: value for key, value in found.items() if value not in (None, [], {})}


def _loaded(data: dict[str, Any]) -> ModelResponse:
    return ModelResponse.from_dict(data)


def _joined(deltas: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same deltas, with neighbours that are text alone in one piece."""
    joined: list[dict[str, Any]] = []
    plain = {"content", "event", "created_at", "role"}
    for delta in deltas:
        last = joined[-1] if joined else {}
        texts = [each.get("content") for each in (last, delta)]
        if {*last, *delta} <= plain and all(isinstance(text, str) for text in texts):
            last["content"] += delta["content"]
        else:
            joined.append(delta)
    return joined


def _json(value: Any) -> Any:
    return to_jsonable_python(value, serialize_unknown=True)


def _fitting(run: Run, session: dict[str, Any] | None, pending: str = "") -> bytes:
    """The state, with the latest runs that fit."""
    if session is None:
        return _encoded(ConversationState(None, pending))
    runs = session.get("runs") or []

    def encode(some: list[Any]) -> bytes:
        return _encoded(ConversationState({**session, "runs": some}, pending))

    if len(run.pack(data := encode(runs))) <= LIMIT:
        return data
    data = run.fitting([_without_media(each) for each in runs], encode, lambda _: True)
    if pending and not _has(data, pending):
        raise UserError("The conversation is too long to wait for an answer; start a new one")
    return data


def _has(data: bytes, pending: str) -> bool:
    """Whether a state has the run that waits."""
    session = _decoded(data).session or {}
    return any(each.get("run_id") == pending for each in session.get("runs", ()))


def _without_media(value: Any) -> Any:
    """The same runs, without the files that are in them."""
    if isinstance(value, list):
        return [_without_media(each) for each in value]
    if not isinstance(value, dict):
        return value
    gone = {*MEDIA, "audio_output", "image_output", "video_output", "file_output"}
    return {key: _without_media(each) for key, each in value.items() if key not in gone}


def _encoded(kept: ConversationState) -> bytes:
    return msgspec.json.encode(kept)


def _decoded(state: bytes) -> ConversationState:
    return msgspec.json.decode(without_gone(state, _note), type=ConversationState)


def _note(value: dict[str, Any]) -> dict[str, Any] | None:
    """A message, or a list of files, without those that are gone."""
    found = dict(value)
    for name in MEDIA:
        if isinstance(files := value.get(name), list):
            found[name] = [file for file in files if not has_gone(file)]
    if found == value:
        return None
    if "role" in found:
        found["content"] = f"{found.get('content') or ''}\n{GONE}".strip()
    return found
