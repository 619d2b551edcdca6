"""Limits on what a client accepts from an agent."""

from __future__ import annotations

from msgspec import Struct

from dragoman.model.errors import InvalidAgentResponse

CARD = 1 << 20
"""The most bytes of a card or of another document about an agent."""


class Limits(Struct, frozen=True, kw_only=True):
    """The most that a client accepts from an agent. More raises `TooLarge`."""

    answer: int = 64 * 1024 * 1024
    """The most bytes of one response, or of one event of a stream."""
    task: int = 256 * 1024 * 1024
    """The most bytes of memory that a stream uses for its task."""
    events: int = 1_000_000
    """The most events of one stream that keeps its task."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Limits: {name} must be a whole number greater than 0")


DEFAULT = Limits()


class Meter:
    """Counts the bytes of a stream."""

    def __init__(self) -> None:
        self.bytes = 0


class TooLarge(InvalidAgentResponse):
    """The agent sent more than the client accepts. The client closes the connection."""

    def __init__(self, message: str, *, limit: str = "", value: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        """The exceeded field of `Limits`; empty for a fixed limit."""
        self.value = value
        self.task = ""
        """The id of the task, if known."""

    @classmethod
    def of(cls, what: str, limit: str, value: int, also: str = "") -> TooLarge:
        """Make the error for a field of `Limits`, with its value and what to do."""
        words = f"{what}; raise it with limits=Limits({limit}=…){also}"
        return cls(words, limit=limit, value=value)
