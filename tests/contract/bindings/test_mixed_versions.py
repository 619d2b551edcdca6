"""Clients that mix versions, and the end of a stream for older clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from dragoman import Agent, Turn
from tests.contract.bindings.conftest import Start
from tests.harness.app import RunningApp


async def post(server: RunningApp, method: str, /, *, key: str = "", **params: Any) -> Any:
    """The result of a call, or those of a stream."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"Idempotency-Key": key} if key else {}
    answer = await server.http.post(server.url, json=request, headers=headers)
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line)["result"] for line in lines]
    found = answer.json()
    return found.get("result") or found["error"]


def mixed(*parts: dict[str, Any]) -> dict[str, Any]:
    """A message as fasta2a's client sends it: 1.0's parts in 0.3's clothes."""
    return {"role": "user", "messageId": "m", "parts": list(parts)}


async def test_a_send_without_kinds_is_answered_in_both_ways(server: RunningApp) -> None:
    found = await post(server, "message/send", message=mixed({"text": "hello"}))
    inner = found.pop("task")
    assert found == inner
    assert (inner["kind"], inner["status"]["state"]) == ("task", "completed")
    events = await post(server, "message/stream", message=mixed({"text": "hello"}))
    names = [(names := set(event) & WRAPPERS) and names.pop() for event in events]
    assert names[0] == "task"
    assert names[-1] == "statusUpdate"
    assert events[-1]["statusUpdate"]["final"] is True
    assert "artifactUpdate" in names


WRAPPERS = {"task", "message", "statusUpdate", "artifactUpdate"}


async def test_files_of_either_version(server: RunningApp) -> None:
    parts = [
        {"raw": "AP/+", "filename": "a.bin", "mediaType": "text/plain"},
        {"url": "https://files.example/a", "mediaType": "text/plain"},
    ]
    found = await post(server, "message/send", message=mixed(*parts))
    (said, *_) = found["task"]["history"]
    old = [part["file"] for part in said["parts"]]
    assert old[0] == {"bytes": "AP/+", "name": "a.bin", "mimeType": "text/plain"}
    assert old[1] == {"uri": "https://files.example/a", "mimeType": "text/plain"}
    new = [
        {name: part[name] for name in given}
        for part, given in zip(said["parts"], parts, strict=True)
    ]
    assert new == parts


async def test_with_kinds_nothing_is_wrapped(server: RunningApp) -> None:
    message = {**mixed({"kind": "text", "text": "hello"}), "kind": "message"}
    found = await post(server, "message/send", message=message)
    assert WRAPPERS.isdisjoint(found)


async def test_the_end_of_a_stream_says_so_although_nobody_knew(start: Start) -> None:
    """At auth-required the handler may go on. If it does not, the status is told again as final."""
    agent = Agent("Guard", description="Wants a login.", version="1")

    @agent.skill(tags=["guard"])
    async def guard(turn: Turn) -> AsyncIterator[Any]:
        """Ask for it, and wait a little or end."""
        yield turn.require_auth("Log in")
        if turn.text == "stay":
            await asyncio.sleep(0.05)
            yield turn.artifact("done")

    server = await start(agent=agent)
    message = {**mixed({"kind": "text", "text": "go"}), "kind": "message"}
    events = await post(server, "message/stream", message=message)
    told = [(event["status"]["state"], event.get("final")) for event in events]
    assert told[-2:] == [("auth-required", False), ("auth-required", True)]
    message["parts"][0]["text"] = "stay"
    events = await post(server, "message/stream", message=message)
    told = [(e["kind"], e.get("final")) for e in events]
    assert [final for _, final in told if final is not None].count(True) == 1
    assert told[-1] == ("status-update", True)
    assert events[-1]["status"]["state"] == "completed"


async def test_a_first_send_of_0_1_that_is_repeated_runs_once(server: RunningApp) -> None:
    said = {"role": "user", "parts": [{"type": "text", "text": "ask"}]}
    first = await post(server, "tasks/send", key="k1", id="r", message=said)
    again = await post(server, "tasks/send", key="k1", id="r", message=said)
    assert first == again
    other = await post(server, "tasks/send", key="k2", id="r", message=said)
    assert len(other["history"]) > len(first["history"])  # another key is another message
    assert await post(server, "tasks/send", key="k2", id="r", message=said) == other
