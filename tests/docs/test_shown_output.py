"""Blocks that are neither Python nor commands: SQL runs, and what is shown is what is sent."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from dragoman import App
from dragoman.model.caller import Scope
from dragoman.server.settings import Settings
from dragoman.stores import connect
from dragoman.stores.postgres import schema
from tests.docs.test_code_blocks import ROOT, Block, blocks, booking
from tests.harness.command import server_process
from tests.harness.server import serving
from tests.harness.stores import accept
from tests.harness.webhooks import receiving

SECURED = """
from booking import agent

from dragoman import App
from dragoman.security import Basic

app = App(agent, auth=Basic({"ann": "secret"}), drain_timeout=0.1)
"""


def on(page: str, *kinds: str) -> list[Block]:
    """The blocks of these kinds on a page."""
    return [block for block in blocks(*kinds) if block.page.name == page]


def statements(block: Block) -> Iterator[tuple[str, str]]:
    """The statements of a block, each with the comment behind it."""
    for line in block.text.splitlines():
        statement, _, note = line.partition("--")
        if statement.strip():
            yield statement.strip(), note.strip()


async def test_sql_runs_on_postgresql(database: str) -> None:
    """In the order of the page; what a role of PostgreSQL sees is what the page says."""
    store = connect(Settings(store=database))
    await store.open()
    for tenant in ("blue", "red"):
        await accept(store, tenant, scope=Scope("agent", tenant, "ann"))
    await store.close()
    db = await asyncpg.connect(database)
    transaction = db.transaction()
    await transaction.start()  # roles belong to the whole server: they are rolled back
    seen = []
    try:
        await db.execute("CREATE ROLE serving; CREATE ROLE reports")
        await schema.secure(db, True)
        for block in on("operations.md", "sql"):
            for statement, note in statements(block):
                if note == "SQLite":
                    continue
                if note.startswith("as reports"):
                    await db.execute("SET ROLE reports")
                await db.execute(statement)
                if note.startswith("as reports"):
                    seen += await db.fetch("SELECT id FROM task")
                    await db.execute("RESET ROLE")
        assert await db.fetchval("SELECT count(*) FROM pg_policies WHERE policyname = 'bound'") == 4
        assert await db.fetchval("SELECT id FROM about") == "a new random text"
        await db.execute("SET ROLE serving")
        assert await db.fetchval("SELECT count(*) FROM entry") is not None
    finally:
        await transaction.rollback()
        await db.close()
    assert [row["id"] for row in seen] == ["blue"]


async def test_sql_runs_on_sqlite(tmp_path: Path) -> None:
    store = connect(Settings(store=f"sqlite:///{tmp_path}/x.db"))
    await store.open()
    await store.close()
    ran = 0
    with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as db:
        for statement, note in statements(on("operations.md", "sql")[0]):
            if note != "PostgreSQL":
                db.execute(statement)
                ran += 1
    assert ran == 2
    store = connect(Settings(store=f"sqlite:///{tmp_path}/x.db"))
    await store.open()
    assert store.id == "a new random text"
    await store.close()


def shape(value: Any) -> Any:
    """A document without its texts."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    return type(value)


async def test_a_delivery_looks_like_the_one_on_the_page() -> None:
    (block,) = on("webhooks.md", "http")
    head, _, body = block.text.partition("\n\n")
    first, *headers = head.splitlines()
    shown = dict(line.lower().split(": ", 1) for line in headers)
    settings: dict[str, Any] = {"push_keys": ["whsec_" + "c2VjcmV0" * 4], "push": True}
    app = App(booking().agent, egress_allow=["127.0.0.1"], drain_timeout=0.1, **settings)
    async with (
        receiving() as inbox,
        serving(app) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        register = next(b.text for b in on("webhooks.md", "sh") if "/message:send" in b.text)
        sent = json.loads(re.findall(r"-d '(.*?)'", register, re.DOTALL)[0])
        sent["configuration"]["taskPushNotificationConfig"]["url"] = inbox.url
        assert (await http.post("/message:send", json=sent)).status_code == 200
        posts = await inbox.end()
    post = posts[0]
    assert first.split()[::2] == post.line.split()[::2]
    assert set(shown) <= set(post.headers)
    for name in ("content-type", "authorization", "x-a2a-notification-token"):
        assert post.headers[name].lower() == shown[name]
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        assert len(post.headers[name]) == len(shown[name]), name
    assert shape(json.loads(body)) in [shape(post.event) for post in posts]


def masked(line: str) -> str:
    """A line of the access log without its times and ids."""
    line = re.sub(r"^[\d:]{8} ", "", line)
    line = re.sub(r"\b[\d.]+ ms", "N ms", line)
    return re.sub(r"task=\S+\]", "task=ID]", line)


def test_the_access_log_looks_like_the_line_on_the_page(tmp_path: Path) -> None:
    text = (ROOT / "docs/hosting.md").read_text()
    (shown,) = re.findall(r"^As text it is one line:\n\n```\n(.*?)^```$", text, re.M | re.S)
    (tmp_path / "booking.py").write_text(on("README.md", "python")[0].text)
    (tmp_path / "secured.py").write_text(SECURED)
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    with server_process(tmp_path, "secured:app", "--access-log") as server:
        sent = httpx.post(f"{server.url}/", json=body, auth=("ann", "secret"))
        assert "result" in sent.json()
        server.end()
        logged = [line for line in server.text().splitlines(True) if "SendMessage" in line]
    assert [masked(line) for line in logged] == [masked(shown)]
