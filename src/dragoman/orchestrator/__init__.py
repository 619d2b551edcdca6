"""An agent that puts other agents to work, and the models that plan for it.

`ChatModel(url, model)` speaks chat completions; `FunctionModel` is a function; `PydanticModel` is a
model of Pydantic AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from dragoman.orchestrator.pydantic_model import PydanticModel

__all__ = [
    "ChatModel",
    "FunctionModel",
    "Model",
    "ModelAnswer",
    "ModelFailed",
    "ModelMessage",
    "PydanticModel",
    "Tool",
    "ToolCall",
    "Usage",
]

_PLACES = {
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
