"""A run: cases made by chance from a seed that is told, as long as there is time."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from pathlib import Path

from tests.security.fuzz.cases import CARD, EVENTS, GRPC, HOOK, HTTP, Case, changed, seeds
from tests.security.fuzz.targets import CANARY, FuzzTargets, Wrong

CORPUS = Path(__file__).parent / "corpus.jsonl"
BATCH = 64
GROWTH = 400 * 1024 * 1024
"""The most that a run may take more at its end than after its beginning, in bytes."""


def say(text: str) -> None:
    """Tell how it goes."""
    sys.stdout.write(f"  {text}\n")
    sys.stdout.flush()


def kept() -> list[Case]:
    """What is interesting, and all that has ever failed."""
    return [Case.read(line) for line in CORPUS.read_text().splitlines() if line]


class Failure(AssertionError):
    """A case that went wrong, in a form that can be kept."""

    def __init__(self, case: Case, seed: int, error: BaseException) -> None:
        what = f"{type(error).__name__}: {error}"
        super().__init__(
            f"{what}\nFUZZ_SEED={seed}; to keep it, add this line to {CORPUS.name}:\n"
            + Case(case.kind, case.body, case.verb, case.target, case.headers, what[:200]).line()
        )


async def readable(targets: FuzzTargets) -> list[Case]:
    """Cards in every version, a pushed event and a stream: what our own clients read."""
    found = []
    target = targets.targets[0]
    for version in (b"1.0", b"0.3", b"0.2", b""):
        headers = ((b"host", b"h"), (b"a2a-version", version))
        case = Case(HTTP, b"", "GET", "/.well-known/agent-card.json", headers)
        found.append(Case(CARD, (await target.ask(case)).body))
    document = json.loads(found[0].body)
    document["signatures"] = [
        {"protected": "eyJhbGciOiJFUzI1NiIsImtpZCI6ImsifQ", "signature": "AA"}
    ]
    found.append(Case(CARD, json.dumps(document).encode()))
    status = {"state": "TASK_STATE_WORKING", "timestamp": "2026-01-31T12:00:00Z"}
    update = {"taskId": "t", "contextId": "c", "status": status}
    headers = ((b"webhook-id", b"m"), (b"webhook-timestamp", b"1"))
    for document in (
        {"statusUpdate": update},
        {"task": {"id": "t", "contextId": "c", "status": status}},
        {"kind": "status-update", "final": False, **update, "status": {"state": "working"}},
        {"id": "t", "status": {"state": "working"}, "final": True},
    ):
        found.append(Case(HOOK, json.dumps(document).encode(), headers=headers[:1]))
    stream = b'id: t:1\nevent: x\ndata: {"task":{}}\n\n: alive\r\n\r\ndata: a\ndata:b\n\n'
    found.append(Case(EVENTS, stream))
    return found


async def fuzz(targets: FuzzTargets, seconds: float, seed: int, *, grpc: bool = True) -> int:
    """Attack for so long; how many cases that were. Failure has the one that did it."""
    dice = random.Random(seed)
    say(f"fuzz: FUZZ_SEED={seed}, {seconds:g} s")
    pool = [case for case in (*seeds(), *await readable(targets)) if grpc or case.kind != GRPC]
    pool += [case for case in kept() if grpc or case.kind != GRPC]
    begun = told = time.monotonic()
    done, before = 0, 0
    while (now := time.monotonic()) < begun + seconds:
        batch = []
        for _ in range(BATCH):
            case = changed(dice, dice.choice(pool))
            if dice.random() < 0.2:
                case = changed(dice, case)
            if CANARY.encode() not in case.body:
                batch.append(case)
        await sent(targets, batch, seed, done)
        done += len(batch)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        before = before if done > 2000 else used
        if used > before + GROWTH:
            raise Wrong(f"it takes {(used - before) >> 20} MB more than at its beginning")
        if now - told > 10:
            told = now
            say(f"fuzz: {done} cases, {now - begun:.0f} of {seconds:g} s, {used >> 20} MB")
    say(f"fuzz: {done} cases in {time.monotonic() - begun:.1f} s")
    return done


async def sent(targets: FuzzTargets, batch: list[Case], seed: int, number: int) -> None:
    """Send a batch at once, and look whether all is well; else find out which it was."""
    results = await asyncio.gather(
        *(targets.send(case, number + place) for place, case in enumerate(batch)),
        return_exceptions=True,
    )
    for case, result in zip(batch, results, strict=True):
        if isinstance(result, BaseException):
            raise Failure(case, seed, result) from result
    try:
        await targets.look()
    except Wrong as wrong:
        # one after the other, to see which of them it was
        for place, case in enumerate(batch):
            try:
                await targets.send(case, number + place)
                await targets.look()
            except Wrong as again:
                raise Failure(case, seed, again) from wrong
        raise


async def replayed(targets: FuzzTargets, cases: list[Case]) -> None:
    """Each of these by itself, against both applications."""
    for case in cases:
        for number in (0, 1):
            await sent(targets, [case], 0, number)
