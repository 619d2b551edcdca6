"""A server whose store has damaged rows: it serves all others, and says what it found."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from dragoman import App
from dragoman.stores.sqlite import SqliteStore
from tests.harness.server import serving
from tests.harness.stores import database
from tests.harness.webhooks import receiving
from tests.telemetry.monitored_agent import office, port
from tests.telemetry.scrape import scrape

HEADERS = {"a2a-version": "1.0"}


async def send(http: httpx.AsyncClient, **more: Any) -> httpx.Response:
    """Send a message, and wait for its answer."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    body = {"message": {**message, **more.pop("message", {})}, **more}
    return await http.post("/message:send", json=body, headers=HEADERS)


async def change(where: str, sql: str) -> None:
    """Change the store by hand."""
    if where.startswith("sqlite"):
        with closing(sqlite3.connect(where.removeprefix("sqlite:///"))) as db, db:
            db.execute(sql)
        return
    connection = await asyncpg.connect(where)
    await connection.execute(sql.replace("x'78'", r"'\x78'"))
    await connection.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_others_are_served(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    where = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else database()
    settings: dict[str, Any] = {"store": where, "poll": 0.1, "push": True, "metrics": 0}
    settings["egress_allow"] = ("127.0.0.1",)
    store = SqliteStore(tmp_path / "a.db") if kind == "sqlite" else where
    async with receiving() as receiver:
        async with (
            serving(App(office(), serve_only=True, **{**settings, "store": store})) as url,
            httpx.AsyncClient(base_url=url) as http,
        ):
            ids = []
            for _ in range(3):
                config = {"returnImmediately": True}
                config |= {"taskPushNotificationConfig": {"id": "w", "url": receiver.url}}
                answer = await send(http, configuration=config)
                ids.append(answer.json()["task"]["id"])
        bad, hooked, _ = ids
        await change(where, f"UPDATE task SET inbox = 'x' WHERE id = '{bad}'")
        await change(
            where,
            "UPDATE line SET webhook = x'78', due = 0 WHERE task = "
            f"(SELECT key FROM task WHERE id = '{hooked}')",
        )
        app = App(office(), **settings)
        async with serving(app) as url, httpx.AsyncClient(base_url=url) as http:
            answer = await send(http)
            assert answer.status_code == 200
            assert answer.json()["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
            async with asyncio.timeout(20):
                while True:
                    listed = (await http.get("/tasks", headers=HEADERS)).json()["tasks"]
                    states = {task["id"]: task["status"]["state"] for task in listed}
                    if len(states) == 3 and set(states.values()) == {"TASK_STATE_COMPLETED"}:
                        break
                    await asyncio.sleep(0.05)
                while {ids[2]} != {post.task for post in receiver.ends}:
                    await asyncio.sleep(0.05)
            assert bad not in states
            for ask in (
                http.get(f"/tasks/{bad}", headers=HEADERS),
                send(http, message={"taskId": bad}),
            ):
                answer = await ask
                assert answer.status_code == 500, answer.text
                assert "inbox" not in answer.text, "what it was is for the log"
            assert (await http.get("/readyz")).json() == {"status": "ok"}
            found = await scrape(port(app))
            assert found.get("dragoman_tasks_set_aside", agent="office") == 1
            for what, number in (("head", 1), ("webhook", 1), ("log", 0)):
                assert found.get("dragoman_unreadable_total", kind=what) == number
    said = [text for text in caplog.messages if "cannot be read" in text]
    assert sum(f"task {bad}: its head" in text and "set aside" in text for text in said) == 1
    assert sum(f"task {hooked}: its webhook" in text and "parked" in text for text in said) == 1
