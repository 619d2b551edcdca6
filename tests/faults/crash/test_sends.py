"""kill -9 of a server whose durable handler has sent something to another agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.crash.durable_history import History
from tests.faults.crash.sending_agent import REMOTE, SENDS
from tests.harness.remote_agents import PIECES, RemoteAgent, WithoutReceipts
from tests.harness.scale import SOAK
from tests.harness.services import Postgres

TEXTS = [
    "".join(PIECES),
    "did first gate, did inside gate, one two three four, yes, did third gate",
]
SAID = ["Remote: began pieces", *(f"Remote: wrote {piece}" for piece in PIECES), "Shall I buy?"]
KNOWN = {
    "first gate": ("after sent", "before step:dragoman.send", "after step:dragoman.send"),
    "inside gate": ("after sent", "before step:inside", "after step:inside"),
    "pieces": ("after chunk:two", "after chunk:one two", "before step:dragoman.relay"),
    "third gate": ("after sent", "before status:completed:"),
}
"""Where the process is killed while the other agent works on this, or when it has done it."""
HOLDING = ("after sent", "after chunk:two", "after chunk:one two")
"""The other agent works on until the process is dead."""
FEW = {"first gate": ("after sent", "after step:dragoman.send"), "inside gate": ("after sent",)}
"""For PostgreSQL, where the lease of a dead worker has to run out."""


class Sending(History):
    """The history of a task that has another agent work for it."""

    def __init__(self, folder: Path, url: str, remote: str, **options: Any) -> None:
        super().__init__(folder, url, **options)
        self.agent = "tests.faults.crash.sending_agent:agent"
        self._environment[REMOTE] = remote

    def command(self) -> list[str]:
        """With a longer lease: a turn may wait for the other agent."""
        return [*super().command(), "--set", "lease=1.5"]


class Counting(WithoutReceipts):
    """Another agent that writes down what it does."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def run(self, text: str) -> None:
        """Note it in the file."""
        with self._file.open("a") as file:
            file.write(f"{text}\n")


class Careful(Counting):
    """One that keeps receipts."""

    keyless = False


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database, or empty for a file."""
    if request.param == "sqlite":
        return ""
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.create()


def runs(folder: Path) -> Counter[str]:
    """How often the other agent was run, by the text."""
    return Counter((folder / "runs").read_text().splitlines())


@asynccontextmanager
async def remote(agent: RemoteAgent) -> AsyncIterator[RemoteAgent]:
    """Serve it; its gate is open."""
    agent.gate.set()
    async with agent.serving():
        yield agent


def check(task: Any) -> None:
    """Nothing is doubled, nothing is lost."""
    assert task["status"]["state"] == "TASK_STATE_COMPLETED", task
    texts = ["".join(part["text"] for part in found["parts"]) for found in task["artifacts"]]
    assert sorted(texts) == sorted([*TEXTS, str(len(SENDS))])
    messages = [found for found in task["history"] if found["role"] == "ROLE_AGENT"]
    assert [found["parts"][0]["text"] for found in messages] == SAID
    assert len({found["messageId"] for found in messages}) == len(messages)


@pytest.mark.soak
async def test_a_send_whose_task_is_known_is_done_once(tmp_path: Path, url: str) -> None:
    async with (
        remote(Counting(tmp_path / "runs")) as other,
        Sending(tmp_path, url, other.url) as history,
    ):
        for text, points in (FEW if url else KNOWN).items():
            for point in points:
                other.close_gate() if point in HOLDING else other.gate.set()
                found = await history.life(point)
                assert found is None, f"no life ended {point} of {text}: {found}"
        other.gate.set()
        task = await history.life()
    check(task)
    assert runs(tmp_path) == dict.fromkeys(SENDS, 1)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Counting, Careful])
async def test_a_send_whose_task_is_not_known_is_repeated_once(
    tmp_path: Path, kind: type[Counting]
) -> None:
    async with (
        remote(kind(tmp_path / "runs")) as other,
        Sending(tmp_path, "", other.url) as history,
    ):
        for _ in SENDS:
            assert await history.life("before sent") is None
            assert await history.life("after sent") is None
        task = await history.life()
    check(task)
    most = 1 if kind is Careful else 2
    assert runs(tmp_path) == dict.fromkeys(SENDS, most)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="takes minutes")
@pytest.mark.parametrize("kind", [Counting, Careful])
async def test_killed_once_at_every_point(tmp_path: Path, kind: type[Counting]) -> None:
    for point in count(1):
        folder = tmp_path / str(point)
        folder.mkdir()
        async with (
            remote(kind(folder / "runs")) as other,
            Sending(folder, "", other.url) as history,
        ):
            killed = await history.life(str(point)) is None
            task = await history.life() if killed else None
        if not killed:
            break
        check(task)
        assert set(runs(folder)) == set(SENDS)
        assert max(runs(folder).values()) <= (1 if kind is Careful else 2), point
        assert runs(folder).total() <= len(SENDS) + 1, point
    assert point > 20


@pytest.mark.soak
async def test_a_task_that_is_not_logged_is_found_out(tmp_path: Path) -> None:
    """The first test would fail."""
    other = Counting(tmp_path / "runs")
    async with remote(other), Sending(tmp_path, "", other.url, broken="sent") as history:
        other.close_gate()
        assert await history.life("after sent") is None
        other.gate.set()
        await history.life()
    assert runs(tmp_path)["first gate"] == 2
