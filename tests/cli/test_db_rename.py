"""`dragoman db rename-owner`: tasks, receipts and counts go over together, or nothing does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman import Agent, App, Turn
from dragoman.model.caller import Scope, qualified
from dragoman.security import ApiKey
from dragoman.security.encryption import Encryption, key
from dragoman.stores.admin import Renamed
from dragoman.stores.codec import digested
from dragoman.stores.context_values import decrypt_value, encrypt_value
from tests.cli.filled_stores import (
    BOTH,
    execute,
    hook,
    ids,
    line,
    opened,
    seed,
    sound,
    url,
    value,
)
from tests.harness.server import serving

KEYED = qualified("keys", "ann")


@BOTH
def test_to_another_realm(here: Path, db: Any) -> None:
    seed(
        here,
        line("a", owner="ann", receipts=("one", "both")),
        line("b", "WORKING", owner="ann", tenant="blue", webhooks=[hook("b")]),
        line("c", owner="ann", agent="second"),
        line("mine", owner=KEYED, receipts=("both", "other")),
        line("bob", owner="bob"),
    )
    ask = ("rename-owner", "ann", "ann", "--to-realm", "keys")
    told = "1 receipt deleted: the new owner sent the same message before\n"
    dry = db(*ask, "--dry-run")
    assert (dry.status, dry.out) == (0, f"3 tasks would be moved, 1 receipt\n{told}")
    assert set(ids(db("list", "--json", "--owner", "ann"))) == {"a", "b", "c"}
    done = db(*ask)
    assert (done.status, done.out) == (0, f"3 tasks renamed, 1 receipt\n{told}")
    assert ids(db("list", "--json", "--owner", "ann")) == []
    found = db("list", "--json", "--owner", "ann", "--realm", "keys")
    assert set(ids(found)) == {"a", "b", "c", "mine"}
    assert {(item["realm"], item["owner"]) for item in found.json()} == {("keys", "ann")}
    # counts are of those that there are, and the webhook has come along
    sound(here)
    assert [item["task"] for item in db("webhooks", "--json").json()] == ["b"]
    assert execute(here, "SELECT count(*) FROM receipt") == [(3,)]
    head = db("list").out.splitlines()[0].split()
    assert head[:7] == ["task", "state", "changed", "agent", "tenant", "realm", "owner"]
    assert "realm    keys\nowner    ann\n" in db("show", "a").out
    # a second time there is nothing left
    again = db(*ask)
    assert again.status == 1 and "that owner has no tasks in " in again.err


@BOTH
def test_values_of_contexts_go_along(here: Path, db: Any) -> None:
    seed(
        here,
        line("a", owner="ann"),
        line("b", owner="ann", context="d", tenant="blue"),
        line("c", owner="ann", context="e"),
        line("mine", owner="bob", context="e"),
        value('"a"', owner="ann"),
        value('"b"', owner="ann", context="d", tenant="blue"),
        value('"c"', owner="ann", context="e"),
        value('"mine"', owner="bob", context="e"),
    )
    told = "1 value of contexts deleted: the new owner has one for the same context\n"
    dry = db("rename-owner", "ann", "bob", "--dry-run")
    assert dry.out == f"3 tasks would be moved, 0 receipts, 2 values of contexts\n{told}"
    sound(here)
    done = db("rename-owner", "ann", "bob")
    assert done.out == f"3 tasks renamed, 0 receipts, 2 values of contexts\n{told}"
    sound(here)
    lines = map(json.loads, db("export").out.splitlines())
    found = {item["body"]: item["scope"]["owner"] for item in lines if "kind" in item}
    assert found == dict.fromkeys(('"a"', '"b"', '"mine"'), "bob")


@BOTH
def test_an_encrypted_value_needs_the_key(here: Path, db: Any) -> None:
    keys = [key()]
    scope = Scope("echo", "", "ann")
    body = encrypt_value(b'"secret"', scope, digested("c"), Encryption(keys)).decode()
    seed(here, line("a", owner="ann"), value(body, owner="ann"))
    done = db("rename-owner", "ann", "bob")
    assert done.status == 1 and "set encryption_keys as the server has it" in done.err
    assert ids(db("list", "--json", "--owner", "ann")) == ["a"]
    arguments = () if url(here) else ("--store", f"sqlite:///{here / 'echo.db'}")
    with (here / "dragoman.toml").open("a") as file:
        file.write(f"encryption_keys = {keys}\n")
    done = db("rename-owner", "ann", "bob", *arguments)
    assert done.status == 0, done.err
    lines = map(json.loads, db("export", *arguments).out.splitlines())
    (moved,) = [item["body"] for item in lines if "kind" in item]
    bob = Scope("echo", "", "bob")
    assert decrypt_value(moved.encode(), bob, digested("c"), Encryption(keys)) == b'"secret"'


@BOTH
def test_some_of_them_and_back(here: Path, db: Any) -> None:
    seed(
        here,
        line("a", owner="ann"),
        line("b", owner="ann", tenant="blue"),
        line("c", owner="ann", agent="second"),
        line("nobody", owner=""),
    )
    assert db("rename-owner", "ann", "bob", "--tenant", "blue").out.startswith("1 task renamed")
    assert ids(db("list", "--json", "--owner", "bob")) == ["b"]
    assert db("rename-owner", "ann", "bob", "--agent", "second").out.startswith("1 task renamed")
    assert ids(db("list", "--json", "--owner", "ann")) == ["a"]
    assert db("rename-owner", "bob", "ann").out.startswith("2 tasks renamed")
    assert set(ids(db("list", "--json", "--owner", "ann"))) == {"a", "b", "c"}
    # those of anonymous callers, when they get a name
    done = db("rename-owner", "", "ann", "--tenant", "")
    assert done.out.startswith("1 task renamed")
    assert set(ids(db("list", "--json", "--owner", "ann"))) == {"a", "b", "c", "nobody"}
    sound(here)


@BOTH
def test_ids_of_clients_of_0_1(here: Path, db: Any) -> None:
    seed(here, line("v0.1-00ff-trip", owner="ann"))
    done = db("rename-owner", "ann", "bob")
    assert (
        "1 task with an id that an A2A 0.1 client chose; that client cannot find it any more"
        in done.out
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("ann", "ann"), "the same owner"),
        (("ann", "ann", "--realm", "a", "--to-realm", "a"), "the same owner"),
        (("ann", ""), "every anonymous caller would see"),
        (("ann", "a\x1fann"), "new: contains a control character"),
        (("ann", "bob", "--to-realm", "a\n"), "--to-realm: contains a control character"),
    ],
)
def test_what_makes_no_sense(here: Path, db: Any, arguments: tuple[str, ...], told: str) -> None:
    seed(here, line("a", owner="ann"))
    done = db("rename-owner", *arguments)
    assert done.status == 2 and told in done.err
    assert ids(db("list", "--json", "--owner", "ann")) == ["a"]


def test_a_realm_alone_names_nobody(here: Path, db: Any) -> None:
    seed(here, line("a", owner="ann"))
    done = db("list", "--realm", "keys")
    assert done.status == 2 and "--realm needs --owner" in done.err


# ---- beside a server -----------------------------------------------------------------------


def patient() -> Agent:
    """Works until it is told to end."""
    agent = Agent("Patient", description="Waits.")
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def wait(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("on it")
        await agent.gate.wait()  # type: ignore[attr-defined]
        yield turn.artifact("done")

    return agent


MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
HEADERS = {"x-key": "k", "idempotency-key": "once", "a2a-version": "1.0"}


async def sent(http: httpx.AsyncClient, server: str) -> str:
    """The task of a send that does not wait, the same each time."""
    body = {"message": MESSAGE, "configuration": {"returnImmediately": True}}
    answer = await http.post(f"{server}/message:send", json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["task"]["id"])


@BOTH
async def test_a_turn_that_runs_goes_on(here: Path) -> None:
    agent = patient()
    store = url(here) or f"sqlite:///{here / 'echo.db'}"
    before = App(
        agent, store=store, auth=ApiKey(header="X-Key", keys={"ann": "k"}), drain_timeout=0.0
    )
    async with httpx.AsyncClient(timeout=20) as http:
        async with serving(before) as server:
            task = await sent(http, server)

            def rename() -> Renamed:
                with opened(here, write=True) as admin:
                    return admin.rename_owner("ann", KEYED)

            assert await asyncio.to_thread(rename) == Renamed(1, 1, 0, 0)
            agent.gate.set()  # type: ignore[attr-defined]
            scope = Scope(agent.key, "", KEYED)
            async with asyncio.timeout(20):
                while (
                    head := await before.store.head(scope, task)
                ) is None or not head.state.terminal:
                    await asyncio.sleep(0.02)
            # whose it was no longer sees it
            gone = await http.get(f"{server}/tasks/{task}", headers=HEADERS)
            assert gone.status_code == 404
        keys = ApiKey(header="X-Key", keys={"ann": "k"}, realm="keys")
        async with serving(App(agent, store=store, auth=keys, drain_timeout=0.0)) as server:
            assert await sent(http, server) == task  # its receipt is known
            found = (await http.get(f"{server}/tasks", headers=HEADERS)).json()
            assert [(item["id"], item["status"]["state"]) for item in found["tasks"]] == [
                (task, "TASK_STATE_COMPLETED")
            ]
            assert found["totalSize"] == 1
    await asyncio.to_thread(sound, here)
