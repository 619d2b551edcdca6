"""A task at an earlier place of its log: it equals the fold of the log up to there, and is cheap
near the end."""

from __future__ import annotations

from typing import Any

from dragoman.model.lifecycle import fold
from dragoman.server.reader import History
from dragoman.stores.store import Store
from tests.harness.stores import SCOPE, C, W, accept, artifact, claim, log, say, status, write


class Counting:
    """A store that counts the entries which are read of it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.entries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def read(self, *arguments: Any) -> Any:
        """See `Store.read`."""
        found = await self.store.read(*arguments)
        self.entries += len(found or ())
        return found


async def test_a_task_at_every_place_of_its_log(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    await write(store, held, status("t", W), artifact("t", "a"), artifact("t", "b", append=True))
    await say(store, held, W, C)
    entries = await log(store)
    through = History(store, SCOPE, "t")
    for number in range(1, len(entries) + 1):
        meant = fold(None, (entry.event for entry in entries[:number]))  # type: ignore[misc]
        assert await through.at(number) == meant
        assert await History(store, SCOPE, "t").at(number) == meant
    assert await History(store, SCOPE, "nothing").at(1) is None


async def test_who_keeps_up_with_a_log_does_not_read_it_again_and_again(store: Store) -> None:
    await accept(store)
    held = await claim(store)
    counting: Any = Counting(store)
    for _ in range(20):
        head = await say(store, held, W)
        found = await History(counting, SCOPE, "t").at(head.last)
        assert found is not None and found.status.state is W
    assert counting.entries == 0
