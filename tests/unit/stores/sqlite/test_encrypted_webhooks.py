"""Webhooks in a file: they outlive their server, and their secrets are sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.model.errors import Unavailable
from dragoman.model.types import AuthenticationInfo
from dragoman.security.encryption import Encryption, key
from dragoman.stores.sqlite import SqliteStore
from tests.harness.stores import (
    LONG,
    SCOPE,
    I,
    W,
    accept,
    claim,
    followed,
    hook,
    one,
    park,
    say,
    take,
)

SECRETS = {
    "token": "token-4711",
    "authentication": AuthenticationInfo(scheme="Bearer", credentials="credentials-0815"),
}


async def reopened(store: SqliteStore, *keys: str) -> SqliteStore:
    """The same file by another server."""
    await store.close()
    store = SqliteStore(store.path, encryption=Encryption(keys))
    await store.open()
    return store


async def opened(path: Path, *keys: str) -> SqliteStore:
    """A store in a file."""
    store = SqliteStore(path, encryption=Encryption(keys))
    await store.open()
    return store


async def test_a_file_keeps_lines_as_they_were(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    for name in "abc":
        await followed(store, name)
    lines = {line.task: line for line in await take(store)}
    assert await store.dispatched(lines["a"], 2)
    assert await store.dispatched(lines["b"], 1, wait=LONG, failed="answered 500")
    await park(store, lines["c"])
    store = await reopened(store)
    assert not await take(store), "a pause lasts"
    found = {line.task: line for line in await store.undelivered(9)}
    assert found.keys() == {"b", "c"}
    assert (found["b"].attempts, found["b"].parked) == (1, False)
    assert (found["c"].reason, found["c"].parked) == ("answered 410", True)
    await store.close()


async def test_what_a_dead_server_had_taken_is_due_at_once(tmp_path: Path) -> None:
    store = await opened(tmp_path / "x.db")
    await accept(store, webhook=hook())
    await say(store, await claim(store), W, W)
    line = await one(store)
    assert await store.dispatched(line, 2, wait=LONG)
    store = await reopened(store)
    again = await one(store)
    assert again.cursor == 2
    assert not await store.dispatched(line, 3)
    await store.close()


async def test_secrets_are_sealed_in_the_file(tmp_path: Path) -> None:
    path, secret = tmp_path / "x.db", key()
    store = await opened(path, secret)
    await accept(store, webhook=hook(**SECRETS))
    await say(store, await claim(store), W)
    assert (await one(store)).webhook == hook(**SECRETS)
    assert list(await store.webhooks(SCOPE, "t")) == [hook(**SECRETS)]
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"https://x.example/" in files, "they are read where the webhook is"
    for text in (b"token-4711", b"credentials-0815", secret.encode()):
        assert text not in files
    assert "4711" not in str(await store.undelivered(9))
    store = await reopened(store, secret)
    assert (await one(store)).webhook == hook(**SECRETS)
    await store.close()


async def test_a_line_whose_key_is_missing_is_parked_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret, other = key(), key()
    store = await opened(tmp_path / "x.db", secret)
    await accept(store, "sealed", webhook=hook(task="sealed", **SECRETS))
    await say(store, await claim(store), W)
    await followed(store, "open")
    store = await reopened(store, other)
    assert (await one(store)).task == "open"
    (line,) = await store.undelivered(9, parked=True)
    assert line.task == "sealed"
    assert "key" in line.reason
    assert "not among the 1 configured" in line.reason
    assert f"webhook h: {line.reason}; parked" in caplog.messages
    with pytest.raises(Unavailable):
        await store.webhooks(SCOPE, "sealed")
    store = await reopened(store, other, secret)
    assert await store.redrive() == 1
    assert "sealed" in [line.task for line in await take(store)]
    await store.close()


async def test_keys_take_turns(tmp_path: Path) -> None:
    """What the old key sealed is opened as long as it is there; new secrets get the new one."""
    old, new = key(), key()
    store = await opened(tmp_path / "x.db")
    await accept(store, "plain", webhook=hook(task="plain", **SECRETS))
    store = await reopened(store, old)
    await accept(store, "old", webhook=hook(task="old", **SECRETS))
    store = await reopened(store, new, old)
    await accept(store, "new", webhook=hook(task="new", **SECRETS))
    for name in ("plain", "old", "new"):
        assert list(await store.webhooks(SCOPE, name)) == [hook(task=name, **SECRETS)]
    store = await reopened(store, new)
    for name in ("plain", "new"):
        assert list(await store.webhooks(SCOPE, name)) == [hook(task=name, **SECRETS)]
    with pytest.raises(Unavailable):
        await store.webhooks(SCOPE, "old")
    await store.put_webhook(SCOPE, hook(task="old", **SECRETS))
    assert list(await store.webhooks(SCOPE, "old")) == [hook(task="old", **SECRETS)]
    await store.close()


async def test_a_sealed_secret_is_of_its_webhook(tmp_path: Path) -> None:
    """Who can write to the file cannot move a secret to an address of their own."""
    store = await opened(tmp_path / "x.db", key())
    await accept(store, "a", webhook=hook(task="a", **SECRETS))
    await accept(store, "b", webhook=hook(task="b", url="https://thief.example/"))
    for held in await store.claim(["agent"], "w", LONG, 2):
        await say(store, held, I)

    def move(transaction: Any) -> None:
        transaction.db.execute(
            "UPDATE line SET webhook = CAST(replace(replace((SELECT CAST(webhook AS TEXT) "
            "FROM line WHERE task = 1), '/x.', '/thief.'), '\"a\"', '\"b\"') AS BLOB) "
            "WHERE task = 2"
        )

    await store._writer.submit(move)
    assert (await one(store)).task == "a"
    (line,) = await store.undelivered(9, parked=True)
    assert (line.task, line.webhook.config.url) == ("b", "https://thief.example/")
    assert "moved from another place" in line.reason
    await store.close()
