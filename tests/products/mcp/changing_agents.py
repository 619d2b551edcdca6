"""An agent whose card changes while it is served."""

from __future__ import annotations

from typing import Any

from dragoman import Agent


class Replaced:
    """An agent that another one replaces."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        await self.app(scope, receive, send)


def agent_with(skill: str) -> Agent:
    """An agent with one skill."""
    found = Agent("Changing", description="Changes.", version="1")

    @found.skill(id=skill, tags=["x"])
    async def answer() -> str:
        """Answer."""
        return skill

    return found
