"""An agent to be watched, and where its application tells of itself."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman import Agent, App, Turn


def office() -> Agent:
    """An agent whose turns end in several ways."""
    agent = Agent("Office", description="Does what it is told.", key="office")

    @agent.handler
    async def work(turn: Turn) -> Any:
        """Do it."""
        if turn.text == "fail":
            raise ValueError("no")
        if turn.text == "ask":
            yield turn.ask("What?")
            return
        yield turn.working("soon")
        await asyncio.sleep(0.01)
        yield turn.artifact(turn.text)

    return agent


def port(app: App) -> int:
    """Where it tells its figures."""
    assert app.monitoring is not None
    assert app.monitoring.server is not None
    return app.monitoring.server.port
