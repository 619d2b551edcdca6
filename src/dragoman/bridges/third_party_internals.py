"""The undocumented parts of frameworks that bridges use, since nothing public does the same.

A release of a framework may change them without notice: `BOUNDED` has the versions that were
tested, a newer one is warned of, and the suites of the bridges fail when a part is gone.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dragoman.bridges.saved_state import version

logger = logging.getLogger("dragoman")
BOUNDED = {
    "crewai": "<1.16",
    "google-adk": "<2.14",
    "llama-index-workflows": "<2.27",
    "openai-agents": "<0.25",
    "strands-agents": "<1.63",
}
"""The versions in which these parts are known to be there, by distribution."""


def check_version(package: str) -> None:
    """Log a warning if a version of a framework is installed that is too new to be known."""
    if not _below(installed := version(package), BOUNDED[package]):
        logger.warning(
            "%s %s has not been tried with this version of dragoman, which knows those %s",
            package,
            installed,
            BOUNDED[package],
        )


def _below(installed: str, bound: str) -> bool:
    numbers = [[int(n) for n in re.findall(r"\d+", each)[:2]] for each in (installed, bound)]
    return numbers[0] < numbers[1]


# ---- Strands: a copy of an agent that has runs of its own ----------------------------------------


def detach(made: Any, agent: Any) -> None:
    """Give the copy of an agent its own runs and its own cancel: an agent refuses a second run
    while it has one, and a cancel ends all that it has."""
    made._concurrency = type(agent._concurrency)(agent.concurrent_invocation_mode)
    made._cancel_signal = threading.Event()


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


def raised_inside(interrupt_id: str) -> bool:
    """Whether a running tool has raised an interrupt. Any other comes before a tool is run."""
    return "v1:tool_call:" in interrupt_id


# ---- OpenAI Agents: where a handoff leads, and a state without the author's context --------------


def copy_target(handoff: Any, made: Any, copied: Callable[[Any], Any]) -> None:
    """Lead the copy of a handoff to a copy of its agent, if it names one before it is called."""
    find = getattr(handoff, "_agent_ref", None)
    target = None if find is None else find()
    if target is not None:
        made._agent_ref = weakref.ref(copied(target))


def drop_context(pending: dict[str, Any]) -> None:
    """Take the author's context out of a state that was written as JSON."""
    pending["context"]["context"] = {}


# ---- LlamaIndex: what is in a context that was written as JSON -----------------------------------


def waiters(context: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps that wait for an event which has not come: each has `waiting_for_event`, the name
    of its class, and `has_requirements`."""
    steps = context["workers"].values()
    found = [each for step in steps for each in step["collected_waiters"]]
    return [each for each in found if not each["resolved_event"]]


def begun(context: Mapping[str, Any], names: Collection[str]) -> int:
    """How many of the steps of these names have begun and not ended."""
    steps = context.get("workers", {}).items()
    return sum(len(step["in_progress"]) for name, step in steps if name in names)


def at_rest(context: Mapping[str, Any]) -> dict[str, Any]:
    """What of a context the next run begins with. The rest counts for one run, such as time."""
    return {"version": context["version"], "state": context["state"]}


# ---- ADK: the words in which it asks for a confirmation ------------------------------------------


def is_standard_hint(hint: str, tool: str) -> bool:
    """Whether ADK itself has written the hint of a confirmation, which names its JSON."""
    return hint.startswith(f"Please approve or reject the tool call {tool}(")


# ---- CrewAI: the context of a provider of human input --------------------------------------------


def improve(context: Any, said: str) -> Any:
    """Have an executor improve its answer by what its human has said."""
    context.messages.append(context._format_feedback_message(said))
    return context._invoke_loop()
