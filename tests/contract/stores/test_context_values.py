"""The private values of contexts, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, App, ContextChanged, TaskState, Turn
from dragoman.agent.saved_values import BYTES
from dragoman.agent.step_results import LARGEST
from dragoman.client import Client
from dragoman.model.caller import Call, Caller, Scope
from dragoman.model.errors import Unavailable
from dragoman.model.types import SendMessageRequest
from dragoman.security.encryption import Encryption, key
from dragoman.stores.admin import is_database
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.store import Claim, ContextValue, Stale, Store, UnknownEntry
from dragoman.testing import SilentBell, message
from tests.contract.stores.test_conversation import Talk, administer
from tests.contract.stores.test_durable import Lives
from tests.harness.stores import (
    BACKENDS,
    SCOPE,
    STRANGERS,
    C,
    I,
    Make,
    accept,
    cancel,
    claim,
    database,
    ended,
    reply,
    say,
    write,
)

NAMES = ("x" * 4000, "a\x1fb", "é😀", "'; DROP TABLE task; --")
"""Contexts as callers may name them."""


async def held(store: Store, task: str, context: str = "c", scope: Scope = SCOPE) -> Claim:
    """The claim of a new task in a context."""
    await accept(store, task, context=context, scope=scope)
    (found,) = await store.claim([scope.agent], "w", 600.0, 1)
    assert found.head.id == task
    return found


async def value(store: Store, claim: Claim) -> bytes | None:
    found = await store.context_value(claim)
    return found.value if found else None


# ---- the store ----------------------------------------------------------------------------


async def test_a_value_is_read_by_all_tasks_of_its_context(store: Store) -> None:
    first = await held(store, "a")
    assert await store.context_value(first) is None
    version = await store.save_context(first, b'{"n":1}', 0, "a:1")
    assert await store.context_value(first) == ContextValue(b'{"n":1}', version)
    second = await held(store, "b")
    assert await value(store, second) == b'{"n":1}'
    newer = await store.save_context(second, b"2", version, "b:1")
    assert newer > version
    assert await store.context_value(first) == ContextValue(b"2", newer)


@pytest.mark.parametrize("context", NAMES, ids=["long", "control", "unicode", "quotes"])
async def test_a_value_belongs_to_its_scope_and_context(store: Store, context: str) -> None:
    mine = await held(store, "mine", context)
    await store.save_context(mine, b"1", 0, "mine:1")
    others = [await held(store, f"t{n}", context, scope) for n, scope in enumerate(STRANGERS)]
    others += [await held(store, f"c{n}", f"{context}{n}") for n in range(2)]
    others.append(await held(store, "cut", context[:-1]))
    for number, other in enumerate(others):
        assert await store.context_value(other) is None
        await store.save_context(other, b"%d" % (number + 2), 0, f"{other.head.id}:1")
    assert await value(store, mine) == b"1"
    assert [await value(store, other) for other in others] == [b"%d" % (n + 2) for n in range(7)]


async def test_a_save_needs_the_version_that_is_there(store: Store) -> None:
    first, second = await held(store, "a"), await held(store, "b")
    with pytest.raises(ContextChanged, match=r"read it again with turn\.context_saved"):
        await store.save_context(first, b"0", 7, "a:1")
    version = await store.save_context(first, b"1", 0, "a:1")
    for wrong in (0, version + 1, version - 1):
        with pytest.raises(ContextChanged):
            await store.save_context(second, b"2", wrong, "b:1")
    assert await value(store, second) == b"1"
    await store.save_context(second, b"2", version, "b:1")
    with pytest.raises(ContextChanged):
        await store.save_context(first, b"3", version, "a:1")
    assert await value(store, first) == b"2"


async def test_a_turn_that_saves_again_replaces_what_it_has_saved(store: Store) -> None:
    """So that a second attempt at a turn is not refused because of the first."""
    first, second = await held(store, "a"), await held(store, "b")
    version = await store.save_context(first, b"1", 0, "a:1")
    again = await store.save_context(first, b"2", 0, "a:1")
    assert again > version
    assert await store.context_value(first) == ContextValue(b"2", again)
    other = await store.save_context(second, b"3", again, "b:1")
    assert await store.save_context(second, b"4", again, "b:1") > other
    with pytest.raises(ContextChanged):
        await store.save_context(first, b"5", again, "a:1")


async def test_of_two_saves_at_once_one_is_refused(store: Store) -> None:
    claims = [await held(store, f"t{number}") for number in range(6)]
    saves = (store.save_context(one, b"1", 0, f"{one.head.id}:1") for one in claims)
    found = await asyncio.gather(*saves, return_exceptions=True)
    assert sum(isinstance(one, int) for one in found) == 1, found
    assert sum(isinstance(one, ContextChanged) for one in found) == 5, found


@pytest.mark.parametrize("how", ["revoked", "ended", "canceled", "released"])
async def test_whoever_lost_the_claim_saves_nothing(store: Store, how: str) -> None:
    lost = await held(store, "t")
    version = await store.save_context(lost, b"1", 0, "t:1")
    if how == "revoked":
        await store.revoke(lost.head, None)
        assert (await claim(store)).epoch > lost.epoch
    elif how == "canceled":
        await cancel(store, "t", 0.0)
        await store.revoke(lost.head, lost.head.ending(TaskState.CANCELED))
    else:
        await say(store, lost, I if how == "released" else C, release=True)
    for given in (0, version):
        with pytest.raises(Stale):
            await store.save_context(lost, b"2", given, "t:1")
    assert await value(store, lost) == b"1"


async def test_a_large_value_comes_back(store: Store) -> None:
    large = b'"' + b"x" * (LARGEST * 4 // 3) + b'"'
    one = await held(store, "t")
    version = await store.save_context(one, large, 0, "t:1")
    assert await store.context_value(one) == ContextValue(large, version)


# ---- how long it is kept --------------------------------------------------------------------


async def forgotten(store: Store, *tasks: str) -> None:
    """Wait until these are forgotten."""
    async with asyncio.timeout(30):
        for task in tasks:
            while await store.head(SCOPE, task):
                await asyncio.sleep(0.01)
                await store.prune()


async def sound(store: Store) -> None:
    """`dragoman db check` finds nothing."""
    assert await administer(store, lambda admin: list(admin.check(lambda *_: None))) in ([], None)


async def test_it_goes_with_the_last_task_of_its_context(make: Make) -> None:
    store = await make(retention=0.001)
    first = await held(store, "a")
    await store.save_context(first, b"1", 0, "a:1")
    other = await held(store, "other", "d")
    await store.save_context(other, b"2", 0, "other:1")
    stays = await held(store, "b")
    await say(store, first, C, release=True)
    await forgotten(store, "a")
    assert await value(store, stays) == b"1"
    await sound(store)
    await say(store, stays, C, release=True)
    await forgotten(store, "b")
    assert await store.context_value(await held(store, "new")) is None
    assert await value(store, other) == b"2"
    await sound(store)


async def test_all_tasks_of_a_context_may_go_at_once(make: Make) -> None:
    store = await make(retention=0.001)
    claims = [await held(store, f"t{number}") for number in range(3)]
    await store.save_context(claims[0], b"1", 0, "t0:1")
    for one in claims:
        await say(store, one, C, release=True)
    await forgotten(store, *(one.head.id for one in claims))
    assert await store.context_value(await held(store, "new")) is None
    await sound(store)


async def test_a_direct_reply_keeps_it(make: Make) -> None:
    store = await make(retention=0.001)
    await ended(store, "a")
    await accept(store, "r", born=False)
    replied = await claim(store)
    await store.save_context(replied, b"1", 0, "r:1")
    await forgotten(store, "a")
    assert await value(store, replied) == b"1"
    await write(store, replied, reply("r"))
    await forgotten(store, "r")
    assert await store.context_value(await held(store, "new")) is None


async def test_memory_that_is_full_forgets_values_with_tasks(make: Make) -> None:
    store = await make(max_tasks=2)
    if store.admin is not None:
        return  # only memory is bounded in number
    first = await held(store, "a")
    await store.save_context(first, b"1", 0, "a:1")
    await say(store, first, C, release=True)
    second = await held(store, "b")
    await say(store, second, C, release=True)
    third = await held(store, "c")
    assert await value(store, third) == b"1"
    await say(store, third, C, release=True)
    await ended(store, "d")
    assert await value(store, third) == b"1"
    for name in "ef":  # in another context
        await say(store, await held(store, name, "other"), C, release=True)
    assert await store.context_value(await held(store, "g")) is None


# ---- encryption -----------------------------------------------------------------------------


async def test_a_value_is_encrypted_with_a_key(make: Make) -> None:
    try:
        store: Any = await make(encryption=Encryption([key()]))
    except TypeError:
        return  # memory writes nothing down
    one, two = await held(store, "t"), await held(store, "u", "d")
    await store.save_context(one, b'"tell nobody"', 0, "t:1")
    await store.save_context(two, b'"nothing"', 0, "u:1")
    assert await value(store, one) == b'"tell nobody"'
    found = await administer(store, lambda admin: list(admin.export_contexts(lambda _: None)))
    assert [one.body[:10] for one in found] == ["sealed:v1:"] * 2
    assert "nobody" not in str(found)
    await sound(store)
    # what is put into another's place is not read there
    moved = [replace(given, body=found[1 - n].body) for n, given in enumerate(found)]
    await administer(store, lambda admin: admin.put_contexts(moved, replace=True))
    with pytest.raises(UnknownEntry, match="was changed or moved"):
        await store.context_value(one)
    await administer(store, lambda admin: admin.put_contexts(found, replace=True))
    assert await value(store, one) == b'"tell nobody"'
    store._encryption = Encryption([key()])
    with pytest.raises(UnknownEntry, match=r"its key .* is not among"):
        await store.context_value(one)


async def test_an_encrypted_value_goes_over_to_another_owner(make: Make) -> None:
    keys = [key()]
    try:
        store: Any = await make(encryption=Encryption(keys))
    except TypeError:
        return
    one = await held(store, "t")
    await store.save_context(one, b'"tell nobody"', 0, "t:1")
    right, store._encryption = store._encryption, Encryption(())
    with pytest.raises(UnknownEntry, match=r"its key .* is missing"):
        await administer(store, lambda admin: admin.rename_owner("owner", "heir"))
    assert await store.head(SCOPE, "t")
    store._encryption = right
    await administer(store, lambda admin: admin.rename_owner("owner", "heir"))
    heir = await held(store, "u", scope=replace(SCOPE, owner="heir"))
    assert await value(store, heir) == b'"tell nobody"'
    # the turn that is under way goes on
    version = (await store.context_value(one)).version
    await store.save_context(one, b'"still"', version, "t:1")
    assert await value(store, heir) == b'"still"'
    await sound(store)


# ---- operators ------------------------------------------------------------------------------


async def test_values_can_be_moved(make: Make) -> None:
    store, other = await make(), await make()
    if store.admin is None or not is_database(store.admin()):
        return
    mine, theirs = await held(store, "a"), await held(store, "b", "d")
    await store.save_context(mine, b"1", 0, "a:1")
    await store.save_context(theirs, b"2", 0, "b:1")
    heir = replace(SCOPE, owner="heir")
    own = await held(store, "own", "d", heir)
    await store.save_context(own, b"3", 0, "own:1")
    renamed = await administer(store, lambda admin: admin.rename_owner("owner", "heir"))
    assert renamed is not None and (renamed.values, renamed.doubles) == (1, 1)
    await sound(store)
    tasks = await administer(store, lambda admin: list(admin.export(lambda _: None)))
    values = await administer(store, lambda admin: list(admin.export_contexts(lambda _: None)))
    assert tasks is not None and values is not None
    # without its tasks a value is not taken
    assert await administer(other, lambda a: a.put_contexts(values, replace=True)) == [
        "skipped",
        "skipped",
    ]
    await administer(other, lambda admin: admin.put(tasks, replace=False))
    for fate in ("new", "same"):
        assert (
            await administer(other, lambda a: a.put_contexts(values, replace=False)) == [fate] * 2
        )
    await sound(other)
    for each in (store, other):
        assert await value(each, await held(each, "x", "c", heir)) == b"1"
        assert await value(each, await held(each, "y", "d", heir)) == b"3"
        assert await each.context_value(await held(each, "z", "c")) is None


async def test_a_task_that_is_replaced_keeps_the_value_of_its_context(make: Make) -> None:
    store = await make()
    if store.admin is None or not is_database(store.admin()):
        return
    for name in ("t", "u"):
        one = await held(store, name, f"context of {name}")
        await store.save_context(one, b"1", 0, f"{name}:1")
        await say(store, one, I, release=True)
    before = await administer(store, lambda admin: list(admin.export(lambda _: None)))
    assert before is not None
    for name in ("t", "u"):
        await accept(store, name, "m2", new=False, context=f"context of {name}")
    await administer(store, lambda admin: admin.put(before, replace=True))
    for name in ("t", "u"):
        assert await value(store, await held(store, f"{name}2", f"context of {name}")) == b"1"
    await sound(store)


# ---- the turn -------------------------------------------------------------------------------


class Memory(Talk):
    """A conversation with an agent whose handler a test gives."""

    def __init__(self, store: Store, handle: Callable[[Turn], Awaitable[Any]], **options: Any):
        super().__init__(store, **options)
        self.handle = handle

    async def guest(self, text: str, task: str, owner: str) -> None:
        """A message of somebody with whom a task is shared."""
        said = replace(message(text), task_id=task)
        scope = replace(self.scope, owner=owner)
        call = Call(Caller(identity="guest"))
        await self.service._accept(SendMessageRequest(message=said), scope, call)
        await self.run()

    async def state(self, task: str, owner: str = "") -> TaskState:
        """How a task ended."""
        found = await self.store.head(replace(self.scope, owner=owner), task)
        assert found is not None
        return found.state


VALUES = [
    None,
    0,
    "text",
    {"a": [1, None, {"é": "😀"}]},
    b"",
    b"\x00\xff bytes",
    {BYTES: "aGVsbG8="},
    {BYTES: {BYTES: "x"}},
    {BYTES: 5, "more": 1},
    {"more": 1, BYTES: "aGVsbG8="},
    [b"x".hex()],
]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("given", VALUES, ids=repr)
async def test_every_value_comes_back_as_it_was(store: Store, given: Any, durable: bool) -> None:
    found: list[Any] = []

    async def handle(turn: Turn) -> Any:
        found.append(await turn.context_saved())
        found.append(turn.saved)
        if turn.text == "save":
            await turn.save_context(given)
            await turn.save(given)
            assert turn.saved == given
            return turn.ask("more?")
        return "done"

    talk = Memory(store, handle, skill={"durable": durable})
    first = await talk.say("save")
    await talk.say("look", first.head.id)
    assert found == [None, None, given, given]
    assert type(found[2]) is type(found[3]) is type(given)


@pytest.mark.parametrize("durable", [False, True])
async def test_the_largest_value(store: Store, durable: bool) -> None:
    found: list[Any] = []
    largest = (b"\xff" * LARGEST, "x" * (LARGEST - 2))

    async def handle(turn: Turn) -> None:
        found.append(await turn.context_saved())
        for method in (turn.save_context, turn.save):
            for more in (b"\xff" * (LARGEST + 1), "x" * (LARGEST - 1)):
                with pytest.raises(ValueError, match=r"the value has \d+ bytes; at most 262144"):
                    await method(more)
            with pytest.raises(TypeError, match=r"cannot be stored as JSON"):
                await method({1, object()})
        await turn.save_context(largest[int(turn.text)])
        await turn.save(largest[int(turn.text)])
        found.append(turn.saved)

    talk = Memory(store, handle, skill={"durable": durable})
    for number in "01":
        sent = await talk.say(number)
        assert await talk.state(sent.head.id) is TaskState.COMPLETED
    assert found == [None, largest[0], largest[0], largest[1]]


async def test_a_turn_is_told_that_another_changed_it(store: Store) -> None:
    inner: list[str] = []

    async def handle(turn: Turn) -> Any:
        if turn.text == "quick":
            await turn.save_context(["quick", await turn.context_saved()])
            return None
        if turn.text == "blind":
            with pytest.raises(ContextChanged):
                await turn.save_context("blind")
            return None
        await turn.context_saved()
        await turn.save_context("slow")
        await turn.save_context("slow again")
        await talk.say("quick")
        with pytest.raises(ContextChanged, match=r"read it again with turn\.context_saved"):
            await turn.save_context("lost")
        with pytest.raises(ContextChanged):
            await turn.save_context("lost")
        inner.append(await turn.context_saved())
        await turn.save_context("at last")
        return None

    talk = Memory(store, handle)
    first = await talk.say("slow")
    second = await talk.say("blind")
    for sent in (first, second):
        assert await talk.state(sent.head.id) is TaskState.COMPLETED
    assert inner == [["quick", "slow again"]]
    assert await value(store, await _claimed(talk)) == b'"at last"'


async def _claimed(talk: Memory, owner: str = "") -> Claim:
    await talk.say("x", owner=owner, run=False)
    return await talk.claim(talk.worker())


@pytest.mark.parametrize("durable", [False, True])
async def test_a_guest_neither_reads_nor_saves_it(store: Store, durable: bool) -> None:
    errors: list[str] = []

    async def handle(turn: Turn) -> Any:
        if turn.text == "guest":
            for call in (turn.context_saved(), turn.save_context("mine now")):
                with pytest.raises(PermissionError) as refused:
                    await call
                errors.append(str(refused.value))
        else:
            await turn.save_context("secret")
        return turn.ask("more?")

    talk = Memory(store, handle, skill={"durable": durable})
    first = await talk.say("save", owner="me")
    await talk.guest("guest", first.head.id, "me")
    assert await talk.state(first.head.id, "me") is TaskState.INPUT_REQUIRED
    assert len(errors) == 2 and "belongs to the owner" in errors[0]
    assert await value(store, await _claimed(talk, "me")) == b'"secret"'


async def test_callers_have_values_of_their_own(store: Store) -> None:
    found: list[Any] = []

    async def handle(turn: Turn) -> None:
        found.append(await turn.context_saved())
        await turn.save_context(turn.caller.identity)

    talk = Memory(store, handle)
    for owner in ("me", "you", "me", "", ""):
        await talk.say("x", owner=owner)
    assert found == [None, None, "me", None, ""]


async def test_a_run_that_lost_its_claim_is_over(store: Store) -> None:
    reached: list[str] = []

    async def handle(turn: Turn) -> None:
        await store.revoke(claims[0].head, None)
        try:
            await turn.save_context("late")
        except BaseException as error:
            reached.append(type(error).__name__)
            raise

    talk = Memory(store, handle)
    await talk.say("x", run=False)
    worker = talk.worker()
    claims = [await talk.claim(worker)]
    run = worker.begin(claims[0])
    await asyncio.wait([run.task])
    assert run.lost and reached == ["CancelledError"]
    assert await store.context_value(claims[0]) is None


async def test_a_turn_that_has_ended_saves_nothing(store: Store) -> None:
    turns: list[Turn] = []

    async def handle(turn: Turn) -> None:
        turns.append(turn)
        await turn.emit(turn.complete("done"))
        with pytest.raises(RuntimeError, match="the task has ended"):
            await turn.save_context("late")

    talk = Memory(store, handle)
    await talk.say("x")
    for late in (turns[0].save_context("later"), turns[0].context_saved()):
        with pytest.raises(RuntimeError, match="the turn has ended"):
            await late
    assert await store.context_value(await _claimed(talk)) is None


# ---- durable handlers -----------------------------------------------------------------------


async def test_a_durable_handler_reads_the_same_again_and_saves_once(store: Store) -> None:
    seen: list[Any] = []

    async def handler(turn: Turn) -> Any:
        seen.append(await turn.context_saved())
        await turn.save_context((seen[-1] or 0) + 1)
        await turn.ask_for("more?")
        seen.append(await turn.context_saved())
        return None

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    head = await lives.head(task)
    await accept(store, "other", scope=lives.scope, context=head.context)
    other = await lives.claim(lives.worker())
    found = await store.context_value(other)
    assert found is not None and found.value == b"1"
    await store.save_context(other, b"7", found.version, "other:1")
    await lives.send("yes", task)
    await lives.life()
    assert (await lives.head(task)).state is TaskState.COMPLETED
    assert seen == [None, None, 7]
    assert await value(store, other) == b"7"
    steps = [entry.event.name for entry in await store.private(lives.scope, task)]  # type: ignore[union-attr]
    assert steps[:2] == ["dragoman.context_saved", "dragoman.save_context"]


async def test_a_refusal_is_the_same_again(store: Store) -> None:
    refused: list[bool] = []

    async def handler(turn: Turn) -> Any:
        await turn.context_saved()
        if not refused:
            await accept(store, "other", scope=lives.scope, context=turn.context_id)
            other = await lives.claim(lives.worker())
            await store.save_context(other, b"7", 0, "other:1")
        try:
            await turn.save_context("mine")
            refused.append(False)
        except ContextChanged:
            refused.append(True)
        await turn.ask_for("more?")
        return await turn.context_saved()

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    await lives.life()
    await lives.send("yes", task)
    await lives.life()
    assert refused == [True, True]
    assert (await lives.head(task)).state is TaskState.COMPLETED
    assert (await lives.task(task)).artifacts[0].parts[0].data == 7


@pytest.mark.parametrize("read", [True, False])
async def test_a_crash_after_a_save_does_not_refuse_the_next_attempt(
    store: Store, read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.server.maintenance.LONGEST_DELAY", 0.01)
    saves: list[int] = []

    async def handler(turn: Turn) -> None:
        before = await turn.context_saved() if read else None
        await turn.save_context([before, "first"])
        await turn.save_context([before, "second"])

    async def save(held: Claim, *about: Any) -> int:
        saves.append(await type(store).save_context(store, held, *about))  # type: ignore[arg-type]
        await lives.point()  # the process ends before the step is logged
        return saves[-1]

    lives = Lives(handler, store)
    task = (await lives.send()).head.id
    monkeypatch.setattr(store, "save_context", save, raising=False)
    for death in (1, 1):
        await lives.life(death)
        await lives.recover()
    await lives.life()
    assert (await lives.head(task)).state is TaskState.COMPLETED
    monkeypatch.undo()
    context = (await lives.head(task)).context
    await accept(store, "other", scope=lives.scope, context=context)
    assert await value(store, await lives.claim(lives.worker())) == b'[null,"second"]'
    assert len(saves) > 3


async def test_a_second_attempt_of_a_plain_handler_may_save(store: Store) -> None:
    async def handle(turn: Turn) -> None:
        if turn.text == "blind" or await turn.context_saved() is not None:
            await turn.save_context(f"attempt {turn.attempt}")
        else:
            await turn.save_context("first")
        if turn.attempt == 1:
            talk.workers[-1].abandon(runs[-1])
            await asyncio.sleep(1)

    talk = Memory(store, handle, retries=2)
    runs: list[Any] = []
    for text, context in (("blind", "c"), ("read", "d")):
        await talk.say(text, context=context, run=False)
        for _ in range(2):
            worker = talk.worker()
            runs.append(worker.begin(await talk.claim(worker, -1.0)))
            await asyncio.wait([runs[-1].task])
            await talk.reap()
        await talk.say("x", context=context, run=False)
        assert await value(store, await talk.claim(talk.worker())) == b'"attempt 2"'


async def test_a_store_that_is_away_is_waited_for(store: Store, monkeypatch: Any) -> None:
    failures = {"context_value": 2, "save_context": 2}

    async def handle(turn: Turn) -> Any:
        found = await turn.context_saved()
        await turn.save_context("saved")
        return found

    for name in failures:
        real = getattr(store, name)

        async def away(*about: Any, name: str = name, real: Any = real) -> Any:
            failures[name] -= 1
            if failures[name] >= 0:
                raise Unavailable("away")
            return await real(*about)

        monkeypatch.setattr(store, name, away, raising=False)
    monkeypatch.setattr("dragoman.server.run_reads.FIRST_PAUSE", 0.001)
    talk = Memory(store, handle)
    sent = await talk.say("x")
    assert await talk.state(sent.head.id) is TaskState.COMPLETED
    assert failures == {"context_value": -1, "save_context": -1}
    assert await value(store, await _claimed(talk)) == b'"saved"'


async def test_a_value_without_its_key_postpones_the_turn(make: Make) -> None:
    try:
        store: Any = await make(encryption=Encryption([key()]))
    except TypeError:
        return

    async def handle(turn: Turn) -> Any:
        if turn.text == "save":
            await turn.save_context("secret")
        return str(await turn.context_saved())

    for durable in (False, True):
        talk = Memory(store, handle, skill={"durable": durable})
        context = f"c{durable}"
        await talk.say("save", context=context)
        right, store._encryption = store._encryption, Encryption([key()])
        sent = await talk.say("look", context=context)
        await asyncio.gather(*talk.workers[-1]._returned)
        head = await talk.head(sent.head.id)
        assert (head.state, head.holder) == (TaskState.SUBMITTED, "")
        store._encryption = right


# ---- without a bell -------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
async def test_with_a_silent_bell(backend: str, tmp_path: Path, durable: bool) -> None:
    """Turns find what turns at the same time have saved, and one that was asleep what came since;
    on PostgreSQL at several replicas."""
    agent = Agent("Counter", description="Counts in its context.")

    @agent.handler(durable=durable)
    async def count(turn: Turn) -> Any:
        if turn.text == "look":
            return str(await turn.context_saved())
        while True:
            try:
                number = await turn.context_saved() or 0
                await turn.save_context(number + 1)
                return str(number + 1)
            except ContextChanged:
                continue

    @agent.skill(durable=True)
    async def ask(turn: Turn) -> Any:
        before = await turn.context_saved()
        await turn.ask_for("more?")
        return f"{before} {await turn.context_saved()}"

    def new() -> Store:
        return PostgresStore(url) if url else BACKENDS[backend](tmp_path)

    url = database() if backend == "postgres" else ""
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        clients = []
        for _ in range(2 if url else 1):
            app = App(agent, store=new(), bell=SilentBell(), poll=0.02)
            await stack.enter_async_context(app)
            clients.append(await stack.enter_async_context(Client.connect(app=app)))
        first, last = clients[0], clients[-1]
        asking = await first.send("x", context="c", skill="ask")
        assert asking.task is not None
        each = [clients[number % len(clients)] for number in range(6)]
        found = await asyncio.gather(*(one.send("go", context="c") for one in each))
        assert sorted(result.text for result in found) == [str(n) for n in range(1, 7)]
        assert (await last.send("look", context="c")).text == "6"
        assert (await last.send("look", context="d")).text == "None"
        assert (await last.send("yes", task=asking.task.id)).text == "None 6"
