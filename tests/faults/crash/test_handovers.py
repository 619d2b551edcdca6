"""kill -9 of a server whose handler has handed its task over to somebody outside."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.crash.checker import ENDS, Breach, names
from tests.faults.crash.durable_history import History, kills, points, private
from tests.faults.crash.handing_agent import GIVEN, HANDED, KIND, TIMEOUT
from tests.faults.crash.load import Down
from tests.harness.scale import SCALE, SOAK, say, seeded
from tests.harness.services import Postgres

AGENT = "office"
KINDS = ("durable", "plain")
LATE, OLD, CANCEL = "late", "old", "cancel"


def status(state: str, said: str) -> Any:
    """A status as somebody outside writes it."""
    message = {"parts": [{"text": said}]}
    return {"statusUpdate": {"status": {"state": f"TASK_STATE_{state}", "message": message}}}


def chunk(id: str, text: str, *, append: bool = True) -> Any:
    """A part of an artifact."""
    artifact = {"artifactId": id, "parts": [{"text": text}]}
    return {"artifactUpdate": {"append": append, "artifact": artifact}}


WRITES = {
    "begun": status("WORKING", "Begun"),
    "one": chunk("report", "one ", append=False),
    "left": chunk("report", "and "),
    "right": chunk("report", "and "),
    "batch": {"events": [chunk("report", "two"), status("WORKING", "Halfway")]},
    "ask": status("INPUT_REQUIRED", "Which?"),
    "four": chunk("more", "four", append=False),
    "complete": status("COMPLETED", "Done"),
}
"""What is written from outside, by its Idempotency-Key."""
STRAY = status("WORKING", "Stray")
WHOLE = (
    *("send first", "write begun", "write one", "write left right", "write batch", "write ask"),
    *("send second", "stray old", "write four", "send last", "write complete", "stray late"),
)
"""What client and writer do. A question ends the first handover, and the answer leads to another
one; `last` waits until the writer has completed, and is heard by the handler then."""
TEXTS = ["passing first on", "one and and two", "passing second on", "four", "heard last"]
SAID = ["Begun", "Halfway", "Which?", "Done"]

CHAIN = (
    *("after accept", "after claim", "before handed_over", "after handed_over", "after given"),
    *("before suspend", "after suspend", "before written:begun", "after written:begun"),
    *("before written:one", "after written:one", "after written:left", "after written:right"),
    *("before written:batch", "after written:batch", "before written:ask", "after written:ask"),
    *("after accept", "after handed_over", "after suspend", "after written:four", "after accept"),
    *("before written:complete", "after written:complete", "after claim"),
    "before status:completed:",
)
"""In the order of the history, so that one task lives through all of them."""
BESIDE = "after written:right"
"""It comes at the same time as `left`, and may be in the commit after which the process was killed:
then it is not written again."""
SOME = ("after given", "after suspend", "before written:one", "after written:left")
SOME += ("after written:ask", "after written:complete")
FEW = ("after given", "after written:left", "after written:complete")
"""For PostgreSQL."""


class Handed(History):
    """The history of a task that is handed over, and a writer that does not give up: a write that
    got no response is repeated with the same key."""

    def __init__(
        self,
        folder: Path,
        url: str = "",
        kind: str = "plain",
        *,
        acts: tuple[str, ...] = WHOLE,
        twice: bool = True,
        timeout: float = 600.0,
        **options: Any,
    ) -> None:
        super().__init__(folder, url, **options)
        self.agent = "tests.faults.crash.handing_agent:agent"
        self._environment |= {KIND: kind, TIMEOUT: str(timeout)}
        self._acts = list(acts)
        self._twice = twice
        """Each write comes twice at the same time, if there are two handovers with both."""
        self._turn = ""
        """The message whose turn was handed over last."""
        self.answers: dict[str, set[int]] = {}
        """The HTTP statuses that the writes have got, by their keys."""

    def command(self) -> list[str]:
        """With an address for writers."""
        return [*super().command(), "--set", f"url={self.url}", "--set", "cancel_grace=0.2"]

    async def _ask(self) -> Any:
        """Do what is next, as far as it can be done now; the task once it has ended."""
        while self._acts:
            verb, *words = self._acts[0].split()
            await getattr(self, f"_{verb}")(*words)
            self._acts.pop(0)
        task = await self.get(f"/tasks/{self.task}")
        return task if task["status"]["state"] in ENDS else None

    async def _send(self, text: str) -> None:
        more = {"taskId": self.task} if self.task else {}
        found = await self._say(text, {"returnImmediately": True}, **more)
        self.task = found["task"]["id"]
        self._turn = text if text in GIVEN else self._turn

    async def _write(self, *keys: str) -> None:
        """Write these at the same time."""
        given = self._given(self._turn)
        both = (given[0], given[-1]) if self._twice else (given[-1],)
        posts = [self._post(handover, key, WRITES[key]) for key in keys for handover in both]
        for answer in await asyncio.gather(*posts, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _stray(self, key: str) -> None:
        """Write to a handover that has ended: the one before the question, or the last one."""
        if key == LATE:
            while (await self.get(f"/tasks/{self.task}"))["status"]["state"] not in ENDS:
                raise Down  # look again
        else:
            self._given(self._turn)
        (*_, handover) = self._given(GIVEN[0] if key == OLD else self._turn)
        await self._post(handover, key, STRAY)
        for known in self._writes() if key == LATE else ():  # what was done is not done again
            await self._post(handover, known, WRITES[known])

    async def _race(self) -> None:
        """Write and cancel at the same time."""
        (*_, handover) = self._given(self._turn)
        cancel = self.post(f"/tasks/{self.task}:cancel", {}, **{"Idempotency-Key": CANCEL})
        posts = (self._post(handover, LATE, STRAY), cancel)
        for answer in await asyncio.gather(*posts, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _late(self) -> None:
        """Write before the cancel."""
        await self._post(self._given(self._turn)[-1], LATE, STRAY)

    async def written(self, key: str) -> bool:
        """Whether a write is in the log."""
        return bool((await private(self.store, AGENT, self.task))[f"written {key}"])

    def _writes(self) -> set[str]:
        return self.answers.keys() & WRITES.keys()

    def _given(self, turn: str) -> list[str]:
        """The handovers of a turn; Down if there is none yet."""
        file = self.folder / HANDED
        lines = [line.split() for line in file.read_text().splitlines()]
        if found := [handover for text, handover in lines if text == turn]:
            return found
        raise Down

    async def _post(self, handover: str, key: str, body: Any) -> None:
        """Write once; Down if it has to be repeated."""
        url, _, secret = handover.partition("#")
        headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": key}
        path = url.removeprefix(self.url)
        code, _, _ = await self.post(path, body, **headers)
        if code == 503:
            raise Down
        self.answers.setdefault(key, set()).add(code)


async def check(history: Handed, task: Any) -> list[Breach]:
    """Every promise that was broken in a whole history."""
    breaches = [*_output(task), *await _written(history, task)]
    for key, codes in history.answers.items():
        right = 200 if key in WRITES else 409
        if codes != {right}:
            breaches.append(Breach("answer", f"{key} was answered {codes}, not {right}"))
    return breaches


def _output(task: Any) -> list[Breach]:
    if task is None or task["status"]["state"] != "TASK_STATE_COMPLETED":
        return [Breach("ended", str(task))]
    breaches = []
    texts = ["".join(part["text"] for part in found["parts"]) for found in task["artifacts"]]
    if texts != TEXTS:
        breaches.append(Breach("text", str(texts)))
    if said(task) != SAID:
        breaches.append(Breach("said", str(said(task))))
    return breaches


async def _written(history: Handed, task: Any) -> list[Breach]:
    """Each write that was answered is in the log once."""
    found = await private(history.store, AGENT, task["id"])
    times = {key: found[f"written {key}"] for key in WRITES}
    return [Breach("once", f"{key} {n} times") for key, n in times.items() if n != 1]


def said(task: Any) -> list[str]:
    """What was said to the client."""
    messages = [found for found in task["history"] if found["role"] == "ROLE_AGENT"]
    last = task["status"].get("message")
    return [found["parts"][0]["text"] for found in (*messages, *([last] if last else ()))]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database, or empty for a file."""
    if request.param == "sqlite":
        return ""
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.create()


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS if SOAK else KINDS[:1])
async def test_killed_at_one_point_after_the_other(tmp_path: Path, url: str, kind: str) -> None:
    chain = CHAIN if SOAK else FEW if url else SOME
    skipped = 0
    async with Handed(tmp_path, url, kind) as history:
        for point in chain:
            if point == BESIDE and await history.written("right"):
                skipped += 1
                continue
            assert await history.life(point) is None, f"no life ended {point}"
        task = await history.life()
    assert not await check(history, task)
    assert len(kills(tmp_path)) == len(chain) - skipped


BEGIN = ("send first", "write begun")
ENDINGS = {
    "before cancel": ("race", "stray late"),
    "after cancel": ("race", "stray late"),
    "before written:late": ("late", "race", "stray late"),
    "after written:late": ("late", "race", "stray late"),
    "before revoke": ("stray late",),
    "after revoke": ("stray late",),
}
"""Where the process is killed while the task ends for the writer, and what is done then: by a
cancel, at the same time as a write or after it, and by its timeout."""
FEW_ENDINGS = ("after cancel", "after written:late", "after revoke")


@pytest.mark.soak
async def test_a_write_after_the_end_is_refused(
    tmp_path: Path, url: str, postgres: Postgres
) -> None:
    some = list(ENDINGS) if SOAK else FEW_ENDINGS[:1] if url else FEW_ENDINGS
    for number, point in enumerate(some):
        acts = ENDINGS[point]
        folder = tmp_path / str(number)
        folder.mkdir()
        canceled = "race" in acts
        timeout, store = 600.0 if canceled else 0.5, postgres.create() if url else ""
        async with Handed(folder, store, acts=BEGIN + acts, timeout=timeout) as history:
            assert await history.life(point) is None, f"no life ended {point}"
            task = await history.life()
        end = "TASK_STATE_CANCELED" if canceled else "TASK_STATE_FAILED"
        assert task["status"]["state"] == end, (point, task)
        assert history.answers["begun"] == {200}
        # it was done before the end, and is known; or it came later, and was refused
        done = said(task).count("Stray")
        assert history.answers[LATE] == {200 if done else 409}, (point, task, history.answers)
        assert done <= canceled, (point, task)
        assert done or "late" not in acts, (point, task)
        found = await private(history.store, AGENT, task["id"])
        assert (found["written begun"], found["written late"]) == (1, done), point


BREACHES = [
    ("written", "after written:left", {"twice": False}, {"text", "once"}),
    ("epochs", "after given", {}, {"text", "once"}),
    ("handover_turns", "after written:ask", {}, {"answer"}),
    ("handover_ends", "after written:complete", {}, {"answer"}),
]


@pytest.mark.soak
async def test_a_broken_promise_is_found(tmp_path: Path) -> None:
    for switch, death, options, expected in BREACHES:
        folder = tmp_path / switch
        folder.mkdir()
        async with Handed(folder, broken=switch, **options) as history:
            assert await history.life(death) is None
            task = await history.life()
        found = await check(history, task)
        assert expected & names(found), (switch, found)


async def _lives(folder: Path, url: str, kind: str, deaths: list[str]) -> int:
    """Live through these deaths, as far as they come; how many did."""
    folder.mkdir()
    task = None
    async with Handed(folder, url, kind) as history:
        for point in [*deaths, ""]:
            task = await history.life(point)
            if task is not None:
                break
    found = await check(history, task)
    assert not found, (deaths, kills(folder), found)
    return len(kills(folder))


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
@pytest.mark.parametrize("kind", KINDS)
async def test_killed_once_at_every_point(
    tmp_path: Path, url: str, kind: str, postgres: Postgres
) -> None:
    total = 0
    for point in count(1):
        store = postgres.create() if url else ""
        folder = tmp_path / str(point)
        killed = await _lives(folder, store, kind, [str(point)])
        total += killed
        if not killed:
            break
    say(f"{total} kills at {Counter(line.split()[0] for line in points(folder))}")
    assert total > 30


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
@pytest.mark.parametrize("kind", KINDS)
async def test_killed_at_random_points(
    tmp_path: Path, url: str, kind: str, postgres: Postgres
) -> None:
    chance = seeded("handovers")
    total = 0
    for number in range(max(1, int(30 * SCALE))):
        deaths = [str(chance.randint(1, 20)) for _ in range(chance.randint(2, 8))]
        store = postgres.create() if url else ""
        total += await _lives(tmp_path / str(number), store, kind, deaths)
    say(f"{total} kills")
    assert total
