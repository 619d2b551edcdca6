"""The scale of long tests: small in `make test`, smaller in `make fast`, full in `make soak`."""

from __future__ import annotations

import os
import random
import sys

SOAK = bool(os.environ.get("CRASH_SOAK"))
SCALE = float(os.environ.get("CRASH_SOAK") or 1)
"""The share of the full scale; 1 is all of it."""
FAST = bool(os.environ.get("TESTS_FAST"))


def examples(usual: int) -> int:
    """Return the number of examples of a property test: half of the usual one in `make test`."""
    if SOAK:
        return max(usual, int(usual * 10 * SCALE))
    return max(5, usual // (5 if FAST else 2))


def seeded(what: str) -> random.Random:
    """Create a random generator and print its seed; `CRASH_SEED` sets the seed."""
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    say(f"{what}: CRASH_SEED={seed}")
    return random.Random(seed)


def say(text: str) -> None:
    """Print progress; pytest shows it when the test fails, or with -s."""
    sys.stdout.write(f"  {text}\n")
    sys.stdout.flush()
