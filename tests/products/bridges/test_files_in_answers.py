"""A file in the answer to a question: the model gets it, or is told that it does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dragoman import Part, TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import FRAMEWORKS, Desk

pytestmark = pytest.mark.skipif(not FULL, reason="only `make interop` installs the frameworks")
TOLD = "x.png, image/png. It cannot be given to you in an answer"
SAID = {  # what the model says of the answer
    "Google ADK": "77 bytes of image/png",
    "OpenAI Agents": "'type': 'input_image'",
    "Microsoft": "77 bytes of image/png",
    "LlamaIndex": "a file, image/png",
    "Strands": TOLD,
    "Agno": TOLD,
    "smolagents": TOLD,
    "CrewAI": TOLD,
}


@pytest.mark.parametrize("name", SAID)
async def test_a_file_in_an_answer(name: str, tmp_path: Path) -> None:
    desk = Desk(FRAMEWORKS[name], tmp_path)
    try:
        desk.start()
        async with asyncio.timeout(60), Client.connect(desk.url) as client:
            asked = await client.send("question")
            assert asked.task is not None
            desk.kill()
            desk.start()
            photo = Part(raw=b"x" * 77, media_type="image/png", filename="x.png")
            result = await client.send([Part(text="red"), photo], task=asked.task.id)
    except Absent as absent:
        pytest.skip(f"{name} cannot be installed: {absent}")
    finally:
        desk.stop()
    assert result.state is TaskState.COMPLETED
    assert "red" in result.text
    assert SAID[name] in result.text
