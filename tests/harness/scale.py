"""The scale of long tests: small in `make test`, smaller in `make fast`, full in `make soak`."""

from __future__ import annotations

import os
import random
import sys

SOAK = bool(os.environ.get("CRASH_SOAK"))
SCALE = float(os.environ.get("CRASH_SOAK") or 1)
"""The part of the long form; 1 is all of it."""
FAST = bool(os.environ.get("TESTS_FAST"))


def examples(usual: int) -> int:
    """How many examples a property is tried with."""
    if SOAK:
        return max(usual, int(usual * 10 * SCALE))
    return max(5, usual // 5) if FAST else usual


def seeded(what: str) -> random.Random:
    """A chance whose seed is told; `CRASH_SEED` brings one back."""
    seed = int(os.environ.get("CRASH_SEED") or random.SystemRandom().randrange(1 << 32))
    say(f"{what}: CRASH_SEED={seed}")
    return random.Random(seed)


def say(text: str) -> None:
    """Tell how it goes; pytest shows it when the test fails, or with -s."""
    sys.stdout.write(f"  {text}\n")
    sys.stdout.flush()
