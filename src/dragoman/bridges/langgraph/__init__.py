"""Serves a graph of LangGraph. Each superstep is a step of the task: a turn that is run again goes
on with the superstep that had not ended."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack, get_type_hints

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot
from msgspec import UNSET, Struct
from pydantic import BaseModel, PydanticUserError
from pydantic_core import to_jsonable_python

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.langgraph.breakpoints import BREAKPOINT, breakpoints, declined, refusals
from dragoman.bridges.langgraph.messages import content_of, files_of, messages_of
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

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        self._graph = graph
        name = graph.get_name()
        self.name = "" if name == "LangGraph" else name
        self.description = ""
        kind = _fields(graph.get_output_schema).get("structured_response")
        self.output = None if kind is Any else kind
        saver = graph.checkpointer
        own = isinstance(saver, BaseCheckpointSaver) and not isinstance(saver, InMemorySaver)
        self._own_saver = own
        """The user's own checkpointer keeps the state."""

    async def run(self, run: Run) -> Outcome:
        """Run the graph until it ends or asks."""
        # decoded first: a state that cannot be read must not look like a failed step
        state = run.load(Saver.loads)
        data = b"" if state is None else run.pack(state.dumps())
        given = _resume(run.answers)
        begins, refused = not run.answers, declined(run.answers)
        used: Counter[str] = Counter()
        while True:
            found = await run.turn.step(
                "superstep", self._step, run, data, given, begins, refused, returns=SuperStep
            )
            data, given, begins, refused = found.state, None, False, False
            used.update(found.usage)
            if found.ended or found.questions:
                break
        return Outcome(
            state=run.unpack(data),
            questions=found.questions,
            result=found.result,
            usage=dict(used),
        )

    async def _step(
        self, run: Run, data: bytes, given: Any, begins: bool, refused: bool
    ) -> SuperStep:
        """Run one superstep, or pass over one that the client has `refused`."""
        saver = None if self._own_saver else Saver.loads(run.unpack(data)) if data else Saver()
        graph = self._graph if saver is None else self._graph.copy({"checkpointer": saver})
        config: Any = {"configurable": {"thread_id": run.session}}
        used: Counter[str] = Counter()
        if refused:
            ran, ended = await _passed_over(run, graph, config)
        else:
            if begins:
                key = run.turn.idempotency_key
                config["metadata"] = {"dragoman_turn": key}
                if saver is None and await _begun(graph, config, key):
                    given = None  # the graph has taken the message before a crash
                else:
                    given = self._input(run.parts)
            ran, ended = await _advance(run, graph, config, given, used), False
        snapshot = await graph.aget_state(config, subgraphs=True)
        questions = () if ended else (*_asked(snapshot), *breakpoints(graph, snapshot, ran))
        ended = ended or not snapshot.next
        if ended and saver is not None:
            await _shorten(run, graph, config, saver)
        return SuperStep(
            b"" if saver is None else _packed(run, saver),
            ended,
            questions,
            _result(snapshot.values) if not snapshot.next else None,
            dict(used),
        )

    def _input(self, parts: Sequence[Part]) -> Any:
        """The client's message as the graph takes it."""
        fields = _fields(self._graph.get_input_schema)
        data = next((part.data for part in parts if part.data is not UNSET), None)
        if isinstance(data, dict) and set(data) & set(fields):
            return data
        if "messages" in fields or not fields:
            return {"messages": [HumanMessage(content=content_of(parts))]}
        text = "\n".join(part.text for part in parts if part.text is not None)
        if len(fields) == 1:
            return {next(iter(fields)): text}
        known = ", ".join(fields)
        raise UserError(f"The message must have data with the fields {known}")


def _fields(schema: Callable[[], type[BaseModel]]) -> dict[str, Any]:
    """The types of the fields of a graph's input or output; empty if it is not an object."""
    try:
        model = schema()
    except PydanticUserError:  # types that have no schema
        return {}
    root = model.model_fields.get("root")
    kind = model if root is None else root.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return get_type_hints(kind) if isinstance(kind, type) else {}


async def _advance(run: Run, graph: Any, config: Any, given: Any, used: Counter[str]) -> set[str]:
    """Run a graph up to the end of a superstep. Return the names of the nodes that have run."""
    ran: set[str] = set()
    events = graph.astream(given, config, stream_mode=MODES, interrupt_after="*")
    async for mode, event in events:
        if mode == "updates" and isinstance(event, Mapping):
            ran.update(name for name in event if not name.startswith("__"))
        await _report(run, mode, event, used)
    return ran


async def _passed_over(run: Run, graph: Any, config: Any) -> tuple[set[str], bool]:
    """Do not run the nodes after a breakpoint, which the client has declined. Return their names,
    and whether the run has ended with that: if not, a model is told of it."""
    snapshot = await graph.aget_state(config, subgraphs=True)
    messages, names = refusals(snapshot), set(snapshot.next)
    if messages:
        await graph.aupdate_state(config, {"messages": messages}, as_node=snapshot.next[0])
        return names, False
    await run.write(f"Declined: {' and '.join(sorted(names))} did not run")
    return names, True


async def _begun(graph: Any, config: Any, key: str) -> bool:
    """Whether the user's own checkpointer has the beginning of this turn."""
    snapshot = await graph.aget_state(config)
    about = snapshot.metadata or {}
    return bool(snapshot.next) and about.get("dragoman_turn") == key


async def _report(run: Run, mode: str, event: Any, used: Counter[str]) -> None:
    """Report an event of the stream, and count what the models have used."""
    if mode == "messages":
        message, _ = event
        if isinstance(message, AIMessage | AIMessageChunk):
            await run.write(str(message.text))  # a subclass of str in some versions
            for file in files_of(message):
                await run.file(file)
            if message.usage_metadata:
                used["requests"] += 1
                for key in ("input_tokens", "output_tokens"):
                    used[key] += message.usage_metadata[key]
    elif mode == "updates":
        for update in event.values() if isinstance(event, Mapping) else ():
            for message in messages_of(update):
                for call in getattr(message, "tool_calls", None) or ():
                    await run.tool(call["name"])
    elif mode == "custom":
        text = event if isinstance(event, str) else json.dumps(event, default=str)
        await run.detail(text)


def _asked(snapshot: StateSnapshot) -> list[Question]:
    """What the nodes of a graph ask."""
    return [each for interrupt in snapshot.interrupts for each in _questions(interrupt)]


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


def _resume(answers: Sequence[Answer]) -> Command[Any] | None:
    """The answers, by the interrupts that asked for them; None if only breakpoints have asked."""
    found: dict[str, Any] = {}
    decisions: dict[str, list[Any]] = defaultdict(list)
    for answer in answers:
        if answer.id.startswith(BREAKPOINT):
            continue
        id, colon, _ = answer.id.partition(":")
        if colon:
            message = {"message": answer.text} if answer.text else {}
            reject = {"type": "reject", **message}
            decisions[id].append({"type": "approve"} if answer.approved else reject)
        else:
            found[id] = answer.said
    found |= {id: {"decisions": some} for id, some in decisions.items()}
    return Command(resume=found) if found else None


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
    return to_jsonable_python(found, fallback=str)


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
        messages = messages_of(values)
        starts = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
        if len(starts) < 2:
            saver.clear()  # what is left is too large by itself
            return
        gone = messages[: starts[len(starts) // 2]]
        await graph.aupdate_state(
            config, {"messages": [RemoveMessage(id=message.id) for message in gone]}
        )
