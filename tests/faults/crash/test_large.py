"""Results of many megabytes: a clear end above the ceiling, and below it a bounded server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.crash.server_process import Served
from tests.harness.scale import SOAK, say

MB = 1 << 20
LARGE = 300 if SOAK else 40
BOUND = 64 * MB
"""How much a server may grow, whatever the size of the result."""
AGENT = "tests.faults.crash.large_agent:agent"


def asked(size: int) -> dict[str, Any]:
    """A message that asks for so many megabytes."""
    message = {"messageId": f"{size}", "role": "ROLE_USER", "parts": [{"text": str(size)}]}
    return {"message": message}


async def read(served: Served, body: Any, pause: float = 0) -> tuple[int, bytes]:
    """How much a stream has brought, and the end of it."""
    got, end = 0, b""
    url = f"{served.url}/message:stream"
    async with served.http.post(url, json=body, read_bufsize=1 << 18) as response:
        while data := await response.content.read(1 << 20):
            got += len(data)
            end = (end + data)[-1000:]
            await asyncio.sleep(pause)
    return got, end


@pytest.mark.soak
@pytest.mark.parametrize(
    ("ceiling", "words"),
    [("max_output", b"wrote more than"), ("max_task_bytes", b"The result could not be stored")],
)
async def test_more_than_the_ceiling_fails_and_says_so(
    tmp_path: Path, ceiling: str, words: bytes
) -> None:
    settings = {"max_output": 2 * LARGE * MB, "max_task_bytes": 2 * LARGE * MB}
    settings[ceiling] = int(0.8 * LARGE * MB)
    output, task = str(settings["max_output"]), f"max_task_bytes={settings['max_task_bytes']}"
    async with Served(tmp_path, task, agent=AGENT, BULK_OUTPUT=output) as served:
        await served.start()
        before = served.rss()
        _, end = await read(served, asked(LARGE))
        grown = served.rss() - before
        say(f"{ceiling}: grew by {grown / MB:.0f} MB until it failed")
        assert b"TASK_STATE_FAILED" in end
        assert words in end, served.log
        assert grown < BOUND
        _, end = await read(served, asked(1))
        assert b"TASK_STATE_COMPLETED" in end


@pytest.mark.soak
async def test_a_slow_reader_of_a_large_result_costs_little(tmp_path: Path) -> None:
    limit = 4 * (LARGE + 100) * MB  # a turn may write a quarter
    async with Served(tmp_path, f"max_task_bytes={limit}", "stall=30", agent=AGENT) as served:
        await served.start()
        await read(served, asked(1))  # all that is loaded lazily is
        before = served.rss()
        began = time.monotonic()
        got, end = await read(served, asked(LARGE), pause=0.004)  # slower than it is written
        grown = served.rss() - before
        say(f"{got / MB:.0f} MB in {time.monotonic() - began:.1f} s, grew by {grown / MB:.0f} MB")
        assert b"TASK_STATE_COMPLETED" in end
        assert got > LARGE * MB
        assert grown < BOUND
