"""What the console must not show of a store: webhooks' secrets, credentials, encrypted values; and
that it shows what other replicas write."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.admin import open_store
from dragoman.console import Console, StoredTasks
from tests.harness.server import serving
from tests.harness.stores import database
from tests.products.console.parts import TOKENS, Running, bearer, booking, consoled, stored
from tests.products.console.test_inspector import inspecting

KEY = b64encode(b"k" * 32).decode()
HOOK = "https://hooks.example"
SECRETS = ("path-secret", "token-secret", "credential-secret", "pin-secret")


def saving() -> Agent:
    """An agent that keeps a private value, and asks."""
    agent = Agent("Safe", description="Keeps things.", version="1")

    @agent.handler
    async def keep(turn: Turn) -> Any:
        await turn.save({"pin": "pin-secret"})
        return turn.ask("Which?")

    return agent


async def hooked(running: Running) -> str:
    """A task with a webhook whose URL, token and credentials are secrets."""
    task = (await running.send("keep", **bearer("tom")))["id"]
    config = {
        "url": f"{HOOK}/path-secret?key=path-secret",
        "token": "token-secret",
        "authentication": {"scheme": "Bearer", "credentials": "credential-secret"},
    }
    headers = {"a2a-version": "1.0", **bearer("tom")}
    async with httpx.AsyncClient(base_url=running.url) as http:
        path = f"/tasks/{task}/pushNotificationConfigs"
        made = await http.post(path, json=config, headers=headers)
        assert made.status_code == 200, made.text
    return str(task)


async def everything(http: httpx.AsyncClient, task: str, **headers: str) -> str:
    """All that the console says about a task."""
    one = f"/console/api/tasks/{task}"
    paths = (
        *("/console/api/tasks", "/console/api/webhooks", "/console/api/fleet"),
        *("/console/api/agents", "/console/api/session"),
        *(one, f"{one}/entries", f"{one}/at/99", f"{one}/log", f"{one}/tree"),
    )
    found = []
    for path in paths:
        answer = await http.get(path, headers=headers)
        found.append(answer.text)
    return "\n".join(found)


async def test_secrets_of_webhooks_and_callers_are_not_shown(tmp_path: Path) -> None:
    app = App(saving(), store=stored(tmp_path), auth=TOKENS, encryption_keys=[KEY], push=True)
    async with consoled(app, open=True, terminal=False) as running:
        task = await hooked(running)
        async with httpx.AsyncClient(base_url=running.url) as http:
            shown = await everything(http, task, **bearer("olga"))
    assert HOOK in shown
    assert [each for each in SECRETS[:3] if each in shown] == []
    assert "pin-secret" in shown  # an operator of this server may see what handlers save


async def test_encrypted_values_need_their_key(tmp_path: Path) -> None:
    store = stored(tmp_path)
    app = App(saving(), store=store, auth=TOKENS, encryption_keys=[KEY], push=True)
    async with consoled(app, open=True, terminal=False) as running:
        task = await hooked(running)
    tokens: list[str] = []
    console = Console(
        tell=tokens.append, source=StoredTasks("x"), store=lambda: open_store(store, write=True)
    )
    async with inspecting(console, tokens) as http:
        shown = await everything(http, task)
        entries = (await http.get(f"/console/api/tasks/{task}/entries")).json()["entries"]
    assert [each for each in SECRETS if each in shown] == []
    assert [each["sealed"] for each in entries if each["kind"] == "private"] == [True]


async def test_the_table_shows_what_another_replica_writes() -> None:
    """The bell of neither rings at the other."""
    store = await asyncio.to_thread(database)
    async with (
        consoled(App(booking(), store=store, poll=0.2, bell="memory")) as running,
        serving(App(booking(), store=store, poll=0.2, bell="memory")) as other,
        running.operator() as http,
        http.stream("GET", "/console/api/tasks/events") as stream,
    ):
        sent: dict[str, Any] = {}
        async for line in stream.aiter_lines():
            if not line.startswith("data: "):
                continue
            rows = json.loads(line[6:]).get("rows", [])
            if not sent:
                assert rows == []
                message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Rome"}]}
                async with httpx.AsyncClient(timeout=20) as client:
                    answer = await client.post(
                        f"{other}/message:send",
                        json={"message": message},
                        headers={"a2a-version": "1.0"},
                    )
                sent = answer.json()["task"]
            elif rows and rows[0]["state"] == "completed":
                assert rows[0]["id"] == sent["id"]
                return
    pytest.fail("the stream ended")
