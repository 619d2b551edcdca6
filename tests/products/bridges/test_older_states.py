"""A state that the bridge can decode, and its framework cannot: an older version has saved it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import Desk, Framework

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs the frameworks")


class Older(NamedTuple):
    """A state of an older version, and who is to read it."""

    framework: Framework
    package: str
    state: bytes
    name: str = "Desk"


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


CONTEXT = {"context": {"version": 0}, "messages": [{"role": 5}]}
CHECKPOINT = {"checkpoint": "c", "data": _json({"checkpoint_id": "c", "version": "0.1"})}
STATES = {
    "Agno, a run": Older(
        Framework("agno", "agno_desk"),
        "agno",
        _json({"session": {"session_id": "s", "runs": [{"agent_id": "a", "messages": 5}]}}),
    ),
    "Agno, a session": Older(Framework("agno", "agno_desk"), "agno", _json({"session": {"id": 1}})),
    "Microsoft, a workflow": Older(
        Framework("microsoft", "microsoft_kinds", "trips"),
        "agent-framework-core",
        msgspec.msgpack.encode(CHECKPOINT),
        "Guided",
    ),
    "ADK, an event": Older(
        Framework("adk", "adk_desk"), "google-adk", _json({"events": [{"author": 5}]})
    ),
    "ADK, an event with other fields": Older(
        Framework("adk", "adk_desk"), "google-adk", _json({"events": [{"writer": "user"}]})
    ),
    "Strands, other fields": Older(
        Framework("strands", "strands_desk"),
        "strands-agents",
        _json(
            {
                "schema_version": "1.0",
                "scope": "agent",
                "created_at": "2026-01-01T00:00:00Z",
                "data": {"history": []},
                "app_data": {"run": 0, "usage": {}, "agents": {}},
            }
        ),
    ),
    "ADK, a file": Older(
        Framework("adk", "adk_desk"), "google-adk", _json({"files": {"a.png": {"inline": 5}}})
    ),
    "Strands": Older(
        Framework("strands", "strands_desk"),
        "strands-agents",
        _json({"schema_version": "0.9", "scope": "agent", "data": {}, "app_data": {}}),
    ),
    "LlamaIndex": Older(
        Framework("llamaindex", "llamaindex_desk"),
        "llama-index-workflows",
        msgspec.msgpack.encode({"state": _json(CONTEXT)}),
    ),
    "smolagents": Older(
        Framework("smolagents", "smolagents_desk"),
        "smolagents",
        _json({"steps": [{"kind": "action"}]}),
    ),
}


@pytest.mark.parametrize("older", STATES.values(), ids=STATES)
async def test_the_client_is_told_that_it_cannot_be_read(older: Older, tmp_path: Path) -> None:
    about = {"PACKAGE": older.package, "NAME": older.name, "STATE": older.state.hex()}
    before = Desk(Framework(older.framework.environment, "older_state", "agent"), tmp_path, **about)
    after = Desk(older.framework, tmp_path)
    try:
        before.start()
        async with asyncio.timeout(60), Client.connect(before.url) as client:
            assert (await client.send("one", context="c")).state is TaskState.COMPLETED
        before.stop()
        after.start()
        async with asyncio.timeout(60), Client.connect(after.url) as client:
            result = await client.send("two", context="c")
    except Absent as absent:
        pytest.skip(f"{older.framework.environment} cannot be installed: {absent}")
    finally:
        before.stop()
        after.stop()
    assert result.state is TaskState.FAILED
    assert "cannot read it; start a new conversation" in result.text
