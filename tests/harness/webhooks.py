"""A webhook receiver that records deliveries, and an application that sends them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, NamedTuple

import httpx
import pytest

from dragoman import Agent, App, Message, Turn
from dragoman.dialects import v1_0
from dragoman.model.caller import Scope
from dragoman.security.egress import Egress
from dragoman.server.settings import Settings
from dragoman.stores.store import WebhookCursor
from tests.harness.raw_server import Visit, listening

PATIENCE = 30.0
"""Seconds after which a waiting test fails."""


class Post(NamedTuple):
    """One received delivery."""

    at: float
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The delivery's id."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        """The event in the body."""
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def task(self) -> str:
        """The id of the task."""
        event = self.event
        if "kind" in event:  # before 1.0 the body is the task itself
            return str(event["id"])
        (inner,) = event.values()
        return str(inner["taskId"])


class Inbox:
    """Receives deliveries. The first responses are those in `answers`: statuses, or whole heads."""

    def __init__(self, answers: Iterable[int | bytes] = ()) -> None:
        self.posts: list[Post] = []
        self.ends: list[Post] = []
        """The deliveries with the end of a task."""
        self.answers = list(answers)
        self.always: int | bytes = 200
        self.gate = asyncio.Event()
        """Responses wait until this event is set."""
        self.gate.set()
        self.pace = 0.0
        """Seconds before each response."""
        self.busy = self.most = 0
        """The number of concurrent deliveries, now and at most."""
        self.port = 0
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?who=me"

    async def talk(self, visit: Visit) -> None:
        """Serve one connection."""
        while True:
            line, headers, body = await visit.request()
            self.busy += 1
            self.most = max(self.most, self.busy)
            try:
                post = Post(time.monotonic(), line, headers, body)
                self.posts.append(post)
                if over(post):
                    self.ends.append(post)
                answer = self.answers.pop(0) if self.answers else self.always
                async with self._changed:
                    self._changed.notify_all()
                await self.gate.wait()
                if self.pace:
                    await asyncio.sleep(self.pace)
            finally:
                self.busy -= 1
            if isinstance(answer, int):
                answer = b"HTTP/1.1 %d Said\r\n" % answer
            await visit.send(answer + b"Content-Length: 0\r\n\r\n")

    async def until(self, ready: Callable[[], Any]) -> list[Post]:
        """Wait until the deliveries satisfy a condition, and return them."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(ready)
        return list(self.posts)

    async def came(self, number: int) -> list[Post]:
        """Wait for this many deliveries, and return them."""
        return await self.until(lambda: len(self.posts) >= number)

    async def end(self, task: str = "") -> list[Post]:
        """Wait for the end of the task, and return the deliveries."""
        return await self.until(lambda: any(task in ("", post.task) for post in self.ends))


def over(post: Post) -> bool:
    """Whether an event is the end of a task."""
    told = post.event.get("statusUpdate", post.event)
    state = told.get("status", {}).get("state", "").removeprefix("TASK_STATE_").lower()
    return state in ("completed", "failed", "canceled")


@contextlib.asynccontextmanager
async def receiving(*answers: int | bytes, port: int = 0) -> AsyncIterator[Inbox]:
    """Run a receiver on 127.0.0.1."""
    inbox = Inbox(answers)
    async with listening(inbox.talk, port=port) as listener:
        inbox.port = listener.port
        yield inbox


def talker() -> Agent:
    """Create an agent that repeats the words of its message, and waits at the word `gate`."""
    agent = Agent("Talker", description="Says it again.")
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def talk(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("Well")
        for word in turn.text.split():
            if word == "gate":
                await agent.gate.wait()  # type: ignore[attr-defined]
            elif word == "ask":
                yield turn.ask("What?")
                return
            else:
                yield turn.write(word, name="words")
        yield turn.complete("That is it")

    @agent.skill(reply=True)
    async def answer(turn: Turn) -> Message:
        """Reply without a task."""
        return turn.reply(f"You said {turn.text}").message

    return agent


class Sender:
    """An application that sends webhooks, and its client."""

    def __init__(self, app: App, agent: Agent, http: httpx.AsyncClient) -> None:
        self.app = app
        self.agent = agent
        self.http = http
        self.store = app.store

    async def ask(self, path: str, verb: str = "POST", /, **body: Any) -> httpx.Response:
        """Send one request."""
        return await self.http.request(verb, path, json=body or None)

    async def send(self, text: str, url: str = "", *, task: str = "", **config: Any) -> str:
        """Start or continue a task with a webhook, and return the task's id."""
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
        configuration: dict[str, Any] = {"returnImmediately": True}
        if url:
            configuration["taskPushNotificationConfig"] = {"url": url, **config}
        response = await self.ask(
            "/message:send",
            message=message | ({"taskId": task} if task else {}),
            configuration=configuration,
        )
        assert response.status_code == 200, response.text
        return str(response.json()["task"]["id"])

    async def hook(self, task: str, url: str, **config: Any) -> str:
        """Register a webhook, and return its id."""
        response = await self.ask(f"/tasks/{task}/pushNotificationConfigs", url=url, **config)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    async def unhook(self, task: str, id: str) -> None:
        """Delete a webhook."""
        response = await self.ask(f"/tasks/{task}/pushNotificationConfigs/{id}", "DELETE")
        assert response.status_code == 200, response.text

    async def ended(self, task: str) -> dict[str, Any]:
        """Wait until a task has ended, by polling, and return it."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found: dict[str, Any] = (await self.ask(f"/tasks/{task}", "GET")).json()
                if found["status"]["state"] == "TASK_STATE_COMPLETED":
                    return found
                await asyncio.sleep(0.005)

    async def lines(
        self, ready: Callable[[Sequence[WebhookCursor]], Any], **which: Any
    ) -> Sequence[WebhookCursor]:
        """Wait until the pending deliveries satisfy a condition, and return them."""
        async with asyncio.timeout(PATIENCE):
            while not ready(found := await self.store.undelivered(1000, **which)):
                await asyncio.sleep(0.005)
        return found

    async def parked(self, number: int = 1) -> Sequence[WebhookCursor]:
        """Wait for this many parked deliveries, and return them."""
        return await self.lines(lambda lines: len(lines) == number, parked=True)

    async def log(self, task: str) -> list[dict[str, Any]]:
        """Return all events of a task that are delivered, in order."""
        entries = await self.store.read(Scope(self.agent.key), task, 0, 100_000)
        told = [v1_0.streamed(entry) for entry in entries or ()]
        return [json.loads(wire) for wire in told if wire]


@contextlib.asynccontextmanager
async def pushing(
    agent: Agent | None = None, *, egress: Egress | None = None, **settings: Any
) -> AsyncIterator[Sender]:
    """Run an application, with its own egress or a given one. Retries are fast."""
    agent = agent or talker()
    known = {
        "push": True,
        "egress_allow": ["127.0.0.1"],
        "push_retries": (0.02, 0.04),
        "poll": 0.02,
    }
    with pytest.MonkeyPatch.context() as patch:
        # these settings are constants
        for name in {"push_running", "push_per_host", "push_timeout"} & set(settings):
            patch.setattr(Settings, name, settings.pop(name))
        app = App(agent, **{**known, "drain_timeout": 0.0, **settings})
        if egress is not None:
            app._make_egress = lambda: egress  # type: ignore[method-assign]
        transport = httpx.ASGITransport(app)
        async with app, httpx.AsyncClient(transport=transport, base_url="http://agent") as http:
            yield Sender(app, agent, http)
