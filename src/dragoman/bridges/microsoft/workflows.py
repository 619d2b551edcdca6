"""Serves a workflow of Microsoft's Agent Framework. A run of the workflow up to its end or its
questions is one step of the task."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    Content,
    FileCheckpointStorage,
    Message,
    Workflow,
)
from msgspec import UNSET, Struct
from pydantic_core import to_jsonable_python

from dragoman import Part, UserError
from dragoman.bridges.bridge import Answer, Outcome, Question, Run
from dragoman.bridges.microsoft.messages import (
    Report,
    to_contents,
    to_question,
    to_result,
    usage_of,
)
from dragoman.bridges.saved_state import LIMIT
from dragoman.bridges.text_answers import value_of


class Request(Struct, frozen=True):
    """A request of a workflow."""

    id: str
    content: dict[str, Any] | None = None
    """What an agent in the workflow asks for; None if an executor asks."""
    text: bool = True
    """It takes any text for an answer; otherwise, JSON."""


class ConversationState(Struct):
    """What is kept of a conversation."""

    checkpoint: str = ""
    data: bytes = b""
    """The checkpoint, as the framework writes it to a file."""
    requests: list[Request] = []
    usage: dict[str, int] = {}


class EventSummary:
    """What the events of a run have said."""

    def __init__(self, usage: dict[str, int]) -> None:
        self.usage = Counter(usage)
        self.result: Any = None
        self.asked: list[tuple[Request, Question]] = []


class MicrosoftWorkflow:
    """See `bridge.Framework`. Each run has a workflow of its own: a workflow keeps its state."""

    package = "agent-framework-core"
    logs_steps = False
    output = None

    def __init__(self, make: Callable[[], Workflow], first: Workflow) -> None:
        self._make = make
        self.name = first.name
        self.description = first.description or ""

    async def run(self, run: Run) -> Outcome:
        """Run the workflow until it ends or asks."""
        kept = run.load(_decoded) or ConversationState()
        workflow = self._make()
        report = Report(run, structured=False)
        summary = EventSummary(kept.usage if run.answers else {})
        with tempfile.TemporaryDirectory() as folder:
            storage = FileCheckpointStorage(folder)
            options: dict[str, Any] = {"checkpoint_storage": storage}
            if kept.checkpoint:
                file = Path(folder, f"{kept.checkpoint}.json")
                await asyncio.to_thread(file.write_bytes, kept.data)
                await _check(run, storage, workflow, kept.checkpoint)
                options["checkpoint_id"] = kept.checkpoint
            if run.answers:
                options["responses"] = _responses(run.answers, kept.requests)
            else:
                if kept.checkpoint:  # the memory of the executors
                    await workflow.run(**options)
                    del options["checkpoint_id"]
                options["message"] = _message(workflow, run.parts)
            async for event in workflow.run(stream=True, **options):
                await _take(event, run, report, summary)
            state = await self._state(run, Path(folder), storage, workflow, summary)
        if summary.asked:
            return Outcome(state=state, questions=tuple(question for _, question in summary.asked))
        return Outcome(state=state, result=summary.result, usage=dict(summary.usage))

    async def _state(
        self,
        run: Run,
        folder: Path,
        storage: FileCheckpointStorage,
        workflow: Workflow,
        summary: EventSummary,
    ) -> bytes:
        """What the next run needs."""
        latest = await storage.get_latest(workflow_name=workflow.name)
        written = latest.pending_request_info_events if latest is not None else {}
        if any(request.id not in written for request, _ in summary.asked):
            raise RuntimeError(
                "the framework could not write the workflow's checkpoint (see its warning): types "
                "of your own need register_checkpoint_type"
            )
        if latest is None:
            return b""
        file = folder / f"{latest.checkpoint_id}.json"
        kept = ConversationState(latest.checkpoint_id, await asyncio.to_thread(file.read_bytes))
        if summary.asked:
            kept.requests = [request for request, _ in summary.asked]
            kept.usage = dict(summary.usage)
        state = msgspec.msgpack.encode(kept)
        if (size := len(run.pack(state))) <= LIMIT:
            return state
        if summary.asked:
            raise UserError(f"The workflow's state has {size} bytes; {LIMIT} are allowed")
        return b""  # the next message begins anew


def _decoded(data: bytes) -> ConversationState:
    return msgspec.msgpack.decode(data, type=ConversationState)


async def _check(
    run: Run, storage: FileCheckpointStorage, workflow: Workflow, checkpoint: str
) -> None:
    """Fails the task with a clear message if the workflow cannot continue from a checkpoint."""
    try:
        found = await storage.load(checkpoint)
        if found.graph_signature_hash != workflow.graph_signature_hash:
            raise ValueError("the workflow has other steps now")
    except Exception as error:  # noqa: BLE001 - `load` says to the client what it means
        unreadable = error

        def decode(_: bytes) -> NoReturn:
            raise unreadable

        run.load(decode)


def _message(workflow: Workflow, parts: Sequence[Part]) -> Any:
    """The client's message as the first executor takes it."""
    kinds = workflow.input_types
    if any(kind == list[Message] for kind in kinds):
        return [Message("user", to_contents(parts))]
    if Message in kinds:
        return Message("user", to_contents(parts))
    text = "\n".join(part.text for part in parts if part.text is not None)
    if str in kinds:
        return text
    data = next((part.data for part in parts if part.data is not UNSET), None)
    if data is None:
        names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise UserError(f"The message must have data: the workflow takes {names}")
    return data


async def _take(event: Any, run: Run, report: Report, summary: EventSummary) -> None:
    """Take an event of a workflow."""
    if event.type == "request_info":
        summary.asked.append(_asked(event))
    elif event.type == "output":
        data, name = event.data, event.executor_id or ""
        if isinstance(data, AgentResponseUpdate):
            summary.usage.update(usage_of(data.contents))
            await report.take(data, name)
        elif isinstance(data, AgentResponse):
            summary.usage.update(usage_of(data))
            for message in data.messages:
                await report.take(message, name)
        elif isinstance(data, str):
            await run.write(data, name)
        elif isinstance(data, Content):
            await report.take(Message("assistant", [data]), name)
        elif isinstance(data, Message):
            await report.take(data, name)
        elif isinstance(data, list) and data and all(isinstance(each, Message) for each in data):
            await report.take(data[-1], name)
        else:
            summary.result = to_jsonable_python(data, serialize_unknown=True)


def _asked(event: Any) -> tuple[Request, Question]:
    """What a workflow waits for."""
    id, data = event.request_id, event.data
    if isinstance(data, Content):
        question = to_question(data)
        asked = Question(id, question.text, question.approval, question.operation)
        return Request(id, data.to_dict()), asked
    shown = data if isinstance(data, str) else to_jsonable_python(data, serialize_unknown=True)
    text = shown if isinstance(shown, str) else ""
    for key in ("question", "message", "prompt", "text"):
        if isinstance(shown, dict) and isinstance(shown.get(key), str):
            text = text or shown[key]
    asked = Question(id, text or json.dumps(shown, ensure_ascii=False))
    return Request(id, text=event.response_type is str), asked


def _responses(answers: Sequence[Answer], requests: Sequence[Request]) -> dict[str, Any]:
    """The answers, by the requests that they are for."""
    asked, found = {request.id: request for request in requests}, {}
    for answer in answers:
        request = asked[answer.id]
        value: Any = value_of(answer)
        if request.content is not None:
            content = Content.from_dict(request.content)
            if content.type == "function_approval_request":
                value = content.to_function_approval_response(answer.approved)
            elif content.call_id:
                value = to_result(content, answer)
        elif not request.text and answer.data is None:
            value = _parsed(answer.text)
        found[answer.id] = value
    return found


def _parsed(text: str) -> Any:
    """An answer in words to a request that takes another type, such as a number or yes or no."""
    word = text.strip().lower()
    if word in ("yes", "no"):
        return word == "yes"
    try:
        return json.loads(text)
    except ValueError:
        return text
