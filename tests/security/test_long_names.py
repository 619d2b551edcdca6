"""Names that callers choose: those that no index can hold are refused by name, before the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import App
from dragoman.agent.agent import Agent, AgentError
from dragoman.model.caller import INDEXED, LONGEST, Caller, Request
from tests.harness import agents
from tests.harness.server import serving
from tests.harness.stores import database

ASTRAL = "\U0001f600"
STORES = ["memory", "sqlite", "postgresql"]


def who(request: Request) -> Caller:
    """The caller is who it says; of the characters that a header bears."""
    return Caller(identity=request.headers.get("who", ""))


def url(store: str, folder: Path) -> str:
    """A new store of this kind."""
    return {"memory": "memory:", "sqlite": f"sqlite:///{folder}/x.db"}.get(store) or database()


async def rpc(http: httpx.AsyncClient, method: str, params: Any, **headers: str) -> Any:
    """What is answered to a request in JSON-RPC."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    version = {"a2a-version": "1.0"} if "/" not in method else {}
    answer = await http.post("/", json=body, headers={**version, **headers})
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(**more: Any) -> dict[str, Any]:
    """A message to send."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    return {"message": message, **more}


@pytest.mark.parametrize("store", STORES)
async def test_what_is_too_long_is_named(store: str, tmp_path: Path) -> None:
    app = App(
        agents.make(),
        store=url(store, tmp_path),
        identify=who,
        push=True,
        egress_allow=["*.example"],
    )
    hook = {"url": "https://x.example/", "id": ASTRAL * (INDEXED // 4 + 1)}
    tenant = ASTRAL * (INDEXED // 4 + 1)
    async with serving(app) as base, httpx.AsyncClient(base_url=base, timeout=20) as http:
        error = (await rpc(http, "SendMessage", said(tenant=tenant)))["error"]
        assert error["code"] == -32602
        assert "tenant: is longer than 512 bytes" in error["message"]
        config = {"taskPushNotificationConfig": hook}
        error = (await rpc(http, "SendMessage", said(configuration=config)))["error"]
        assert error["code"] == -32602
        assert "configuration.taskPushNotificationConfig.id: is longer" in error["message"]
        task = (await rpc(http, "SendMessage", said()))["result"]["task"]["id"]
        wanted = {**hook, "taskId": task}
        error = (await rpc(http, "CreateTaskPushNotificationConfig", wanted))["error"]
        assert (error["code"], error["message"]) == (-32602, "id: is longer than 512 bytes")
        params = {
            "id": ASTRAL * 256,
            "message": {"role": "user", "parts": [{"type": "text", "text": "hello"}]},
        }
        error = (await rpc(http, "tasks/send", params))["error"]
        assert (error["code"], error["message"][:10]) == (-32602, "id: is lon")
        assert "result" in await rpc(http, "tasks/send", {**params, "id": "x" * 256})


@pytest.mark.parametrize("store", STORES)
async def test_long_identities_are_not_taken_for_each_other(store: str, tmp_path: Path) -> None:
    app = App(agents.make(), store=url(store, tmp_path), identify=who)
    ann, bob = "x" * LONGEST, "x" * (LONGEST - 1) + "y"
    async with serving(app) as base, httpx.AsyncClient(base_url=base, timeout=20) as http:
        key = {"idempotency-key": "k" * 256}
        found = await rpc(http, "SendMessage", said(), who=ann, **key)
        task = found["result"]["task"]["id"]
        again = await rpc(http, "SendMessage", said(), who=ann, **key)
        assert again["result"]["task"]["id"] == task
        other = await rpc(http, "SendMessage", said(), who=bob, **key)
        assert other["result"]["task"]["id"] != task
        assert (await rpc(http, "GetTask", {"id": task}, who=ann))["result"]["id"] == task
        assert (await rpc(http, "GetTask", {"id": task}, who=bob))["error"]["code"] == -32001


def test_the_key_of_an_agent_is_not_too_long() -> None:
    with pytest.raises(AgentError, match="longer than 512 bytes"):
        Agent("x" * 600, description="Long.")
