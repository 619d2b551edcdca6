"""Large content: files that go up piece by piece, and artifacts that are not kept."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, App, Part, TaskState, Turn
from dragoman.client import (
    Client,
    File,
    HTTPTransport,
    Transport,
    TransportRequest,
    TransportResponse,
    Unreachable,
)
from dragoman.client.transport import ASGITransport
from dragoman.client.upload import MARK, PIECE
from dragoman.model.errors import BodyTooLarge, ContentTypeNotSupported
from dragoman.model.types import Task, TaskArtifactUpdateEvent
from tests.client.test_client import Cutting
from tests.client.transports import (
    BINDINGS,
    STREAM,
    Answer,
    Script,
    card,
    event,
    interface,
    result,
    task,
)
from tests.harness.raw_server import Visit, listening
from tests.harness.server import serving

MEGABYTE = 1 << 20


def archive(**options: Any) -> Agent:
    """An agent that tells what it was given."""
    agent = Agent("Archive", description="Keeps.", **{"input_modes": ["*/*"], **options})
    agent.runs = []  # type: ignore[attr-defined]

    @agent.handler
    async def keep(turn: Turn) -> list[dict[str, Any]]:
        """Keep it."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        return [told(part) for part in turn.message.parts]

    return agent


def told(part: Part) -> dict[str, Any]:
    """What is said of a part."""
    if part.raw is None:
        return {"text": part.text}
    digest = hashlib.sha256(part.raw).hexdigest()
    return {"name": part.filename, "type": part.media_type, "digest": digest}


def kept(content: bytes, name: str, kind: str = "application/octet-stream") -> dict[str, Any]:
    """What is said of a file."""
    return {"name": name, "type": kind, "digest": hashlib.sha256(content).hexdigest()}


@asynccontextmanager
async def reached(
    how: str,
    agent: Agent,
    transport: Callable[[Transport], Transport] | None = None,
    **settings: Any,
) -> AsyncIterator[Client]:
    """A client of the agent: in process, or over a binding."""
    app = App(agent, **{"drain_timeout": 0.0, **settings})
    if how == "inside":
        async with app:
            way = transport(ASGITransport(app)) if transport else None
            async with Client.connect(app=app, transport=way) as client:
                yield client
    else:
        async with serving(app) as url:
            way = transport(HTTPTransport()) if transport else None
            async with Client.connect(url, transport=way, bindings=[how]) as client:
                yield client


HOW = ["inside", *BINDINGS]


# ---- files arrive whole --------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_file_arrives_whole(how: str, streaming: bool, tmp_path: Path) -> None:
    agent = archive(streaming=streaming)
    async with reached(how, agent) as client:
        for size in (0, 1, 2, 3, 1000, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5):
            path = tmp_path / "some.bin"
            path.write_bytes(content := os.urandom(size))
            sent = await client.send(File(path))
            assert sent.data == [kept(content, "some.bin")], size
        async with client.stream(File(path)) as stream:
            _ = [happened async for happened in stream]
        assert stream.result.data == [kept(content, "some.bin")]
    assert len(agent.runs) == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", HOW)
async def test_several_among_other_things(how: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "zwei ü 2.PNG"
    one.write_bytes(b"first")
    two.write_bytes(b"\x89PNG")
    first = File(str(one))
    said = [
        "look:",
        first,
        Part(text="and"),
        File(two, name="other.png"),
        first,
        File(one, media_type="text/x-own"),
    ]
    async with reached(how, archive()) as client:
        sent = await client.send(said)
        assert sent.data == [
            {"text": "look:"},
            kept(b"first", "one.txt", "text/plain"),
            {"text": "and"},
            kept(b"\x89PNG", "other.png", "image/png"),
            kept(b"first", "one.txt", "text/plain"),
            kept(b"first", "one.txt", "text/x-own"),
        ]
        assert (await client.send(File(two))).data == [
            kept(b"\x89PNG", "zwei ü 2.PNG", "image/png")
        ]


@pytest.mark.parametrize("how", HOW)
async def test_content_that_looks_like_a_sign(how: str, tmp_path: Path) -> None:
    path, other = tmp_path / "a.bin", tmp_path / "b.bin"
    first, second = File(path), File(other)
    signs = [MARK + file._id for file in (first, second)]
    path.write_bytes(content := b"".join(signs))
    other.write_bytes(more := first.sign.encode() + second.sign.encode() + b'"\\')
    async with reached(how, archive()) as client:
        sent = await client.send([first, second])
        assert sent.data == [kept(content, "a.bin"), kept(more, "b.bin")]


@pytest.mark.parametrize("how", HOW)
async def test_a_file_is_sent_again_when_it_has_to_be(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content := os.urandom(2 * PIECE))
    agent = archive()

    def losing(transport: Transport) -> Transport:
        return Losing(transport, 2)

    async with reached(how, agent, losing) as client:
        assert (await client.send(File(path))).data == [kept(content, "a.bin")]
    assert len(agent.runs) == 1  # type: ignore[attr-defined]


class Losing:
    """Loses the first answers to what is posted."""

    def __init__(self, transport: Transport, times: int) -> None:
        self._transport = transport
        self._times = times

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Pass it on, and perhaps lose the answer."""
        response = await self._transport.send(request)
        if request.method == "POST" and self._times:
            self._times -= 1
            await response.close()
            raise Unreachable("lost")
        return response

    async def close(self) -> None:
        """Close what is behind."""
        await self._transport.close()


@pytest.mark.parametrize("how", HOW)
async def test_a_large_file(how: str, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    content = os.urandom(MEGABYTE) * 30
    path.write_bytes(content)
    async with reached(how, archive(), max_body=64 * MEGABYTE) as client:
        assert (await client.send(File(path))).data == [kept(content, "large.bin")]


# ---- files that are not as they should be --------------------------------------------------


@pytest.mark.parametrize("how", HOW)
async def test_a_file_that_cannot_be_read(how: str, tmp_path: Path) -> None:
    agent = archive()
    calls = 0

    def counting(transport: Transport) -> Transport:
        async def send(request: TransportRequest) -> TransportResponse:
            nonlocal calls
            calls += request.method == "POST"
            return await original(request)

        original = transport.send
        transport.send = send  # type: ignore[method-assign]
        return transport

    os.mkfifo(tmp_path / "pipe")
    async with reached(how, agent, counting) as client:
        for name, error in (
            ("missing", FileNotFoundError),
            (".", OSError),
            ("pipe", OSError),
        ):
            with pytest.raises(error, match=name) as caught:
                await client.send(File(tmp_path / name, name="x"))
            assert not isinstance(caught.value, Unreachable)
            with pytest.raises(error, match=name):
                async with client.stream(["text", File(tmp_path / name, name="x")]) as stream:
                    _ = [happened async for happened in stream]
    assert calls == 0
    assert agent.runs == []  # type: ignore[attr-defined]


class Changing:
    """Changes the file just before it is sent for the first time."""

    def __init__(self, transport: Transport, change: Callable[[], object]) -> None:
        self._transport = transport
        self._change: Callable[[], object] | None = change

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Change it, and pass it on."""
        if request.method == "POST" and self._change is not None:
            self._change()
            self._change = None
        return await self._transport.send(request)

    async def close(self) -> None:
        """Close what is behind."""
        await self._transport.close()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("left", [0, 100, PIECE, 2 * PIECE + 2])
async def test_a_file_that_shrinks_is_begun_anew(how: str, left: int, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content := os.urandom(3 * PIECE))
    agent = archive()

    def shrinking(transport: Transport) -> Transport:
        return Changing(transport, lambda: os.truncate(path, left))

    async with reached(how, agent, shrinking) as client:
        assert (await client.send(File(path))).data == [kept(content[:left], "a.bin")]
    assert len(agent.runs) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", HOW)
async def test_a_file_that_grows_is_sent_as_it_was(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(content := os.urandom(PIECE + 1))

    def growing(transport: Transport) -> Transport:
        return Changing(transport, lambda: path.write_bytes(content * 2))

    async with reached(how, archive(), growing) as client:
        assert (await client.send(File(path))).data == [kept(content, "a.bin")]


@pytest.mark.parametrize("how", HOW)
async def test_a_file_that_is_too_large_is_sent_once(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(os.urandom(2 * MEGABYTE))
    asked = []

    class Noting(Changing):
        async def send(self, request: TransportRequest) -> TransportResponse:
            asked.append(request.method)
            return await super().send(request)

    def noting(transport: Transport) -> Transport:
        return Noting(transport, lambda: None)

    async with reached(how, archive(), noting, max_body=MEGABYTE) as client:
        with pytest.raises(BodyTooLarge):
            await client.send(File(path))
    assert asked.count("POST") == 1


async def test_a_file_of_a_kind_that_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(b"%PDF")
    async with reached("inside", archive(input_modes=["text/plain"])) as client:
        with pytest.raises(ContentTypeNotSupported, match="application/pdf"):
            await client.send(File(path))


# ---- memory --------------------------------------------------------------------------------


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """The most memory that has been in use since the test began."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()


async def test_a_file_is_never_in_memory_as_a_whole(
    tmp_path: Path, peak: Callable[[], int]
) -> None:
    path = tmp_path / "large.bin"
    size = 30 * MEGABYTE
    with path.open("wb") as file:
        file.truncate(size)
    found = 0

    async def discard(visit: Visit) -> None:
        """Count the body, and throw it away."""
        nonlocal found
        head = await visit.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        while found < length:
            found += len(await visit.reader.read(1 << 16))
        body = result({"task": task()})
        await visit.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    async with listening(discard) as listener:
        there = card(interface(f"http://127.0.0.1:{listener.port}"))
        async with Client.connect(there) as client:
            assert (await client.send(File(path))).state is TaskState.COMPLETED
    assert found > size * 4 // 3
    assert peak() < size / 6


def flood(pieces: int, size: int) -> Iterator[bytes]:
    """The events of a task that writes much."""
    yield event({"task": task("WORKING")})
    text = "x" * size
    for number in range(pieces):
        artifact = {"artifactId": "a", "parts": [{"text": text}]}
        ids = {"taskId": "t", "contextId": "c"}
        yield event({"artifactUpdate": {**ids, "artifact": artifact, "append": number > 0}})
    yield event({"statusUpdate": {**ids, "status": {"state": "TASK_STATE_COMPLETED"}}})


@pytest.mark.parametrize("keep", [True, False])
async def test_artifacts_that_are_not_kept(keep: bool, peak: Callable[[], int]) -> None:
    pieces, size = 600, 10_000
    transport = Script(lambda _: Answer(flood(pieces, size), headers=STREAM))
    told = 0
    async with (
        Client.connect(card(), transport=transport) as client,
        client.stream("x", keep=keep) as stream,
    ):
        async for happened in stream:
            if isinstance(happened, TaskArtifactUpdateEvent):
                told += len(happened.artifact.parts[0].text or "")
    assert told == pieces * size
    assert stream.result.state is TaskState.COMPLETED
    assert len(stream.result.artifacts) == keep
    if keep:
        assert len(stream.result.text) == told
        assert peak() > told
    else:
        assert peak() < told / 6


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("following", [True, False])
async def test_what_is_not_kept_is_told_once_across_cuts(
    binding: str, resumes: bool, following: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    agent = Agent("Counter", description="Counts.")

    @agent.handler
    async def count(turn: Turn) -> AsyncIterator[Any]:
        """Count once the gate is open."""
        await gate.wait()
        for number in range(20):
            yield turn.write(f"{number},")
            await asyncio.sleep(0)

    async with App(agent, drain_timeout=0.0) as app:
        for place in range(0, 6000, 307):
            gate = asyncio.Event()
            transport = Cutting(app, place, place // 2, place // 3)
            async with Client.connect(app=app, transport=transport, bindings=[binding]) as client:
                client._connection.resumes = resumes
                if following:
                    begun = (await client.send("x", wait=False)).task
                    assert begun is not None
                    stream = client.task(begun.id).subscribe(keep=False)
                else:
                    stream = client.stream("x", keep=False)
                async with stream:
                    events = []
                    async for happened in stream:
                        events.append(happened)
                        gate.set()
            assert texts(events) == "".join(f"{number}," for number in range(20)), place
            assert stream.task is not None
            assert stream.task.artifacts == ()


def texts(events: list[Any]) -> str:
    """The text of a counting task, from its events alone."""
    found = ""
    for happened in events:
        if isinstance(happened, Task):
            found = "".join(part.text or "" for a in happened.artifacts for part in a.parts)
        elif isinstance(happened, TaskArtifactUpdateEvent):
            text = "".join(part.text or "" for part in happened.artifact.parts)
            found = found + text if happened.append else text
    return found


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "then",
    [["a", "b", "c"], ["x", "b", "c"], ["x", "y"], ["x"], ["a", "bc"], ["a", "b"], ["abc"]],
)
async def test_what_an_artifact_has_become_meanwhile(
    then: list[str], keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers replace artifacts, or put their pieces together."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)

    def answer(request: TransportRequest) -> TransportResponse:
        if b"SendStreaming" in request.body:  # type: ignore[operator]
            return Answer(event({"task": task("WORKING", "a", "b")}), headers=STREAM)
        if b"GetTask" in request.body:  # type: ignore[operator]
            return Answer(result(task("COMPLETED", *then)))
        return Answer(event({"task": task("COMPLETED", *then)}), headers=STREAM)

    async with (
        Client.connect(card(), transport=Script(answer)) as client,
        client.stream("x", keep=keep) as stream,
    ):
        events = [happened async for happened in stream]
    assert texts(events) == "".join(then)


def test_the_part_of_a_file_says_what_it_is(tmp_path: Path) -> None:
    """What is in its place until it is sent cannot be mistaken for anything else."""
    one, two = File(tmp_path / "a.json"), File(tmp_path / "a.json")
    assert one.media_type == "application/json"
    assert one.sign != two.sign
    assert base64.b64encode(one.part().raw or b"").decode() == one.sign
