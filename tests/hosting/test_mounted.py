"""An application inside another one: it starts by itself, tells the right URLs, and can be closed.

A mounted application gets no lifespan of its own from the host.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from dragoman import Agent, App, Turn
from tests.harness.server import serving

CARD = "/.well-known/agent-card.json"
AGREED = {"A2A-Version": "1.0"}


class Life:
    """A lifespan that counts, and that can be made to wait or to fail."""

    def __init__(self) -> None:
        self.entered = 0
        self.exited = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.fault: Exception | None = None
        self.last: Exception | None = None

    @asynccontextmanager
    async def __call__(self, agent: Agent) -> AsyncIterator[str]:
        self.begun.set()
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.entered += 1
        try:
            yield f"state {self.entered}"
        finally:
            self.exited += 1
            if self.last is not None:
                raise self.last


def echo(life: Life | None = None, name: str = "Echo") -> Agent:
    """An agent that says its state and the text; `gate` waits for ever, `ask` asks back."""
    agent = Agent(name, description="Says it again.", lifespan=life)

    @agent.handler
    async def answer(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working()
        if turn.text == "gate":
            await asyncio.Event().wait()
        if turn.text == "ask":
            yield turn.ask("What?")
        else:
            yield turn.artifact(f"{turn.state}: {turn.text}")

    return agent


def message(text: str) -> dict[str, Any]:
    """A send."""
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}}


Mounted = Callable[..., Any]


def in_starlette(app: Any, path: str, lifespan: Any = None) -> Any:
    """A Starlette application with this one under a path."""
    own = Route("/own", lambda request: PlainTextResponse("own"))
    return Starlette(routes=[own, Mount(path, app)], lifespan=lifespan)


def in_fastapi(app: Any, path: str, lifespan: Any = None) -> Any:
    """The same with FastAPI."""
    host = FastAPI(lifespan=lifespan)
    host.add_api_route("/own", lambda: "own")
    host.mount(path, app)
    return host


@pytest.fixture(params=[in_starlette, in_fastapi])
def mounted(request: pytest.FixtureRequest) -> Mounted:
    """Each way to mount."""
    found: Mounted = request.param
    return found


@asynccontextmanager
async def client(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that nobody has started."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://host", timeout=20) as http:
        yield http


async def converse(http: httpx.AsyncClient, place: str) -> None:
    """Find the agent by its card, and use exactly the URLs that it tells."""
    card = (await http.get(place + CARD)).json()
    found = {item["protocolBinding"]: item["url"] for item in card["supportedInterfaces"]}
    assert found == {"JSONRPC": f"{place}/", "HTTP+JSON": place}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message("hi")}
    response = await http.post(found["JSONRPC"], json=body, headers=AGREED)
    assert response.status_code == 200  # and no redirect
    assert response.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    body["method"] = "SendStreamingMessage"
    response = await http.post(found["JSONRPC"], json=body, headers=AGREED)
    assert [next(iter(event["result"])) for event in events(response)] == STREAM
    url = f"{found['HTTP+JSON']}/message:send"
    task = (await http.post(url, json=message("hi"), headers=AGREED)).json()["task"]
    got = await http.get(f"{found['HTTP+JSON']}/tasks/{task['id']}", headers=AGREED)
    assert got.json() == task
    url = f"{found['HTTP+JSON']}/message:stream"
    response = await http.post(url, json=message("hi"), headers=AGREED)
    assert [next(iter(event)) for event in events(response)] == STREAM
    missing = await http.get(f"{place}/nothing")
    assert missing.json()["error"]["details"][0]["reason"] == "METHOD_NOT_FOUND"


STREAM = ["task", "statusUpdate", "artifactUpdate", "statusUpdate"]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """What a stream has said."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in response.text.splitlines() if line[:6] == "data: "]


# ---- where it is ---------------------------------------------------------------------------


@pytest.mark.clause("card.interfaces-true")
@pytest.mark.parametrize("path", ["/agent", "/deep/er/agent"])
async def test_it_starts_by_itself_and_tells_where_it_is(mounted: Mounted, path: str) -> None:
    life = Life()
    app = App(echo(life), drain_timeout=0.1)
    async with serving(mounted(app, path)) as url, httpx.AsyncClient(timeout=20) as http:
        assert life.entered == 0
        await converse(http, url + path)
        assert (await http.get(f"{url}/own")).status_code == 200
        assert (await http.get(f"{url}{path}/readyz")).json() == {"status": "ok"}
        await app.stop()
    assert (life.entered, life.exited) == (1, 1)


@pytest.mark.clause("card.interfaces-true")
async def test_several_agents_under_one_mount(mounted: Mounted) -> None:
    app = App(echo(name="One"), echo(name="Two"), drain_timeout=0.1)
    async with serving(mounted(app, "/agents")) as url, httpx.AsyncClient(timeout=20) as http:
        index = (await http.get(f"{url}/agents/")).json()
        assert [item["card"] for item in index["agents"]] == [
            f"{url}/agents/one{CARD}",
            f"{url}/agents/two{CARD}",
        ]
        for key in ("one", "two"):
            await converse(http, f"{url}/agents/{key}")
        await app.stop()


@pytest.mark.clause("card.interfaces-true")
async def test_mounts_within_mounts(mounted: Mounted) -> None:
    app = App(echo(), drain_timeout=0.1)
    host = mounted(mounted(app, "/inner"), "/outer")
    async with serving(host) as url, httpx.AsyncClient(timeout=20) as http:
        await converse(http, f"{url}/outer/inner")
        await app.stop()


@pytest.mark.clause("card.interfaces-true")
async def test_two_applications_in_one_host() -> None:
    apps = [App(echo(name=name), drain_timeout=0.1) for name in ("One", "Two")]
    routes = [Mount(f"/{number}", app) for number, app in enumerate(apps)]
    async with serving(Starlette(routes=routes)) as url, httpx.AsyncClient(timeout=20) as http:
        for number in range(2):
            await converse(http, f"{url}/{number}")
        ids = [(await http.get(f"{url}/{n}/tasks")).json()["tasks"][0]["id"] for n in (0, 1)]
        assert (await http.get(f"{url}/1/tasks/{ids[0]}")).status_code == 404
        for app in apps:
            await app.stop()


# ---- its life ------------------------------------------------------------------------------


async def test_it_lives_as_long_as_the_hosts_lifespan(mounted: Mounted) -> None:
    life = Life()
    app = App(echo(life), drain_timeout=0.1)

    @asynccontextmanager
    async def lifespan(host: Any) -> AsyncIterator[None]:
        async with app:
            assert life.entered == 1
            yield
        assert life.exited == 1

    host = mounted(app, "/agent", lifespan)
    async with serving(host) as url, httpx.AsyncClient(timeout=20) as http:
        assert life.entered == 1
        await converse(http, f"{url}/agent")
    assert (life.entered, life.exited) == (1, 1)


async def test_it_is_started_once_however_often_it_is_asked_to() -> None:
    life = Life()
    app = App(echo(life), drain_timeout=0.1)
    await asyncio.gather(app.start(), app.start())
    async with app, client(app) as http:
        sent = await http.post("/message:send", json=message("hi"))
        parts = sent.json()["task"]["artifacts"][0]["parts"]
        assert parts == [{"text": "state 1: hi"}]
        assert (life.entered, life.exited) == (1, 0)
    assert life.exited == 1
    await app.stop()
    await asyncio.gather(app.stop(), app.stop())
    assert (life.entered, life.exited) == (1, 1)


async def test_it_can_be_stopped_and_started_again() -> None:
    life = Life()
    app = App(echo(life), drain_timeout=0.1)
    async with client(app) as http:
        for number in (1, 2, 3):
            await app.start()
            sent = await http.post("/message:send", json=message("hi"))
            parts = sent.json()["task"]["artifacts"][0]["parts"]
            assert parts == [{"text": f"state {number}: hi"}]
            assert (await http.get("/tasks")).json()["totalSize"] == number
            await app.stop()
            assert (life.entered, life.exited) == (number, number)


async def test_what_was_stopped_does_not_start_by_itself() -> None:
    life = Life()
    app = App(echo(life), drain_timeout=0.1)
    async with client(app) as http:
        assert (await http.get("/readyz")).status_code == 200
        await app.stop()
        for request in (
            http.get("/readyz"),
            http.get("/tasks"),
            http.post("/message:send", json=message("hi")),
        ):
            assert (await request).status_code == 503
        assert (life.entered, life.exited) == (1, 1)


async def test_many_first_requests_start_it_once() -> None:
    life = Life()
    app = App(echo(life), drain_timeout=0.1)
    async with client(app) as http:
        answers = await asyncio.gather(
            *(http.post("/message:send", json=message("hi")) for _ in range(20))
        )
        states = {answer.json()["task"]["status"]["state"] for answer in answers}
        assert states == {"TASK_STATE_COMPLETED"}
        assert life.entered == 1
        await app.stop()


async def test_a_request_that_comes_while_it_starts_waits_too() -> None:
    life = Life()
    life.gate.clear()
    app = App(echo(life), drain_timeout=0.1)
    async with client(app) as http:
        first = asyncio.create_task(http.get("/readyz"))
        await life.begun.wait()
        second = asyncio.create_task(http.get("/readyz"))
        await asyncio.wait([second], timeout=0.2)
        if second.done():  # it may also be told to come back
            assert second.result().status_code == 503
        assert not first.done()
        life.gate.set()
        assert (await first).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        await second
        await app.stop()


async def test_an_agent_that_cannot_start_is_tried_again(
    mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life()
    life.fault = RuntimeError("no database yet")
    app = App(echo(life), drain_timeout=0.1)
    async with serving(mounted(app, "/agent")) as url, httpx.AsyncClient(timeout=20) as http:
        for _ in range(2):
            response = await http.post(f"{url}/agent/message:send", json=message("hi"))
            assert response.status_code in (500, 503)
            assert "no database" not in response.text
        assert "no database yet" in caplog.text
        life.fault = None
        await converse(http, f"{url}/agent")
        await app.stop()
    assert (life.entered, life.exited) == (1, 1)


async def test_those_who_came_while_a_start_failed_are_told() -> None:
    life = Life()
    life.gate.clear()
    life.fault = RuntimeError("no database yet")
    app = App(echo(life), drain_timeout=0.1, blocking_timeout=5)
    async with client(app) as http:
        first = asyncio.create_task(http.post("/message:send", json=message("hi")))
        await life.begun.wait()
        second = asyncio.create_task(http.post("/message:send", json=message("hi")))
        await asyncio.wait([second], timeout=0.1)
        life.gate.set()
        for waiting in (first, second):
            assert (await waiting).status_code in (500, 503)


async def test_a_server_is_told_that_it_cannot_start() -> None:
    life = Life()
    life.fault = RuntimeError("no database yet")
    sent = await lifespan(App(echo(life)), "lifespan.startup")
    (told,) = sent
    assert told["type"] == "lifespan.startup.failed"
    assert "no database yet" in told["message"]


async def test_an_agent_that_cannot_end_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bad, good = Life(), Life()
    bad.last = RuntimeError("cannot let go")
    app = App(echo(good, "Good"), echo(bad, "Bad"), drain_timeout=0.1)
    with pytest.raises(RuntimeError, match="cannot let go"):
        async with app:
            pass
    assert (bad.exited, good.exited) == (1, 1)
    assert "cannot let go" in caplog.text
    bad.last = None
    async with app:  # and it can be used again
        assert (bad.entered, good.entered) == (2, 2)
    assert (bad.exited, good.exited) == (2, 2)


async def lifespan(app: App, *messages: str) -> list[dict[str, Any]]:
    """Speak the lifespan protocol with an application: what it said."""
    waiting = list(messages)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": waiting.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send)
    return sent


async def test_the_lifespan_protocol() -> None:
    life = Life()
    sent = await lifespan(App(echo(life)), "lifespan.startup", "lifespan.shutdown")
    assert [m["type"] for m in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert (life.entered, life.exited) == (1, 1)


async def test_websockets_are_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await App(echo())({"type": "websocket", "path": "/", "headers": []}, receive, send)
    assert [m["type"] for m in sent] == ["websocket.close"]


async def test_stopping_ends_open_streams(mounted: Mounted) -> None:
    app = App(echo(), drain_timeout=0.1)
    async with serving(mounted(app, "/agent")) as url, httpx.AsyncClient(timeout=20) as http:
        url = f"{url}/agent"
        sent = await http.post(f"{url}/message:send", json=message("ask"))
        task = sent.json()["task"]["id"]
        async with http.stream("GET", f"{url}/tasks/{task}:subscribe") as asking:
            lines = asking.aiter_lines()
            assert (await anext(lines)).startswith("id: ")
            async with http.stream("POST", f"{url}/message:stream", json=message("gate")) as busy:
                others = busy.aiter_lines()
                assert (await anext(others)).startswith("id: ")
                await asyncio.wait_for(app.stop(), 10)
                rest = [line async for line in others]
                assert "TASK_STATE_FAILED" in [line for line in rest if line][-1]
            assert not any("error" in line for line in [line async for line in lines])
        await app.start()  # what is kept is there again
        got = (await http.get(f"{url}/tasks/{task}")).json()
        assert got["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        await app.stop()


def test_a_loop_that_has_ended_is_left_behind() -> None:
    """As with a test client that runs each request in a loop of its own."""
    life = Life()
    app = App(echo(life), drain_timeout=0.1, blocking_timeout=2)

    async def once() -> dict[str, Any]:
        life.gate = asyncio.Event()
        life.gate.set()
        life.begun = asyncio.Event()
        async with client(app) as http:
            found: dict[str, Any] = (await http.post("/message:send", json=message("hi"))).json()
            return found

    for _ in range(2):
        assert asyncio.run(once())["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


# ---- manners -------------------------------------------------------------------------------

LOGGING = """
import asyncio, json, logging, sys
if "uvicorn" in sys.argv:
    import logging.config, uvicorn
    logging.config.dictConfig(uvicorn.config.LOGGING_CONFIG)
if "configured" in sys.argv:
    logging.basicConfig(level=logging.ERROR, format="HOST %(message)s", stream=sys.stdout)

def picture():
    root = logging.getLogger()
    return [
        [repr(handler) for handler in root.handlers],
        root.level,
        root.disabled,
        root.filters,
        logging.root.manager.disable,
        repr(logging.lastResort),
        logging.raiseExceptions,
        logging.getLoggerClass().__name__,
        logging.getLogRecordFactory().__name__,
        repr(logging.getLogger("asyncio").handlers),
        sys.excepthook is sys.__excepthook__,
    ]

before = picture()
import httpx
from dragoman import Agent, App, Turn

agent = Agent("Echo", description="Says it again.")

@agent.handler
async def answer(turn: Turn) -> str:
    raise ValueError("for the log")

async def main():
    app = App(agent)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as http:
        body = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
        answer = await http.post("/message:send", json={"message": body})
        print(answer.json()["task"]["status"]["message"]["parts"][0]["text"])
    await app.stop()

asyncio.run(main())
ours = logging.getLogger("dragoman")
assert before == picture(), (before, picture())
assert ours.level == logging.NOTSET and ours.propagate and not ours.disabled
assert ours.handlers == []
print("done")
"""


@pytest.mark.parametrize("how", ["not", "uvicorn", "configured"])
def test_the_hosts_logging_is_left_alone(how: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LOGGING, how],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("done\n")
    # the host hears what went wrong, in its own manner, if it listens; else Python tells it
    (id,) = re.findall("^The agent failed .ValueError.; correlation id (.*)$", run.stdout, re.M)
    told = f"handler answer raised ValueError; correlation id {id}\n"
    if how == "configured":
        assert run.stderr == ""
        assert f"HOST {told}" in run.stdout
    else:
        assert run.stderr.startswith(told)
        assert run.stderr.endswith("ValueError: for the log\n")


async def test_the_settings_of_the_command_do_not_touch_it() -> None:
    logger = logging.getLogger("dragoman")
    before = (logger.level, logger.propagate, list(logger.handlers))
    app = App(echo(), log_level="debug", log_format="json", drain_timeout=0.1)
    async with app, client(app) as http:
        await http.post("/message:send", json=message("hi"))
    assert (logger.level, logger.propagate, logger.handlers) == before
