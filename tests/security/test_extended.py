"""The card for those who are known: who sees which part of it, and who may keep it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dragoman import Agent, Caller, Turn
from dragoman.model.types import AgentCard, AgentSkill
from dragoman.security import ApiKey
from tests.harness.clients import Binding, Failed, Grpc, HttpJson, JsonRpc
from tests.harness.protected_app import asked, protected

HIDDEN = AgentSkill(id="wipe", name="Wipe", description="Wipes all.", tags=("admin",))
KEYS = {
    "a-key": Caller(identity="ann", scopes=frozenset({"admin"})),
    "b-key": Caller(identity="bob"),
}


def clerk() -> Agent:
    """An agent that shows one of its skills to those who may use it."""
    agent = Agent("Clerk", description="Keeps files.", extended=True)

    @agent.skill
    async def read(turn: Turn) -> str:
        """Read."""
        return "read"

    @agent.extended_card
    def more(caller: Caller, card: AgentCard) -> AgentCard:
        return replace(card, skills=(*card.skills, HIDDEN)) if "admin" in caller.scopes else card

    return agent


@pytest.mark.clause("extended.permissions", "extended.authenticated")
@pytest.mark.parametrize("kind", [JsonRpc, HttpJson, Grpc], ids=lambda kind: kind.name)
async def test_who_sees_which_part(kind: type[Binding]) -> None:
    async with protected(clerk(), auth=ApiKey(header="X-Key", keys=KEYS)) as server:
        for key, skills in (("a-key", ["read", "wipe"]), ("b-key", ["read"]), ("a-key", 2)):
            card = await server.client(kind, key).call("GetExtendedAgentCard")
            found = [skill["id"] for skill in card["skills"]]
            assert skills in (found, len(found)), "whoever asked before"
        for key in ("", "wrong"):
            refused = await asked(server.client(kind, key), "GetExtendedAgentCard", {})
            assert isinstance(refused, Failed)
            assert refused.reason == "UNAUTHENTICATED"
        public = await server.http.get(f"{server.url}/.well-known/agent-card.json")
        assert "wipe" not in public.text


@pytest.mark.clause("extended.caching")
async def test_nobody_keeps_it_for_others() -> None:
    async with protected(clerk(), auth=ApiKey(header="X-Key", keys=KEYS)) as server:
        for path, version, told in (
            ("/extendedAgentCard", "1.0", "no-store"),
            ("/v1/card", "0.3", "no-store"),
            ("/agent/authenticatedExtendedCard", "0.2", "private, no-cache"),
        ):
            headers = {"x-key": "a-key", "a2a-version": version}
            answer = await server.http.get(f"{server.url}{path}", headers=headers)
            assert "wipe" in answer.text
            assert answer.headers["cache-control"] == told
