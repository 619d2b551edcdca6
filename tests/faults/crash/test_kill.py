"""kill -9: a served process dies at random moments under load, and every promise is kept."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.faults.crash import checker
from tests.faults.crash.load import Load, ended
from tests.faults.crash.server_process import Served
from tests.harness.scale import SCALE, SOAK, say, seeded

SENDS, STREAMS, KILLS = (10_000, 200, 60) if SOAK else (300, 20, 4)
ROUNDS = max(1, int(8 * SCALE)) if SOAK else 1
WITHIN = 600 if SOAK else 45


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_killed_again_and_again(tmp_path: Path, number: int) -> None:
    chance = seeded("kill")
    load = Load(chance, sends=SENDS, streams=STREAMS, abreast=40 if SOAK else 20)
    began = time.monotonic()
    async with Served(tmp_path, "poll=0.1", seed=chance.randrange(99)) as served:
        await served.start()

        async def kills() -> None:
            for number in range(KILLS):
                await load.reached(int(len(load.all) * (number + chance.random()) / (KILLS + 1)))
                await asyncio.sleep(chance.uniform(0, 0.02))
                await served.kill()
                await served.start()
                if number % 10 == 9:
                    took = time.monotonic() - began
                    say(f"{number + 1} kills, {load.answered} answered, {took:.0f} s")

        killing = asyncio.create_task(kills())
        done = await load.run(served, WITHIN)
        if done:
            await killing
        killing.cancel()
        settled = await served.settled(15)
        assert await served.kill(signal.SIGINT) == 0, served.log
    found, breaches = checker.logs(served.file)
    effects = checker.effects(served.effects)
    breaches += checker.check(load.all, found, effects)
    again = sum(effect.attempt > 1 for effect in effects)
    resumed = sum(len(send.sights) - 1 for send in load.streams)
    say(
        f"{len(load.all)} sent, {KILLS} kills, {again} runs again, {resumed} streams resumed, "
        f"{ended(load.all)} told their end, {time.monotonic() - began:.1f} s"
    )
    assert not breaches, breaches[:20]
    assert done and settled
    assert again and resumed  # or the kills hit nothing
    assert "Traceback" not in served.log, served.log
