"""Bridges: agents of other frameworks, served as dragoman agents, and remote agents inside them.

Each framework has a module of its name, which imports the framework: `from dragoman.bridges import
langgraph; agent = langgraph.serve(graph)`. `dragoman serve module:object` recognises the object.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from dragoman import Agent


class Recognised(NamedTuple):
    """A class of a framework, and the bridge for its objects."""

    framework: str
    package: str
    """The framework's package; the class may be in a module below it."""
    name: str
    """The name of the class, also of one that an object inherits from."""
    bridge: str
    classes: bool = False
    """The class itself is served, too: each run has an object of its own."""


RECOGNISED = (
    Recognised("a2a-sdk", "a2a", "AgentExecutor", "sdk"),
    Recognised("Pydantic AI", "pydantic_ai", "AbstractAgent", "pydantic_ai"),
    Recognised("LangGraph", "langgraph", "Pregel", "langgraph"),
    Recognised("Google ADK", "google.adk", "BaseNode", "adk"),
    Recognised("Google ADK", "google.adk", "App", "adk"),
    Recognised("Google ADK", "google.adk", "Runner", "adk"),
    Recognised("OpenAI Agents", "agents", "Agent", "openai_agents"),
    Recognised("LlamaIndex", "workflows", "Workflow", "llamaindex"),
    Recognised("Strands", "strands", "Agent", "strands"),
    Recognised("Agno", "agno", "Agent", "agno"),
    Recognised("Agno", "agno", "Team", "agno"),
    Recognised("Microsoft Agent Framework", "agent_framework", "BaseAgent", "microsoft"),
    Recognised("smolagents", "smolagents", "MultiStepAgent", "smolagents"),
    Recognised("CrewAI", "crewai", "Crew", "crewai"),
    Recognised("CrewAI", "crewai", "Agent", "crewai"),
    Recognised("CrewAI", "crewai", "Flow", "crewai", classes=True),
    Recognised("CrewAI", "crewai", "FlowDefinition", "crewai"),
)
"""The table of frameworks; an object that belongs to several rows belongs to the first of them. To
recognise an object costs no import."""

NAMELESS = ("Agent", "LangGraph", "Strands Agents", "crew")
"""Names that frameworks give to objects without a name."""


def frameworks() -> str:
    """The names of the frameworks, for people."""
    *most, last = dict.fromkeys(row.framework for row in RECOGNISED if row.bridge != "sdk")
    return f"{', '.join(most)} or {last}"


def _row(found: Any) -> Recognised | None:
    kind = found if isinstance(found, type) else type(found)
    for row in RECOGNISED:
        for parent in kind.__mro__:
            within = f"{parent.__module__}.".startswith(f"{row.package}.")
            if within and row.name == parent.__name__:
                return row
    return None


def adopt(found: Any, name: str, module: Any) -> Agent | None:
    """Make an agent of a framework's object that a module has under this name; None if it is none.
    Raises ValueError if something is missing."""
    if type(found).__name__ == "StateGraph":
        raise ValueError(f"expected a compiled graph; write {name}.compile()")
    row = _row(found)
    if row is None:
        return None
    if row.bridge == "sdk":
        from dragoman.bridges import sdk

        # one object may have several names
        cards = list(
            {id(each): each for each in vars(module).values() if sdk.is_card(each)}.values()
        )
        if len(cards) != 1:
            raise ValueError(
                f"an executor needs its card: the module has {len(cards)} objects of AgentCard, "
                "not one"
            )
        return sdk.serve(found, cards[0])
    if isinstance(found, type) and not row.classes:
        raise ValueError(
            f"expected an agent of {row.framework}, got the class {found.__name__}; make an object "
            "of it in the module, and serve that"
        )
    serve = import_module(f"dragoman.bridges.{row.bridge}").serve
    called = found.__name__ if isinstance(found, type) else getattr(found, "name", None)
    named = called not in (None, "", *NAMELESS)
    agent: Agent = serve(found) if named else serve(found, name=name.replace("_", " ").title())
    return agent
