"""The inspector with agents of other SDKs and other versions of the protocol. `make interop` runs
all of them, `make test` two."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from dragoman.client import read_card
from tests.interop import peers
from tests.interop.peers import Absent, environments
from tests.products.console.test_inspector import called, inspecting, inspector, recorded, said

USUAL = ("reference", "reference-0.3")
NAMES = (
    *(*USUAL, "javascript", "javascript-0.3", "reference-0.2"),
    *("executors-adk", "python-a2a"),
)


async def target(name: str, url: str) -> Any:
    """What the inspector is given: a URL, or a card if that of the agent names a wrong address."""
    if name != "python-a2a":
        return url
    async with httpx.AsyncClient() as http:
        document = (await http.get(f"{url}/.well-known/agent-card.json")).content
    card = read_card(document)
    form = card.supported_interfaces[0].replace(url=f"{url}/tasks/send", protocol_version="0.1")
    whole = card.capabilities.replace(streaming=False)
    return card.replace(supported_interfaces=(form,), capabilities=whole)


@pytest.mark.parametrize("name", NAMES if peers.FULL else USUAL)
async def test_a_foreign_agent_answers_in_the_inspector(name: str) -> None:
    if not (peers.FULL or environments.ready(name)):
        pytest.skip(f"{name} is not installed: `make peers`")
    tokens: list[str] = []
    with ExitStack() as stack:
        try:
            url = await asyncio.to_thread(stack.enter_context, peers.serving(name))
        except Absent as why:
            pytest.skip(str(why))
        found = inspector(url, tokens, await target(name, url))
        async with inspecting(found, tokens) as http:
            (shown,) = (await http.get("/console/api/agents")).json()["agents"]
            assert shown.get("error", "") == ""
            assert shown["card"]["name"]
            events = await called(http, "SendStreamingMessage", said("hello there"))
            assert [each["error"] for each in events if "error" in each] == []
            assert "hello there" in json.dumps(events)
            wire = await recorded(http)
            assert any("hello there" in each.get("body", "") for each in wire)
            assert any("hello there" in each.get("answer", "") for each in wire)
