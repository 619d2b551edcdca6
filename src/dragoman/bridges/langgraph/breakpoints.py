"""The breakpoints of a graph (`interrupt_before`, `interrupt_after`): what comes after one of them
runs only if the client approves it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from dragoman.bridges.bridge import Answer, Question
from dragoman.bridges.langgraph.messages import messages_of

BREAKPOINT = "breakpoint:"
"""Begins the id of a question that a breakpoint asks."""


def breakpoints(
    graph: Pregel[Any, Any, Any, Any],
    snapshot: StateSnapshot,
    ran: Collection[str],
    *,
    stopped: bool,
) -> Iterator[Question]:
    """The breakpoints at which a graph stands, after the nodes that `ran`, if it has `stopped` by
    itself. The snapshot has its subgraphs."""
    inner = list(_subgraphs(snapshot)) if stopped or _has_inner(graph) else []
    yield from map(_question, inner)
    if inner or snapshot.interrupts or not snapshot.next:
        return
    before = _named(graph.interrupt_before_nodes, snapshot.next)
    after = _named(graph.interrupt_after_nodes, ran)
    # in the middle of a superstep: tasks that have ended are not next
    within = stopped and (not ran or len(snapshot.tasks) > len(snapshot.next))
    if before or after or within:
        yield _question(snapshot)


def declined(answers: Sequence[Answer]) -> bool:
    """Whether the client has declined to continue after a breakpoint."""
    return any(each.id.startswith(BREAKPOINT) and not each.approved for each in answers)


def refusals(snapshot: StateSnapshot) -> list[ToolMessage]:
    """What a model gets to read about tool calls that the client has declined; empty if the
    graph does not stand before a node that makes tool calls."""
    if len(set(snapshot.next)) != 1 or any(_subgraphs(snapshot)):
        return []
    said = "The user declined this call"
    return [
        ToolMessage(said, tool_call_id=call["id"], name=call["name"], status="error")
        for call in _calls(snapshot)
    ]


def _has_inner(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Whether a subgraph has breakpoints."""
    return any(
        inner.interrupt_before_nodes or inner.interrupt_after_nodes
        for _, inner in graph.get_subgraphs(recurse=True)
    )


def _named(nodes: Any, names: Collection[str]) -> list[str]:
    return [name for name in names if nodes == "*" or name in nodes]


def _subgraphs(snapshot: StateSnapshot) -> Iterator[StateSnapshot]:
    """Subgraphs that stand at a breakpoint of their own."""
    for task in snapshot.tasks:
        inner = task.state
        if isinstance(inner, StateSnapshot) and inner.next:
            found = list(_subgraphs(inner))
            yield from found
            if not found and not inner.interrupts:
                yield inner


def _calls(snapshot: StateSnapshot) -> list[Any]:
    """The tool calls that nobody has answered yet."""
    messages = messages_of(snapshot.values)
    answered = {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
    last = next((each for each in reversed(messages) if isinstance(each, AIMessage)), None)
    return [call for call in (last.tool_calls if last else ()) if call["id"] not in answered]


def _question(snapshot: StateSnapshot) -> Question:
    where = snapshot.config["configurable"]
    names = sorted(set(snapshot.next))
    calls = [{"tool": call["name"], "arguments": call["args"]} for call in _calls(snapshot)]
    text = f"May I go on with {' and '.join(names)}?"
    for call in calls:
        text += f" It calls {call['tool']} with {json.dumps(call['arguments'], default=str)}."
    operation = {
        "run": names,
        "calls": json.loads(json.dumps(calls, default=str)),
        "checkpoint": where["checkpoint_id"],
    }
    id = f"{BREAKPOINT}{where.get('checkpoint_ns', '')}:{where['checkpoint_id']}"
    return Question(id, text, approval=True, operation=operation)
