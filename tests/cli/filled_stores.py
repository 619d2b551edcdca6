"""Stores with tasks in them, for the tests of `dragoman db`."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import time
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from dragoman.cli import main
from dragoman.model import clock
from dragoman.model.types import TaskState
from dragoman.stores import admin
from dragoman.stores.postgres import admin as postgres
from dragoman.stores.sqlite.admin import SqliteAdmin
from tests.harness.command import ServerProcess
from tests.harness.trust import NOBODY

DAY = 86400.0
DIGEST = base64.b64encode(bytes(32)).decode()
QUICK = ("--set", "poll=0.1")
BOTH = pytest.mark.usefixtures("backend")
COMMANDS: list[list[str]] = [
    ["list"],
    ["show", "t"],
    ["follow", "t"],
    ["prune", "--older", "1d"],
    ["webhooks"],
    ["redrive", "--all"],
    ["rename-owner", "ann", "bob"],
    ["backup", "copy"],
    ["check"],
    ["export"],
    ["migrate"],
]


def line(
    id: str,
    state: str = "COMPLETED",
    *,
    age: float = 0.0,
    agent: str = "echo",
    tenant: str = "",
    owner: str = "",
    context: str = "c",
    text: str = "hello",
    webhooks: list[dict[str, Any]] | None = None,
    receipts: tuple[str, ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """A task as it is exported, whose status is so old."""
    at = clock.stamp(time.time() - age)
    message = {"messageId": "m", "contextId": context, "taskId": id, "role": "ROLE_USER"}
    received = {"message": {**message, "parts": [{"text": text}]}, "caller": {}, "at": at}
    entries = [{"turn": 0, "kind": "received", "body": {"type": "received", **received}}]
    if state != "SUBMITTED":
        status = {"state": f"TASK_STATE_{state}", "timestamp": at}
        event = {"taskId": id, "contextId": context, "status": status}
        entries.append({"turn": 1, "kind": "status", "body": {"statusUpdate": event}})
    ended = TaskState[state].terminal
    return {
        "format": 1,
        "id": id,
        "context": context,
        "scope": {"agent": agent, "tenant": tenant, "owner": owner},
        "skill": "",
        "state": f"TASK_STATE_{state}",
        "changed": at,
        "version": 4,
        "born": True,
        "replied": False,
        "epoch": 2,
        "holder": "",
        "turn": 1 if state != "SUBMITTED" else 0,
        "settled": int(TaskState[state].interrupted),
        "attempt": 0,
        "inbox": [] if state != "SUBMITTED" else [1],
        "canceling": False,
        "canceled": None,
        "ended": time.time() - age if ended else None,
        "entries": entries,
        "receipts": [{"key": key, "digest": DIGEST, "number": 1} for key in receipts],
        "webhooks": webhooks or [],
        **more,
    }


def value(
    body: str = '{"likes":"tea"}',
    *,
    agent: str = "echo",
    tenant: str = "",
    owner: str = "",
    context: str = "c",
    **more: Any,
) -> dict[str, Any]:
    """The value of a context as it is exported."""
    scope = {"agent": agent, "tenant": tenant, "owner": owner}
    about = {"format": 2, "kind": "context", "context": context, "scope": scope}
    return {**about, "version": 3, "saver": "t:1", "body": body, **more}


def reservation(
    value: bytes = b"v",
    *,
    space: str = "s",
    key: str = "k",
    expires: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A reservation as it is exported."""
    body = base64.b64encode(value).decode()
    about = {"format": 2, "kind": "reservation", "space": space, "key": key}
    return {**about, "body": body, "expires": expires, **more}


def hook(
    task: str, id: str = "w", *, url: str = "https://hook.example/s3cret?t=s3cret", **more: Any
):
    """A webhook of a task that has had nothing yet."""
    config = {"id": id, "taskId": task, "url": url, "token": "s3cret"}
    config |= {"authentication": {"scheme": "Bearer", "credentials": "s3cret"}}
    state = {"cursor": 1, "attempts": 2, "due": 5.0, "parked": False, "reason": "answered 500"}
    return {"webhook": {"config": config, "version": "1.0"}, **state, **more}


def variety() -> list[dict[str, Any]]:
    """Tasks of every kind, not in the order of their ids."""
    return [
        line("z", age=5, receipts=("one", "two")),
        line("a", "SUBMITTED", owner="ann", tenant="blue"),
        line("h", "WORKING", holder="w", inbox=[1], attempt=1, agent="second"),
        line(
            "c", "CANCELED", text="\u2028 é \U0001f600", webhooks=[hook("c", "w2"), hook("c", "w1")]
        ),
        line("w", "INPUT_REQUIRED", webhooks=[hook("w", parked=True, due=1.5)]),
    ]


def write(path: Path, *lines: dict[str, Any]) -> Path:
    """A file of exported tasks."""
    text = "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in lines)
    path.write_text(text)
    return path


def store(here: Path, name: str = "echo.db") -> list[str]:
    """The arguments that name a store: the file, unless the settings do."""
    if name == "echo.db" and (here / "dragoman.toml").exists():
        return []
    return ["--store", f"sqlite:///{here / name}"]


def url(here: Path) -> str:
    """The store that the settings name; empty for the file."""
    found = here / "dragoman.toml"
    return str(tomllib.loads(found.read_text())["store"]) if found.exists() else ""


def execute(here: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a statement finds."""
    if where := url(here):
        return asyncio.run(fetched(where, sql))
    with closing(sqlite3.connect(here / "echo.db")) as file, file:
        return file.execute(sql).fetchall()


async def fetched(where: str, sql: str) -> list[tuple[Any, ...]]:
    """What a statement finds in PostgreSQL."""
    connection = await asyncpg.connect(where)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()


def seed(here: Path, *lines: dict[str, Any], name: str = "echo.db") -> Path:
    """A store with these tasks in it."""
    write(here / "seed.jsonl", *lines)
    assert main(["db", "import", "seed.jsonl", *store(here, name)]) == 0
    return here / name


def opened(here: Path, **options: Any) -> admin.DatabaseAdmin:
    """The store that the settings name."""
    if where := url(here):
        return postgres.PostgresAdmin(where, **options)
    return SqliteAdmin(here / "echo.db", **options)


class Outcome:
    """What a command came to."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def json(self) -> Any:
        """What it printed."""
        return json.loads(self.out)


def ids(outcome: Outcome) -> list[str]:
    """The tasks of a listing."""
    assert outcome.status == 0, outcome.err
    return [item["id"] for item in outcome.json()]


def sound(here: Path, name: str = "echo.db") -> None:
    """The store has no problem."""
    assert main(["db", "check", *store(here, name)]) == 0


def total(served: ServerProcess) -> int:
    """How many tasks the server counts, which is how many it lists."""
    found = httpx.get(f"{served.url}/tasks", verify=NOBODY).json()
    assert len(found["tasks"]) == found["totalSize"]
    return int(found["totalSize"])


def follow_up(served: ServerProcess, task: str, text: str) -> dict[str, Any]:
    """Say something more."""
    return served.send(text, taskId=task, messageId=f"m-{time.monotonic_ns()}")
