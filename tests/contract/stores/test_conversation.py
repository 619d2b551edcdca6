"""The conversation before a message, on every store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from dragoman import ConversationMessage, Task, TaskState, Turn
from dragoman.dialects.versions import SUPPORTED
from dragoman.model.caller import Call, Caller
from dragoman.model.events import Entry
from dragoman.model.types import SendMessageRequest
from dragoman.server.conversation import latest_turns
from dragoman.stores.admin import DatabaseAdmin, is_database
from dragoman.stores.sqlite import SqliteStore
from dragoman.stores.store import Accepted, Store
from dragoman.testing import message
from tests.harness.stores import Make, accept, artifact, hook
from tests.harness.workers import WorkerHarness

T = TypeVar("T")
Said = list[tuple[str, str]]


class Talk(WorkerHarness):
    """A conversation with an agent that does what it is told."""

    def __init__(self, store: Store, **options: Any) -> None:
        self.found: list[ConversationMessage] = []
        self.handle: Callable[[Turn], Awaitable[Any]] = self.obey
        self.ask: dict[str, Any] = {}

        async def handler(turn: Turn) -> Any:
            return await self.handle(turn)

        super().__init__(handler, store=store, **options)

    async def obey(self, turn: Turn) -> Any:
        """Do what the message says."""
        word, _, rest = turn.text.partition(" ")
        if word == "look":
            self.found = await turn.conversation(**self.ask)
        elif word == "ask":
            return turn.ask(rest)
        elif word == "fail":
            return turn.fail(rest)
        elif word == "write":
            for piece in rest.split():
                await turn.emit(turn.write(piece))
        elif word == "reply":
            return turn.reply(rest)
        else:
            await turn.emit(turn.working("progress"))
            await turn.emit(turn.artifact(f"result of {turn.text}"))
            return turn.complete(f"done {turn.text}")
        return None

    async def say(
        self, text: str, task: str = "", context: str = "c", owner: str = "", run: bool = True
    ) -> Accepted:
        """Send a message, and have it worked on."""
        said = replace(message(text), task_id=task, context_id="" if task else context)
        scope = replace(self.scope, owner=owner)
        call = Call(Caller(identity=owner))
        accepted = await self.service._accept(SendMessageRequest(message=said), scope, call)
        if run:
            await self.run()
        return accepted

    async def look(self, text: str = "look", **ask: Any) -> Said:
        """What a turn of the context sees."""
        self.ask = ask
        await self.say(text)
        return self.said

    @property
    def said(self) -> Said:
        """The kinds and texts that were seen."""
        return [(item.kind, item.text) for item in self.found]


def turn_of(text: str) -> Said:
    """What a plain turn leaves."""
    return [("message", text), ("artifact", f"result of {text}"), ("answer", f"done {text}")]


async def test_a_conversation_has_all_turns_of_the_context_oldest_first(store: Store) -> None:
    talk = Talk(store)
    assert await talk.look() == []
    await talk.say("one")
    asked = await talk.say("ask which?")
    await talk.say("two")
    await talk.say("three", asked.head.id)
    await talk.say("elsewhere", context="d")
    looked = await talk.look("look now")
    assert looked == [
        ("message", "look"),
        *turn_of("one"),
        *[("message", "ask which?"), ("question", "which?")],
        *turn_of("two"),
        *turn_of("three"),
    ]
    question = talk.found[5]
    assert (question.task_id, question.state) == (asked.head.id, TaskState.INPUT_REQUIRED)
    assert [item.role.name for item in talk.found[1:4]] == ["USER", "AGENT", "AGENT"]


async def test_a_conversation_has_the_last_turns(store: Store) -> None:
    talk = Talk(store)
    for text in ("one", "two", "three"):
        await talk.say(text)
    assert await talk.look(limit=2) == [*turn_of("two"), *turn_of("three")]
    assert await talk.look(limit=1) == [("message", "look")]


async def test_only_what_came_before_the_message_is_seen(store: Store) -> None:
    talk = Talk(store)
    await talk.say("one")
    await talk.say("look", run=False)
    await talk.say("later", run=False)
    await talk.run()
    assert talk.said == turn_of("one")


async def test_direct_replies_are_part_of_it(store: Store) -> None:
    talk = Talk(store, reply=True)
    await talk.say("reply hello")
    await talk.say("one")
    assert await talk.look() == [("message", "reply hello"), ("answer", "hello"), *turn_of("one")]
    assert [bool(item.task_id) for item in talk.found] == [False, False, True, True, True]


async def test_what_was_said_until_now(store: Store) -> None:
    """For somebody who looks at the conversation and is in no turn of it."""
    talk = Talk(store, reply=True)
    assert await latest_turns(store, talk.scope, "c", 9, 100) == []
    await talk.say("reply hello")
    await talk.say("elsewhere", context="d")
    await talk.say("theirs", owner="they")
    await talk.say("one")
    await talk.say("waits", run=False)

    async def said(limit: int, characters: int) -> Said:
        found = await latest_turns(store, talk.scope, "c", limit, characters)
        return [(each.kind, each.text) for each in found]

    assert await said(9, 100) == [
        *[("message", "reply hello"), ("answer", "hello")],
        *turn_of("one"),
        ("message", "waits"),
    ]
    short = [("message", "one"), ("artifact", ""), ("answer", "done one"), ("message", "waits")]
    assert await said(2, 0) == short


async def test_a_conversation_is_the_callers_own(store: Store) -> None:
    talk = Talk(store)
    await talk.say("mine", owner="me")
    await talk.say("theirs", owner="they")
    await talk.say("look", owner="me")
    assert talk.said == turn_of("mine")
    await talk.say("look", owner="nobody")
    assert talk.said == []


async def test_of_a_shared_task_only_that_task_is_seen(store: Store) -> None:
    talk = Talk(store)
    await talk.say("mine", owner="me")
    asked = await talk.say("ask which?", owner="me")
    said = replace(message("look"), task_id=asked.head.id)
    scope = replace(talk.scope, owner="me")
    guest = Call(Caller(identity="guest"))
    await talk.service._accept(SendMessageRequest(message=said), scope, guest)
    await talk.run()
    assert talk.said == [("message", "ask which?"), ("question", "which?")]


async def test_failures_and_cancels_are_answers(store: Store) -> None:
    talk = Talk(store)
    await talk.say("fail broken")
    asked = await talk.say("ask which?")
    await talk.ask_to_cancel(asked.head.id)
    assert await talk.look() == [
        *[("message", "fail broken"), ("answer", "broken")],
        ("message", "ask which?"),
    ]
    assert talk.found[1].state is TaskState.FAILED


async def test_a_turn_in_work_has_no_answer_yet(store: Store) -> None:
    talk = Talk(store)
    first = await talk.say("one", run=False)
    claim = await talk.claim(talk.worker())
    assert claim.head.id == first.head.id
    working = claim.head.ending(TaskState.WORKING, "progress")
    await store.append(claim, [Entry(0, working, 1), Entry(0, artifact(claim.head.id, "half"), 1)])
    assert await talk.look() == [("message", "one"), ("artifact", "half")]


async def test_an_answer_that_a_queued_message_overtook_is_one(store: Store) -> None:
    talk = Talk(store)

    async def slow(turn: Turn) -> Any:
        if turn.text == "one":
            await talk.say("two", turn.task.id, run=False)
            await turn.emit(turn.working("progress"))
            return turn.complete("done one")
        return await talk.obey(turn)

    talk.handle = slow
    await talk.say("one")
    await talk.run()
    assert await talk.look() == [("message", "one"), ("answer", "done one"), *turn_of("two")]


async def test_artifacts_are_cut(store: Store) -> None:
    talk = Talk(store)
    pieces = " ".join(["abcd"] * 40)
    await talk.say(f"write {pieces}")
    found = await talk.look(characters=10)
    assert found[1] == ("artifact", "abcdabcdab")
    assert talk.found[1].cut
    found = await talk.look(limit=2, characters=160)
    assert found[1] == ("artifact", "abcd" * 40)
    assert not talk.found[1].cut


class Counting:
    """A store that counts what is read."""

    def __init__(self, inner: Store) -> None:
        self.inner, self.entries, self.reads = inner, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def read(self, *about: Any) -> Any:
        found = await self.inner.read(*about)
        self.reads, self.entries = self.reads + 1, self.entries + len(found or ())
        return found


@pytest.mark.parametrize("queued", [False, True])
async def test_a_long_turn_costs_what_is_returned_of_it(store: Store, queued: bool) -> None:
    talk = Talk(store)
    pieces = 3000

    async def handler(turn: Turn) -> Any:
        if turn.text != "long":
            return await talk.obey(turn)
        if queued:
            await talk.say("two", turn.task.id, run=False)
        for number in range(pieces):
            await turn.emit(turn.write(f"{number:04}"))
        return turn.ask("enough?")

    talk.handle = handler
    first = await talk.say("long")
    if queued:
        await talk.run()
    else:
        await talk.say("two", first.head.id)
    talk.store = counting = Counting(store)
    found = await talk.look(characters=100)
    assert found == [
        *[("message", "long"), ("artifact", "".join(f"{n:04}" for n in range(25)))],
        ("question", "enough?"),
        *turn_of("two"),
    ]
    assert counting.entries < 300
    assert counting.reads < 40


async def test_the_number_of_tasks_in_the_context_does_not_matter(store: Store) -> None:
    talk = Talk(store)
    for number in range(60):
        await talk.say(f"task {number}")
    talk.store = counting = Counting(store)
    assert await talk.look(limit=2) == [*turn_of("task 58"), *turn_of("task 59")]
    assert counting.reads <= 6


async def test_a_durable_handler_sees_the_same_on_replay(store: Store) -> None:
    talk = Talk(store, skill={"durable": True})
    seen: list[Said] = []

    async def handler(turn: Turn) -> Any:
        if turn.text != "look":
            return await talk.obey(turn)
        talk.found = await turn.conversation()
        seen.append(talk.said)
        await turn.ask_for("more?")
        return "end"

    talk.handle = handler
    other = await talk.say("one", run=False)
    worker = talk.worker()
    busy = await talk.claim(worker)
    assert busy.head.id == other.head.id
    looking = await talk.say("look")
    await worker.begin(busy).task
    await talk.say("yes", looking.head.id)
    assert seen == [[("message", "one")]] * 2
    assert (await talk.task(looking.head.id)).status.state is TaskState.COMPLETED


async def test_a_durable_conversation_keeps_the_turns_that_fit(store: Store) -> None:
    talk = Talk(store, skill={"durable": True})
    for number in range(3):
        await talk.say(f"write {number}{'x' * 60_000}")
    found = await talk.look(characters=200_000)
    assert [text[:7] for _, text in found] == ["write 1", "1xxxxxx", "write 2", "2xxxxxx"]


async def test_what_is_deleted_is_no_part_of_it(make: Make) -> None:
    store = await make(retention=0.001)
    talk = Talk(store, reply=True)
    await talk.say("reply hello")
    one = await talk.say("one")
    await talk.say("ask which?")
    async with asyncio.timeout(30):
        while await talk.store.head(talk.scope, one.head.id):
            await asyncio.sleep(0.01)
            await store.prune()
    assert await talk.look() == [("message", "ask which?"), ("question", "which?")]
    assert await administer(store, lambda admin: list(admin.check(lambda *_: None))) in ([], None)


async def test_the_check_accepts_webhooks_of_every_version(store: Store) -> None:
    for name in SUPPORTED:
        await accept(store, name, webhook=replace(hook(task=name), version=name))
    assert await administer(store, lambda admin: list(admin.check(lambda *_: None))) in ([], None)


async def administer(store: Store, work: Callable[[DatabaseAdmin], T]) -> T | None:
    """What an operator does, if the store is a database."""
    if store.admin is None or not is_database(store.admin()):
        return None

    def run() -> T:
        assert store.admin is not None
        with store.admin(write=True) as admin:
            return work(admin)

    return await asyncio.to_thread(run)


async def test_a_conversation_can_be_moved(make: Make) -> None:
    store, other = await make(), await make()
    talk = Talk(store)
    await talk.say("one", owner="me")
    await talk.say("ask which?", owner="me")
    await administer(store, lambda admin: admin.rename_owner("me", "you"))
    found = await administer(store, lambda admin: list(admin.export(lambda _: None)))
    if found is None:  # of a store without an admin interface nothing is moved
        return
    await administer(other, lambda admin: admin.put(found, replace=False))
    for each in (store, other):
        talk = Talk(each)
        await talk.say("look", owner="you")
        assert talk.said == [
            *turn_of("one"),
            *[("message", "ask which?"), ("question", "which?")],
        ]
        problems = await administer(each, lambda admin: list(admin.check(lambda *_: None)))
        assert problems == []


async def test_a_turn_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    talk = Talk(store)
    broken = await talk.say("one")
    await talk.say("two")
    await store.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        key = db.execute("SELECT key FROM task WHERE id = ?", (broken.head.id,)).fetchone()[0]
        db.execute("UPDATE entry SET body = x'78' WHERE place = ?", ((key << 24) + 3,))
        db.commit()
    await store.open()
    assert await talk.look() == turn_of("two")
    assert store.unreadable["log"] == 1
    await store.close()


async def test_replies_are_kept_as_long_as_tasks(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.stores.sqlite.RECEIPTS", 0.0)
    monkeypatch.setattr("dragoman.stores.postgres.RECEIPTS", 0.0)
    talk = Talk(await make(retention=1e9), reply=True)
    replied = await talk.say("reply hello")
    assert (await talk.head(replied.head.id)).replied
    assert await talk.store.prune() == 0
    assert await talk.look() == [("message", "reply hello"), ("answer", "hello")]


async def test_all_other_tasks_of_the_context_can_be_had(store: Store) -> None:
    talk = Talk(store)
    found: list[list[Task]] = []

    async def handler(turn: Turn) -> None:
        if turn.text == "look":
            found.append(await turn.context_tasks())
            found.append(await turn.context_tasks(limit=1000))
            found.append(await turn.context_tasks(limit=3))

    talk.handle = handler
    for number in range(104):
        await talk.say(str(number))
    await talk.say("look")
    assert [len(tasks) for tasks in found] == [100, 104, 3]
    assert {task.history[0].text for task in found[1]} == {str(number) for number in range(104)}
    assert [found[1][:100], found[1][:3]] == [found[0], found[2]]


async def test_the_task_of_a_turn_is_current_when_asked_for(store: Store) -> None:
    talk = Talk(store)
    seen: list[tuple[str, str, str]] = []

    def note(turn: Turn) -> None:
        status = turn.task.status
        said = status.message.text if status.message else ""
        text = "".join(artifact.text for artifact in turn.task.artifacts)
        seen.append((status.state.name, said, text))

    async def handler(turn: Turn) -> Any:
        note(turn)
        await turn.emit(turn.working("searching"))
        note(turn)
        for piece in ("a", "b"):
            await turn.emit(turn.write(piece, id="found"))
            note(turn)
        assert turn.history[-1] == turn.message
        return turn.ask("which?")

    talk.handle = handler
    first = await talk.say("x")
    await talk.say("y", first.head.id)
    assert seen == [
        *[("SUBMITTED", "", ""), ("WORKING", "searching", "")],
        *[("WORKING", "searching", "a"), ("WORKING", "searching", "ab")],
        *[("WORKING", "", "ab"), ("WORKING", "searching", "ab")],
        *[("WORKING", "searching", "a"), ("WORKING", "searching", "ab")],
    ]
    assert (await talk.task(first.head.id)).artifacts[0].text == "ab"
