"""The App for the agents of a team that run in the orchestrator's process. Only the orchestrator
reaches it, and its tasks are in the same store as the orchestrator's."""

from __future__ import annotations

from typing import Any

from dragoman import Agent, App, Caller, Settings
from dragoman.orchestrator.agent_team import INSIDE

REALM = "urn:dragoman:inside"
"""The realm of the orchestrator as the caller of these agents: no other caller has it, so no other
caller sees these tasks."""
KEPT = (
    *("poll", "lease", "turn_timeout", "cancel_grace", "drain_timeout"),
    *("max_running", "threads", "max_body", "max_task_bytes"),
)
"""The settings that are those of the orchestrator's App. Ports, limits for callers and the like are
not: variables of the environment do not count here."""


class _Lent:
    """A store or a bell whose owner opens and closes it."""

    def __init__(self, lent: Any) -> None:
        self._lent = lent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lent, name)

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def inner_app(app: App, key: str, agents: list[Agent]) -> App:
    """The App for these agents, inside of the App that serves the orchestrator with this key."""
    caller = Caller(identity=key, realm=REALM)
    kept = {name: getattr(app.settings, name) for name in KEPT}
    return App(
        *agents,
        store=_Lent(app.store),
        bell=_Lent(app.bell),
        identify=lambda request: caller,
        settings=Settings(url=INSIDE.rstrip("/"), **kept),
    )
