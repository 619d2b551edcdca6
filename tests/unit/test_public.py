"""What users of the library see: public names and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dragoman
from dragoman import Agent, Turn
from dragoman.testing import local_client, turn

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLIENT = {
    *("card", "extensions", "interface"),
    *("connect", "open", "close", "send", "stream", "task", "list", "extended_card"),
    *("skills", "call_skill"),
}
TURN = {
    *("task", "message", "text", "data", "files", "history", "context_id", "caller", "skill"),
    *("accepted_output_modes", "metadata", "extensions", "idempotency_key", "attempt", "state"),
    *("canceled", "context_tasks", "referenced_tasks", "connect", "relay", "approval", "granted"),
    *("working", "ask", "require_auth", "complete", "reject", "fail", "reply", "artifact"),
    *("write", "emit", "step", "sleep", "ask_for", "receive", "wait", "now", "uuid", "random"),
    *("version", "save", "saved", "save_context", "context_saved", "conversation", "delegated"),
    *("hand_over",),
}


def shown(value: object) -> set[str]:
    """The names of an object that are not private."""
    return {name for name in dir(value) if not name.startswith("_")}


async def test_a_client_shows_only_public_names() -> None:
    agent = Agent("Echo", description="Echoes.")

    @agent.handler
    async def echo(turn: Turn) -> str:
        return turn.text

    async with local_client(agent) as client:
        own = shown(client) - CLIENT
        assert shown(client) >= CLIENT
    assert own == {"error", "errors"}  # of a client for tests


def test_a_turn_shows_only_public_names() -> None:
    assert shown(turn("hello")) == TURN
    page = "".join((DOCS / name).read_text() for name in ("agents.md", "client.md", "durable.md"))
    undocumented = {name for name in TURN if not re.search(rf"turn\.{name}\b", page)}
    assert not undocumented


@pytest.mark.parametrize("name", dragoman.__all__)
def test_a_public_name_is_there_and_has_a_docstring(name: str) -> None:
    found = getattr(dragoman, name)
    assert isinstance(found, str) or found.__doc__
