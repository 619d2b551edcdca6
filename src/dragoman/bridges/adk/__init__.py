"""Serves an agent, a workflow, an app or a runner of Google's ADK. If only models and tools have
effects, each of their calls is a step of the task: a turn that is run again makes none of them
twice. Otherwise, such as with callbacks or plugins, a run of the agent is one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Unpack
from urllib.parse import quote

import msgspec
from google.adk.agents import RunConfig
from google.adk.agents.run_config import StreamingMode
from google.adk.apps import App, ResumabilityConfig
from google.adk.artifacts import BaseArtifactService, InMemoryArtifactService
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.events import Event
from google.adk.memory import BaseMemoryService
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.adk.workflow import BaseNode
from google.genai import types
from msgspec import Struct
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from dragoman import Agent
from dragoman.bridges import bridge, third_party_internals
from dragoman.bridges.adk.messages import (
    parsed,
    responses_of,
    say,
    send_file,
    text_of,
    to_json,
    to_parts,
    to_question,
    to_responses,
)
from dragoman.bridges.adk.remote import ASKS, remote_agent, tools
from dragoman.bridges.adk.steps import Log, family, is_llm, repeatable, small
from dragoman.bridges.bridge import BridgeOptions, Outcome, Question, Run
from dragoman.bridges.saved_state import GONE, LIMIT, without_gone

__all__ = ("ADK", "remote_agent", "serve", "tools")

TURN = "dragoman_turn"
"""The key in the metadata of an event: the turn that it belongs to."""


def serve(
    agent: BaseNode | App | Runner,
    *,
    session_service: BaseSessionService | None = None,
    artifact_service: BaseArtifactService | None = None,
    memory_service: BaseMemoryService | None = None,
    credential_service: BaseCredentialService | None = None,
    run_config: RunConfig | None = None,
    **options: Unpack[BridgeOptions],
) -> Agent:
    """Serve an agent, an app, or a runner with its services. A session service that is not in
    memory keeps the conversations itself."""
    third_party_internals.check_version(ADK.package)
    services = {
        "session_service": session_service,
        "artifact_service": artifact_service,
        "memory_service": memory_service,
        "credential_service": credential_service,
    }
    name = ""
    if isinstance(agent, Runner):
        services = {
            key: getattr(agent, key) if own is None else own for key, own in services.items()
        }
        name, agent = agent.app_name, agent.app  # that of the runner may be another
    return bridge.serve(ADK(agent, name, services, run_config or RunConfig()), **options)


class ConversationState(Struct):
    """What is kept of a conversation."""

    state: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    files: dict[str, dict[str, Any]] = {}
    usage: dict[str, int] = {}
    """What the turn has used until it asked."""


class EventSummary:
    """What the events of a run have said."""

    def __init__(self, usage: dict[str, int]) -> None:
        self.usage = Counter(usage)
        self.asked: dict[str, types.FunctionCall] = {}
        self.result: Any = None
        self.output: Any = None
        self.wrote = False
        self.question = ""
        """What a remote agent asks that is a sub-agent: a message is the answer."""
        self.error = ""

    def take(self, event: Event, structured: bool) -> None:
        """Keep what is not sent to the client at once."""
        if event.partial:
            return
        if (used := event.usage_metadata) is not None:
            self.usage["requests"] += 1
            self.usage["input_tokens"] += used.prompt_token_count or 0
            thought = used.thoughts_token_count or 0
            self.usage["output_tokens"] += (used.candidates_token_count or 0) + thought
        waits = event.long_running_tool_ids or ()
        self.asked |= {call.id: call for call in event.get_function_calls() if call.id in waits}
        text = text_of(event)
        if structured and text and event.is_final_response():
            self.result = parsed(text)
        self.wrote = self.wrote or bool(text)
        if text:
            self.question = text if asks(event) else ""
        self.output = self.output if event.output is None else event.output
        if event.error_code:
            self.error = f"{event.error_code}: {event.error_message}"
        elif text:
            self.error = ""


class ADK:
    """See `bridge.Framework`."""

    package = "google-adk"

    def __init__(
        self, agent: BaseNode | App, name: str, services: dict[str, Any], config: RunConfig
    ) -> None:
        app = agent if isinstance(agent, App) else None
        self._root = root = agent if app is None else app.root_agent
        # after a pause in the middle of a sequence, the run continues there, not after it
        self._app = app or App.model_construct(
            name=root.name,
            root_agent=root,
            resumability_config=None if is_llm(root) else ResumabilityConfig(is_resumable=True),
        )
        self.name = root.name if app is None else name or app.name
        self.description = root.description
        in_memory = (InMemorySessionService, InMemoryArtifactService)
        self._services = {
            key: None if isinstance(each, in_memory) else each for key, each in services.items()
        }
        self._own_sessions = self._services["session_service"] is not None
        self._own_files = self._services["artifact_service"] is not None
        self._app_name = name or self._app.name
        self._config = config.model_copy(update={"streaming_mode": StreamingMode.SSE})
        self.logs_steps = not self._own_sessions and repeatable(self._app)
        agents = {each.name: each for each in family(root)}
        self._structured = {
            name for name, each in agents.items() if is_llm(each) and each.output_schema
        }
        schema = root.output_schema if is_llm(root) else None
        is_model = isinstance(schema, type) and issubclass(schema, BaseModel)
        self.output = schema if is_model else None

    async def run(self, run: Run) -> Outcome:
        """Run the agent until it ends or asks."""
        kept, events, files = run.load(_decoded) or (ConversationState(), [], {})
        runner = self._runner(run)
        names = {"app_name": self._app_name, "user_id": _user(run), "session_id": run.session}
        session = await self._session(runner, names, kept.state, events, files)
        summary = EventSummary(kept.usage if run.answers else {})
        streamed: set[str] = set()
        async with aclosing(self._stream(run, runner, session)) as stream:
            async for event in stream:
                summary.take(event, event.author in self._structured)
                if not self.logs_steps:
                    await self._report(run, runner, names, event, streamed)
        if summary.error and not summary.asked:
            raise RuntimeError(f"the model has failed: {summary.error}")
        session = await runner.session_service.get_session(**names)
        state = await self._state(run, runner, names, session, summary)
        if summary.asked:
            responses = responses_of(session)
            questions = [to_question(call, responses) for call in summary.asked.values()]
            return Outcome(state=state, questions=tuple(questions))
        if summary.question:
            return Outcome(state=state, questions=(Question(ASKS, summary.question),))
        result = summary.result
        if result is None and isinstance(summary.output, str) and not summary.wrote:
            await run.write(summary.output)
        elif result is None and not isinstance(summary.output, str):
            result = to_jsonable_python(summary.output, serialize_unknown=True)
        usage = {key: number for key, number in summary.usage.items() if number}
        return Outcome(state=state, result=result, usage=usage)

    def _stream(self, run: Run, runner: Runner, session: Session) -> Any:
        """The events of a run."""
        if not run.answers:
            parts = to_parts(run.parts)
        elif run.answers[0].id == ASKS:
            parts = to_parts(run.answers[0].parts)
        else:
            parts = to_responses(run.answers, session)
        config, begun = self._config, None
        if self._own_sessions:
            # after a crash, the session may have the message already
            key = run.turn.idempotency_key
            about = {**(config.custom_metadata or {}), TURN: key}
            config = config.model_copy(update={"custom_metadata": about})
            begun = None if run.answers else _begun(session, key)
        return runner.run_async(
            user_id=session.user_id,
            session_id=session.id,
            invocation_id=begun,
            new_message=types.Content(role="user", parts=parts),
            run_config=config,
        )

    def _runner(self, run: Run) -> Runner:
        """A runner for one run: with the user's services, or with some that are in memory."""
        app = self._app
        services = {
            **self._services,
            "session_service": self._services["session_service"] or InMemorySessionService(),
            "artifact_service": self._services["artifact_service"] or InMemoryArtifactService(),
        }
        if self.logs_steps:
            log = Log(run, self._structured, self._label)
            app = app.model_copy(update={"root_agent": log.agent(self._root)})
        return Runner(app=app, app_name=self._app_name, **services)

    def _label(self, author: str) -> str:
        """The name of the artifact that an agent writes to: the root's is the answer itself."""
        return "" if author == self._root.name else author

    async def _session(
        self,
        runner: Runner,
        names: dict[str, str],
        state: dict[str, Any],
        events: Sequence[Event],
        files: dict[str, types.Part],
    ) -> Session:
        """The session of the conversation."""
        service = runner.session_service
        if not self._own_files:
            for filename, part in files.items():
                await runner.artifact_service.save_artifact(
                    **names, filename=filename, artifact=part
                )
        if self._own_sessions:
            found = await service.get_session(**names)
            return found or await service.create_session(**names)
        session = await service.create_session(**names, state=state)
        for event in events:
            await service.append_event(session, event)
        return session

    async def _state(
        self,
        run: Run,
        runner: Runner,
        names: dict[str, str],
        session: Session,
        summary: EventSummary,
    ) -> bytes:
        """What the next run needs."""
        kept = ConversationState(
            usage=dict(summary.usage) if summary.asked or summary.question else {}
        )
        if not self._own_files:
            kept.files = await _files(runner.artifact_service, names)
        if self._own_sessions:
            return msgspec.json.encode(kept)
        kept.state = to_jsonable_python(session.state, serialize_unknown=True)
        events = [event.model_dump(mode="json", exclude_none=True) for event in session.events]

        def encode(some: list[dict[str, Any]]) -> bytes:
            kept.events = some
            return msgspec.json.encode(kept)

        if summary.asked and self.logs_steps:
            return encode(events)  # what was logged tells it again: it is not stored
        if len(run.pack(encode(events))) > LIMIT:
            events = [_without_data(event) for event in events]
        return run.fitting(events, encode, _starts)

    async def _report(
        self, run: Run, runner: Runner, names: dict[str, str], event: Event, streamed: set[str]
    ) -> None:
        """Report an event to the client."""
        author = event.author
        quiet = author in self._structured or asks(event)
        await say(run, event, self._label(author), quiet=quiet, streamed=author in streamed)
        (streamed.add if event.partial else streamed.discard)(author)
        for response in event.get_function_responses():
            await run.detail(f"{response.name} returned {to_json(response.response)}")
        for filename, number in event.actions.artifact_delta.items():
            part = await runner.artifact_service.load_artifact(
                **names, filename=filename, version=number
            )
            await send_file(run, part, filename)


def asks(event: Event) -> bool:
    """Whether a remote agent asks here that is a sub-agent."""
    return ASKS in (event.custom_metadata or {})


def _begun(session: Session, turn: str) -> str | None:
    """The invocation of this turn, if the session has its message: before a crash."""
    for event in session.events:
        if event.author == "user" and (event.custom_metadata or {}).get(TURN) == turn:
            return str(event.invocation_id)
    return None


def _user(run: Run) -> str:
    """The caller's name, of which no other tenant has the same."""
    caller = run.turn.caller
    name = quote(caller.qualified, safe="@") or "anonymous"
    return f"{quote(caller.tenant, safe='')}|{name}" if caller.tenant else name


def _decoded(data: bytes) -> tuple[ConversationState, list[Event], dict[str, types.Part]]:
    kept = msgspec.json.decode(without_gone(data, _without_file), type=ConversationState)
    files = {name: types.Part.model_validate(part) for name, part in kept.files.items()}
    events = [Event.model_validate(event) for event in kept.events]
    if not all(event.author for event in events):
        raise ValueError("an event has no author")  # ADK ignores fields that it does not know
    return kept, events, files


def _starts(event: dict[str, Any]) -> bool:
    """Whether a message of the user begins here, so that no result is without its call."""
    parts = event.get("content", {}).get("parts", ())
    return event.get("author") == "user" and not any("function_response" in part for part in parts)


def _without_data(event: dict[str, Any]) -> dict[str, Any]:
    """An event with a note instead of each file in it."""
    content = event.get("content")
    if not content:
        return event
    parts = [_without_file(part) or part for part in content.get("parts", ())]
    return {**event, "content": {**content, "parts": parts}}


def _without_file(part: dict[str, Any]) -> dict[str, Any] | None:
    """A part with a note instead of its file; None if it is no part that has one."""
    if "inline_data" in part:
        return {"text": GONE}
    if "parts" not in (response := part.get("function_response") or {}):
        return None
    left = {key: value for key, value in response.items() if key != "parts"}
    return {**part, "function_response": left}


async def _files(service: BaseArtifactService, names: dict[str, str]) -> dict[str, Any]:
    """The files of a session that are not too large to be kept."""
    found = {}
    for filename in await service.list_artifact_keys(**names):
        part = await service.load_artifact(**names, filename=filename)
        if part is not None:
            found[filename] = part.model_dump(mode="json", exclude_none=True)
    return small(found)
