"""What the promises mean for a recorded history: every breach has a name.

`accepted-lost`     an acknowledged message is in no log
`answer-lost`       an answer that was given is not in the log
`shown-lost`        a stream has shown what is not in the log
`gap`               the entries of a log are not numbered 1, 2, 3, …
`order`             an event is not the one that the log has at its place, or said first and
                    logged later
`resume-gap`        a stream left something out
`resume-duplicate`  a stream showed something again
`duplicate-task`    one Idempotency-Key, two tasks
`ran-twice`         a turn ran again, and `attempt` did not say so
`stale-write`       an entry of a turn that had ended
`output`            a completed task has other chunks than one attempt's
`stuck`             a task without an end
`damaged`           SQLite finds fault with its file
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.model.events import RESUME
from dragoman.stores.sqlite.schema import BITS

RECEIVED, STATUS, ARTIFACT, REPLY = 1, 2, 3, 4
ENDS = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")


class Breach(NamedTuple):
    """A promise that was not kept."""

    name: str
    text: str


class Ack(NamedTuple):
    """What a send was answered."""

    task: str
    state: str


class Frame(NamedTuple):
    """One event of a stream."""

    number: int
    event: dict[str, Any]


@dataclass
class Sight:
    """What one connection of a stream has seen."""

    after: int | None
    """The place it named; None when it began without one."""
    frames: list[Frame] = field(default_factory=list)
    whole: bool = False
    """The server has ended it in order."""


@dataclass
class Send:
    """One message under one Idempotency-Key, which is its messageId as well."""

    key: str
    chunks: int
    pause: float
    blocking: bool = True
    acks: list[Ack] = field(default_factory=list)
    sights: list[Sight] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What the agent is told: its name, how much to say, how slowly."""
        return f"{self.key} {self.chunks} {self.pause}"


class Effect(NamedTuple):
    """What a handler has done in the world."""

    turn: str
    attempt: int
    key: str


@dataclass
class Log:
    """A log as it is in the file."""

    last: int
    numbers: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    @property
    def end(self) -> str:
        """The state it ended with, or empty."""
        return next((state for body in self.bodies if (state := _state(body)) in ENDS), "")

    @property
    def shown(self) -> dict[int, dict[str, Any]]:
        """What streams show of it."""
        rows = zip(self.numbers, self.kinds, self.bodies, strict=True)
        return {number: body for number, kind, body in rows if kind in (STATUS, ARTIFACT, REPLY)}


def effects(file: Path) -> list[Effect]:
    """The recorded side effects; a last line that was cut short never happened."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    fields = (line.split() for line in lines)
    return [Effect(turn, int(attempt), key) for turn, attempt, key in fields]


def logs(file: Path) -> tuple[dict[str, Log], list[Breach]]:
    """All logs of a file, read without the store's help; and what SQLite says of it."""
    with closing(sqlite3.connect(file)) as db:
        try:
            (health,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            health = str(error)
        if health != "ok":
            return {}, [Breach("damaged", health)]
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
        if "task" not in tables:
            return {}, []
        rows = db.execute("SELECT key, id, last FROM task")
        known = {key: (id, Log(last)) for key, id, last in rows}
        for place, turn, kind, body in db.execute(
            "SELECT place, turn, kind, body FROM entry ORDER BY place"
        ):
            _, log = known[place >> BITS]
            log.numbers.append(place & ((1 << BITS) - 1))
            log.turns.append(turn)
            log.kinds.append(kind)
            log.bodies.append(json.loads(body))
    return dict(known.values()), []


def check(
    sends: Sequence[Send], found: Mapping[str, Log], done: Sequence[Effect], *, ended: bool = True
) -> list[Breach]:
    """Every breach, none if all is well. `ended`: every task has had the time to end."""
    breaches = [*_numbers(found), *_written(found), *_effects(done)]
    if ended:
        breaches += [Breach("stuck", task) for task, log in found.items() if not log.end]
    homes = _homes(found)
    for send in sends:
        breaches += _acknowledged(send, found, homes)
        breaches += _output(send, found, homes)
        for sight in send.sights:
            breaches += _seen(send, sight, found, ended)
    return breaches


def names(breaches: Sequence[Breach]) -> set[str]:
    """The names alone."""
    return {breach.name for breach in breaches}


# ---- logs ----------------------------------------------------------------------------------


def _numbers(found: Mapping[str, Log]) -> Iterator[Breach]:
    for task, log in found.items():
        if log.numbers != list(range(1, log.last + 1)):
            yield Breach("gap", f"{task}: last {log.last}, entries {log.numbers[:99]}")


def _written(found: Mapping[str, Log]) -> Iterator[Breach]:
    """Nothing after the end, nothing of an earlier turn or attempt, chunks as they were said."""
    for task, log in found.items():
        over, turn, said = False, 0, (0, 0, -1)
        for number, kind, by, body in zip(
            log.numbers, log.kinds, log.turns, log.bodies, strict=True
        ):
            if over or (by and by < turn):
                yield Breach("stale-write", f"{task}:{number} by turn {by} after {turn}, {over=}")
            over = over or _state(body) in ENDS or kind == REPLY
            turn = max(turn, by)
            if kind == ARTIFACT:
                for attempt, index in _chunks(body):
                    if (by, attempt) < said[:2]:
                        yield Breach("stale-write", f"{task}:{number} by attempt {attempt}")
                    elif index != (said[2] + 1 if (by, attempt) == said[:2] else 0):
                        yield Breach("order", f"{task}:{number} has chunk {index} after {said[2]}")
                    said = max(said, (by, attempt, index))


def _effects(done: Sequence[Effect]) -> Iterator[Breach]:
    for (turn, attempt), times in Counter((e.turn, e.attempt) for e in done).items():
        if times > 1:
            yield Breach("ran-twice", f"{turn}: {times} runs are attempt {attempt}")
    turns: dict[str, set[str]] = defaultdict(set)
    for effect in done:
        turns[effect.key].add(effect.turn)
    for key, several in turns.items():
        if len(several) > 1:
            yield Breach("ran-twice", f"{key} ran as {sorted(several)}")


# ---- clients -------------------------------------------------------------------------------


def _homes(found: Mapping[str, Log]) -> dict[str, list[str]]:
    """Where each message is."""
    homes: dict[str, list[str]] = defaultdict(list)
    for task, log in found.items():
        for kind, body in zip(log.kinds, log.bodies, strict=True):
            if kind == RECEIVED:
                homes[body["message"]["messageId"]].append(task)
    return homes


def _acknowledged(
    send: Send, found: Mapping[str, Log], homes: Mapping[str, Sequence[str]]
) -> Iterator[Breach]:
    told = {ack.task for ack in send.acks}
    there = homes.get(send.key, ())
    if len(told) > 1 or len(there) > 1:
        yield Breach("duplicate-task", f"{send.key}: {sorted(told | set(there))}")
    for task in told - set(there):
        yield Breach("accepted-lost", f"{send.key}: task {task}")
    for task, state in send.acks:
        if state in ENDS and task in there and found[task].end != state:
            yield Breach("answer-lost", f"{send.key}: {state}, and now {found[task].end or '-'}")


def _output(
    send: Send, found: Mapping[str, Log], homes: Mapping[str, Sequence[str]]
) -> Iterator[Breach]:
    for task in homes.get(send.key, ()):
        if found[task].end != "TASK_STATE_COMPLETED":
            continue
        artifacts: dict[str, list[tuple[int, int]]] = {}
        for kind, body in zip(found[task].kinds, found[task].bodies, strict=True):
            if kind == ARTIFACT:
                update = body["artifactUpdate"]
                known = artifacts.setdefault(update["artifact"]["artifactId"], [])
                if not update.get("append"):
                    known.clear()
                known.extend(_chunks(body, send.key))
        chunks = [chunk for known in artifacts.values() for chunk in known]
        attempt = chunks[0][0] if chunks else 0
        if chunks != [(attempt, index) for index in range(send.chunks)]:
            yield Breach("output", f"{task} ({send.chunks} chunks): {chunks[:50]}")


def _seen(send: Send, sight: Sight, found: Mapping[str, Log], ended: bool) -> Iterator[Breach]:
    if not sight.frames:
        return
    task = send.acks[0].task
    if task not in found:
        return  # which is reported as accepted-lost
    log = found[task]
    frames, last = sight.frames, sight.after or 0
    if "task" in frames[0].event:
        place = _place(frames[0].event["task"])
        if sight.after is not None or place.get("reset"):
            yield Breach("resume-gap", f"{task} after {sight.after}: begins anew at {place}")
        last, frames = frames[0].number, frames[1:]
    elif sight.after is None:
        yield Breach("order", f"{task}: a stream begins with {frames[0].number}")
    shown = log.shown
    waiting = [number for number in shown if number > last]
    for number, event in frames:
        where = f"{task}:{number} (stream after {sight.after})"
        if number not in shown:
            yield Breach("shown-lost", where)
            continue
        if _bare(event) != shown[number]:
            yield Breach("order", f"{where} was {event}, is {shown[number]}")
        if number <= last:
            again = sight.after is not None and number <= sight.after
            yield Breach("resume-duplicate" if again else "order", f"{where} after {last}")
            continue
        if number != waiting[0]:
            yield Breach("resume-gap", f"{where} instead of {waiting[0]}")
        last = number
        waiting = [number for number in waiting if number > last]
    if sight.whole and ended and waiting:
        yield Breach("resume-gap", f"{task}: ended after {last}, left out {waiting}")


# ---- events --------------------------------------------------------------------------------


def _state(body: Mapping[str, Any]) -> str:
    return body.get("statusUpdate", {}).get("status", {}).get("state", "")


def _chunks(body: Mapping[str, Any], only: str = "") -> Iterator[tuple[int, int]]:
    """What the agent of these tests says: `key/attempt/index`; or only what it says for a key."""
    for part in body["artifactUpdate"]["artifact"]["parts"]:
        if part.get("text", "").count("/") == 2:
            key, attempt, index = part["text"].split("/")
            if only in ("", key):
                yield int(attempt), int(index)


def _place(event: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = event.get("metadata", {}).get(RESUME, {})
    return found


def _bare(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event without its place, as the log has it."""
    bare = {}
    for name, value in event.items():
        metadata = {k: v for k, v in value.get("metadata", {}).items() if k != RESUME}
        rest = {k: v for k, v in value.items() if k != "metadata"}
        bare[name] = rest | ({"metadata": metadata} if metadata else {})
    return bare
