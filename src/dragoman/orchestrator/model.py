"""What the orchestrator needs of a model: messages and tools go in, text and calls come out.

`ChatModel` speaks chat completions; `FunctionModel` is a function. Anything else with a name and an
`answer` is a model, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from msgspec import Struct

Write: TypeAlias = Callable[[str], Awaitable[None]]
"""Takes the next tokens of the answer."""


class Tool(Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON Schema of the arguments."""


class ToolCall(Struct, frozen=True):
    """The model calls a tool."""

    id: str
    name: str
    arguments: str
    """As the model wrote them: JSON, if the model made no mistake."""


class ModelMessage(Struct, frozen=True, kw_only=True):
    """One message of the conversation with a model."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    """Of an assistant: the tools that it calls."""
    call: str = ""
    """Of a tool: the id of the call that this is the result of."""


class Usage(Struct, frozen=True):
    """What an answer has cost."""

    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        )

    @property
    def tokens(self) -> int:
        """The sum of both."""
        return self.input_tokens + self.output_tokens


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """What a model says: text, calls of tools, or both."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()


EMPTY = "The model gave an empty answer."
CUT_OFF = "The model's answer was cut off, because it reached the limit of tokens."
HELD_BACK = "The filter of the model's server held the answer back."
"""What every model says of answers that cannot be used."""


class ModelFailed(Exception):
    """The model gave no usable answer. The text may be shown to clients: it has no address, no key
    and nothing that the model's server said."""


class Model(Protocol):
    """A model."""

    @property
    def name(self) -> str:
        """The name of the model, for the log."""

    async def answer(
        self, messages: Sequence[ModelMessage], tools: Sequence[Tool], *, write: Write | None = None
    ) -> ModelAnswer:
        """The answer to these messages. With `write`, its text is also given away as it comes.
        Raises ModelFailed."""
