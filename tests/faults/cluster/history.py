"""What the promises mean for several processes on one database; beside those of `crash.checker`:

`tally`        the counts are not those of the tasks
`left`         a claim, or a place in the queue, that nobody needs any more
`too-often`    a turn ran more often than the agent allows
`undelivered`  a webhook was not told something
`push-order`   a webhook was told something before what came before it
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import asyncpg

from dragoman.webhooks.delivery import delivery
from tests.faults.crash.checker import Breach, Effect, Log

TALLY = """
WITH real AS (
  SELECT agent, tenant, owner, state, count(*) AS number FROM task WHERE born GROUP BY 1, 2, 3, 4
), told AS (
  SELECT agent, tenant, owner, state, sum(number) AS number FROM tally GROUP BY 1, 2, 3, 4
)
SELECT state, coalesce(real.number, 0), coalesce(told.number, 0)
FROM real FULL JOIN told USING (agent, tenant, owner, state)
WHERE coalesce(real.number, 0) <> coalesce(told.number, 0)
"""
LEFT = """
SELECT id, holder, inbox, ready FROM task WHERE ended IS NOT NULL
AND (holder <> '' OR inbox <> '' OR ready IS NOT NULL)
OR (ready IS NOT NULL) <> (holder = '' AND inbox <> '')
"""


async def logs(url: str) -> dict[str, Log]:
    """All logs of a database, read without the store's help."""
    db = await asyncpg.connect(url)
    try:
        rows = await db.fetch("SELECT key, id, last FROM task")
        known = {key: (id, Log(last)) for key, id, last in rows}
        for key, number, turn, kind, body in await db.fetch(
            "SELECT task, number, turn, kind, body FROM entry ORDER BY task, number"
        ):
            _, log = known[key]
            log.numbers.append(number)
            log.turns.append(turn)
            log.kinds.append(kind)
            log.bodies.append(json.loads(body))
    finally:
        await db.close()
    return dict(known.values())


async def rest(url: str) -> list[Breach]:
    """What is wrong with the rows beside the logs, when all is at rest."""
    db = await asyncpg.connect(url)
    try:
        counts = await db.fetch(TALLY)
        left = await db.fetch(LEFT)
        behind = await db.fetch(
            "SELECT task.id, cursor, task.last FROM line JOIN task ON task.key = line.task "
            "WHERE behind OR cursor < task.last"
        )
    finally:
        await db.close()
    return [
        *(Breach("tally", f"state {state}: {real}, told {told}") for state, real, told in counts),
        *(Breach("left", str(tuple(row))) for row in left),
        *(Breach("undelivered", f"{task} after {place} of {last}") for task, place, last in behind),
    ]


def often(done: Sequence[Effect], retries: int) -> Iterator[Breach]:
    """Turns that ran more often than they may."""
    for turn, times in Counter(effect.turn for effect in done).items():
        if times > retries + 1:
            yield Breach("too-often", f"{turn}: {times} runs")


def pushed(
    found: Mapping[str, Log],
    tasks: Collection[str],
    webhook: str,
    posts: Iterable[tuple[str, bool]],
) -> Iterator[Breach]:
    """Whether a webhook that followed these tasks from their first message was told everything in
    order. Posts are told by their ids, and whether they were taken."""
    places = {
        delivery(task, webhook, number): (task, number)
        for task in found  # also those whose sender never heard of them
        for number in found[task].shown
    }
    taken: dict[str, list[int]] = defaultdict(list)
    for id, well in posts:
        task, number = places[id]
        before = [place for place in found[task].shown if place < number]
        if not set(before) <= set(taken[task]):
            yield Breach("push-order", f"{task}:{number} after {taken[task]}")
        if well:
            taken[task].append(number)
    for task in tasks:
        if missing := set(found[task].shown) - set(taken[task]):
            yield Breach("undelivered", f"{task}: {sorted(missing)}")


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which this part of them is."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)] if values else 0.0
