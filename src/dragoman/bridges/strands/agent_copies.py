"""Copies of an agent of Strands: one for each run, so that callers share no messages."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from strands import Agent, Snapshot
from strands.agent import ConversationManager, ModelRetryStrategy
from strands.handlers import PrintingCallbackHandler, null_callback_handler
from strands.hooks import HookRegistry
from strands.telemetry import EventLoopMetrics
from strands.tools.registry import ToolRegistry

from dragoman.bridges import third_party_internals


def check(agent: Agent) -> None:
    """ValueError if an agent cannot be copied."""
    for what in ("session_manager", "background_tasks"):
        if third_party_internals.has(agent, what):
            raise ValueError(
                f"an agent with {what}=... serves one conversation only; give serve a function "
                "that makes the agent of a conversation, given the conversation's name"
            )
    for tool in agents_in(agent).values():
        check(tool.agent)


def copied(agent: Agent, snapshot: Snapshot) -> Agent:
    """A copy of an agent, with the messages and the state of a snapshot. It shares what belongs to
    no conversation: model, tools, hooks, middleware."""
    made = copy.copy(agent)
    manager = copy.copy(agent.conversation_manager)
    made.conversation_manager = manager
    made.hooks = CopiedHooks(agent.hooks, {id(agent.conversation_manager): manager})
    made.tool_registry = ToolRegistry()
    made.tool_registry.registry = dict(agent.tool_registry.registry)
    made.tool_registry.dynamic_tools = dict(agent.tool_registry.dynamic_tools)
    for name, tool in agents_in(agent).items():
        made.tool_registry.registry[name] = _copied_tool(tool)
    made.tool_caller = Agent.ToolCaller(made)
    made.event_loop_metrics = EventLoopMetrics()
    third_party_internals.detach(made, agent)
    made.load_snapshot(snapshot)
    quiet(made)
    return made


def quiet(agent: Agent) -> None:
    """Have an agent print nothing. (By default it prints its answers.)"""
    if isinstance(agent.callback_handler, PrintingCallbackHandler):
        agent.callback_handler = null_callback_handler


def agents_in(agent: Agent) -> Mapping[str, Any]:
    """The tools of an agent that are agents themselves, by name."""
    tools = agent.tool_registry.registry.items()
    return {name: tool for name, tool in tools if isinstance(getattr(tool, "agent", None), Agent)}


def remembering(agent: Agent) -> Mapping[str, Agent]:
    """The agents among its tools that remember from call to call, by name."""
    tools = agents_in(agent).items()
    return {name: tool.agent for name, tool in tools if third_party_internals.remembers(tool)}


def _copied_tool(tool: Any) -> Any:
    made = copy.copy(tool)
    agent = copied(tool.agent, tool.agent.take_snapshot(preset="session"))
    third_party_internals.set_tool_agent(made, agent)
    return made


class CopiedHooks(HookRegistry):
    """The hooks of an agent, for a copy of it: what counts for one conversation is copied."""

    def __init__(self, hooks: HookRegistry, copies: dict[int, Any]) -> None:
        super().__init__()
        self._hooks = hooks
        self._copies = copies

    def get_callbacks_for(self, event: Any) -> Iterator[Any]:
        """See `HookRegistry.get_callbacks_for`."""
        for callback in self._hooks.get_callbacks_for(event):
            found = callback
            owner = getattr(callback, "__self__", None)
            if isinstance(owner, ConversationManager | ModelRetryStrategy):
                if id(owner) not in self._copies:
                    self._copies[id(owner)] = copy.copy(owner)
                found = getattr(self._copies[id(owner)], callback.__name__)
            yield found
        yield from super().get_callbacks_for(event)
