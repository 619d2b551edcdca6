"""The model of how far it goes, played through, against what can be computed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

capacity = pytest.importorskip("benchmarks.capacity", reason="a checkout has it, the sdist not")
flow = pytest.importorskip("benchmarks.flow")
simulate = pytest.importorskip("benchmarks.simulate")

PAGE = Path(__file__).resolve().parents[2] / "docs/deploy.md"
MEASURED, ASSUMED = simulate.MEASURED, capacity.Assumed()


def limit(costs: Any, assumed: Any, processes: int, name: str) -> float:
    """The rate at which a resource of one database and its processes is used up."""
    found = capacity.limits(costs, assumed, processes)
    (rate,) = (limit.rate for limit in found if limit.name == name)
    return float(rate)


def play(costs: Any, assumed: Any, processes: int, rate: float, tasks: int, seed: int = 1) -> Any:
    """A rate, played."""
    return flow.Set(costs, assumed, processes, rate, tasks, seed).run()


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_server_makes_wait_as_long_as_the_formula_says(load: float) -> None:
    chance, now, waited, number = random.Random(7), 0.0, 0.0, 60_000
    server = flow.Servers(1, 0, number / load)
    for _ in range(number):
        now += chance.expovariate(load)
        waited += server.take(now, 1.0)[0] - now
    assert waited / number == pytest.approx(load / (2 * (1 - load)), rel=0.08)
    assert server.busy * load / number == pytest.approx(load, rel=0.02)


def test_alone_a_task_takes_what_its_steps_take() -> None:
    point = play(MEASURED, ASSUMED, 1, 1.0, 100)
    row = (MEASURED.process + ASSUMED.serving + MEASURED.database) / 3
    row += ASSUMED.network + ASSUMED.flush + MEASURED.wal / 3 / ASSUMED.bandwidth
    assert point.here[0] == pytest.approx(3 * row)
    rung = ASSUMED.network + ASSUMED.notify + ASSUMED.wake
    # the ring of the row before is younger than a batch
    assert 3 * row + rung <= point.elsewhere[0] <= 3 * row + rung + ASSUMED.batch


FREE = replace(ASSUMED, serving=0)
WIDE = replace(ASSUMED, bandwidth=200e9, flush=1e-6)


@pytest.mark.parametrize(
    ("name", "assumed", "processes", "tasks"),
    [
        ("CPU of the processes", ASSUMED, 1, 12_000),
        ("the writer lane of each process", FREE, 1, 16_000),
        ("CPU of PostgreSQL", replace(WIDE, cores=1), 8, 12_000),
        ("write-ahead log", replace(ASSUMED, bandwidth=20e6), 8, 12_000),
    ],
)
def test_beyond_a_limit_no_more_is_written_than_it_says(
    name: str, assumed: Any, processes: int, tasks: int
) -> None:
    costs = MEASURED
    if assumed is FREE:  # nothing but what a lane needs of its core
        costs = replace(MEASURED, process=3 * MEASURED.each - MEASURED.database)
    most = limit(costs, assumed, processes, name)
    below = play(costs, assumed, processes, 0.8 * most, tasks // 2)
    assert below.done == pytest.approx(0.8 * most, rel=0.06)
    assert not below.queue
    beyond = play(costs, assumed, processes, 1.2 * most, tasks)
    assert beyond.written == pytest.approx(most, rel=0.1)
    assert beyond.busiest == name
    assert beyond.queue
    assert beyond.here[0] > 2 * below.here[1]


def test_a_faster_disk_moves_the_bottleneck_from_the_log_to_the_processes() -> None:
    slow = simulate.simulate(MEASURED, ASSUMED, 16, 1, 0.8, tasks=8_000)
    fast = replace(ASSUMED, bandwidth=10 * ASSUMED.bandwidth)
    quick = simulate.simulate(MEASURED, fast, 16, 1, 0.8, tasks=8_000)
    assert (slow.busiest, quick.busiest) == ("write-ahead log", "CPU of the processes")
    assert quick.done > 1.1 * slow.done


def test_notify_delays_those_who_listen_and_nobody_who_writes() -> None:
    few, many = (play(MEASURED, ASSUMED, number, 10_000, 6_000) for number in (32, 256))
    assert many.lock > 0.95 > few.lock
    assert many.elsewhere[0] - many.here[0] > 2 * (few.elsewhere[0] - few.here[0])
    assert many.here[0] < 1.2 * few.here[0]


def test_a_seed_gives_the_same_again() -> None:
    first, again, other = (play(MEASURED, ASSUMED, 4, 7_000, 2_000, seed) for seed in (3, 3, 4))
    assert first == again
    assert first.here != other.here


def test_the_command_prints_a_line_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--tasks", "200", "--cores", "8", "--costs", "wal=1000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    sizes = [line.split(" | ")[:2] for line in lines if line.startswith("| ")]
    assert sizes.count(["| 1000", "32"]) == 1 + len(simulate.LOADS)
    with pytest.raises(SystemExit):
        simulate.main(["--costs", "nothing=1"])
    assert "is none of trip, write" in capsys.readouterr().err


def test_the_page_shows_the_table_of_these_costs() -> None:
    assert capacity.table(list(capacity.rows(MEASURED, ASSUMED))) in PAGE.read_text()
