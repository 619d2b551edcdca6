"""Where a stream ends, though its connections broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, TaskState, Turn
from dragoman.client import Client, File, TransportRequest, TransportResponse, Unreachable
from dragoman.client.transport import ASGITransport
from tests.client.test_client import Cutting
from tests.client.test_waiting import admin
from tests.client.transports import BINDINGS, STREAM, Answer, Script, card, event, task


def asker() -> Agent:
    """An agent that asks: at `input` and `auth` it ends with that, at `wait` it goes on."""
    agent = Agent("Asker", description="Asks.", input_modes=["*/*"])
    agent.runs = []  # type: ignore[attr-defined]
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def ask(turn: Turn) -> AsyncIterator[Any]:
        """Ask."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        yield turn.working("well")
        await asyncio.sleep(0)
        yield turn.write("so far")
        await asyncio.sleep(0)
        if "input" in turn.text:
            yield turn.ask("What?")
            return
        yield turn.require_auth("Log in")
        if "wait" in turn.text:
            await agent.gate.wait()  # type: ignore[attr-defined]
            yield turn.artifact("done", name="end")

    return agent


PLACES = range(0, 1500, 150)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("text", ["input", "auth"])
async def test_a_question_ends_the_stream(
    binding: str,
    resumes: bool,
    file: bool,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does where nothing was cut; a subscription goes on, but the answer is there."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    (tmp_path / "a.txt").write_text("a")
    agent = asker()
    async with App(agent, drain_timeout=0.0) as app:
        for place in PLACES:
            transport = Cutting(app, place, place // 2, place // 3)
            said = [text, File(tmp_path / "a.txt")] if file else text
            async with Client.connect(app=app, transport=transport, bindings=[binding]) as client:
                client._connection.resumes = resumes
                async with client.stream(said) as stream:
                    _ = [happened async for happened in stream]
                assert stream.result.state is TaskState[f"{text.upper()}_REQUIRED"]
                assert stream.result.text == ("What?" if text == "input" else "Log in")
                assert stream.task is not None
                async with client.stream(text, task=stream.task.id) as stream:
                    _ = [happened async for happened in stream]
                assert stream.result.state is TaskState[f"{text.upper()}_REQUIRED"]
    assert agent.runs == [text] * 2 * len(PLACES)  # type: ignore[attr-defined]


class Endless(ASGITransport):
    """Gives whole streams, whose connections break all the same; every third one does not."""

    streams = 0

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Pass it on."""
        response = await super().send(request)
        if response.headers.get("content-type") == "text/event-stream":
            self.streams += 1
            return Broken(response) if self.streams % 3 else response
        return response


class Broken:
    """A response that is not told to have ended."""

    def __init__(self, response: TransportResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        """All of it, and then an error."""
        async for chunk in self._response.chunks():
            yield chunk
        raise Unreachable("broken")

    async def close(self) -> None:
        """Close what is behind."""
        await self._response.close()


@pytest.mark.parametrize("text", ["input", "auth", "wait"])
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("file", [True, False])
async def test_a_connection_that_breaks_when_all_is_said(
    text: str, resumes: bool, file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    (tmp_path / "a.txt").write_text("a")
    agent = asker()
    agent.gate.set()  # type: ignore[attr-defined]
    async with App(agent, drain_timeout=0.0) as app:
        transport = Endless(app)
        async with Client.connect(app=app, transport=transport, attempts=3) as client:
            client._connection.resumes = resumes
            said = [text, File(tmp_path / "a.txt")] if file else text
            async with client.stream(said) as stream:
                _ = [happened async for happened in stream]
            state = "COMPLETED" if text == "wait" else f"{text.upper()}_REQUIRED"
            assert stream.result.state is TaskState[state]
            if text != "auth":
                assert transport.streams == 1
            assert stream.task is not None
            if text == "wait":
                return
            async with client.stream(text, task=stream.task.id) as stream:
                _ = [happened async for happened in stream]
            assert stream.result.state is TaskState[state]
    assert len(agent.runs) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_that_goes_on_is_followed(
    binding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client must log in somewhere, and then the same turn goes on."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    agent = asker()
    async with App(agent, drain_timeout=0.0) as app:
        for place in PLACES:
            agent.gate.clear()  # type: ignore[attr-defined]
            transport = Cutting(app, place, place // 2, place // 3)
            async with (
                Client.connect(app=app, transport=transport, bindings=[binding]) as client,
                client.stream("wait") as stream,
            ):
                async for _ in stream:
                    if stream.result.state is TaskState.AUTH_REQUIRED:
                        agent.gate.set()  # type: ignore[attr-defined]
            assert stream.result.state is TaskState.COMPLETED
            assert stream.result.text == "so far\ndone"


# ---- follow-ups that are streamed ----------------------------------------------------------


class Losing(ASGITransport):
    """Loses the first answer of a stream, once all of it has been given."""

    lost = 0

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Pass it on, and read the first one in vain."""
        response = await super().send(request)
        if response.headers.get("content-type") == "text/event-stream" and not self.lost:
            self.lost += 1
            _ = [chunk async for chunk in response.chunks()]
            raise Unreachable("lost")
        return response


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_follow_up_that_is_repeated_finds_the_next_question(binding: str) -> None:
    """The agent has asked again before the repeated message came, and nothing follows."""
    agent = admin()
    async with App(agent, drain_timeout=0.0) as app:
        async with Client.connect(app=app) as client:
            asked = (await client.send("ask")).task
            assert asked is not None
        transport = Losing(app)
        async with (
            Client.connect(app=app, transport=transport, bindings=[binding]) as client,
            client.stream("ask", task=asked.id) as stream,
        ):
            told = [happened async for happened in stream]
        assert transport.lost == 1
        assert len(told) == 1
        assert stream.result.state is TaskState.INPUT_REQUIRED
        assert stream.result.text == "What?"
    assert agent.runs == ["ask", "ask"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("file", [True, False])
async def test_a_follow_up_that_is_cut_while_the_task_stands_as_before(
    binding: str, resumes: bool, file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent writes before it says that it works, so the question is still the last status."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    (tmp_path / "a.txt").write_text("x")
    agent = admin()
    async with App(agent, drain_timeout=0.0) as app:
        for place in PLACES:
            async with Client.connect(app=app) as client:
                asked = (await client.send("ask")).task
                assert asked is not None
            transport = Cutting(app, place, place // 2, place // 3)
            said = ["a b c d", File(tmp_path / "a.txt")] if file else "a b c d"
            async with Client.connect(app=app, transport=transport, bindings=[binding]) as client:
                client._connection.resumes = resumes
                async with client.stream(said, task=asked.id) as stream:
                    _ = [happened async for happened in stream]
            assert stream.result.state is TaskState.COMPLETED, place
            assert stream.result.text == "abcd", place


async def test_a_stranger_that_asks_again_at_once() -> None:
    """All there is of its stream is the task, which stands as it might have stood before."""
    words = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "And?"}]}
    asked = task("INPUT_REQUIRED", timestamp="2026-01-01T00:00:00Z", message=words)
    transport = Script(lambda _: Answer(event({"task": asked}), headers=STREAM))
    async with Client.connect(card(), transport=transport) as client:
        async with client.stream("x", task="t") as stream:
            assert len([happened async for happened in stream]) == 1
        assert stream.result.state is TaskState.INPUT_REQUIRED
    assert len(transport.asked) == 1
