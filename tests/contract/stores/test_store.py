"""The contract of all stores. To add a backend, add it to `BACKENDS` in `stores.py`; it must pass
all of these tests."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman import bells, stores
from dragoman.model.caller import Scope
from dragoman.model.errors import (
    LimitExceeded,
    TaskNotCancelable,
    TaskNotFound,
    UnsupportedOperation,
)
from dragoman.model.events import CancelRequested, Entry, Received
from dragoman.model.lifecycle import fold
from dragoman.model.types import (
    Message,
    Part,
    Role,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.server.settings import Settings
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import PostgresStore
from dragoman.stores.store import (
    PAGE_BYTES,
    Claim,
    Conflict,
    Draft,
    Head,
    Query,
    Receipt,
    Stale,
    Store,
    Webhook,
)
from tests.harness.scale import examples
from tests.harness.stores import (
    AT,
    LONG,
    SCOPE,
    SOON,
    STRANGERS,
    C,
    I,
    Make,
    W,
    accept,
    artifact,
    cancel,
    claim,
    database,
    ended,
    events,
    head,
    log,
    pause,
    received,
    reply,
    said,
    say,
    stamp,
    status,
    task,
    waiting,
    write,
)

# ---- what it is ----------------------------------------------------------------------------


async def test_a_store_says_what_it_is(store: Store) -> None:
    assert stores.connect(Settings(store=store.url)).url == store.url
    assert store.name and "@" not in store.name
    assert store.shared or not bells.connect(store.bell).shared
    if store.admin is not None:
        assert store.admin().name == store.name


# ---- accepting -----------------------------------------------------------------------------


async def test_a_new_task(store: Store) -> None:
    accepted = await accept(store, skill="s")
    assert (accepted.number, accepted.fresh) == (1, True)
    assert accepted.received == received("t", skill="s")
    assert accepted.head == await head(store)
    found = accepted.head
    assert (found.id, found.context, found.scope) == ("t", "c", SCOPE)
    assert (found.state, found.skill, found.last) == (TaskState.SUBMITTED, "s", 1)
    assert (found.born, found.replied, found.holder) == (True, False, "")
    assert (found.unread, found.settled, found.canceling) == (True, 0, False)
    assert await task(store) == fold(None, [received("t", skill="s")])


async def test_a_follow_up(store: Store) -> None:
    await waiting(store, "t")
    before = await head(store)
    accepted = await accept(store, name="m2", new=False, skill="other")
    assert (accepted.number, accepted.fresh) == (3, True)
    assert accepted.head.version > before.version
    assert (accepted.head.unread, accepted.head.skill) == (True, "other")
    assert [m.message_id for m in (await task(store)).history] == ["m1", "m2"]


@pytest.mark.clause("send.while-working")
async def test_a_follow_up_while_a_worker_holds_the_task(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    assert not (await head(store)).unread
    accepted = await accept(store, name="m2", new=False)
    assert (accepted.number, accepted.head.unread) == (2, True)
    assert accepted.head.holder == "w"
    assert not await store.claim(["agent"], "v", LONG, 9), "one writer at a time"
    await say(store, held, W)


async def test_an_answer_while_an_earlier_message_waits(store: Store) -> None:
    """The next turn is that of the earlier one: what is written until then belongs to it."""
    await accept(store)
    held = await claim(store)
    earlier = (await accept(store, new=False)).number
    await say(store, held, I, release=True)
    await accept(store, new=False)
    found = await log(store)
    assert found[-1].turn == earlier
    assert (await claim(store)).turn == earlier


@pytest.mark.clause("send.unknown-task")
async def test_a_follow_up_of_an_unknown_task(store: Store) -> None:
    with pytest.raises(TaskNotFound):
        await accept(store, new=False)
    assert await store.head(SCOPE, "t") is None


@pytest.mark.clause("send.terminal-task")
@pytest.mark.parametrize("state", [state for state in TaskState if state.terminal])
async def test_a_follow_up_of_an_ended_task(store: Store, state: TaskState) -> None:
    await ended(store, "t", state)
    before = await log(store)
    with pytest.raises(UnsupportedOperation, match=state.name.lower()):
        await accept(store, name="m2", new=False, receipt=Receipt("k", b"d"))
    assert await log(store) == before
    with pytest.raises(UnsupportedOperation):  # an error leaves no receipt
        await accept(store, name="m2", new=False, receipt=Receipt("k", b"other"))


@pytest.mark.clause("errors.not-found", "access.every-operation", "list.only-visible")
@pytest.mark.parametrize("stranger", STRANGERS, ids=str)
async def test_another_scope_sees_nothing(store: Store, stranger: Scope) -> None:
    await accept(store)
    assert await store.head(stranger, "t") is None
    assert await store.load(stranger, "t") is None
    assert await store.read(stranger, "t", 0, 9) is None
    for query in (Query(), Query(context="c"), Query(state=TaskState.SUBMITTED)):
        page = await store.list(stranger, query)
        assert (list(page.tasks), page.cursor, page.total) == ([], None, 0)
    config = TaskPushNotificationConfig(id="h", task_id="t", url="http://x")
    for attempt in (
        accept(store, name="m2", new=False, scope=stranger),
        cancel(store, scope=stranger),
        store.put_webhook(stranger, Webhook(config)),
        store.webhooks(stranger, "t"),
        store.delete_webhook(stranger, "t", "h"),
    ):
        with pytest.raises(TaskNotFound):
            await attempt
    assert (await head(store)).last == 1


async def test_the_owner_of_a_task_is_known_within_its_tenant(store: Store) -> None:
    await accept(store)
    for owner in ("owner", "other", ""):
        assert await store.owner(replace(SCOPE, owner=owner), "t") == "owner"
    assert await store.owner(SCOPE, "another") is None
    for stranger in (replace(SCOPE, tenant="other"), replace(SCOPE, agent="other")):
        assert await store.owner(stranger, "t") is None


async def test_what_is_not_born_has_no_owner(store: Store) -> None:
    await accept(store, born=False)
    assert await store.owner(SCOPE, "t") is None


async def test_tasks_are_counted_by_state(store: Store) -> None:
    assert not any((await store.tally(SCOPE)).values())
    for name in ("a", "b"):
        await accept(store, name)
    await accept(store, "d", born=False)
    await accept(store, "e", scope=STRANGERS[2])
    await ended(store, "c")
    found = {state: n for state, n in (await store.tally(SCOPE)).items() if n}
    assert found == {TaskState.SUBMITTED: 2, TaskState.COMPLETED: 1}


async def test_a_store_is_told_from_others(store: Store, make: Make) -> None:
    other = await make()
    assert store.id != other.id
    assert len(store.id) >= 32


@pytest.mark.parametrize("known", [True, False])
async def test_nothing_new_begins_without_room(store: Store, known: bool) -> None:
    if known:
        await accept(store, receipt=Receipt("k", b"d"))
    draft = Draft(
        task="other", received=received("other"), new=True, receipt=Receipt("k", b"d"), full="full"
    )
    if known:
        accepted = await store.accept(SCOPE, draft)
        assert (accepted.head.id, accepted.fresh) == ("t", False)
    else:
        with pytest.raises(LimitExceeded, match="full"):
            await store.accept(SCOPE, draft)
        assert await store.head(SCOPE, "other") is None


async def test_reading_in_stretches(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await say(store, held, W, W, W, W)
    assert [entry.number for entry in await log(store)] == [1, 2, 3, 4, 5]
    found = await store.read(SCOPE, "t", 2, 2)
    assert found is not None
    assert [entry.number for entry in found] == [3, 4]
    for after in (5, 6, 10**9):
        beyond = await store.read(SCOPE, "t", after, 9)
        assert beyond is not None
        assert list(beyond) == []
    assert await store.read(SCOPE, "unknown", 0, 9) is None


# ---- birth ---------------------------------------------------------------------------------


async def test_a_log_that_is_not_born_is_no_task(store: Store) -> None:
    accepted = await accept(store, born=False)
    assert (accepted.head.born, accepted.head.replied) == (False, False)
    assert await store.head(SCOPE, "t") == accepted.head
    assert await store.load(SCOPE, "t") is None
    assert (await store.list(SCOPE, Query())).total == 0
    assert list((await store.list(SCOPE, Query())).tasks) == []
    config = TaskPushNotificationConfig(id="h", task_id="t", url="http://x")
    for attempt in (
        accept(store, name="m2", new=False),
        cancel(store),
        store.put_webhook(SCOPE, Webhook(config)),
        store.webhooks(SCOPE, "t"),
        store.delete_webhook(SCOPE, "t", "h"),
    ):
        with pytest.raises(TaskNotFound):
            await attempt


@pytest.mark.parametrize("first", ["status", "artifact"])
async def test_the_first_event_gives_birth(store: Store, first: str) -> None:
    await accept(store, born=False)
    held = await claim(store)
    assert not held.head.born
    event = status("t", W) if first == "status" else artifact("t", "x")
    found = await write(store, held, event)
    assert found.born
    assert (await task(store)).id == "t"
    assert (await store.list(SCOPE, Query())).total == 1


async def test_an_append_of_nothing_gives_no_birth(store: Store) -> None:
    await accept(store, born=False)
    held = await claim(store)
    assert not (await write(store, held)).born
    assert (await store.list(SCOPE, Query())).total == 0


async def test_a_worker_that_dies_before_birth_leaves_a_failed_task(store: Store) -> None:
    await accept(store, born=False)
    held = await claim(store)
    found = await store.revoke(held.head, status("t", TaskState.FAILED))
    assert found is not None
    assert (found.born, found.state) == (True, TaskState.FAILED)
    assert (await task(store)).status.state is TaskState.FAILED


async def test_a_reply_leaves_no_task(store: Store) -> None:
    await accept(store, born=False)
    held = await claim(store)
    found = await write(store, held, reply("t"), release=True)
    assert (found.born, found.replied, found.holder) == (False, True, "")
    assert found.answers(1)
    assert await store.load(SCOPE, "t") is None
    assert (await store.list(SCOPE, Query())).total == 0
    assert await events(store) == [received("t"), reply("t")]
    with pytest.raises(TaskNotFound):
        await accept(store, name="m2", new=False)
    with pytest.raises(TaskNotFound):
        await cancel(store)
    assert not await store.claim(["agent"], "w", LONG, 9)


# ---- claiming ------------------------------------------------------------------------------


async def test_a_claim(store: Store) -> None:
    await accept(store, skill="s")
    held = await claim(store)
    assert held.received == received("t", skill="s")
    assert held.task == await task(store)
    assert held.head == await head(store)
    assert (held.turn, held.attempt, held.epoch) == (1, 1, held.head.epoch)
    assert (held.head.holder, held.head.turn, held.head.attempt) == ("w", 1, 1)
    assert not held.head.unread


async def test_only_what_is_unread_is_claimed_and_by_one_worker(store: Store) -> None:
    assert not await store.claim(["agent"], "w", LONG, 9)
    await accept(store, "a")
    await accept(store, "b")
    first = await store.claim(["agent"], "w", LONG, 9)
    assert [held.head.id for held in first] == ["a", "b"]
    assert not await store.claim(["agent"], "v", LONG, 9)


async def test_the_longest_waiting_first_and_no_more_than_the_limit(store: Store) -> None:
    for name in "abcde":
        await accept(store, name)
    found = [await store.claim(["agent"], "w", LONG, 2) for _ in range(4)]
    assert [[held.head.id for held in claims] for claims in found] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
        [],
    ]


async def test_only_the_logs_of_these_agents(store: Store) -> None:
    await accept(store, "a", scope=Scope("one"))
    await accept(store, "b", scope=Scope("two", "t", "o"))
    await accept(store, "c", scope=Scope("three"))
    assert not await store.claim(["four"], "w", LONG, 9)
    found = await store.claim(["one", "two"], "w", LONG, 9)
    assert sorted(held.head.id for held in found) == ["a", "b"]


async def test_messages_are_read_one_turn_each_in_order(store: Store) -> None:
    await accept(store)
    for name in ("m2", "m3"):
        await accept(store, name=name, new=False)
    seen = []
    for _ in range(3):
        held = await claim(store)
        seen.append((held.turn, held.received.message.message_id, held.attempt))
        await say(store, held, I, release=True)
    assert seen == [(1, "m1", 1), (2, "m2", 1), (3, "m3", 1)]
    assert not await store.claim(["agent"], "w", LONG, 9)


# ---- appending -----------------------------------------------------------------------------


async def test_entries_are_numbered_without_gaps(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    entries = said(held, status("t", W), artifact("t", "x"), artifact("t", "y", append=True))
    assert await store.append(held, entries) is False
    assert [entry.number for entry in entries] == [2, 3, 4]
    assert (await head(store)).last == 4
    assert (await accept(store, name="m2", new=False)).number == 5
    await say(store, held, W)
    whole = await log(store)
    assert [entry.number for entry in whole] == [1, 2, 3, 4, 5, 6]
    assert [entry.turn for entry in whole] == [0, 1, 1, 1, 0, 1]


@pytest.mark.clause("events.order")
async def test_appends_land_in_the_order_of_the_calls(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    futures = [
        store.append(held, said(held, artifact("t", str(number), append=number > 0)))
        for number in range(20)
    ]
    assert await asyncio.gather(*futures) == [False] * 20
    assert (await head(store)).last == 21
    whole = (await task(store)).artifacts[0]
    assert whole.parts == (Part(text="".join(str(number) for number in range(20))),)


async def test_an_append_of_nothing_changes_nothing(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    before = await head(store)
    assert await write(store, held) == before


async def stale(store: Store, held: Claim) -> None:
    """A claim that has ended writes nothing, and is told so."""
    before = await store.read(SCOPE, held.head.id, 0, 10_000)
    with pytest.raises(Stale):
        await say(store, held, W)
    with pytest.raises(Stale):
        await say(store, held, C, release=True)
    assert await store.read(SCOPE, held.head.id, 0, 10_000) == before
    assert list((await store.renew([held], LONG)).lost) == [held.head.id]


async def test_a_revoked_claim_is_stale(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    assert await store.revoke(held.head, None) is not None
    await stale(store, held)
    again = await claim(store, "v")
    await stale(store, held)
    await say(store, again, C, release=True)


@pytest.mark.parametrize("state", [state for state in TaskState if state.terminal])
async def test_a_terminal_status_ends_the_epoch(store: Store, state: TaskState) -> None:
    await accept(store)
    held = await claim(store)
    found = await say(store, held, state)
    assert (found.state, found.holder, found.unread) == (state, "", False)
    assert found.epoch > held.epoch
    await stale(store, held)


async def test_a_claim_on_a_task_that_was_canceled_is_stale(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    found = await cancel(store)
    await store.revoke(found, status("t", TaskState.CANCELED))
    await stale(store, held)


async def test_a_claim_on_a_task_that_is_gone_is_stale(make: Make) -> None:
    store = await make(retention=0.001)
    await accept(store)
    held = await claim(store)
    await say(store, held, C, release=True)
    await pause()
    await store.prune()
    with pytest.raises(Stale):
        await say(store, held, W)


async def test_a_released_claim_is_stale(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await say(store, held, I, release=True)
    await stale(store, held)


async def test_a_stale_append_fails_no_other(store: Store) -> None:
    await accept(store, "a")
    await accept(store, "b")
    one, other = await store.claim(["agent"], "w", LONG, 2)
    await store.revoke(one.head, None)
    results = await asyncio.gather(
        store.append(one, said(one, status("a", W))),
        store.append(other, said(other, status("b", W))),
        return_exceptions=True,
    )
    assert isinstance(results[0], Stale)
    assert results[1] is False
    assert (await head(store, "b")).state is W


# ---- the end of a turn ---------------------------------------------------------------------


async def test_release_ends_the_turn(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    found = await say(store, held, I, release=True)
    assert (found.holder, found.unread, found.settled) == ("", False, 1)
    assert found.answers(1)
    assert not await store.claim(["agent"], "w", LONG, 9)


async def test_completed_ends_the_task_when_all_is_read(store: Store) -> None:
    await accept(store)
    found = await say(store, await claim(store), C, release=True)
    assert found.state is C
    assert (await task(store)).status.state is C


async def test_completed_becomes_working_while_a_message_is_unread(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await accept(store, name="m2", new=False)
    found = await say(store, held, C, release=True)
    assert (found.state, found.unread, found.holder) == (W, True, "")
    assert not found.answers(1)
    assert not found.answers(2)
    assert (await task(store)).status == TaskStatus(state=W, timestamp=AT)
    assert (await log(store))[-1].turn == 1
    again = await claim(store)
    assert (again.turn, again.attempt) == (2, 1)
    found = await say(store, again, C, release=True)
    assert found.state is C
    assert found.answers(1)
    assert found.answers(2)


async def test_completed_without_release_waits_for_the_unread_too(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await accept(store, name="m2", new=False)
    found = await say(store, held, C)
    assert (found.state, found.holder) == (W, "w")
    found = await write(store, held, release=True)
    assert (found.holder, found.unread) == ("", True)
    assert (await claim(store)).turn == 2


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED])
async def test_other_ends_come_at_once(store: Store, state: TaskState) -> None:
    await accept(store)
    held = await claim(store)
    await accept(store, name="m2", new=False)
    found = await say(store, held, state, release=True)
    assert (found.state, found.unread) == (state, False)
    assert found.answers(2)
    assert not await store.claim(["agent"], "w", LONG, 9)


async def test_a_question_answers_only_the_messages_that_were_read(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await accept(store, name="m2", new=False)
    found = await say(store, held, I, release=True)
    assert found.settled == 1
    assert found.answers(1)
    assert not found.answers(2)
    assert found.unread


async def test_an_append_tells_whether_more_messages_wait(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    assert await store.append(held, said(held, status("t", W))) is False
    await accept(store, name="m2", new=False)
    assert await store.append(held, said(held, status("t", W))) is True
    assert await store.append(held, said(held, status("t", C)), release=True) is True
    held = await claim(store)
    assert await store.append(held, said(held, status("t", C)), release=True) is False


async def test_none_waits_for_a_task_that_has_ended(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await accept(store, name="m2", new=False)
    assert await store.append(held, said(held, status("t", TaskState.FAILED))) is False


# ---- leases --------------------------------------------------------------------------------


async def test_a_claim_expires_unless_it_is_renewed(store: Store) -> None:
    await accept(store, "a")
    await accept(store, "b")
    one, other = await store.claim(["agent"], "w", SOON, 2)
    renewal = await store.renew([other], LONG)
    assert (list(renewal.lost), list(renewal.canceling)) == ([], [])
    await pause()
    found = await store.expired(["agent"], 9)
    assert [item.id for item in found] == [one.head.id]
    assert found[0] == await head(store, one.head.id)
    assert not await store.expired(["other"], 9)


async def test_a_worker_can_ask_what_it_holds(store: Store) -> None:
    for name in "abc":
        await accept(store, name)
    one, other = await store.claim(["agent"], "w", LONG, 2)
    await store.claim(["agent"], "v", LONG, 2)
    assert {item.id for item in await store.held("w")} == {one.head.id, other.head.id}
    await say(store, one, C, release=True)
    assert list(await store.held("w")) == [await head(store, other.head.id)]
    await store.revoke(other.head, None)
    assert not await store.held("w")
    assert not await store.held("")


async def test_no_more_expired_ones_than_the_limit(store: Store) -> None:
    for name in "abc":
        await accept(store, name)
    await store.claim(["agent"], "w", SOON, 3)
    await pause()
    assert len(await store.expired(["agent"], 2)) == 2
    assert len(await store.expired(["agent"], 9)) == 3


async def test_what_is_not_claimed_does_not_expire(store: Store) -> None:
    await accept(store, "a")
    held = await claim(store, lease=SOON)
    await say(store, held, I, release=True)
    await pause()
    assert not await store.expired(["agent"], 9)


async def test_an_expired_claim_still_holds_until_it_is_revoked(store: Store) -> None:
    await accept(store)
    held = await claim(store, lease=SOON)
    await pause()
    assert not await store.claim(["agent"], "v", LONG, 9)
    assert (await say(store, held, W)).state is W
    assert list((await store.renew([held], LONG)).lost) == []
    assert not await store.expired(["agent"], 9)


async def test_revoked_for_another_attempt(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await say(store, held, W)
    found = await store.revoke(held.head, None)
    assert found is not None
    assert (found.holder, found.unread, found.state) == ("", True, W)
    assert found.epoch > held.epoch
    assert found == await head(store)
    again = await claim(store, "v")
    assert (again.turn, again.attempt, again.epoch > held.epoch) == (1, 2, True)
    assert again.received == held.received


async def test_revoked_for_good(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    found = await store.revoke(held.head, status("t", TaskState.FAILED))
    assert found is not None
    assert (found.state, found.holder, found.unread) == (TaskState.FAILED, "", False)
    assert not await store.claim(["agent"], "w", LONG, 9)
    await stale(store, held)


async def test_an_epoch_is_revoked_once(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    assert await store.revoke(held.head, None) is not None
    assert await store.revoke(held.head, None) is None
    again = await claim(store)
    assert await store.revoke(held.head, status("t", TaskState.FAILED)) is None
    assert (await say(store, again, W)).state is W
    assert (await head(store)).holder == "w"


async def test_an_ended_task_is_not_revoked(store: Store) -> None:
    await ended(store, "t")
    before = await log(store)
    assert await store.revoke(await head(store), status("t", TaskState.FAILED)) is None
    assert await store.revoke(await head(store), None) is None
    assert await log(store) == before


async def test_attempts_are_counted_anew_for_each_message(store: Store) -> None:
    await accept(store)
    for attempt in (1, 2, 3):
        held = await claim(store)
        assert held.attempt == attempt
        if attempt < 3:
            await store.revoke(held.head, None)
    await say(store, held, I, release=True)
    await accept(store, name="m2", new=False)
    assert (await claim(store)).attempt == 1


# ---- canceling -----------------------------------------------------------------------------


@pytest.mark.clause("cancel.updated-task")
async def test_an_unclaimed_task_is_canceled_at_once(store: Store) -> None:
    await accept(store)
    found = await cancel(store)
    assert (found.state, found.unread) == (TaskState.CANCELED, False)
    assert [type(event) for event in await events(store)] == [
        Received,
        CancelRequested,
        TaskStatusUpdateEvent,
    ]
    assert not await store.claim(["agent"], "w", LONG, 9)


async def test_a_task_that_waits_for_its_client_is_canceled_at_once(store: Store) -> None:
    await waiting(store, "t")
    assert (await cancel(store)).state is TaskState.CANCELED


async def test_a_claimed_task_is_only_asked_to_end(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    before = await head(store)
    found = await cancel(store)
    assert (found.state, found.canceling, found.holder) == (TaskState.SUBMITTED, True, "w")
    assert found.version > before.version
    assert list((await store.renew([held], LONG)).canceling) == ["t"]
    assert not await store.expired(["agent"], 9)
    assert (await say(store, held, TaskState.CANCELED, release=True)).state is TaskState.CANCELED


async def test_after_the_grace_a_canceled_claim_counts_as_expired(store: Store) -> None:
    await accept(store)
    await claim(store)
    await cancel(store, grace=SOON)
    await pause()
    (found,) = await store.expired(["agent"], 9)
    assert found.canceling
    found_again = await store.revoke(found, status("t", TaskState.CANCELED))
    assert found_again is not None
    assert found_again.state is TaskState.CANCELED


async def test_a_cancel_beats_another_attempt(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await cancel(store)
    found = await store.revoke(held.head, None)
    assert found is not None
    assert found.state is TaskState.CANCELED
    assert not await store.claim(["agent"], "w", LONG, 9)


async def test_a_cancel_beats_a_question(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await cancel(store)
    found = await say(store, held, I, release=True)
    assert found.state is TaskState.CANCELED


async def test_the_first_end_wins(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await cancel(store)
    assert (await say(store, held, C, release=True)).state is C
    with pytest.raises(TaskNotCancelable):
        await cancel(store)


@pytest.mark.clause("cancel.idempotent")
async def test_a_second_cancel_adds_nothing(store: Store) -> None:
    await accept(store)
    await claim(store)
    first = await cancel(store, grace=SOON)
    assert await cancel(store, grace=LONG) == first
    assert len(await log(store)) == 2
    await pause()
    assert await store.expired(["agent"], 9), "it does not prolong the grace either"


async def test_a_cancel_with_a_receipt_may_come_again(store: Store) -> None:
    receipt = Receipt("key:k", b"d")
    await accept(store)
    first = await cancel(store, receipt=receipt)
    assert first.state is TaskState.CANCELED
    assert await cancel(store, receipt=receipt) == first
    assert len(await log(store)) == 3
    for other in (None, Receipt("key:other", b"d")):
        with pytest.raises(TaskNotCancelable):
            await cancel(store, receipt=other)
    with pytest.raises(TaskNotCancelable):  # it has left none
        await cancel(store, receipt=Receipt("key:other", b"d"))


async def test_a_cancel_of_a_claimed_task_may_come_again(store: Store) -> None:
    one, other = Receipt("key:k", b"d"), Receipt("key:other", b"d")
    await accept(store)
    held = await claim(store)
    first = await cancel(store, receipt=one)
    assert await cancel(store, receipt=one) == first
    assert await cancel(store, receipt=other) == first  # who asked meanwhile has one as well
    assert len(await log(store)) == 2
    await say(store, held, TaskState.CANCELED, release=True)
    for receipt in (one, other):
        assert (await cancel(store, receipt=receipt)).state is TaskState.CANCELED


async def test_the_key_of_a_cancel_is_no_other_requests(store: Store) -> None:
    receipt = Receipt("key:k", b"d")
    await accept(store, "sent", receipt=receipt)
    with pytest.raises(Conflict):
        await cancel(store, "sent", receipt=Receipt("key:k", b"e"))
    assert (await head(store, "sent")).state is TaskState.SUBMITTED
    await accept(store)
    await cancel(store, receipt=Receipt("key:c", b"c"))
    await accept(store, "another")
    with pytest.raises(Conflict):
        await accept(store, "new", receipt=Receipt("key:c", b"d"))
    with pytest.raises(Conflict):
        await cancel(store, "another", receipt=Receipt("key:c", b"d"))
    other = replace(SCOPE, owner="somebody else")
    await accept(store, "theirs", scope=other)
    found = await cancel(store, "theirs", scope=other, receipt=Receipt("key:c", b"d"))
    assert found.state is TaskState.CANCELED


async def test_concurrent_cancels_with_one_receipt_are_one(store: Store) -> None:
    receipt = Receipt("key:k", b"d")
    await accept(store)
    found = await asyncio.gather(*(cancel(store, receipt=receipt) for _ in range(20)))
    assert found == [found[0]] * 20
    assert len(await log(store)) == 3


@pytest.mark.clause("cancel.terminal-task", "cancel.unknown-task")
async def test_what_cannot_be_canceled(store: Store) -> None:
    with pytest.raises(TaskNotFound):
        await cancel(store)
    for state in TaskState:
        if state.terminal:
            await ended(store, state.name, state)
            with pytest.raises(TaskNotCancelable, match=state.name.lower()):
                await cancel(store, state.name)


# ---- receipts ------------------------------------------------------------------------------


@pytest.mark.clause("send.idempotent")
async def test_the_same_send_twice_is_one(store: Store) -> None:
    receipt = Receipt("k", b"digest")
    first = await accept(store, "t", receipt=receipt)
    again = await accept(store, "other", receipt=receipt)
    assert (first.fresh, again.fresh) == (True, False)
    assert (again.head.id, again.number, again.received) == ("t", 1, received("t"))
    assert await store.head(SCOPE, "other") is None
    assert (await store.list(SCOPE, Query())).total == 1
    await ended_by_worker(store)
    late = await accept(store, "third", receipt=receipt)
    assert (late.fresh, late.head.id, late.head.state) == (False, "t", C)


async def ended_by_worker(store: Store) -> None:
    """Whatever is unread is done."""
    held = await claim(store)
    await say(store, held, C, release=True)


async def test_the_same_follow_up_twice_is_one(store: Store) -> None:
    await waiting(store, "t")
    receipt = Receipt("k", b"digest")
    first = await accept(store, name="m2", new=False, receipt=receipt)
    again = await accept(store, name="m2", new=False, receipt=receipt)
    assert (first.number, again.number) == (3, 3)
    assert not again.fresh
    assert again.received.message.message_id == "m2"
    assert (await head(store)).last == 4


async def test_concurrent_duplicates_are_one(store: Store) -> None:
    receipt = Receipt("k", b"digest")
    found = await asyncio.gather(
        *(accept(store, f"t{number}", receipt=receipt) for number in range(8))
    )
    assert sum(accepted.fresh for accepted in found) == 1
    assert len({accepted.head.id for accepted in found}) == 1
    assert (await store.list(SCOPE, Query())).total == 1


async def test_a_duplicate_of_what_was_replied_to(store: Store) -> None:
    receipt = Receipt("k", b"digest")
    await accept(store, born=False, receipt=receipt)
    held = await claim(store)
    await store.append(held, said(held, reply("t")), release=True)
    again = await accept(store, "other", born=False, receipt=receipt)
    assert (again.fresh, again.head.replied, again.head.id) == (False, True, "t")


async def test_the_key_with_another_body_is_a_conflict(store: Store) -> None:
    await accept(store, receipt=Receipt("k", b"digest"))
    with pytest.raises(Conflict):
        await accept(store, "other", receipt=Receipt("k", b"other"))
    assert await store.head(SCOPE, "other") is None


async def test_keys_are_of_their_scope(store: Store) -> None:
    await accept(store, receipt=Receipt("k", b"digest"))
    for number, stranger in enumerate(STRANGERS):
        found = await accept(store, f"t{number}", scope=stranger, receipt=Receipt("k", b"digest"))
        assert found.fresh


async def test_other_keys_are_other_sends(store: Store) -> None:
    await accept(store, "a", receipt=Receipt("k", b"digest"))
    assert (await accept(store, "b", receipt=Receipt("l", b"digest"))).fresh
    assert (await accept(store, "c")).fresh
    assert (await accept(store, "d")).fresh


# ---- webhooks ------------------------------------------------------------------------------


def hook(name: str, url: str = "http://x", version: str = "1.0") -> Webhook:
    """A webhook of the task."""
    return Webhook(TaskPushNotificationConfig(id=name, task_id="t", url=url), version)


async def test_webhooks(store: Store) -> None:
    await accept(store)
    assert list(await store.webhooks(SCOPE, "t")) == []
    await store.delete_webhook(SCOPE, "t", "none")
    for name in "bca":
        await store.put_webhook(SCOPE, hook(name))
    assert list(await store.webhooks(SCOPE, "t")) == [hook("a"), hook("b"), hook("c")]
    await store.put_webhook(SCOPE, hook("b", "http://y", "0.3"))
    assert list(await store.webhooks(SCOPE, "t"))[1] == hook("b", "http://y", "0.3")
    await store.delete_webhook(SCOPE, "t", "a")
    await store.delete_webhook(SCOPE, "t", "a")
    assert [item.config.id for item in await store.webhooks(SCOPE, "t")] == ["b", "c"]


async def test_a_webhook_that_comes_with_a_message(store: Store) -> None:
    await accept(store, webhook=hook("a"))
    assert list(await store.webhooks(SCOPE, "t")) == [hook("a")]
    await accept(store, name="m2", new=False, webhook=hook("b"))
    assert list(await store.webhooks(SCOPE, "t")) == [hook("a"), hook("b")]


async def test_webhooks_are_of_their_task(store: Store) -> None:
    await accept(store, webhook=hook("a"))
    await accept(store, "other")
    assert list(await store.webhooks(SCOPE, "other")) == []
    for attempt in (
        store.webhooks(SCOPE, "unknown"),
        store.delete_webhook(SCOPE, "unknown", "a"),
        store.put_webhook(
            SCOPE, Webhook(TaskPushNotificationConfig(id="a", task_id="unknown", url="http://x"))
        ),
    ):
        with pytest.raises(TaskNotFound):
            await attempt


async def test_a_refused_message_leaves_no_webhook(store: Store) -> None:
    await ended(store, "t")
    with pytest.raises(UnsupportedOperation):
        await accept(store, name="m2", new=False, webhook=hook("a"))
    assert list(await store.webhooks(SCOPE, "t")) == []


# ---- moved and pruned ----------------------------------------------------------------------


async def test_moved_tells_every_change_of_a_head(store: Store) -> None:
    await accept(store)
    await accept(store, "still")
    still = (await head(store, "still")).version
    seen = (await head(store)).version

    async def moved() -> bool:
        nonlocal seen
        found = await store.moved({"t": seen, "still": still})
        assert set(found) <= {"t"}
        seen = (await head(store)).version
        return "t" in found

    assert not await moved()
    held = (await store.claim(["agent"], "w", LONG, 1))[0]
    assert await moved()
    await say(store, held, W)
    assert await moved()
    await accept(store, name="m2", new=False)
    assert await moved()
    await store.append(held, [], release=True)
    assert await moved()
    assert not await moved()


async def test_what_is_gone_has_moved(store: Store) -> None:
    assert set(await store.moved({"unknown": 3})) == {"unknown"}
    assert not await store.moved({})


@pytest.mark.clause("data.retention")
async def test_pruning_forgets_what_has_ended_long_ago(make: Make) -> None:
    store = await make(retention=0.8)
    await ended(store, "a")
    await accept(store, "r", born=False)
    held = await claim(store)
    await store.append(held, said(held, reply("r")), release=True)
    await waiting(store, "b")
    await accept(store, "c")
    assert await store.prune() == 0
    await asyncio.sleep(0.9)
    await accept(store, "d")
    assert await store.prune() == 2
    assert await store.head(SCOPE, "a") is None
    assert await store.head(SCOPE, "r") is None
    assert await store.load(SCOPE, "a") is None
    assert await store.read(SCOPE, "a", 0, 9) is None
    assert {item.id for item in (await store.list(SCOPE, Query())).tasks} == {"b", "c", "d"}
    assert await store.prune() == 0


# ---- listing -------------------------------------------------------------------------------


async def pages(store: Store, query: Query) -> list[str]:
    """All that a query finds, page by page; every page is as it should be."""
    found: list[str] = []
    cursor: tuple[str, str] | None = None
    for _ in range(1000):
        page = await store.list(
            SCOPE,
            Query(
                context=query.context,
                state=query.state,
                since=query.since,
                size=query.size,
                cursor=cursor,
            ),
        )
        found += [item.id for item in page.tasks]
        cursor = page.cursor
        if cursor is None:
            assert page.total == len(found)
            return found
        assert len(page.tasks) == query.size
        assert page.total > len(found)
    raise AssertionError("the pages have no end")


@pytest.mark.clause("list.order", "list.filters", "list.total-size")
async def test_the_latest_status_first(store: Store) -> None:
    for number, name in enumerate("abc"):
        await accept(store, name, at=stamp(number))
    assert await pages(store, Query()) == ["c", "b", "a"]
    held = await claim(store)
    await store.append(held, said(held, status("a", W, stamp(9))))
    assert await pages(store, Query(size=1)) == ["a", "c", "b"]
    assert await pages(store, Query(state=W)) == ["a"]
    assert await pages(store, Query(state=C)) == []
    assert await pages(store, Query(since=stamp(2))) == ["a", "c"]
    assert await pages(store, Query(since=stamp(10))) == []
    assert await pages(store, Query(context="other")) == []


async def test_a_listing_shows_whole_tasks(store: Store) -> None:
    await waiting(store, "t")
    page = await store.list(SCOPE, Query())
    assert list(page.tasks) == [await task(store)]


async def test_messages_and_artifacts_do_not_change_the_order(store: Store) -> None:
    for number, name in enumerate("ab"):
        await accept(store, name, at=stamp(number))
    await accept(store, "a", "m2", new=False, at=stamp(9))
    held = await claim(store)
    await store.append(held, said(held, artifact("a", "x")))
    assert await pages(store, Query()) == ["b", "a"]


@pytest.mark.clause("list.cursor")
async def test_newcomers_make_nothing_repeat_or_go_missing(store: Store) -> None:
    for number in range(10):
        await accept(store, f"t{number}", at=stamp(number))
    page = await store.list(SCOPE, Query(size=4))
    seen = [item.id for item in page.tasks]
    clock = count(20)
    while page.cursor is not None:
        await accept(store, f"new{next(clock)}", at=stamp(next(clock)))
        page = await store.list(SCOPE, Query(size=4, cursor=page.cursor))
        seen += [item.id for item in page.tasks]
    assert seen == [f"t{number}" for number in range(9, -1, -1)]


@pytest.mark.parametrize("cursor", [("", ""), ("z", "z"), (AT, ""), (AT, "\U0010ffff")])
async def test_any_cursor_is_a_place(store: Store, cursor: tuple[str, str]) -> None:
    for name in "abc":
        await accept(store, name)
    page = await store.list(SCOPE, Query(cursor=cursor))
    expected = [name for name in "cba" if (AT, name) < cursor]
    assert [item.id for item in page.tasks] == expected
    assert page.total == 3


async def test_tasks_of_one_moment_are_all_listed(store: Store) -> None:
    names = [f"t{number:03d}" for number in range(50)]
    for name in names:
        await accept(store, name)
    assert await pages(store, Query(size=7)) == names[::-1]


async def test_a_status_that_tells_no_time_keeps_the_listing_whole(store: Store) -> None:
    for number, name in enumerate("abcd"):
        await accept(store, name, at=stamp(number))
    for held in await store.claim(["agent"], "w", LONG, 9):
        await store.append(held, said(held, status(held.head.id, W, None)))
    assert await pages(store, Query(size=1)) == ["d", "c", "b", "a"]


async def test_a_status_time_that_comes_back_lists_nothing_twice(store: Store) -> None:
    await accept(store, "a", at=stamp(1))
    held = await claim(store)
    for number in (2, 1):  # clocks do go backwards
        await store.append(held, said(held, status("a", W, stamp(number))))
    page = await store.list(SCOPE, Query())
    assert ([item.id for item in page.tasks], page.total) == (["a"], 1)
    assert await pages(store, Query(size=1)) == ["a"]


@pytest.mark.parametrize("artifacts", [True, False])
async def test_a_page_has_a_limit_in_bytes(store: Store, artifacts: bool) -> None:
    large = PAGE_BYTES // 3 + 1
    for number in range(7):
        said_twice = "m" if artifacts else "x" * (large // 2)  # the id is the text as well
        await accept(store, f"t{number}", said_twice, at=stamp(number))
    for held in await store.claim(["agent"], "w", LONG, 9):
        text = "y" * (large if artifacts else 4 * large)
        await store.append(held, said(held, artifact(held.head.id, text)))
    sizes, cursor, seen = [], None, []
    while True:
        page = await store.list(SCOPE, Query(cursor=cursor, artifacts=artifacts))
        assert page.total == 7
        sizes.append(len(page.tasks))
        seen += [item.id for item in page.tasks]
        if (cursor := page.cursor) is None:
            break
    assert sizes == [3, 3, 1]
    assert seen == [f"t{number}" for number in range(6, -1, -1)]


async def test_a_task_larger_than_a_page_is_listed(store: Store) -> None:
    await accept(store, "small", at=stamp(0))
    await accept(store, "large", "x" * PAGE_BYTES, at=stamp(1))
    page = await store.list(SCOPE, Query())
    assert [item.id for item in page.tasks] == ["large"]
    page = await store.list(SCOPE, Query(cursor=page.cursor))
    assert ([item.id for item in page.tasks], page.cursor) == (["small"], None)


class Shown:
    """A task in the model of a listing."""

    def __init__(self, name: str, at: str, context: str) -> None:
        self.name, self.at, self.context = name, at, context
        self.state = TaskState.SUBMITTED


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.integers(0, 1), st.sampled_from(["x", "y"])),
        st.tuples(
            st.just("status"),
            st.integers(0, 2),
            st.sampled_from([W, W, I, TaskState.AUTH_REQUIRED, C, TaskState.FAILED]),
        ),
    ),
    max_size=40,
)


@pytest.mark.clause("list.filters", "list.cursor", "list.order", "list.total-size")
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=STEPS, picks=st.randoms(use_true_random=False), size=st.integers(1, 5))
async def test_listing_is_what_a_plain_search_finds(
    make: Make, steps: list[Any], picks: Any, size: int
) -> None:
    store = await make()
    model: dict[str, Shown] = {}
    claims: dict[str, Claim] = {}
    now = 0
    for kind, later, what in steps:
        now += later
        if kind == "new":
            name = f"{picks.randrange(1000)}-{len(model)}"
            model[name] = Shown(name, stamp(now), what)
            await accept(store, name, at=stamp(now), context=what)
            for held in await store.claim(["agent"], "w", LONG, 1):
                claims[held.head.id] = held
        elif claims:
            name = picks.choice(sorted(claims))
            held = claims[name]
            await store.append(held, said(held, status(name, what, stamp(now))))
            model[name].state, model[name].at = what, stamp(now)
            if what.terminal:
                del claims[name]
    moments = sorted({shown.at for shown in model.values()})
    for query in (
        Query(size=size),
        *(Query(size=size, context=context) for context in ("x", "y", "z")),
        *(Query(size=size, state=state) for state in TaskState),
        *(Query(size=size, since=moment) for moment in moments),
        *(Query(size=size, context="x", state=W, since=moment) for moment in moments[:2]),
    ):
        expected = sorted(
            (shown.at, shown.name)
            for shown in model.values()
            if query.context in ("", shown.context)
            and query.state in (None, shown.state)
            and shown.at >= query.since
        )
        assert await pages(store, query) == [name for _, name in reversed(expected)]


# ---- whatever happens ----------------------------------------------------------------------

DEEDS = st.lists(
    st.tuples(
        st.sampled_from(
            ["new", "send", "claim", "say", "say", "say", "release", "revoke", "cancel", "late"]
        ),
        st.integers(0, 99),
        st.sampled_from(list(TaskState)),
    ),
    max_size=40,
)


@settings(
    max_examples=examples(40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(deeds=DEEDS)
async def test_whatever_happens_the_log_is_whole(make: Make, deeds: list[Any]) -> None:
    store = await make()
    seen: dict[str, Head] = {}
    claims: list[Claim] = []
    spent: list[Claim] = []
    for number, (kind, pick, state) in enumerate(deeds):
        await deed(store, number, kind, pick, state, seen, claims, spent)
        for name in seen:
            await whole(store, name, seen)
        page = await store.list(SCOPE, Query(size=100))
        assert {item.id for item in page.tasks} == set(seen)
        assert page.total == len(seen)
    await store.close()  # each example has a store of its own


async def deed(
    store: Store,
    number: int,
    kind: str,
    pick: int,
    state: TaskState,
    seen: dict[str, Head],
    claims: list[Claim],
    spent: list[Claim],
) -> None:
    """One step of a caller, a worker or a maintenance."""
    names = sorted(seen)
    if kind == "new":
        name = f"t{number}"
        seen[name] = (await accept(store, name)).head
    elif kind == "send" and names:
        name = names[pick % len(names)]
        expected = UnsupportedOperation if seen[name].state.terminal else None
        if expected is None:
            await accept(store, name, f"m{number}", new=False)
        else:
            with pytest.raises(expected):
                await accept(store, name, f"m{number}", new=False)
    elif kind == "claim":
        found = await store.claim(["agent"], f"w{number}", LONG, 1 + pick % 2)
        for held in found:
            assert held.head.id not in {other.head.id for other in claims}
        claims.extend(found)
    elif kind == "cancel" and names:
        name = names[pick % len(names)]
        if seen[name].state.terminal:
            with pytest.raises(TaskNotCancelable):
                await cancel(store, name)
        else:
            await cancel(store, name)
    elif kind == "late" and spent:
        with pytest.raises(Stale):
            await say(store, spent[pick % len(spent)], W)
    elif kind in ("say", "release", "revoke") and claims:
        held = claims[pick % len(claims)]
        name = held.head.id
        back = state is TaskState.SUBMITTED and (await head(store, name)).state is not state
        if kind == "revoke":
            last = status(name, state) if state.terminal else None
            assert await store.revoke(held.head, last) is not None
        else:
            now = W if back else state
            await store.append(held, said(held, status(name, now)), release=kind == "release")
        if (await head(store, name)).epoch != held.epoch or kind == "release":
            claims.remove(held)
            if (await head(store, name)).epoch != held.epoch:
                spent.append(held)


async def whole(store: Store, name: str, seen: dict[str, Head]) -> None:
    """Log, task and head tell the same story, and the head only goes forward."""
    entries = await log(store, name)
    record = await store.load(SCOPE, name)
    assert record is not None
    now, before = record.head, seen[name]
    assert now == await head(store, name)
    assert [entry.number for entry in entries] == list(range(1, now.last + 1))
    assert record.task == fold(None, [entry.event for entry in entries])  # type: ignore[misc]
    assert record.task.status.state is now.state
    assert now.version >= before.version
    assert now.epoch >= before.epoch
    if now != before:
        assert now.version > before.version
    if before.state.terminal:
        assert (now.state, now.last) == (before.state, before.last)
    if now.state.terminal:
        assert (now.holder, now.unread) == ("", False)
    seen[name] = now


# ---- the bounds of the memory store --------------------------------------------------------


async def names(store: Store) -> list[str]:
    """The tasks that are there."""
    return sorted(item.id for item in (await store.list(SCOPE, Query(size=100))).tasks)


async def test_a_full_store_forgets_the_oldest_ended_task_first() -> None:
    store = MemoryStore(max_tasks=4)
    await waiting(store, "a")
    await ended(store, "b")
    await ended(store, "c")
    await accept(store, "d")
    await accept(store, "e")
    assert await names(store) == ["a", "c", "d", "e"]
    await accept(store, "f")
    assert await names(store) == ["a", "d", "e", "f"]


async def test_then_the_one_that_has_waited_longest_for_its_client() -> None:
    store = MemoryStore(max_tasks=3)
    await waiting(store, "a")
    await waiting(store, "b")
    await accept(store, "a", "m2", new=False)
    await say(store, await claim(store), I, release=True)
    await accept(store, "c")
    await accept(store, "d")
    assert await names(store) == ["a", "c", "d"]
    await accept(store, "e")
    assert await names(store) == ["c", "d", "e"]


@pytest.mark.clause("errors.temporary")
async def test_then_it_refuses() -> None:
    store = MemoryStore(max_tasks=3)
    await accept(store, "a")
    held = await claim(store)
    await say(store, held, W)
    await accept(store, "b")
    await accept(store, "c", born=False)
    with pytest.raises(LimitExceeded):
        await accept(store, "d", receipt=Receipt("k", b"digest"))
    assert await names(store) == ["a", "b"]
    assert (await accept(store, "a", "m2", new=False)).fresh, "what is there goes on"
    await say(store, held, TaskState.FAILED)
    assert (await accept(store, "d", receipt=Receipt("k", b"other"))).fresh
    assert await names(store) == ["b", "d"]


async def test_a_task_with_an_unread_message_is_not_forgotten() -> None:
    store = MemoryStore(max_tasks=1)
    await waiting(store, "a")
    await accept(store, "a", "m2", new=False)
    with pytest.raises(LimitExceeded):
        await accept(store, "b")


async def test_replies_make_room_too() -> None:
    store = MemoryStore(max_tasks=1)
    for number in range(5):
        name = f"t{number}"
        await accept(store, name, born=False)
        held = await claim(store)
        await store.append(held, said(held, reply(name)), release=True)
    assert await store.head(SCOPE, "t4") is not None
    assert await store.head(SCOPE, "t3") is None


async def test_what_was_forgotten_leaves_nothing_behind() -> None:
    store = MemoryStore(max_tasks=2)
    for number in range(200):
        await ended(store, f"t{number:03d}", at=stamp(number))
    assert await names(store) == ["t198", "t199"]
    assert await pages(store, Query(size=1)) == ["t199", "t198"]
    assert await pages(store, Query(size=1, state=C)) == ["t199", "t198"]
    assert await pages(store, Query(size=1, context="c")) == ["t199", "t198"]
    assert not await store.expired(["agent"], 9)
    assert not await store.claim(["agent"], "w", LONG, 9)


async def test_the_order_of_a_busy_task_does_not_grow_without_bound() -> None:
    store = MemoryStore()
    await accept(store)
    held = await claim(store)
    for number in range(1000):
        await store.append(held, said(held, status("t", W, stamp(number))))
    (index,) = store._indexes.values()
    assert len(index._order) < 100
    assert await pages(store, Query()) == ["t"]


async def test_receipts_are_bounded_like_the_tasks() -> None:
    store = MemoryStore(max_tasks=10)
    for number in range(1000):
        name = f"t{number}"
        await accept(store, name, receipt=Receipt(name, b"digest"))
        await say(store, await claim(store), C, release=True)
    await store.prune()
    assert len(store._receipts) <= 100, "of ten tasks"


async def test_a_memory_store_without_retention_keeps_its_tasks() -> None:
    store = MemoryStore(retention=0.0)
    await accept(store)
    await say(store, await claim(store), C, release=True)
    await pause()
    assert await store.prune() == 0


async def test_the_receipts_of_forgotten_tasks_are_forgotten() -> None:
    store = MemoryStore(retention=0.001)
    await accept(store, "a", receipt=Receipt("a", b"digest"))
    await say(store, await claim(store), C, release=True)
    await accept(store, "b", receipt=Receipt("b", b"digest"))
    await pause()
    assert await store.prune() == 1
    assert (await accept(store, "c", receipt=Receipt("a", b"other"))).fresh
    with pytest.raises(Conflict):
        await accept(store, "d", receipt=Receipt("b", b"other"))


async def test_a_busy_agent_does_not_starve_the_others(store: Store) -> None:
    busy, other = Scope("busy"), Scope("other")
    for number in range(10):
        await accept(store, f"b{number}", scope=busy)
    await accept(store, "o", scope=other)
    claims = await store.claim(["busy", "other"], "w", 30.0, 2)
    assert "o" in [found.head.id for found in claims]


@pytest.mark.slow  # it needs PostgreSQL
async def test_what_another_process_wrote_is_not_left_out() -> None:
    """A process that has seen the beginning of a log, and then only its head."""
    url = database()
    here, there = PostgresStore(url), PostgresStore(url)
    await here.open()
    await there.open()
    try:
        await accept(here)
        await say(there, await claim(there), C, release=True)
        config = TaskPushNotificationConfig(id="h", task_id="t", url="http://x")
        await here.put_webhook(SCOPE, Webhook(config))  # now it knows the head
        assert (await task(here)).status.state is C
        assert [entry.number for entry in await log(here)] == [1, 2]
    finally:
        await here.close()
        await there.close()


# ---- answers to questions ------------------------------------------------------------------


@pytest.mark.parametrize("asked", [TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED])
async def test_an_answer_replaces_the_question_at_once(store: Store, asked: TaskState) -> None:
    await accept(store)
    first = await claim(store)
    question = status("t", asked)
    said = Message(message_id="q", role=Role.AGENT, parts=(Part(text="Which?"),))
    question = replace(question, status=replace(question.status, message=said))
    await store.append(first, [Entry(0, question, 1)], release=True)
    accepted = await accept(store, name="m2", new=False)
    assert accepted.number == 3
    assert (accepted.head.state, accepted.head.last) == (W, 4)
    record = await store.load(SCOPE, "t")
    assert record is not None and record.task.status.state is W
    assert [message.message_id for message in record.task.history] == ["m1", "q", "m2"]
    (working,) = await store.read(SCOPE, "t", 3, 9) or ()
    assert isinstance(working.event, TaskStatusUpdateEvent)
    assert (working.event.status.state, working.turn) == (W, 3)
    assert await store.tally(SCOPE) == {**dict.fromkeys(await store.tally(SCOPE), 0), W: 1}
    assert not accepted.head.answers(3)
    second = await claim(store)
    assert (second.turn, second.task.status.state) == (3, W)


async def test_a_message_while_the_handler_runs_replaces_no_question(store: Store) -> None:
    await accept(store)
    first = await claim(store)
    await store.append(first, [Entry(0, status("t", TaskState.AUTH_REQUIRED), 1)])
    accepted = await accept(store, name="m2", new=False)
    assert (accepted.head.state, accepted.head.last) == (TaskState.AUTH_REQUIRED, 3)
