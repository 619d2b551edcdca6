"""A function as a model."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence

from dragoman.orchestrator.model import (
    EMPTY,
    ModelAnswer,
    ModelFailed,
    ModelMessage,
    Tool,
    Write,
)

logger = logging.getLogger("dragoman")

Function = Callable[
    [Sequence[ModelMessage], Sequence[Tool]], ModelAnswer | str | Awaitable[ModelAnswer | str]
]


class FunctionModel:
    """A model that is a function of the messages and the tools. It returns a `ModelAnswer` or a
    str. A function that is not async runs in a thread."""

    def __init__(self, function: Function, *, name: str = "") -> None:
        self._function = function
        self._name = name or getattr(function, "__name__", "function")

    def __repr__(self) -> str:
        return f"FunctionModel({self._name!r})"

    @property
    def name(self) -> str:
        """The name of the model; the function's, if none was given."""
        return self._name

    async def answer(
        self, messages: Sequence[ModelMessage], tools: Sequence[Tool], *, write: Write | None = None
    ) -> ModelAnswer:
        """See `Model.answer`. The text is given to `write` in one piece."""
        try:
            found = await self._call(messages, tools)
        except ModelFailed:
            raise
        except Exception as error:
            logger.exception("model %s: the function raised an exception", self._name)
            raise ModelFailed("The function of the model failed.") from error
        if isinstance(found, str):
            found = ModelAnswer(text=found)
        if not isinstance(found, ModelAnswer):
            kind = type(found).__name__
            logger.error("model %s: returned %s, not a ModelAnswer or a str", self._name, kind)
            raise ModelFailed("The function of the model returned no answer.")
        if not found.calls and not found.text.strip():
            raise ModelFailed(EMPTY)
        if write is not None and found.text:
            await write(found.text)
        return found

    async def _call(self, messages: Sequence[ModelMessage], tools: Sequence[Tool]) -> object:
        function = self._function
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object may have an async one
        ):
            return await function(messages, tools)  # type: ignore[misc]
        found = await asyncio.to_thread(function, messages, tools)
        return await found if inspect.isawaitable(found) else found
