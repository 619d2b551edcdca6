"""The testing kit: agents in this process, conversations written down, networks that fail."""

from __future__ import annotations

import asyncio
import types
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, Part, TaskState, Turn
from dragoman.client import (
    Client,
    File,
    Result,
    StaticToken,
    Transport,
    TransportRequest,
    TransportResponse,
    Unreachable,
)
from dragoman.model.errors import InvalidParams
from dragoman.model.types import (
    APIKeySecurityScheme,
    AuthenticationInfo,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from dragoman.server.settings import Settings
from dragoman.testing import FaultyTransport, Recorder, Replay, local_client, run_handler
from tests.client.test_client import parrot
from tests.client.transports import Answer, Script, card, result, task

HOPE = "http://inside"


# ---- local_client -------------------------------------------------------------------------------


async def test_talking() -> None:
    agent = parrot()
    async with local_client(agent, poll=0.5) as client:
        assert (await client.send("hello")).text == "hello"
        async with client.stream("count 2") as stream:
            assert len([event async for event in stream]) == 6
    assert agent.runs == ["hello", "count 2"]  # type: ignore[attr-defined]


async def test_talking_through_something(constants: Callable[..., None]) -> None:
    constants(max_parts=1)
    seen: list[Recorder] = []

    def recorded(transport: Transport) -> Transport:
        seen.append(Recorder(transport))
        return seen[0]

    async with local_client(parrot(), through=recorded) as client:
        await client.send("hello")
        with pytest.raises(InvalidParams, match="more than 1 parts"):
            await client.send([Part(text="a"), Part(text="b")])
    assert [exchange.status for exchange in seen[0].exchanges] == [200, 200, 200]


async def test_talking_ends_with_the_block() -> None:
    agent = parrot()
    async with local_client(agent) as client:
        await client.send("gate", wait=False)
    with pytest.raises(RuntimeError, match="not open"):
        await client.send("hello")
    assert "hello" not in agent.runs  # type: ignore[attr-defined]


class Unlucky(Exception):
    """What the handler below raises."""


def unlucky() -> Agent:
    """An agent that fails unless it is asked nicely."""
    agent = Agent("Unlucky", description="Fails.")

    @agent.handler
    async def answer(turn: Turn) -> str:
        if turn.text != "please":
            raise Unlucky(turn.text)
        return "well"

    return agent


async def test_what_a_handler_raised_is_carried() -> None:
    told = await run_handler(unlucky(), "now")
    assert (told.state, str(told.error)) == (TaskState.FAILED, "now")
    assert isinstance(told.error, Unlucky)
    assert (await run_handler(unlucky(), "please")).error is None
    async with local_client(unlucky()) as client:
        assert client.error is None
        await client.send("first")
        await client.send("please")
        await client.send("second")
        assert isinstance(client.error, Unlucky)
        assert [str(error) for error in client.errors] == ["first", "second"]


async def test_a_strict_test_raises_it() -> None:
    assert (await run_handler(unlucky(), "please", strict=True)).text == "well"
    with pytest.raises(Unlucky, match="now") as raised:
        await run_handler(unlucky(), "now", "not reached", strict=True)
    assert raised.traceback[-1].name == "answer"
    async with local_client(unlucky(), strict=True) as client:
        assert (await client.send("please")).text == "well"
    with pytest.raises(Unlucky, match="now"):
        async with local_client(unlucky(), strict=True) as client:
            assert (await client.send("now")).state is TaskState.FAILED
    with pytest.raises(Unlucky, match="now") as raised:  # also where the test fails for it
        async with local_client(unlucky(), strict=True) as client:
            assert (await client.send("now")).state is TaskState.COMPLETED
    assert isinstance(raised.value.__cause__, AssertionError)


# ---- writing down and playing back ---------------------------------------------------------


async def conversation(client: Client, text: str = "grüß dich 🌍") -> list[Any]:
    """What is said, and what comes of it."""
    sent = await client.send(text)
    async with client.stream(text * 2) as stream:
        events = [event async for event in stream]
    assert stream.task is not None
    found = await client.task(stream.task.id).get()
    listed = [item async for item in client.list(page=1, artifacts=True)]
    return [sent, events, found, listed]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_conversation_is_played_back(
    binding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorders: list[Recorder] = []

    def recorded(transport: Transport) -> Transport:
        recorders.append(Recorder(transport))
        return recorders[0]

    # in pieces that are shorter than some characters
    monkeypatch.setattr(Settings, "stream_buffer", 3)
    async with local_client(parrot(), through=recorded) as client:
        client._connection.binding_names = [binding]
        client._connection.choose()
        said = await conversation(client)
    recorders[0].save(tmp_path / "said.json")
    for _ in range(2):
        replay = Replay(tmp_path / "said.json")
        async with Client.connect(HOPE, transport=replay, bindings=[binding]) as client:
            assert await conversation(client) == said
            with pytest.raises(AssertionError, match="has ended"):
                await client.send("more")


async def record(path: Path, binding: str = "JSONRPC") -> None:
    """Write a short conversation down."""
    recorders: list[Recorder] = []

    def recorded(transport: Transport) -> Transport:
        recorders.append(Recorder(transport))
        return recorders[0]

    async with local_client(parrot(), through=recorded) as client:
        client._connection.binding_names = [binding]
        client._connection.choose()
        await client.send("hello", metadata={"a": 1})
        _ = [item async for item in client.list(page=5)]
    recorders[0].save(path)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_another_request_is_an_assertion_error(binding: str, tmp_path: Path) -> None:
    path = tmp_path / "said.json"
    await record(path, binding)

    async def replayed() -> Client:
        return await Client.connect(HOPE, transport=Replay(path), bindings=[binding]).__aenter__()

    client = await replayed()
    await client.send("hello", metadata={"a": 1})
    _ = [item async for item in client.list(page=5)]

    client = await replayed()
    with pytest.raises(AssertionError, match="the client sends"):  # another operation
        await client.task("t").get()
    client = await replayed()
    with pytest.raises(AssertionError, match="goodbye"):  # other words
        await client.send("goodbye", metadata={"a": 1})
    client = await replayed()
    with pytest.raises(AssertionError, match="the client sends"):  # other metadata
        await client.send("hello", metadata={"a": 2})
    client = await replayed()
    with pytest.raises(AssertionError, match="the client sends"):
        async with client.stream("hello", metadata={"a": 1}) as stream:
            _ = [event async for event in stream]
    client = await replayed()
    await client.send("hello", metadata={"a": 1})
    with pytest.raises(AssertionError, match="the client sends"):  # another query
        _ = [item async for item in client.list(page=6)]


async def test_a_file_is_played_back(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    recorder = Recorder(Script(lambda _: Answer(result({"task": task("COMPLETED", "a")}))))
    async with Client.connect(card(), transport=recorder) as client:
        await client.send(File(tmp_path / "a.txt"))
    recorder.save(tmp_path / "said.json")
    async with Client.connect(card(), transport=Replay(tmp_path / "said.json")) as client:
        assert (await client.send(File(tmp_path / "a.txt"))).text == "a"


SECRET = "hunter2"


async def test_no_secret_is_written_down(tmp_path: Path) -> None:
    answers = [
        Answer(
            result({"task": task()}),
            headers={"content-type": "application/json", "set-cookie": SECRET, "x-plain": "yes"},
        ),
        Answer(result({"taskId": "t", "url": "https://x", "id": "w", "token": SECRET})),
        Answer(b'{"access_token": "%b", "refresh_token":"%b"}' % ((SECRET.encode(),) * 2)),
    ]
    recorder = Recorder(Script(lambda _: answers.pop(0)))
    scheme = SecurityScheme(
        api_key_security_scheme=APIKeySecurityScheme(location="query", name="api_key")
    )
    there = replace(
        card(),
        security_schemes={"key": scheme},
        security_requirements=(SecurityRequirement(schemes={"key": StringList()}),),
    )
    options: Any = {
        "headers": {"Authorization": f"Bearer {SECRET}", "X-Own": "yes", "Cookie": SECRET},
        "auth": StaticToken(SECRET),
        "insecure": True,
    }
    async with Client.connect(there, transport=recorder, **options) as client:
        await client.send("hello")
        await client.task("t").add_webhook(
            "https://x",
            token=SECRET,
            authentication=AuthenticationInfo(scheme="Basic", credentials=f'a"{SECRET}'),
        )
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = f"grant_type=client_credentials&client_secret={SECRET}&code={SECRET}".encode()
    response = await recorder.send(TransportRequest("POST", "http://agent/token", form, body))
    _ = [chunk async for chunk in response.chunks()]
    for exchange in recorder.exchanges:
        assert SECRET not in f"{exchange.url} {exchange.headers} {exchange.answered}"
    recorder.save(tmp_path / "said.json")
    text = (tmp_path / "said.json").read_text()
    assert SECRET not in text
    assert "hello" in text
    assert "x-own" in text
    assert "idempotency-key" in text

    # and what is masked is not missed
    replay = Replay(tmp_path / "said.json")
    async with Client.connect(there, transport=replay, **options) as client:
        await client.send("hello")
        made = await client.task("t").add_webhook(
            "https://x",
            token="another",
            authentication=AuthenticationInfo(scheme="Basic", credentials="other"),
        )
        assert made.id == "w"
    response = await replay.send(
        TransportRequest("POST", "http://agent/token", form, b"client_secret=x")
    )
    assert b'"access_token": "***"' in b"".join([chunk async for chunk in response.chunks()])


# ---- what goes wrong -----------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again without a pause."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)
    monkeypatch.setattr("dragoman.testing.faults.HOLD", 0.005)


def counting() -> Agent:
    """An agent that counts, and notes each run."""
    agent = Agent("Counter", description="Counts.")
    agent.runs = []  # type: ignore[attr-defined]

    @agent.handler
    async def count(turn: Turn) -> AsyncIterator[Any]:
        """Count."""
        agent.runs.append(turn.text)  # type: ignore[attr-defined]
        if turn.text.startswith("ask"):
            yield turn.ask("Which number?")
            return
        for number in range(int(turn.text) % 7):
            yield turn.write(f"{turn.text}.{number} ")
            await asyncio.sleep(0)
        yield turn.artifact({"number": int(turn.text)}, name="sum")

    return agent


async def count_all(client: Client, messages: int) -> None:
    """Send so many messages, half of them as streams, some at once, some as the answer to a
    question; what comes back must be right."""

    async def say(number: int, text: str, task: str = "") -> Result:
        if number % 2:
            return await client.send(text, task=task)
        async with client.stream(text, task=task) as stream:
            _ = [event async for event in stream]
        return stream.result

    async def one(number: int) -> None:
        task = ""
        for _ in range(number % 3):  # it asks, and perhaps asks again
            asked = await say(number, f"ask {number}", task)
            assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which number?")
            assert asked.task is not None
            task = asked.task.id
        answer = await say(number, f"{number}", task)
        assert answer.state is TaskState.COMPLETED
        assert answer.data == {"number": number}
        assert answer.text == "".join(f"{number}.{n} " for n in range(number % 7))

    for start in range(0, messages, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))


def expected(messages: int) -> Counter[str]:
    """What the agent is asked in all this, if it is asked everything once."""
    found = Counter(f"{number}" for number in range(messages))
    found.update({f"ask {n}": n % 3 for n in range(messages) if n % 3})
    return found


FAULTS: list[dict[str, float]] = [
    {"drop": 0.3},
    {"delay": 0.01},
    {"duplicate": 0.3},
    {"reorder": 0.3},
    {"cut": 0.3},
]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: next(iter(faults)))
async def test_each_fault_is_lived_through(faults: dict[str, float]) -> None:
    agent, transports = counting(), []

    def faulty(transport: Transport) -> Transport:
        transports.append(FaultyTransport(transport, seed=2, **faults))
        return transports[0]

    async with local_client(agent, through=faulty) as client:
        client._connection.attempts = 50
        await count_all(client, 60)
    assert Counter(agent.runs) == expected(60)  # type: ignore[attr-defined]
    done = transports[0].done
    for name, times in done.items():
        assert (times > 0) == (name in faults), name


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_all_of_them_at_once(seed: int, binding: str) -> None:
    agent, transports = counting(), []

    def faulty(transport: Transport) -> Transport:
        transports.append(
            FaultyTransport(
                transport, seed=seed, drop=0.15, delay=0.002, duplicate=0.15, reorder=0.15, cut=0.15
            )
        )
        return transports[0]

    async with local_client(agent, through=faulty) as client:
        client._connection.binding_names = [binding]
        client._connection.choose()
        client._connection.attempts = 100
        await count_all(client, 200)
    assert Counter(agent.runs) == expected(200)  # type: ignore[attr-defined]
    assert min(transports[0].done.values()) > 5


class Noting:
    """Notes what arrives, and answers."""

    def __init__(self, size: int = 10) -> None:
        self.arrived: list[str] = []
        self.size = size

    async def send(self, request: TransportRequest) -> TransportResponse:
        """Note it."""
        self.arrived.append(request.url)
        return Answer([b"x" * 10] * (self.size // 10))

    async def close(self) -> None:
        """Nothing to close."""


async def outcome(transport: Transport, url: str = "u") -> str:
    """How a request fares."""
    try:
        response = await transport.send(TransportRequest("GET", url))
        return f"{len(b''.join([chunk async for chunk in response.chunks()]))}"
    except Unreachable as error:
        return str(error)


async def test_what_is_dropped_was_lost_on_the_way_there_or_back() -> None:
    inner = Noting()
    transport = FaultyTransport(inner, drop=1.0)
    found = [await outcome(transport) for _ in range(100)]
    assert set(found) == {"the request was lost", "the response was lost"}
    assert len(inner.arrived) == found.count("the response was lost")
    assert transport.done["drop"] == 100


async def test_what_is_duplicated_arrives_twice_and_is_answered_once() -> None:
    inner = Noting()
    transport = FaultyTransport(inner, duplicate=1.0)
    assert [await outcome(transport, "a"), await outcome(transport, "b")] == ["10", "10"]
    assert inner.arrived == ["a", "a", "b", "b"]


async def test_what_is_cut_breaks_off_somewhere() -> None:
    transport = FaultyTransport(Noting(2000), cut=1.0)
    assert {await outcome(transport) for _ in range(20)} == {"the response ended early"}
    assert transport.done["cut"] == 20
    transport = FaultyTransport(Noting(0), cut=1.0)
    assert await outcome(transport) == "0"
    assert transport.done["cut"] == 0


async def test_what_is_held_back_is_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.testing.faults.HOLD", 3600.0)
    inner = Noting()
    transport = FaultyTransport(inner, reorder=1.0)
    first = asyncio.create_task(outcome(transport, "first"))
    while transport._overtaken is None:
        await asyncio.sleep(0)
    transport._reorder = 0.0
    await outcome(transport, "second")
    assert await first == "10"
    assert inner.arrived == ["second", "first"]


async def test_a_delay_is_as_long_as_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("dragoman.testing.faults.asyncio", types.SimpleNamespace(sleep=sleep))
    transport = FaultyTransport(Noting(), delay=0.5)
    for _ in range(50):
        await outcome(transport)
    assert len(pauses) == 50
    assert 0 <= min(pauses) < 0.25 < max(pauses) <= 0.5


async def test_chance_is_repeatable() -> None:
    def faults(seed: int) -> FaultyTransport:
        return FaultyTransport(Noting(2000), seed=seed, drop=0.3, duplicate=0.3, cut=0.3)

    async def run(seed: int) -> list[str]:
        transport = faults(seed)
        return [await outcome(transport) for _ in range(50)]

    assert await run(1) == await run(1) != await run(2)
