"""The checker of the cluster finds what is wrong, by its name; and nothing when nothing is."""

from __future__ import annotations

import pytest

from dragoman.stores.postgres import PostgresStore
from dragoman.webhooks.delivery import delivery
from tests.faults.cluster import history
from tests.faults.crash.checker import RECEIVED, STATUS, Effect, Log, names
from tests.harness.stores import C, accept, claim, database, say


def posts(*numbers: int) -> list[tuple[str, bool]]:
    """Deliveries of these entries; one that was not taken is negative."""
    return [(delivery("t", "h", abs(number)), number > 0) for number in numbers]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ((2, 3), set()),
        ((2, -3, 3), set()),
        ((2, 3, 2, 3), set()),
        ((3, 2), {"push-order"}),
        ((-2, 3, 2), {"push-order"}),
        ((2, -3), {"undelivered"}),
        ((), {"undelivered"}),
    ],
)
def test_webhooks(numbers: tuple[int, ...], expected: set[str]) -> None:
    log = Log(3, [1, 2, 3], [RECEIVED, STATUS, STATUS], [0, 1, 1], [{}, {}, {}])
    found = list(history.pushed({"t": log}, ["t"], "h", posts(*numbers)))
    assert names(found) == expected


def test_turns_that_ran_too_often() -> None:
    runs = [Effect("turn", attempt, "k") for attempt in (1, 2, 3)]
    assert not list(history.often(runs, 2))
    assert names(list(history.often(runs, 1))) == {"too-often"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", set()),
        ("UPDATE tally SET number = number + 1", {"tally"}),
        ("DELETE FROM tally", {"tally"}),
        ("UPDATE task SET holder = 'w'", {"left"}),
        ("UPDATE task SET ready = 1", {"left"}),
    ],
)
async def test_rows(sql: str, expected: set[str]) -> None:
    store = PostgresStore(database())
    await store.open()
    try:
        await accept(store)
        await say(store, await claim(store), C, release=True)
        await store._pool.fetch(sql)
        assert names(await history.rest(store._pool.url)) == expected
    finally:
        await store.close()
