"""Power loss: what a disk was not told to keep is gone, and nothing that was promised with it."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import get_args

import pytest

from dragoman.model.caller import Scope
from dragoman.model.types import TaskState
from dragoman.stores.store import Query
from tests.faults.crash import checker
from tests.faults.crash.in_process import Inside
from tests.faults.crash.load import Load
from tests.faults.crash.lossy_disk import Keep
from tests.harness.scale import SCALE, SOAK, say, seeded

ROUNDS = max(1, int(800 * SCALE)) if SOAK else 10
CUTS = 4


class Outages:
    """A load over some power cuts; breaches are looked for after each of them."""

    def __init__(
        self, folder: Path, chance: random.Random, load: Load, *, keep: Keep | None = None
    ) -> None:
        self.inside = Inside(folder, chance)
        self.chance = chance
        self.load = load
        self.keep = keep
        self.breaches: list[checker.Breach] = []
        self._switching = asyncio.Lock()
        """Held from a cut to the next start."""

    async def run(self, cuts: int, within: float) -> list[checker.Breach]:
        """All breaches; the first ones end it."""
        await self.inside.start()
        loading = asyncio.create_task(self.load.run(self.inside, within))
        cutting = asyncio.create_task(self._cut(cuts))
        try:
            await asyncio.wait((loading, cutting), return_when=asyncio.FIRST_COMPLETED)
            if not self.breaches and await loading:
                await cutting
        finally:
            async with self._switching:
                for task in (loading, cutting):
                    task.cancel()
            await asyncio.wait((loading, cutting))
        if not self.breaches:
            await self._quiet()
            await self.inside.stop()
            self._look(ended=True)
        return self.breaches

    async def _cut(self, cuts: int) -> None:
        for number in range(cuts):
            share = (number + self.chance.random()) / (cuts + 1)
            if self.chance.random() < 0.5:  # in the middle of a commit
                self.inside.snap(self.chance.randint(1, 60))
                share = 1
            waits = (self.load.reached(int(len(self.load.all) * share)), self.inside.dark())
            tasks = list(map(asyncio.ensure_future, waits))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
            async with self._switching:
                await self.inside.cut(self.keep or self.chance.choice(get_args(Keep)))
                self._look(ended=False)
                if self.breaches:
                    return
                await self.inside.start()

    def _look(self, *, ended: bool) -> None:
        found, damage = checker.logs(self.inside.file)
        done = checker.effects(self.inside.effects)
        self.breaches += damage or checker.check(self.load.all, found, done, ended=ended)

    async def _quiet(self) -> None:
        """Until every task has its end, or should have."""
        scope = Scope(self.inside.agent.key)
        store = self.inside.app.store
        with suppress(TimeoutError):
            async with asyncio.timeout(3):
                for state in (TaskState.SUBMITTED, TaskState.WORKING):
                    while (await store.list(scope, Query(state=state, size=1))).total:
                        await asyncio.sleep(0.02)


@pytest.mark.soak
async def test_the_power_is_cut_again_and_again(tmp_path: Path) -> None:
    chance = seeded("power")
    began = time.monotonic()
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        load = Load(chance, sends=120, streams=6, chunks=20, pause=0.004)
        breaches = await Outages(folder, chance, load).run(CUTS, 20)
        assert not breaches, breaches[:20]
        shutil.rmtree(folder)
        if number % 50 == 49 or number == ROUNDS - 1:
            say(f"{number + 1} rounds, {CUTS} cuts each, {time.monotonic() - began:.1f} s")
