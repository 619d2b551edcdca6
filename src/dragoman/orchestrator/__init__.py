"""The orchestrator: an agent that has other agents do the work; with a model, a plan function, or
neither.

`ChatModel(url, model)` speaks chat completions; `FunctionModel` is a function; `PydanticModel` is a
model of Pydantic AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.orchestrator.agent_team import Member, Team
    from dragoman.orchestrator.budget import Budget, Payer
    from dragoman.orchestrator.chat_model import ChatModel
    from dragoman.orchestrator.function_model import FunctionModel
    from dragoman.orchestrator.model import (
        Model,
        ModelAnswer,
        ModelFailed,
        ModelMessage,
        Tool,
        ToolCall,
        Usage,
    )
    from dragoman.orchestrator.orchestrator import Orchestrator
    from dragoman.orchestrator.plan import InvalidPlan, Plan, PlanStep, Ref, Step
    from dragoman.orchestrator.pydantic_model import PydanticModel

__all__ = [
    "Budget",
    "ChatModel",
    "FunctionModel",
    "InvalidPlan",
    "Member",
    "Model",
    "ModelAnswer",
    "ModelFailed",
    "ModelMessage",
    "Orchestrator",
    "Payer",
    "Plan",
    "PlanStep",
    "PydanticModel",
    "Ref",
    "Step",
    "Team",
    "Tool",
    "ToolCall",
    "Usage",
]

_PLACES = {
    "Budget": "budget",
    "InvalidPlan": "plan",
    "Member": "agent_team",
    "Orchestrator": "orchestrator",
    "Payer": "budget",
    "Plan": "plan",
    "PlanStep": "plan",
    "Ref": "plan",
    "Step": "plan",
    "Team": "agent_team",
    "ChatModel": "chat_model",
    "FunctionModel": "function_model",
    "PydanticModel": "pydantic_model",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'model')}"), name)
    globals()[name] = found
    return found
