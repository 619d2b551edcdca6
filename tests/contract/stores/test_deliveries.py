"""Webhook deliveries: the contract of all stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dragoman.model.caller import Scope
from dragoman.model.events import Reply
from dragoman.stores import delivery_order
from dragoman.stores.store import Store, WebhookCursor
from tests.harness.stores import (
    LONG,
    SCOPE,
    SOON,
    C,
    Make,
    W,
    accept,
    cancel,
    claim,
    ended,
    followed,
    head,
    hook,
    one,
    park,
    pause,
    reply,
    say,
    take,
    waiting,
    write,
)


def places(lines: Sequence[WebhookCursor]) -> list[tuple[str, str, int]]:
    """Where the lines are."""
    return [(line.task, line.webhook.config.id, line.cursor) for line in lines]


# ---- where a line begins -------------------------------------------------------------------


async def test_a_webhook_that_comes_with_a_message_begins_at_it(store: Store) -> None:
    await waiting(store, "t")
    accepted = await accept(store, name="m2", new=False, webhook=hook())
    assert accepted.number == 3
    assert accepted.head.hooked
    await say(store, await claim(store), W)
    line = await one(store)
    assert (line.scope, line.task, line.webhook) == (SCOPE, "t", hook())
    assert (line.cursor, line.attempts, line.parked, line.reason) == (3, 0, False, "")


async def test_a_webhook_that_is_created_later_begins_at_the_head(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await say(store, held, W, W)
    await store.put_webhook(SCOPE, hook())
    assert (await head(store)).hooked
    assert not await take(store), "there is nothing new"
    assert not await store.undelivered(9)
    await say(store, held, C)
    assert (await one(store)).cursor == 3


async def test_a_task_without_a_webhook_has_no_line(store: Store) -> None:
    await ended(store, "t")
    assert not (await head(store)).hooked
    assert not await take(store)
    assert not await store.undelivered(9)


async def test_a_direct_reply_is_delivered(store: Store) -> None:
    await accept(store, born=False, webhook=hook())
    await write(store, await claim(store), reply("t"), release=True)
    line = await one(store)
    (entry,) = await store.read(line.scope, line.task, line.cursor, 9) or ()
    assert isinstance(entry.event, Reply)
    assert await store.dispatched(line, entry.number)
    assert not await store.undelivered(9)


@pytest.mark.parametrize("end", ["cancel", "revoke"])
async def test_an_end_that_no_worker_writes_is_delivered(store: Store, end: str) -> None:
    await accept(store, webhook=hook())
    if end == "cancel":
        await cancel(store)
    else:
        held = await claim(store)
        await store.revoke(held.head, None)
        await cancel(store)
    assert (await one(store)).cursor == 1


# ---- taking --------------------------------------------------------------------------------


async def test_a_line_is_taken_once_and_again_after_its_lease(store: Store) -> None:
    await followed(store)
    first = await one(store, lease=SOON)
    assert not await take(store), "another has it"
    assert places(await store.undelivered(9)) == [("t", "h", 1)], "it is listed all the same"
    await pause()
    second = await one(store)
    assert second.ticket > first.ticket
    assert not await store.dispatched(first, 2), "too late"
    assert await store.dispatched(second, 2)
    assert not await store.undelivered(9)


async def test_no_more_than_the_limit_and_each_once(store: Store) -> None:
    for name in "abcde":
        await followed(store, name)
    found = [await take(store, limit=2) for _ in range(4)]
    assert [len(lines) for lines in found] == [2, 2, 1, 0]
    assert sorted(line.task for lines in found for line in lines) == list("abcde")


async def test_takers_at_once_share_the_lines(store: Store) -> None:
    for name in "abcdefgh":
        await followed(store, name)
    found = await asyncio.gather(*(take(store, limit=3) for _ in range(4)))
    assert sorted(line.task for lines in found for line in lines) == list("abcdefgh")


async def test_lines_of_the_agents_that_are_asked_for(store: Store) -> None:
    await followed(store, "a")
    await followed(store, "o", scope=Scope("other"))
    assert not await store.dispatch(["third"], 9, LONG)
    assert not await store.dispatch([], 9, LONG)
    (line,) = await store.dispatch(["other"], 9, LONG)
    assert (line.task, line.scope) == ("o", Scope("other"))
    assert [line.task for line in await store.dispatch(["agent", "other"], 9, LONG)] == ["a"]


async def test_the_longest_due_first_whose_ever_it_is(store: Store) -> None:
    for number, name in enumerate(["a", "b", "c"]):
        await followed(store, name, scope=Scope("busy" if number < 2 else "other"))
    waits = {"b": 0.0, "c": 0.01, "a": 0.02}  # in this order, however long each takes
    taken = {line.task: line for line in await store.dispatch(["busy", "other"], 9, LONG)}
    for name, wait in waits.items():
        assert await store.dispatched(taken[name], 1, wait=wait)
    await pause()
    found = [await store.dispatch(["busy", "other"], 1, LONG) for _ in range(3)]
    assert [line.task for (line,) in found] == ["b", "c", "a"]


ANN, BEN, EVE = (Scope("agent", "tenant", name) for name in ("ann", "ben", "eve"))


async def test_owners_take_turns_when_many_lines_are_due(store: Store) -> None:
    for number in range(40):
        await followed(store, f"a{number}", scope=ANN)
    await followed(store, "b0", scope=BEN)
    await followed(store, "e0", scope=EVE)
    first = {line.task for line in await take(store, limit=8)}
    assert len(first) >= 6, "who has the most gets what the others leave"
    assert {"b0", "e0"} <= first
    for number in range(1, 9):
        await followed(store, f"b{number}", scope=BEN)
    found = [line.task[0] for _ in range(3) for line in await take(store, limit=8)]
    assert found.count("b") >= 5, "half of the time"
    rest = [line.task for _ in range(9) for line in await take(store, limit=8)]
    assert len({*first, *rest}) == len(first) + len(rest)
    assert not await take(store), "all were taken, each once"


async def test_owners_that_are_passed_over(store: Store) -> None:
    for number in range(20):
        await followed(store, f"a{number}", scope=ANN)
    await followed(store, "b", scope=BEN)
    passing = {("tenant", "ann"), ("tenant", "unknown")}
    found = await store.dispatch(["agent"], 8, LONG, passing)
    assert [line.task for line in found] == ["b"]
    assert not await store.dispatch(["agent"], 8, LONG, passing)
    everybody = {*passing, ("tenant", "ben")}
    assert not await store.dispatch(["agent"], 8, LONG, everybody)
    assert len(await take(store, limit=30)) == 20


async def test_a_walk_among_owners_goes_on_where_it_ended(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_order, "WALK", 3)
    for number in range(10):
        await followed(store, f"t{number}", scope=Scope("agent", "", f"owner{number}"))
    passing = {("", "owner3")}
    found = [
        line.task for _ in range(12) for line in await store.dispatch(["agent"], 2, LONG, passing)
    ]
    assert sorted(found) == [f"t{number}" for number in range(10) if number != 3]


async def test_webhooks_of_a_task_are_lines_of_their_own(store: Store) -> None:
    await accept(store, webhook=hook("a"))
    await store.put_webhook(SCOPE, hook("b"))
    held = await claim(store)
    await say(store, held, W)
    a, b = sorted(await take(store), key=lambda line: line.webhook.config.id)
    await park(store, a)
    assert await store.dispatched(b, 2)
    await say(store, held, W)
    assert places(await take(store)) == [("t", "b", 2)]
    assert places(await store.undelivered(9, parked=True)) == [("t", "a", 1)]


# ---- results -------------------------------------------------------------------------------


async def test_the_cursor_moves_on(store: Store) -> None:
    await accept(store, webhook=hook())
    await say(store, await claim(store), W, W, C, release=True)
    line = await one(store)
    for cursor in (2, 3):
        assert await store.dispatched(line, cursor, wait=LONG), "it stays the taker's"
        assert not await take(store)
        assert places(await store.undelivered(9)) == [("t", "h", cursor)]
    assert await store.dispatched(line, 4)
    assert not await store.undelivered(9)
    assert not await take(store)


async def test_what_was_put_back_goes_on_from_its_cursor(store: Store) -> None:
    await accept(store, webhook=hook())
    await say(store, await claim(store), W, W, W)
    assert await store.dispatched(await one(store), 3)
    assert (await one(store)).cursor == 3


async def test_failures_are_counted_and_waited_for(store: Store) -> None:
    await followed(store)
    for attempts in range(3):
        line = await one(store)
        assert line.attempts == attempts
        assert line.reason == ("answered 500" if attempts else "")
        assert await store.dispatched(line, 1, wait=SOON, failed="answered 500")
        await pause()
    assert await store.dispatched(await one(store), 1, wait=LONG, failed="no answer")
    assert not await take(store)
    (line,) = await store.undelivered(9)
    assert (line.attempts, line.reason, line.parked) == (4, "no answer", False)


async def test_progress_forgets_the_failures(store: Store) -> None:
    await accept(store, webhook=hook())
    await say(store, await claim(store), W, W)
    assert await store.dispatched(await one(store), 1, failed="answered 500")
    line = await one(store)
    assert line.attempts == 1
    assert await store.dispatched(line, 2)
    (line,) = await store.undelivered(9)
    assert (line.cursor, line.attempts, line.reason) == (2, 0, "")


async def test_one_that_was_put_back_untried_keeps_its_failures(store: Store) -> None:
    await followed(store)
    assert await store.dispatched(await one(store), 1, failed="answered 500")
    assert await store.dispatched(await one(store), 1, wait=SOON)
    await pause()
    line = await one(store)
    assert (line.attempts, line.reason) == (1, "answered 500")
    assert await store.dispatched(line, 1, wait=LONG)
    assert not await take(store)


async def test_what_is_appended_during_a_delivery_is_not_lost(store: Store) -> None:
    await accept(store, webhook=hook())
    held = await claim(store)
    await say(store, held, W)
    line = await one(store)
    await say(store, held, C)
    assert await store.dispatched(line, 2), "all that the taker knew of"
    assert (await one(store)).cursor == 2


async def test_what_is_appended_after_all_was_delivered_is_due(store: Store) -> None:
    await accept(store, webhook=hook())
    held = await claim(store)
    await say(store, held, W)
    assert await store.dispatched(await one(store), 2)
    assert not await take(store)
    await say(store, held, C)
    assert (await one(store)).cursor == 2


async def test_what_is_appended_does_not_shorten_a_pause(store: Store) -> None:
    await accept(store, webhook=hook())
    held = await claim(store)
    await say(store, held, W)
    assert await store.dispatched(await one(store), 1, wait=LONG, failed="answered 500")
    await say(store, held, W)
    assert not await take(store)


# ---- parking -------------------------------------------------------------------------------


async def test_a_parked_line_waits_for_its_redrive(store: Store) -> None:
    await accept(store, webhook=hook())
    held = await claim(store)
    await say(store, held, W)
    await park(store, await one(store))
    await say(store, held, C)
    assert not await take(store)
    (line,) = await store.undelivered(9, parked=True)
    assert (line.parked, line.cursor, line.attempts, line.reason) == (True, 1, 1, "answered 410")
    assert not await store.undelivered(9, parked=False)
    assert await store.redrive() == 1
    assert await store.redrive() == 0
    line = await one(store)
    assert (line.parked, line.cursor, line.attempts) == (False, 1, 0)


async def test_redriving_some(store: Store) -> None:
    for name in ("s", "t", "u"):
        await accept(store, name, webhook=hook("a", name))
        await store.put_webhook(SCOPE, hook("b", name))
        await say(store, await claim(store), W)
    for line in await take(store):
        await park(store, line)
    assert await store.redrive("unknown") == 0
    assert await store.redrive(webhook="unknown") == 0
    assert await store.redrive("s", "unknown") == 0
    assert await store.redrive("s", "a") == 1
    assert places(await take(store)) == [("s", "a", 1)]
    assert await store.redrive("t") == 2
    assert sorted(places(await take(store))) == [("t", "a", 1), ("t", "b", 1)]
    assert await store.redrive(webhook="b") == 2
    assert sorted(places(await take(store))) == [("s", "b", 1), ("u", "b", 1)]
    assert await store.redrive() == 1
    assert places(await take(store)) == [("u", "a", 1)]


async def test_listing_lines(store: Store) -> None:
    for name in "abcd":
        await followed(store, name)
    await followed(store, "e", scope=Scope("other", "tenant"))
    for line in (await take(store))[:2]:
        await park(store, line)
    assert len(await store.undelivered(9)) == 5, "those of every owner"
    assert len(await store.undelivered(9, parked=True)) == 2
    assert len(await store.undelivered(9, parked=False)) == 3
    assert len(await store.undelivered(3)) == 3


# ---- replacing and deleting ----------------------------------------------------------------


@pytest.mark.clause("push.delete")
async def test_a_deleted_webhook_is_nobodys_any_more(store: Store) -> None:
    await followed(store)
    line = await one(store)
    await store.delete_webhook(SCOPE, "t", "h")
    assert not await store.dispatched(line, 2)
    assert not await store.undelivered(9)
    assert await store.redrive() == 0


async def test_a_replaced_webhook_goes_on_where_it_was(store: Store) -> None:
    await accept(store, webhook=hook())
    await say(store, await claim(store), W, W, W)
    line = await one(store)
    assert await store.dispatched(line, 2, wait=LONG)
    await store.put_webhook(SCOPE, hook(url="https://y.example/"))
    assert not await store.dispatched(line, 3), "the taker has the wrong address"
    line = await one(store)
    assert (line.cursor, line.webhook.config.url) == (2, "https://y.example/")


async def test_a_replaced_webhook_is_not_parked_any_more(store: Store) -> None:
    await followed(store)
    await park(store, await one(store))
    await store.put_webhook(SCOPE, hook(url="https://y.example/"))
    line = await one(store)
    assert (line.parked, line.attempts, line.reason) == (False, 0, "")


async def test_a_webhook_of_the_same_id_is_not_the_old_takers(store: Store) -> None:
    """A delivery may last longer than it takes to delete, create and take again."""
    await accept(store, webhook=hook())
    held = await claim(store)
    await say(store, held, W)
    old = await one(store)
    await store.delete_webhook(SCOPE, "t", "h")
    await store.put_webhook(SCOPE, hook(url="https://y.example/"))
    await say(store, held, W)
    new = await one(store)
    assert new.cursor == 2
    assert not await store.dispatched(old, 2)
    assert await store.dispatched(new, 3)


# ---- retention -----------------------------------------------------------------------------


async def test_a_task_is_kept_until_its_lines_are_empty(make: Make) -> None:
    store = await make(retention=SOON)
    await accept(store, webhook=hook())
    await say(store, await claim(store), C, release=True)
    await pause()
    assert await store.prune() == 0
    line = await one(store)
    assert await store.prune() == 0
    assert await store.dispatched(line, 2)
    assert await store.prune() == 1
    assert await store.head(SCOPE, "t") is None
    assert not await store.dispatched(line, 2)


async def test_a_parked_line_keeps_no_task(make: Make) -> None:
    store = await make(retention=SOON)
    await accept(store, webhook=hook())
    await say(store, await claim(store), C, release=True)
    await park(store, await one(store))
    await pause()
    assert await store.prune() == 1
    assert not await store.undelivered(9)
    assert await store.redrive() == 0


async def test_a_deleted_webhook_keeps_no_task(make: Make) -> None:
    store = await make(retention=SOON)
    await accept(store, webhook=hook())
    await say(store, await claim(store), C, release=True)
    await store.delete_webhook(SCOPE, "t", "h")
    await pause()
    assert await store.prune() == 1
