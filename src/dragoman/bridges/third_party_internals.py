"""The undocumented parts of frameworks that bridges use, since nothing public does the same.

A release of a framework may change them without notice: `BOUNDED` has the versions that were
tested, and the suites of the bridges fail when a part is gone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

BOUNDED = {"crewai": "<1.16", "openai-agents": "<0.25", "strands-agents": "<1.63"}
"""The versions in which these parts are known to be there, by distribution."""


# ---- Strands: a copy of an agent that has runs of its own ----------------------------------------


def detach(twin: Any, agent: Any) -> None:
    """Give the copy of an agent its own runs and its own cancel: an agent refuses a second run
    while it has one, and a cancel ends all that it has."""
    twin._concurrency = type(agent._concurrency)(agent.concurrent_invocation_mode)
    twin._cancel_signal = threading.Event()


def set_tool_agent(tool: Any, agent: Any) -> None:
    """Make a tool that is an agent call another one. `as_tool`, the public way, does not know how
    the tool was made."""
    tool._agent = agent
    tool._lock = threading.Lock()


def remembers(tool: Any) -> bool:
    """Whether a tool that is an agent keeps its messages from call to call."""
    return bool(getattr(tool, "_preserve_context", False))


def has(agent: Any, what: str) -> bool:
    """Whether an agent was made with this argument, such as `session_manager`."""
    return getattr(agent, f"_{what}", None) is not None


# ---- OpenAI Agents: where a handoff leads --------------------------------------------------------


def copy_target(handoff: Any, made: Any, copied: Callable[[Any], Any]) -> None:
    """Lead the copy of a handoff to a copy of its agent, if it names one before it is called."""
    find = getattr(handoff, "_agent_ref", None)
    target = None if find is None else find()
    if target is not None:
        made._agent_ref = weakref.ref(copied(target))


# ---- CrewAI: the context of a provider of human input --------------------------------------------


def improve(context: Any, said: str) -> Any:
    """Have an executor improve its answer by what its human has said."""
    context.messages.append(context._format_feedback_message(said))
    return context._invoke_loop()
