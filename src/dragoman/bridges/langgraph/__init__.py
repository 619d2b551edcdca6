"""Serves a graph of LangGraph. Each superstep is a step of the task: a turn that is run again goes
on with the superstep that had not ended."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt
from msgspec import UNSET, Struct
from pydantic import BaseModel

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.langgraph.remote import node, tools
from dragoman.bridges.langgraph.saver import Saver
from dragoman.bridges.state import LIMIT

__all__ = ("LangGraph", "node", "serve", "tools")

MODES = ["messages", "updates", "custom"]


def serve(graph: Pregel[Any, Any, Any, Any], **options: Unpack[BridgeOptions]) -> Agent:
    """Serve a compiled graph."""
    return bridge.serve(LangGraph(graph), **options)


class SuperStep(Struct, frozen=True):
    """Where a graph was after a superstep."""

    state: bytes
    """Packed, see `Run.pack`."""
    ended: bool
    questions: tuple[Question, ...] = ()
    result: Any = None
    usage: dict[str, int] = {}


class LangGraph:
    """See `bridge.Framework`."""

    package = "langgraph"
    logs_steps = True
    output = None

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        self._graph = graph
        name = graph.get_name()
        self.name = "" if name == "LangGraph" else name
        self.description = ""
        saver = graph.checkpointer
        own = isinstance(saver, BaseCheckpointSaver) and not isinstance(saver, InMemorySaver)
        self._own_saver = own
        """The user's own checkpointer keeps the state."""

    async def run(self, run: Run) -> Outcome:
        """Run the graph until it ends or asks."""
        # decoded first: a state that cannot be read must not look like a failed step
        state = run.load(Saver.loads)
        data = b"" if state is None else run.pack(state.dumps())
        given: Any = _resume(run.answers) if run.answers else None
        begins = not run.answers
        used: Counter[str] = Counter()
        while True:
            found = await run.turn.step(
                "superstep", self._step, run, data, given, begins, returns=SuperStep
            )
            data, given, begins = found.state, None, False
            used.update(found.usage)
            if found.ended or found.questions:
                break
        return Outcome(
            state=run.unpack(data),
            questions=found.questions,
            result=found.result,
            usage=dict(used),
        )

    async def _step(self, run: Run, data: bytes, given: Any, begins: bool) -> SuperStep:
        """Run one superstep."""
        saver = None if self._own_saver else Saver.loads(run.unpack(data)) if data else Saver()
        graph = self._graph if saver is None else self._graph.copy({"checkpointer": saver})
        config: Any = {"configurable": {"thread_id": run.session}}
        if begins:
            key = run.turn.idempotency_key
            config["metadata"] = {"dragoman_turn": key}
            if saver is None and await _begun(graph, config, key):
                given = None  # the graph has taken the message before a crash
            else:
                given = self._input(run.parts)
        used: Counter[str] = Counter()
        async for mode, event in graph.astream(
            given, config, stream_mode=MODES, interrupt_after="*"
        ):
            await _report(run, mode, event, used)
        snapshot = await graph.aget_state(config)
        questions = tuple(
            question for interrupt in snapshot.interrupts for question in _questions(interrupt)
        )
        ended = not snapshot.next
        if ended and saver is not None:
            await _shorten(run, graph, config, saver)
        return SuperStep(
            b"" if saver is None else _packed(run, saver),
            ended,
            questions,
            _result(snapshot.values) if ended else None,
            dict(used),
        )

    def _input(self, parts: Sequence[Part]) -> Any:
        """The client's message as the graph takes it."""
        fields = self._graph.get_input_jsonschema().get("properties", {})
        data = next((part.data for part in parts if part.data is not UNSET), None)
        if isinstance(data, dict) and set(data) & set(fields):
            return data
        if "messages" in fields or not fields:
            return {"messages": [HumanMessage(content=_content(parts))]}
        text = "\n".join(part.text for part in parts if part.text is not None)
        if len(fields) == 1:
            return {next(iter(fields)): text}
        known = ", ".join(fields)
        raise UserError(f"The message must have data with the fields {known}")


async def _begun(graph: Any, config: Any, key: str) -> bool:
    """Whether the user's own checkpointer has the beginning of this turn."""
    snapshot = await graph.aget_state(config)
    about = snapshot.metadata or {}
    return bool(snapshot.next) and about.get("dragoman_turn") == key


def _content(parts: Sequence[Part]) -> Any:
    """Text, and files as content blocks."""
    blocks: list[Any] = []
    for part in parts:
        kind = part.media_type or "application/octet-stream"
        what = kind.partition("/")[0]
        what = what if what in ("image", "audio", "video") else "file"
        if part.text is not None:
            blocks.append({"type": "text", "text": part.text})
        elif part.raw is not None:
            data = base64.b64encode(part.raw).decode()
            blocks.append({"type": what, "base64": data, "mime_type": kind})
        elif part.url is not None:
            blocks.append({"type": what, "url": part.url, "mime_type": kind})
        elif part.data is not UNSET:
            text = json.dumps(part.data, ensure_ascii=False)
            blocks.append({"type": "text", "text": text})
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


async def _report(run: Run, mode: str, event: Any, used: Counter[str]) -> None:
    """Report an event of the stream, and count what the models have used."""
    if mode == "messages":
        message, _ = event
        if isinstance(message, AIMessage | AIMessageChunk):
            await run.write(str(message.text))  # a subclass of str in some versions
            for file in _files(message):
                await run.file(file)
            if message.usage_metadata:
                used["requests"] += 1
                for key in ("input_tokens", "output_tokens"):
                    used[key] += message.usage_metadata[key]
    elif mode == "updates":
        for update in event.values() if isinstance(event, Mapping) else ():
            for message in _messages(update):
                for call in getattr(message, "tool_calls", None) or ():
                    await run.tool(call["name"])
    elif mode == "custom":
        text = event if isinstance(event, str) else json.dumps(event, default=str)
        await run.detail(text)


def _files(message: AIMessage) -> Iterator[Part]:
    """The files that a model made."""
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("base64"), str):
            kind = block.get("mime_type") or "application/octet-stream"
            yield Part(raw=base64.b64decode(block["base64"]), media_type=kind)


def _messages(update: Any) -> list[Any]:
    found = update.get("messages", ()) if isinstance(update, Mapping) else ()
    return list(found) if isinstance(found, list | tuple) else [found]


def _questions(interrupt: Interrupt) -> Iterator[Question]:
    """What an interrupt asks: one question, or the approval of several actions."""
    value = interrupt.value
    if isinstance(value, Mapping) and isinstance(value.get("action_requests"), list):
        for number, action in enumerate(value["action_requests"]):
            name, arguments = action.get("name", "?"), action.get("args", {})
            text = action.get("description") or f"May I call {name} with {json.dumps(arguments)}?"
            operation = {"tool": name, "arguments": arguments}
            id = f"{interrupt.id}:{number}"
            yield Question(id, text, approval=True, operation=operation)
        return
    text = value if isinstance(value, str) else ""
    if isinstance(value, Mapping) and {"question", "task", "approval"} <= set(value):
        yield bridge.remote_question(interrupt.id, value)
        return
    if isinstance(value, Mapping):
        named = (value.get(key) for key in ("question", "message", "text", "description"))
        text = next((found for found in named if isinstance(found, str)), "")
    yield Question(interrupt.id, text or json.dumps(value, default=str))


def _resume(answers: Sequence[Answer]) -> Command[Any]:
    """The answers, by the interrupts that asked for them."""
    found: dict[str, Any] = {}
    decisions: dict[str, list[Any]] = defaultdict(list)
    for answer in answers:
        id, colon, _ = answer.id.partition(":")
        if colon:
            message = {"message": answer.text} if answer.text else {}
            reject = {"type": "reject", **message}
            decisions[id].append({"type": "approve"} if answer.approved else reject)
        else:
            found[id] = answer.said
    found |= {id: {"decisions": some} for id, some in decisions.items()}
    return Command(resume=found)


def _result(values: Any) -> Any:
    """The structured result of a graph: its `structured_response`, or all that it has if it has no
    messages."""
    if isinstance(values, BaseModel):
        values = values.model_dump(mode="json")
    if not isinstance(values, Mapping):
        return None
    found = values.get("structured_response")
    if found is None and "messages" not in values:
        found = dict(values)
    if isinstance(found, BaseModel):
        return found.model_dump(mode="json")
    return None if found is None else json.loads(json.dumps(found, default=str))


def _packed(run: Run, saver: Saver) -> bytes:
    state = run.pack(saver.dumps())
    if len(state) > LIMIT:
        raise ValueError(
            f"the state of the graph has {len(state)} bytes, compressed; at most {LIMIT} are kept. "
            "Compile the graph with a checkpointer of your own"
        )
    return state


async def _shorten(run: Run, graph: Any, config: Any, saver: Saver) -> None:
    """Forget the oldest messages of a conversation whose state has become too large."""
    while len(run.pack(saver.dumps())) > LIMIT:
        values = (await graph.aget_state(config)).values
        messages = _messages(values)
        starts = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
        if len(starts) < 2:
            saver.clear()  # what is left is too large by itself
            return
        gone = messages[: starts[len(starts) // 2]]
        await graph.aupdate_state(
            config, {"messages": [RemoveMessage(id=message.id) for message in gone]}
        )
