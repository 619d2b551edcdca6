"""The server is killed between a tool's question and the client's answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import TaskState
from dragoman.client import Client
from tests.faults.crash.server_process import Served
from tests.products.mcp.desk import NEW, OLD, over_http


class Serving(Served):
    """`dragoman serve --mcp-server`, one life after the other."""

    mcp_servers: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """See `Served.command`."""
        return [
            *("serve", "--port", str(self.port), "--store", f"sqlite:///{self.file}"),
            *(word for url in self.mcp_servers for word in ("--mcp-server", url)),
        ]


async def test_a_question_survives_kill_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    async with over_http(NEW) as new, over_http(OLD) as old:
        served = Serving(tmp_path)
        # an agent for each: a name has no port
        served.mcp_servers = (new, old.replace("127.0.0.1", "localhost"))
        told = await lives(served)
    # what the server needs to go on was in the log
    assert told["A"] == (TaskState.COMPLETED, "2 seats on A")
    # the tool may be repeated: it was called again, and got the logged answer
    assert told["B"] == (TaskState.COMPLETED, "2 seats on B")
    # this one may not
    assert told["C"][0] is TaskState.FAILED
    assert "not marked as idempotent or read-only" in told["C"][1]
    notes = (tmp_path / "notes").read_text().splitlines()
    assert sorted(notes) == ["asked A", "asked B", "asked B", "asked C", "booked A", "booked B"]


async def lives(served: Serving) -> dict[str, tuple[TaskState | None, str]]:
    """Ask in one life of the server, and answer in the next."""
    new, old = f"{served.url}/127-0-0-1", f"{served.url}/localhost"
    asked = {}
    await served.start()
    for where, skill, day in ((new, "book", "A"), (old, "reserve", "B"), (old, "book", "C")):
        async with Client.connect(where) as client:
            result = await client.send({"day": day}, skill=skill)
            assert result.state is TaskState.INPUT_REQUIRED, result
            assert result.task is not None
            asked[day] = where, result.task.id
    await served.kill()
    await served.start()
    told = {}
    for day, (where, task) in asked.items():
        async with Client.connect(where) as client:
            answered = await client.task(task).reply({"seats": 2})
            told[day] = answered.state, answered.text
    await served.kill()
    return told
