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
    """The framework's top-level package."""
    name: str
    """The name of the class, also of one that an object inherits from."""
    bridge: str


RECOGNISED = (
    Recognised("a2a-sdk", "a2a", "AgentExecutor", "sdk"),
    Recognised("Pydantic AI", "pydantic_ai", "AbstractAgent", "pydantic_ai"),
    Recognised("LangGraph", "langgraph", "Pregel", "langgraph"),
)
"""The table of frameworks. To recognise an object costs no import."""


def frameworks() -> str:
    """The names of the frameworks, for people."""
    *most, last = (row.framework for row in RECOGNISED if row.bridge != "sdk")
    return f"{', '.join(most)} or {last}"


def recognise(found: Any) -> str:
    """The name of the bridge for an object or a class; empty if there is none."""
    kind = found if isinstance(found, type) else type(found)
    for parent in kind.__mro__:
        package = parent.__module__.partition(".")[0]
        for row in RECOGNISED:
            if (row.package, row.name) == (package, parent.__name__):
                return row.bridge
    return ""


def adopt(found: Any, name: str, module: Any) -> Agent | None:
    """Make an agent of a framework's object that a module has under this name; None if it is none.
    Raises ValueError if something is missing."""
    bridge = recognise(found)
    if not bridge:
        return None
    if bridge == "sdk":
        from dragoman.bridges import sdk

        cards = [value for value in vars(module).values() if sdk.is_card(value)]
        if len(cards) != 1:
            raise ValueError(
                f"an executor needs its card: the module has {len(cards)} objects of AgentCard, "
                "not one"
            )
        return sdk.serve(found, cards[0])
    if isinstance(found, type):
        raise ValueError("expected an agent, got a class")
    serve = import_module(f"dragoman.bridges.{bridge}").serve
    named = bool(getattr(found, "name", None)) and getattr(found, "name", "") != "LangGraph"
    agent: Agent = serve(found) if named else serve(found, name=name.replace("_", " ").title())
    return agent
