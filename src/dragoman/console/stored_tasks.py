"""What a console without a server looks at: the tasks in a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.console.http import NotFound, Request
from dragoman.console.session import Operator
from dragoman.console.shapes import AgentName, AgentView, SchemeView


class StoredTasks:
    """A store that other processes serve, or nobody. It can be read, and webhooks redriven."""

    kind = "store"
    reads = True

    def __init__(self, name: str) -> None:
        self.title = name

    def names(self) -> Sequence[AgentName]:
        """No agent is served here."""
        return ()

    def needs_caller(self, operator: Operator) -> bool:
        """There is no chat."""
        return False

    async def agents(self, request: Request) -> Sequence[AgentView]:
        """No agent is served here."""
        return ()

    async def schemes(self, request: Request) -> Sequence[SchemeView]:
        """Nobody logs in."""
        return ()

    async def ways(self, request: Request) -> Sequence[Sequence[str]]:
        """Nobody logs in."""
        return ()

    async def call(
        self, request: Request, operator: Operator, key: str, rest: str, send: Any
    ) -> None:
        """There is no chat."""
        raise NotFound("there is no such agent")

    async def close(self) -> None:
        """There is nothing to close."""
