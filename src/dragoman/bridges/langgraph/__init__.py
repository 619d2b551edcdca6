"""Serves a graph of LangGraph. Each superstep is a step of the task: a turn that is run again
continues with the superstep that had not ended."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack, get_type_hints

import msgspec
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot
from msgspec import UNSET, Struct
from pydantic import BaseModel, PydanticUserError
from pydantic_core import to_jsonable_python

from dragoman import Agent, Part, UserError
from dragoman.bridges import bridge
from dragoman.bridges.bridge import Answer, BridgeOptions, Outcome, Question, Run
from dragoman.bridges.langgraph.breakpoints import BREAKPOINT, breakpoints, declined, refusals
from dragoman.bridges.langgraph.checkpoint_saver import Saver
from dragoman.bridges.langgraph.messages import content_of, files_of, messages_of, without_gone
from dragoman.bridges.langgraph.remote import node, tools
from dragoman.bridges.saved_state import LIMIT, change, changed

__all__ = ("LangGraph", "node", "serve", "tools")

WORDS = ("question", "message", "text", "description")
"""The keys of a structured interrupt that have the words of a question."""
MODES = ["messages", "updates", "custom"]
TURN = "dragoman_turn"
"""The key of the metadata of checkpoints that says in which turn they were made."""
LIMIT_VARIABLE, USUAL_LIMIT = "LANGGRAPH_DEFAULT_RECURSION_LIMIT", 10007
"""Where LangGraph takes the most supersteps of a run from, if the graph does not say it."""


def serve(graph: Pregel[Any, Any, Any, Any], **options: Unpack[BridgeOptions]) -> Agent:
    """Serve a compiled graph."""
    return bridge.serve(LangGraph(graph), **options)


class SuperStep(Struct, frozen=True):
    """Where a graph was after a superstep."""

    state: bytes
    """The `change` of what `Saver` has, or of a `Place`."""
    ended: bool
    questions: tuple[Question, ...] = ()
    result: Any = None
    usage: dict[str, int] = {}
    too_large: int = 0
    """The size of a state that is too large to be kept."""


class Place(Struct, frozen=True):
    """Where a graph with a checkpointer of the user's own was after a superstep."""

    checkpoint: str = ""
    next: tuple[str, ...] = ()


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
        inner = (each for _, each in graph.get_subgraphs(recurse=True))
        self._stops = not any(each.checkpointer is True for each in inner)
        """It stops after each superstep. A subgraph with a memory of its own takes no new message
        in a run that continues after a stop: such a graph runs up to its question in one step."""

        usual = int(os.environ.get(LIMIT_VARIABLE, USUAL_LIMIT))
        self._limit: int = (graph.config or {}).get("recursion_limit") or usual
        """The maximum number of supersteps in a run."""

    async def run(self, run: Run) -> Outcome:
        """Run the graph until it ends or asks."""
        # decoded first: what is wrong with it must not look like a failed step
        data = run.pack(run.load(_place if self._own_saver else _saved) or b"")
        given = None if run.answers else self._input(run.parts)
        answers, used = run.answers, Counter[str]()
        for _ in range(self._limit):
            found = await run.turn.step(
                "superstep", self._step, run, data, given, answers, returns=SuperStep
            )
            if found.too_large:
                raise UserError(
                    f"The state of the graph has {found.too_large} bytes, compressed, and at most "
                    f"{LIMIT} are kept; compile the graph with a checkpointer of your own"
                )
            data, given, answers = changed(data, found.state), None, ()
            used.update(found.usage)
            if found.ended or found.questions:
                break
        else:
            raise UserError(self._endless)
        return Outcome(
            state=run.unpack(data),
            questions=found.questions,
            result=found.result,
            usage=dict(used),
        )

    async def _step(
        self, run: Run, data: bytes, given: Any, answers: Sequence[Answer]
    ) -> SuperStep:
        """Run one superstep, or pass over one that the client has declined."""
        state = run.unpack(data)
        saver = None if self._own_saver else Saver.loads(state) if state else Saver()
        graph = self._graph if saver is None else self._graph.copy({"checkpointer": saver})
        key = run.turn.idempotency_key
        config: Any = {"configurable": {"thread_id": run.session}, "metadata": {TURN: key}}
        turn = "" if given is None else key
        before = await graph.aget_state(config, subgraphs=True)
        place = msgspec.json.decode(state, type=Place) if saver is None and state else Place()
        if answers and place.checkpoint and not _is_ours(before, place, key):
            raise UserError(
                "The graph has gone on with another task of this conversation since it asked, and "
                "does not wait for this answer any more; send your first message again"
            )
        used: Counter[str] = Counter()
        ended = stopped = False
        if (taken := _taken(graph, before, place, turn, answers)) is not None:
            ran = taken
        elif declined(answers):
            ran, ended = await _passed_over(run, graph, config)
        else:
            given = None if _has_begun(before, turn) else given
            given = _resume(answers) if given is None else given
            ran = await self._advance(run, graph, config, given, used)
            stopped = True
        snapshot = await graph.aget_state(config, subgraphs=True)
        asked = (*_asked(snapshot), *breakpoints(graph, snapshot, ran, stopped=stopped))
        ended = ended or not snapshot.next
        too_large = 0 if saver is None else _shorten(run, saver, ended)
        after = b"" if too_large else _written(snapshot) if saver is None else saver.dumps()
        return SuperStep(
            change(data, run.pack(after)),
            ended,
            () if ended else asked,
            _result(snapshot.values) if not snapshot.next else None,
            dict(used),
            too_large,
        )

    async def _advance(
        self, run: Run, graph: Any, config: Any, given: Any, used: Counter[str]
    ) -> set[str]:
        """Run a graph until it stops. Return the names of the nodes of the superstep that has
        ended."""
        ran: set[str] = set()
        stops = "*" if self._stops else None
        events = graph.astream(given, config, stream_mode=MODES, interrupt_after=stops)
        try:
            async for mode, event in events:
                if mode == "updates" and isinstance(event, Mapping):
                    ran.update(name for name in event if not name.startswith("__"))
                await _report(run, mode, event, used)
        except GraphRecursionError as error:
            raise UserError(self._endless) from error
        return ran if self._stops else set()

    @property
    def _endless(self) -> str:
        return f"The graph did not end within {self._limit} steps"

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


async def _passed_over(run: Run, graph: Any, config: Any) -> tuple[set[str], bool]:
    """Do not run the nodes after a breakpoint, which the client has declined. Return their names,
    and whether the run has ended with that: if not, a model has to read of it."""
    snapshot = await graph.aget_state(config, subgraphs=True)
    messages, names = refusals(snapshot), set(snapshot.next)
    if messages:
        await graph.aupdate_state(config, {"messages": messages}, as_node=snapshot.next[0])
        return names, False
    await run.write(f"Declined: {' and '.join(sorted(names))} did not run")
    return names, True


def _has_begun(before: StateSnapshot, turn: str) -> bool:
    """Whether the user's own checkpointer has the message of this turn already."""
    return bool(turn) and (before.metadata or {}).get(TURN) == turn


def _taken(
    graph: Any, before: StateSnapshot, place: Place, turn: str, answers: Sequence[Answer]
) -> set[str] | None:
    """The nodes that have run if the user's own checkpointer has the end of this superstep already,
    since a process ended before it was logged; None if the superstep is to be run."""
    if turn:
        if not _has_begun(before, turn) or (before.metadata or {}).get("source") == "input":
            return None
        return set(graph.interrupt_after_nodes) - {"*"}  # perhaps: it is better to ask too often
    known = {answer.id for answer in answers}
    if any(each.id not in known for each in breakpoints(graph, before, (), stopped=False)):
        return set()  # nobody was asked before the process ended
    if place.checkpoint in ("", before.config["configurable"]["checkpoint_id"]):
        return None
    return set(place.next)


def _is_ours(snapshot: StateSnapshot, place: Place, turn: str) -> bool:
    """Whether only this turn has run the graph since it was at this place."""
    if snapshot.config["configurable"]["checkpoint_id"] == place.checkpoint:
        return True
    return (snapshot.metadata or {}).get(TURN) == turn


def _written(snapshot: StateSnapshot) -> bytes:
    where = snapshot.config["configurable"]
    return msgspec.json.encode(Place(where["checkpoint_id"], snapshot.next))


def _place(data: bytes) -> bytes:
    """A state that is a `Place`."""
    msgspec.json.decode(data, type=Place)
    return data


def _saved(data: bytes) -> bytes:
    """A state that a `Saver` can read, with a note instead of each file that is gone."""
    saver = Saver.loads(data)
    messages = messages_of(saver.values)
    present = without_gone(messages)
    if present == messages:
        return data
    saver.set_value("messages", present)
    return saver.dumps()


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
    if isinstance(value, Mapping) and {"question", "task", "approval"} <= set(value):
        yield bridge.remote_question(interrupt.id, value)
    elif isinstance(value, str) and value:
        yield Question(interrupt.id, value)
    else:
        about = to_jsonable_python(value, fallback=str)
        known = about if isinstance(about, dict) else {}
        yield bridge.question_about(interrupt.id, known, WORDS, json.dumps(about))


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
            found[id] = content_of(answer.parts) if answer.files else answer.said
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


def _shorten(run: Run, saver: Saver, ended: bool) -> int:
    """Forget the oldest messages of a conversation whose state has become too large, and, if it has
    `ended`, all of it if that does not help. Return the size if it is too large still."""
    while (size := len(run.pack(saver.dumps()))) > LIMIT:
        messages = messages_of(saver.values)
        starts = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
        if len(starts) > 1:
            saver.set_value("messages", messages[starts[len(starts) // 2] :])
        elif ended:
            saver.clear()
        else:
            return size
    return 0
