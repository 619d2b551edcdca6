"""Large requests and answers: what they may cost those who send small ones."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import httpx
import pytest
import uvloop

from dragoman import Agent, App, Turn
from dragoman.bindings.request_body import check, scan
from dragoman.dialects.protobuf import V1
from dragoman.dialects.protobuf.wellknown import framed
from dragoman.model.errors import InvalidRequest, LimitExceeded, Unavailable
from dragoman.model.types import SendMessageRequest
from dragoman.security.byte_budget import SMALL, ByteBudget
from dragoman.server.loop_pacing import Pace
from tests.harness.raw_http import connect
from tests.harness.server import Served, served

LIMIT = 16 * 1024 * 1024
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The event loop that the command has."""
    return uvloop.EventLoopPolicy()


def agent() -> Agent:
    """Says how much it was told."""
    agent = Agent("Counter", description="Counts.")

    @agent.handler
    def answer(turn: Turn) -> str:
        if turn.text.startswith("much"):
            return "x" * int(turn.text[4:])
        return f"{sum(len(part.text or '') for part in turn.message.parts)}"

    return agent


@asynccontextmanager
async def server(**settings: Any) -> AsyncIterator[Served]:
    """A server of that agent."""
    async with served(App(agent(), drain_timeout=0.1, **settings)) as found:
        yield found


def message(part: bytes) -> bytes:
    """A send with this part, as JSON."""
    return b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[%b]}}' % part


# ---- elements ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        (b"[1,2,3]", 3),
        (b'["a,b","c]"]', 2),
        (b'{"a":"' + b"x,[{" * 40_000 + b'"}', 1),
        (b'{"a":"' + b'\\",[' * 40_000 + b'","b":[1]}', 3),
        (b"[" + b'"' + b"\\\\" * 40_000 + b'",' + b"[]," * 1000 + b"1]", 2002),
        (b'["' + b'a"],["b' * 20_000 + b'"]', 40_001),
    ],
    ids=["numbers", "strings", "a text", "escapes", "backslashes", "many strings"],
)
def test_elements_are_counted_outside_of_strings(body: bytes, elements: int) -> None:
    assert scan(body, 100, 1_000_000) == elements
    assert check(body, 100, 1_000_000) >= min(elements, 1)
    if elements > 1:
        with pytest.raises(InvalidRequest, match="elements; send large data as a file"):
            scan(body, 100, elements - 1)


def test_a_scan_is_the_same_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"a": ['x"y\\', {"b,c": [[], {}, "]\n"]}] * 9, "é": "\\" * 7}).encode()
    whole = scan(body, 100, 10_000)
    for size in range(1, 70):
        monkeypatch.setattr("dragoman.bindings.request_body.PIECE", size)
        assert scan(body, 100, 10_000) == whole, size
        with pytest.raises(InvalidRequest, match="deeper than 4 levels"):
            scan(body, 4, 10_000)


NESTED = b'{"data":[' + b"[]," * (LIMIT // 3 - 100) + b"1]}"


async def stalls(busy: asyncio.Task[Any]) -> float:
    """The longest time for which the event loop did nothing else."""
    longest, last = 0.0, time.perf_counter()
    while not busy.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


async def test_a_large_body_of_many_elements_is_refused_in_no_time() -> None:
    async with server() as found, httpx.AsyncClient(base_url=found.url, timeout=30) as http:
        for path in ("/", "/message:send"):
            body = message(NESTED)
            answer = await http.post(path, content=body, headers={"content-type": JSON})
            assert "more than 100000 elements" in answer.text
            assert answer.status_code == (200 if path == "/" else 400)


async def test_what_is_decoded_holds_nobody_up() -> None:
    """As many elements as may be, many times at once: the loop goes on in between."""
    most = message(b'{"data":[' + b"[]," * 45_000 + b"1]}")
    async with server() as found:
        app: App = found.config.loaded_app
        waits: list[float] = []

        async def decode() -> None:
            began = time.perf_counter()
            await app.bodies.admit(most)
            json.loads(most)
            waits.append(time.perf_counter() - began)

        crowd = asyncio.gather(*(decode() for _ in range(8)))
        steps = 0
        while not crowd.done():
            await asyncio.sleep(0.001)
            steps += 1
        # each is followed by a pause in which others have their turn
        assert steps > 8 * 10
        assert sorted(waits)[-1] > 4 * sorted(waits)[0]


async def test_the_pace_goes_on_when_somebody_gives_up() -> None:
    pace = Pace()
    await pace.next()
    gone = asyncio.ensure_future(pace.next())
    other = asyncio.ensure_future(pace.next())
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(5):
        await other


async def test_a_large_file_passes() -> None:
    async with server() as found, httpx.AsyncClient(base_url=found.url, timeout=30) as http:
        raw = b'{"raw":"%b"}' % (b"QUJD" * ((LIMIT - 1000) // 4))
        answer = await http.post(
            "/message:send", content=message(raw), headers={"content-type": JSON}
        )
        assert answer.status_code == 200
        commas = b'{"text":"%b"}' % (b"1,2,[{" * 500_000)
        answer = await http.post(
            "/message:send", content=message(commas), headers={"content-type": JSON}
        )
        assert answer.json()["task"]["artifacts"][0]["parts"][0]["text"] == "3000000"


JSON = "application/json"


async def test_a_list_of_many_objects() -> None:
    """In a form that has to be tidied up, which takes long for each of them."""
    body = message(b",".join([b'{"text":"a"}'] * 30_000)).replace(b"messageId", b"message_id")
    async with server() as found, httpx.AsyncClient(base_url=found.url, timeout=30) as http:
        answer = await http.post("/message:send", content=body, headers={"content-type": JSON})
        assert answer.status_code == 400
        assert "more than 10000 objects" in answer.text


async def test_ids_have_a_limit() -> None:
    async with server() as found, httpx.AsyncClient(base_url=found.url) as http:
        for id in ("x" * 1023, 10**1025):
            envelope = {"jsonrpc": "2.0", "id": id, "method": "GetTask", "params": {"id": "t"}}
            answer = (await http.post("/", json=envelope)).json()
            assert answer["id"] is None
            assert answer["error"]["code"] in (-32600, -32700)
        answer = (await http.post("/", json={**envelope, "id": "x" * 1000})).json()
        assert answer["error"]["code"] == -32001


async def test_errors_repeat_little_of_what_was_sent() -> None:
    body = json.loads(message(b'{"text":"hi"}'))
    body["message"]["metadata"] = {"skillId": "s" * MEGABYTE, "skill": "s" * MEGABYTE}
    body["message"]["taskId"] = "t" * MEGABYTE
    async with server() as found, httpx.AsyncClient(base_url=found.url) as http:
        answer = await http.post("/message:send", json=body)
        assert answer.status_code in (400, 404)
        assert len(answer.content) < 8192
    error = LimitExceeded("x" * MEGABYTE, violations=[("y" * MEGABYTE, "z" * MEGABYTE)])
    assert len(json.dumps(error.to_http())) < 8192


# ---- gRPC ----------------------------------------------------------------------------------


def lists(number: int) -> bytes:
    """A send over gRPC with so many empty lists in its data."""
    data = framed(b"\x32", b"\x0a\x02\x32\x00" * number)
    message = framed(b"\x0a", b"m") + b"\x20\x01" + framed(b"\x2a", framed(b"\x22", data))
    return framed(b"\x12", message)


def test_elements_of_protobuf_are_counted() -> None:
    body = lists(1000)
    assert V1.decode(SendMessageRequest, body, elements=3000).message.message_id == "m"
    with pytest.raises(InvalidRequest, match="more than 900 elements"):
        V1.decode(SendMessageRequest, body, elements=900)
    with pytest.raises(Exception, match=r"valid|required"):  # not by the count
        V1.decode(SendMessageRequest, b"\x0a\xff" * 1000, elements=10)


async def call(port: int, body: bytes) -> Any:
    """Send over gRPC."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return await channel.unary_unary("/lf.a2a.v1.A2AService/SendMessage")(body)


async def test_large_messages_over_grpc_hold_nobody_up() -> None:
    async with server(grpc_port=0) as found:
        port = found.config.loaded_app.ports[0].number
        body = lists(3_000_000)
        crowd = [asyncio.ensure_future(call(port, body)) for _ in range(4)]
        busy = asyncio.ensure_future(asyncio.wait(crowd))
        longest = await stalls(busy)
        for sending in crowd:
            error = sending.exception()
            assert isinstance(error, grpc.aio.AioRpcError)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "more than 100000 elements" in (error.details() or "")
        assert longest < 2  # it was more than ten seconds; what is measured is in the soak
        assert await call(port, lists(20_000))


async def test_messages_that_never_arrive_over_grpc(constants: Callable[..., None]) -> None:
    """Each counts as the largest that may come; those beyond the budget are turned away."""
    constants(max_in_flight=8 * MEGABYTE)
    many = {"max_body": MEGABYTE, "request_timeout": 2}
    async with server(grpc_port=0, **many) as found:
        app: App = found.config.loaded_app
        address = f"127.0.0.1:{app.ports[0].number}"
        async with grpc.aio.insecure_channel(address) as channel:
            method = channel.stream_unary("/lf.a2a.v1.A2AService/SendMessage")
            waiting = [method() for _ in range(12)]
            codes = [await one.code() for one in waiting]
            assert codes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 12
            told = [await one.details() for one in waiting]
            assert sum("Requests and responses of your address" in words for words in told) == 8
            assert sum("did not arrive in time" in words for words in told) == 4
        assert app.bodies.budget.used == 0


# ---- bytes under way -----------------------------------------------------------------------


def test_a_budget() -> None:
    budget = ByteBudget(100)
    budget.take("a", 70)  # the first may be larger than its share
    with pytest.raises(LimitExceeded):
        budget.take("a", 1)
    budget.take("b", 30)
    with pytest.raises(Unavailable) as caught:
        budget.take("c", 1)
    assert caught.value.headers["retry-after"] == "1"
    budget.give("a", 70)
    budget.take("a", 20)
    budget.take("a", 30)
    budget.give("a", 50)
    budget.give("b", 30)
    assert (budget.used, budget._of) == (0, {})


HEAD = (
    b"POST /message:send HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % (2 * MEGABYTE)
)


async def test_unfinished_bodies_have_a_budget(constants: Callable[..., None]) -> None:
    constants(max_in_flight=8 * MEGABYTE)
    async with server() as found:
        app: App = found.config.loaded_app
        async with connect(found.url) as a, connect(found.url) as b, connect(found.url) as c:
            for one in (a, b):
                await one.send(HEAD + b" " * (2 * MEGABYTE - 1))
            await until(lambda: app.bodies.budget.used > 3 * MEGABYTE)
            await c.send(HEAD + b" " * (2 * MEGABYTE - 1))
            answer = await c.answer()
            assert answer is not None
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            assert "Requests and responses of your address" in answer.body.decode()
            async with httpx.AsyncClient(base_url=found.url) as other:
                small = await other.post("/message:send", json=json.loads(message(b'{"text":"a"}')))
                assert small.status_code == 200  # what is small is not counted
            for one in (a, b):
                one.writer.transport.abort()
        await until(lambda: app.bodies.budget.used == 0)


async def test_bodies_that_wait_to_be_decoded_have_a_budget(
    constants: Callable[..., None],
) -> None:
    """Those that have arrived, while others of their size are worked on."""
    body = message(b'{"text":"%b"}' % (b"x" * 2 * MEGABYTE))
    constants(max_in_flight=8 * MEGABYTE)
    async with server() as found:
        app: App = found.config.loaded_app
        async with httpx.AsyncClient(base_url=found.url, timeout=30) as http:
            app.bodies.pace._busy = True  # somebody is at it
            post = {"content": body, "headers": {"content-type": JSON}}
            waiting = [asyncio.ensure_future(http.post("/message:send", **post)) for _ in range(4)]  # type: ignore[arg-type]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert {one.result().status_code for one in done} == {429}
            await until(lambda: len(app.bodies.pace._waiting) >= 1)
            app.bodies.pace._free()
            statuses = [one.status_code for one in await asyncio.gather(*waiting)]
            assert set(statuses) == {200, 429}
        assert app.bodies.budget.used == 0


async def test_a_body_must_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.bindings.request_body.WINDOW", 0.2)
    async with server(request_timeout=60) as found, connect(found.url) as slow:
        await slow.send(HEAD + b" " * MEGABYTE)
        answer = await slow.answer()
        assert answer is not None
        assert answer.status == 408


async def test_answers_that_nobody_reads_have_a_budget(constants: Callable[..., None]) -> None:
    size = 6 * MEGABYTE
    body = message(b'{"text":"much%d"}' % size)
    head = HEAD.replace(b"%d" % (2 * MEGABYTE), b"%d" % len(body))
    constants(max_in_flight=30 * MEGABYTE)
    async with server() as found:
        app: App = found.config.loaded_app
        port = int(found.url.rpartition(":")[2])
        async with connect(found.url) as c, AsyncExitStack() as stack:
            for _ in range(2):
                unread = stack.enter_context(socket.socket())
                unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                unread.connect(("127.0.0.1", port))
                unread.sendall(head + body)
            await until(lambda: app.bodies.budget.used > 2 * size)
            await c.send(head + body)
            answer = await c.answer()
            assert answer is not None
            assert answer.status == 429
        await until(lambda: app.bodies.budget.used == 0)


async def test_an_answer_of_every_size_is_whole() -> None:
    async with server() as found, httpx.AsyncClient(base_url=found.url) as http:
        for size in (SMALL - 400, SMALL, SMALL + 1, 2 * SMALL, 3 * SMALL - 300, 5 * SMALL + 7):
            answer = await http.post(
                "/message:send", json=json.loads(message(b'{"text":"much%d"}' % size))
            )
            assert answer.json()["task"]["artifacts"][0]["parts"][0]["text"] == "x" * size


async def until(done: Any) -> None:
    """Until this is so."""
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.01)
