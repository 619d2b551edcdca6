"""What a durable handler has read of its context, on every store: it reads the same when it runs
again, and the log does not keep it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from dragoman import ContextChanged, TaskState, Turn
from dragoman.agent import durable
from dragoman.model.events import Private
from dragoman.model.types import SendMessageRequest
from dragoman.security.encryption import Encryption, key
from dragoman.stores.export_format import BadExport, ExportedTask, decode, encode
from dragoman.stores.store import Claim, Store, UnknownEntry
from dragoman.testing import message
from tests.contract.stores.test_conversation import administer
from tests.harness.lives import Lives
from tests.harness.stores import Make, accept
from tests.harness.workers import CALL

CONTEXT = "c"


@pytest.fixture(autouse=True)
def delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that died runs again soon."""
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)


class Readers(Lives):
    """Durable handlers of one context that note what they read."""

    def __init__(self, handler: Any, store: Store, **skill: Any) -> None:
        super().__init__(handler, store, **skill)
        self.seen: list[Any] = []

    async def begin(self, text: str = "x") -> str:
        """A new task of the context."""
        said = SendMessageRequest(message=replace(message(text), context_id=CONTEXT))
        accepted = await self.service._accept(said, self.scope, CALL)
        return accepted.head.id

    async def read(self, turn: Turn) -> Any:
        """Read the value, and note it."""
        self.seen.append(await turn.context_saved())
        return self.seen[-1]

    async def saved_by_others(self, *values: bytes) -> None:
        """Other tasks of the context save these, one after the other."""
        for value in values:
            name = f"other-{value.hex()}-{len(self.seen)}"
            await accept(self.store, name, scope=self.scope, context=CONTEXT)
            claims = await self.store.claim(self.agents, "other", 60.0, 9)
            (claim,) = (each for each in claims if each.head.id == name)
            found = await self.store.context_value(claim)
            version = found.version if found else 0
            await self.store.save_context(claim, value, version, f"{name}:1")

    async def kept(self, task: str) -> list[Private]:
        """What the log and its side have of the reads of a task."""
        found = [entry.event for entry in await self.store.private(self.scope, task)]
        return [e for e in found if isinstance(e, Private) and e.name == "dragoman.context_saved"]

    async def sides(self, task: str) -> int:
        """How many values are beside the log of a task."""
        return sum(bytes(entry.value) != b"null" for entry in await self.kept(task))

    async def stored(self, task: str) -> bytes:
        """The log of a task, as a database stores it."""
        found = await exported(self.store)
        if found is None:  # memory
            events = [e.event for e in await self.store.read(self.scope, task, 0, 999) or ()]
            return msgspec.json.encode(events)
        (one,) = (given for given in found if given.id == task)
        return b"".join(bytes(item.body) for item in one.entries)


async def exported(store: Store) -> list[ExportedTask] | None:
    return await administer(store, lambda admin: list(admin.export(lambda _: None)))


async def sound(store: Store) -> None:
    """`dragoman db check` finds nothing."""
    assert await administer(store, lambda admin: list(admin.check(lambda *_: None))) in ([], None)


async def test_it_is_read_again_however_often_others_have_saved(store: Store) -> None:
    async def handler(turn: Turn) -> Any:
        before = await lives.read(turn)
        await turn.ask_for("first?")
        if turn.text == "late":
            await lives.read(turn)
            await turn.ask_for("second?")
        try:
            await turn.save_context([before, "mine"])
        except ContextChanged:
            await turn.save_context([await lives.read(turn), "merged"])

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin("late")
    await lives.life()
    await lives.saved_by_others(b'"two"', b'"three"', b'"four"')
    await lives.send("yes", task)
    await lives.life()
    await lives.saved_by_others(b'"five"', b'"six"')
    assert await lives.sides(task) == 2
    await sound(store)
    await lives.send("yes", task)
    await lives.life()
    assert lives.seen == ["one", "one", "four", "one", "four", "six"]
    assert (await lives.head(task)).state is TaskState.COMPLETED
    await lives.begin()
    await lives.life()
    assert lives.seen[-1] == ["six", "merged"]


@pytest.mark.parametrize("die_at", range(1, 7))
async def test_a_crash_between_read_and_save(store: Store, die_at: int) -> None:
    """The process ends before or after each change of the store."""

    async def handler(turn: Turn) -> Any:
        await lives.point()
        before = await lives.read(turn)
        await lives.point()
        await turn.save_context([*before, turn.text])
        await lives.point()
        await lives.read(turn)
        await turn.save_context([*before, turn.text, "again"])
        await lives.point()
        await turn.step("step", lives.effect, "step")

    lives = Readers(handler, store)
    await lives.saved_by_others(b'["old"]')
    first = await lives.begin("first")
    await lives.life(die_at)
    died = len(lives.seen)
    await lives.recover()
    await lives.life()
    assert (await lives.head(first)).state is TaskState.COMPLETED
    whole = [["old"], ["old", "first"]]
    assert (lives.seen[:died], lives.seen[died:]) == (whole[:died], whole)
    await lives.begin("second")
    await lives.life()
    assert lives.seen[-2] == ["old", "first", "again"]
    await sound(store)


async def test_the_process_ends_before_the_read_is_logged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has acted on it, so the next attempt may read something newer."""

    async def handler(turn: Turn) -> Any:
        await turn.save_context([await lives.read(turn), "mine"])

    async def value(held: Claim) -> Any:
        found = await type(store).context_value(store, held)
        await lives.point()
        return found

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin()
    monkeypatch.setattr(store, "context_value", value, raising=False)
    await lives.life(1)
    monkeypatch.undo()
    assert not await lives.kept(task)
    await lives.recover()
    await lives.life()
    assert lives.seen == ["one"]
    assert (await lives.head(task)).state is TaskState.COMPLETED


async def test_logs_do_not_grow_with_the_value(store: Store) -> None:
    async def handler(turn: Turn) -> Any:
        before = await lives.read(turn) or []
        if turn.text == "ask":
            await turn.ask_for("well?")
        await turn.save_context([*before, "x" * 1000])

    lives = Readers(handler, store)
    sizes = []
    for number in range(12):
        task = await lives.begin("ask" if number % 3 == 0 else "x")
        await lives.life()
        if number % 3 == 0:
            await lives.send("yes", task)
            await lives.life()
        sizes.append(len(await lives.stored(task)))
        assert (await lives.head(task)).state is TaskState.COMPLETED
    assert len(lives.seen[-1]) == 11
    for first, last in ((0, 9), (1, 10), (2, 11)):  # the same work, with a larger value
        assert abs(sizes[last] - sizes[first]) < 10, sizes
    if (tasks := await exported(store)) is not None:
        assert not any(task.replay_values for task in tasks)
    await sound(store)


@pytest.mark.parametrize("how", ["completed", "failed", "asks", "canceled", "deleted"])
async def test_it_is_deleted_when_the_turn_ends(make: Make, how: str) -> None:
    async def handler(turn: Turn) -> Any:
        await lives.read(turn)
        await turn.ask_for("well?")
        if how == "failed":
            raise ValueError
        return turn.ask("more?") if how == "asks" and turn.text == "x" else None

    store = await make(retention=0.001) if how == "deleted" else await make()
    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin()
    await lives.life()
    assert await lives.sides(task) == 1
    if await exported(store) is not None:
        assert b'"one"' not in await lives.stored(task)
    await sound(store)
    if how == "canceled":
        await lives.ask_to_cancel(task)
    else:
        await lives.send("yes", task)
        await lives.life()
    if how == "deleted":
        async with asyncio.timeout(5):
            while await lives.store.head(lives.scope, task):
                await asyncio.sleep(0.01)
                await store.prune()
    else:
        assert await lives.sides(task) == 0
        assert b'"one"' not in await lives.stored(task)
    await sound(store)
    if how == "asks":  # the next turn reads for itself
        await lives.saved_by_others(b'"two"')
        await lives.send("again", task)
        await lives.life()
        assert await lives.sides(task) == 1
        await lives.send("yes", task)
        await lives.life()
        assert lives.seen == ["one", "one", "two", "two"]
        assert await lives.sides(task) == 0
        await sound(store)


async def test_a_task_whose_time_is_over_leaves_nothing(store: Store) -> None:
    async def handler(turn: Turn) -> Any:
        await lives.read(turn)
        await turn.ask_for("well?")

    lives = Readers(handler, store, timeout=0.05)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin()
    await lives.life()
    assert await lives.sides(task) == 1
    async with asyncio.timeout(5):
        while (await lives.head(task)).state is not TaskState.FAILED:
            await asyncio.sleep(0.02)
            await lives.reap()
    assert await lives.sides(task) == 0
    await sound(store)


async def test_a_log_of_an_older_version_is_replayed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the value itself. So have logs of turns that read very often."""

    async def handler(turn: Turn) -> Any:
        await lives.read(turn)
        await turn.ask_for("well?")
        await turn.save_context([await lives.read(turn), "mine"])

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    monkeypatch.setattr(durable, "BESIDE", 0)
    task = await lives.begin()
    await lives.life()
    monkeypatch.undo()
    assert b'"one"' in await lives.stored(task)
    await lives.saved_by_others(b'"two"')
    await lives.send("yes", task)
    await lives.life()
    assert lives.seen == ["one", "one", "two"]
    assert (await lives.head(task)).state is TaskState.COMPLETED
    assert b'"one"' in await lives.stored(task)
    await sound(store)


async def test_what_is_beside_a_log_is_bounded(store: Store) -> None:
    number = durable.BESIDE + 3

    async def handler(turn: Turn) -> Any:
        for _ in range(number):
            await lives.read(turn)
        await turn.ask_for("well?")

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin()
    await lives.life()
    entries = await lives.kept(task)
    assert [entry.beside for entry in entries].count(True) == durable.BESIDE
    await lives.send("yes", task)
    await lives.life()
    assert lives.seen == ["one"] * 2 * number
    assert await lives.sides(task) == 3


async def test_a_task_can_be_moved_in_the_middle_of_a_turn(make: Make) -> None:
    store, other = await make(), await make()
    if await exported(store) is None:
        return

    async def handler(turn: Turn) -> Any:
        await lives.read(turn)
        await turn.ask_for("well?")

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin()
    await lives.life()
    await lives.saved_by_others(b'"two"')
    tasks = await exported(store)
    assert tasks is not None
    lines = [encode(given) for given in tasks]
    assert sum(b'"one' in line for line in lines) == 1
    moved = [decode(line) for line in lines]
    await administer(other, lambda admin: admin.put(moved, replace=False))
    assert await administer(other, lambda a: a.put(moved, replace=False)) == ["same"] * len(moved)
    await administer(other, lambda admin: admin.put(moved, replace=True))
    await sound(other)
    await administer(other, lambda admin: admin.rename_owner(lives.scope.owner, "heir"))
    there = Readers(handler, other)
    there.scope = replace(lives.scope, owner="heir")
    assert await there.sides(task) == 1
    await administer(other, lambda admin: admin.rename_owner("heir", lives.scope.owner))
    lives, here = there, lives
    lives.scope = here.scope
    await lives.send("yes", task)
    await lives.life()
    assert (here.seen, lives.seen) == (["one"], ["one"])
    assert (await lives.head(task)).state is TaskState.COMPLETED
    await sound(other)


async def test_one_that_is_gone_postpones_the_turn(make: Make) -> None:
    store = await make()
    if await exported(store) is None:
        return

    async def handler(turn: Turn) -> Any:
        await lives.read(turn)
        await turn.ask_for("well?")

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"one"')
    task = await lives.begin()
    await lives.life()
    (given,) = (each for each in await exported(store) or () if each.id == task)
    (value,) = given.replay_values
    for wrong in (replace(value, number=1), replace(value, number=99)):
        with pytest.raises(BadExport, match="replay_values do not agree with its log"):
            decode(encode(replace(given, replay_values=(wrong,))))
    with pytest.raises(BadExport, match="replay_values do not agree with its log"):
        decode(encode(replace(given, replay_values=(value, value))))
    without = [replace(given, replay_values=())]
    assert await administer(store, lambda a: a.put(without, replace=True)) == ["replaced"]
    problems = await administer(store, lambda admin: list(admin.check(lambda *_: None)))
    said = f"the value of entry {value.number}, which is beside its log, is missing"
    assert problems == [f"task {task}: {said}"]
    await lives.send("yes", task)
    run = await lives.life()
    await asyncio.gather(*lives.workers[-1]._returned)
    assert run.lost and lives.seen == ["one"]
    head = await lives.head(task)
    assert not head.state.terminal and not head.holder
    events = [entry.event for entry in await store.private(lives.scope, task)]
    (why,) = (e.name for e in events if isinstance(e, Private) and e.kind == "postponed")
    assert why == (
        "the result of step 'dragoman.context_saved' (1), which was beside the log, is gone"
    )
    assert await administer(store, lambda a: a.put([given], replace=True)) == ["replaced"]
    await lives.send("yes", task)
    await lives.life()
    assert lives.seen == ["one", "one"]
    assert (await lives.head(task)).state is TaskState.COMPLETED
    await sound(store)


async def test_it_is_encrypted_with_a_key(make: Make) -> None:
    try:
        store: Any = await make(encryption=Encryption([key()]))
    except TypeError:
        return  # memory writes nothing down

    async def handler(turn: Turn) -> Any:
        await lives.read(turn)
        await turn.ask_for("well?")

    lives = Readers(handler, store)
    await lives.saved_by_others(b'"tell nobody"')
    task = await lives.begin()
    await lives.life()
    tasks = await exported(store)
    (value,) = (each for given in tasks or () for each in given.replay_values)
    assert bytes(value.value).startswith(b'"sealed:v1:')
    assert "nobody" not in str(tasks)
    await sound(store)
    right, store._encryption = store._encryption, Encryption([key()])
    with pytest.raises(UnknownEntry, match=r"its key .* is not among"):
        await store.private(lives.scope, task)
    store._encryption = right
    await lives.send("yes", task)
    await lives.life()
    assert lives.seen == ["tell nobody"] * 2
    assert await lives.sides(task) == 0
    await sound(store)
