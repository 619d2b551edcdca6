"""`python -m benchmarks`: measures, prints the tables and writes `benchmarks/out/latest.json`."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import signal
import sys
import traceback
from collections.abc import Callable

from benchmarks import measure, report
from benchmarks.bench import PEERS, STORES, Bench
from benchmarks.load import Broken

CASES = (
    *("send", "stream", "get", "list", "scale", "idle", "waiting", "start", "stall"),
    *("grpc", "grpc-stream", "older", "client", "engine", "auth", "bell", "cluster", "fanout"),
    *("steps", "plan", "executor", "registry"),
)


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round of each")
    parser.add_argument("--only", type=_some(CASES), default=CASES, metavar="CASE,...")
    parser.add_argument("--peers", type=_some(PEERS), default=PEERS, metavar="PEER,...")
    parser.add_argument(
        "--stores", type=_some(tuple(STORES)), default=tuple(STORES), metavar="STORE,..."
    )
    parser.add_argument("--rounds", type=int, help="5, or 1 when quick")
    parser.add_argument("--check", action="store_true", help="fail if a figure misses its target")
    chosen = parser.parse_args(given)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else 5)
    return chosen


def _some(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def some(text: str) -> tuple[str, ...]:
        asked = text.split(",")
        if unknown := set(asked) - set(known):
            raise argparse.ArgumentTypeError(f"{sorted(unknown)} is not among {list(known)}")
        return tuple(name for name in known if name in asked)

    return some


async def measured(bench: Bench, cases: tuple[str, ...]) -> None:
    """Run the cases one after the other."""
    task = asyncio.current_task()
    assert task is not None
    if sys.platform != "win32":
        # Leaving by way of cancellation lets every server be ended.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name in cases:
        module = name.replace("-", "_")
        await importlib.import_module(f"benchmarks.cases.{module}").run(bench)
        bench.progress("")


def run(bench: Bench, cases: tuple[str, ...]) -> None:
    """Run them on the cheapest event loop there is."""
    measure.pin_load()
    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(measured(bench, cases))


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main() -> int:
    """Measure, show and, when asked, check."""
    chosen = arguments()
    bench = Bench(chosen.quick, chosen.rounds, chosen.peers, chosen.stores)
    status = 0
    try:
        run(bench, chosen.only)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nended early: the figures are those of the cases before", file=sys.stderr)
        status = 130
    except Exception as failed:  # noqa: BLE001 (whatever it is, it costs no figure that was measured)
        if not isinstance(failed, Broken | measure.NotServing | OSError):
            traceback.print_exc()
        print(f"\nbenchmark failed: {type(failed).__name__}: {failed}", file=sys.stderr)
        status = 1
    report.write(bench)
    report.show(bench)
    if status:
        return status
    missed = report.misses(bench) if chosen.check else []
    for miss in missed:
        print(f"missed: {miss}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
