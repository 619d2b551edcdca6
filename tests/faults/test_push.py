"""Webhooks that are down, slow, false or dead; senders that are stopped or killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from dragoman.bells.memory import MemoryBell
from dragoman.model.errors import Unavailable
from dragoman.security.egress import Egress
from dragoman.server.settings import Settings
from dragoman.stores.memory import MemoryStore
from dragoman.stores.store import Claim
from dragoman.webhooks.delivery import WebhookSender, delivery
from tests.harness.raw_server import listening
from tests.harness.server import serving
from tests.harness.stores import W, accept, claim, hook, say
from tests.harness.webhooks import Inbox, Post, pushing, receiving, talker

PUBLIC = "93.184.215.14"


# ---- receivers -----------------------------------------------------------------------------


async def test_a_receiver_that_is_down_and_comes_up() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with pushing(push_retries=(0.02,) * 500) as sender:
        task = await sender.send("a b", f"http://127.0.0.1:{port}/")
        (line,) = await sender.lines(lambda lines: lines and lines[0].attempts >= 2)
        assert line.reason
        async with receiving(port=port) as inbox:
            await inbox.end()
            assert [post.event for post in inbox.posts] == await sender.log(task)


async def test_a_receiver_that_hangs_is_given_up_on_and_tried_again() -> None:
    async with receiving() as inbox, pushing(push_timeout=0.1) as sender:
        inbox.gate.clear()
        await sender.send("a", inbox.url)
        (line,) = await sender.lines(lambda lines: lines and lines[0].attempts == 1)
        assert line.reason == "no answer within 0.1 s"
        inbox.gate.set()
        posts = await inbox.end()
        assert posts[0].id == posts[1].id
        assert posts[0].body == posts[1].body


async def test_a_slow_receiver_is_waited_for() -> None:
    async with receiving() as inbox, pushing(push_timeout=5.0) as sender:
        inbox.pace = 0.05
        task = await sender.send("a b c", inbox.url)
        await inbox.end()
        assert [post.event for post in inbox.posts] == await sender.log(task)
        assert inbox.most == 1


@pytest.mark.parametrize(
    "said",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"],
    ids=["nothing", "nonsense", "half"],
)
async def test_a_receiver_that_hangs_up_has_not_taken_it(said: bytes) -> None:
    async def talk(visit: Any) -> None:
        listener.requests.append(await visit.request())
        await visit.send(said)

    async with listening(talk) as listener, pushing() as sender:
        await sender.send("a", f"http://127.0.0.1:{listener.port}/")
        (line,) = await sender.parked()
        assert (line.cursor, line.attempts) == (1, 3)
        assert len({headers["webhook-id"] for _, headers, _ in listener.requests}) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with listening() as canary, receiving() as inbox, pushing() as sender:
        to = f"http://127.0.0.1:{canary.port}/".encode()
        inbox.always = b"HTTP/1.1 %d Elsewhere\r\nLocation: %b\r\n" % (status, to)
        await sender.send("a", inbox.url)
        (line,) = await sender.parked()
        assert line.reason == f"answered {status}"
        assert len(inbox.posts) == 3
        await canary.unseen()


async def test_a_name_that_changes_its_address_is_refused_when_it_is_dialled() -> None:
    """It was public when it was registered."""
    answers = iter([[PUBLIC]])

    async def resolve(host: str) -> Sequence[str]:
        return next(answers, ["127.0.0.1"])

    async with listening() as canary:
        way = Egress(resolve=resolve)
        async with pushing(egress=way) as sender:
            task = await sender.send("gate a")
            await sender.hook(task, f"https://rebind.example:{canary.port}/")
            assert next(answers, None) is None, "it was looked up"
            sender.agent.gate.set()
            (line,) = await sender.parked()
            assert line.reason == "refused: the host resolves to an address that is not public"
            assert line.attempts == 1, "there is no use in trying again"
            await canary.unseen()


# ---- the sender's own faults ---------------------------------------------------------------


@contextlib.asynccontextmanager
async def carrying(store: MemoryStore, poll: float = 0.02) -> AsyncIterator[WebhookSender]:
    """A sender at work on this store, with short leases."""
    settings = Settings(poll=poll, push_retries=(0.02, 0.02))
    async with Egress(allow=["127.0.0.1"]) as egress:
        sender = WebhookSender(["agent"], store, MemoryBell(), settings, egress)
        sender.lease = 0.05
        task = asyncio.create_task(sender.run())
        yield sender
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Shaky(MemoryStore):
    """A store whose every second call for webhooks fails, in one way or the other."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def _shake(self) -> None:
        self.calls += 1
        if self.calls % 4 == 1:
            raise Unavailable("the disk is full")
        if self.calls % 4 == 3:
            raise RuntimeError("a bug")

    async def dispatch(self, *arguments: Any) -> Any:
        self._shake()
        return await super().dispatch(*arguments)

    async def dispatched(self, *arguments: Any, **more: Any) -> bool:
        self._shake()
        return await super().dispatched(*arguments, **more)


async def test_a_store_that_fails_ends_no_delivery() -> None:
    store = Shaky()
    async with receiving() as inbox:
        await accept(store, webhook=hook(url=inbox.url))
        await say(store, await claim(store), W, W, W)
        async with carrying(store):
            await inbox.until(lambda: len({post.id for post in inbox.posts}) == 3)
    ids = dict.fromkeys(post.id for post in inbox.posts)
    assert list(ids) == [delivery("t", "h", number) for number in (2, 3, 4)]
    assert store.calls > 4


class Late(MemoryStore):
    """A store to which something is appended just after it was read to the end."""

    held: Claim | None = None

    async def read(self, *arguments: Any) -> Any:
        found = await super().read(*arguments)
        if self.held is not None:
            held, self.held = self.held, None
            await say(self, held, W)
        return found


async def test_what_is_appended_at_the_last_moment_does_not_wait_for_the_poll() -> None:
    store = Late()
    async with receiving() as inbox, asyncio.timeout(3):
        await accept(store, webhook=hook(url=inbox.url))
        store.held = await claim(store)
        await say(store, store.held, W)
        async with carrying(store, poll=60.0):
            await inbox.came(2)


async def test_a_bug_on_one_line_parks_it_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = WebhookSender._headers

    def broken(self: WebhookSender, line: Any, *rest: Any) -> dict[str, str]:
        if line.webhook.config.id == "bad":
            raise RuntimeError("a bug")
        return headers(self, line, *rest)

    monkeypatch.setattr(WebhookSender, "_headers", broken)
    async with receiving() as inbox, pushing() as sender:
        await sender.send("a", inbox.url, id="bad")
        await sender.send("b", inbox.url, id="good")
        (line,) = await sender.parked()
        assert (line.webhook.config.id, line.reason) == ("bad", "internal error")
        await inbox.end()
    assert len({post.task for post in inbox.posts}) == 1


# ---- streams beside it ---------------------------------------------------------------------


async def test_no_stream_waits_for_a_webhook() -> None:
    """The webhooks get no answer before the stream has ended."""
    count = 200
    agent = talker()
    async with receiving() as inbox:
        inbox.gate.clear()
        async with pushing(agent, poll=1.0) as sender, httpx.AsyncClient() as http:
            message = {"messageId": "m", "role": "ROLE_USER"}
            text = "first gate " + " ".join(f"w{number}" for number in range(count))
            configuration = {"taskPushNotificationConfig": {"url": inbox.url}}
            body = {
                "message": message | {"parts": [{"text": text}]},
                "configuration": configuration,
            }
            events: list[Any] = []
            async with (
                serving(sender.app) as url,
                asyncio.timeout(60),
                http.stream("POST", f"{url}/message:stream", json=body) as response,
            ):
                async for line in response.aiter_lines():
                    if line.startswith("data:"):
                        events.append(json.loads(line[5:]))
                        if len(events) == 1:
                            task = events[0]["task"]["id"]
                            for _ in range(20):
                                await sender.hook(task, inbox.url)
                            await inbox.came(1)
                            agent.gate.set()
                assert len(events) == count + 4
                await inbox.came(8)
                assert inbox.busy == len(inbox.posts) == 8
                inbox.gate.set()
                posts = await inbox.until(lambda: len(inbox.ends) == 21)
    assert posts[0].event == events[1]


# ---- senders that end ----------------------------------------------------------------------


def told(posts: Sequence[Post]) -> dict[str, list[Any]]:
    """What was told of each task, without repetitions, which have the id of the first."""
    found: dict[str, dict[str, Any]] = {}
    for post in posts:
        known = found.setdefault(post.task, {}).setdefault(post.id, post.event)
        assert known == post.event
    return {task: list(events.values()) for task, events in found.items()}


async def ends(inbox: Inbox, number: int) -> list[Post]:
    """What has come, once so many tasks were told to the end."""
    return await inbox.until(lambda: len({post.task for post in inbox.ends}) == number)


async def test_the_next_server_goes_on_where_this_one_stopped(tmp_path: Path) -> None:
    kept = f"sqlite:///{tmp_path}/x.db"
    text = " ".join(f"w{number}" for number in range(30))
    async with receiving() as inbox:
        inbox.pace = 0.002
        async with pushing(store=kept) as sender:
            tasks = [await sender.send(text, inbox.url) for _ in range(3)]
            for task in tasks:
                await sender.ended(task)
            await inbox.came(20)
        before = len(inbox.posts)
        assert before < 96
        async with pushing(store=kept) as sender:
            posts = await ends(inbox, 3)
            assert told(posts) == {task: await sender.log(task) for task in tasks}
    assert len(posts) <= 96 + 3, "only what was on its way comes twice"


async def test_an_application_that_is_started_again_goes_on_at_once() -> None:
    """What it had taken is put back, not left to the end of a lease."""
    async with receiving() as inbox, pushing() as sender:
        inbox.gate.clear()
        task = await sender.send("a b", inbox.url)
        await inbox.came(1)
        await sender.ended(task)
        await sender.app.stop()
        inbox.gate.set()
        await sender.app.start()
        posts = await inbox.end()
        assert told(posts) == {task: await sender.log(task)}
        assert len(posts) == 5


AGENT = '''
"""An agent to be killed."""

import asyncio

from dragoman import Agent, Turn

agent = Agent("Counter", description="Counts.")


@agent.handler
async def count(turn: Turn):
    yield turn.working()
    for number in range(40):
        yield turn.write(f"{number} ")
        await asyncio.sleep(0.001)
    if turn.text == "stay":
        await asyncio.sleep(3600)
'''


@contextlib.asynccontextmanager
async def process(folder: Path) -> AsyncIterator[str]:
    """`dragoman serve --push` as a process of its own; it is killed at the end of the block."""
    known = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
    served = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dragoman", "serve", "count:agent", "--push", "--port", "0"),
        *("--store", f"sqlite:///{folder}/x.db", "--set", "egress_allow=127.0.0.1"),
        *("--set", "poll=0.05"),
        cwd=folder,
        env=known,
        stderr=asyncio.subprocess.PIPE,
    )
    assert served.stderr is not None
    try:
        async with asyncio.timeout(20):
            while not (found := re.search(rb" at (http://\S+)/", await served.stderr.readline())):
                assert served.returncode is None
            while b"Ctrl-C" not in await served.stderr.readline():
                pass
        yield found[1].decode()
    finally:
        served.send_signal(signal.SIGKILL)
        await served.communicate()


async def test_what_a_killed_server_had_to_deliver_is_delivered_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(AGENT)
    tasks: list[str] = []
    async with receiving() as inbox, httpx.AsyncClient() as http:
        inbox.pace = 0.005
        async with process(tmp_path) as url:
            for text in ("a", "b", "c", "d", "stay"):
                message = {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}]}
                configuration = {
                    "returnImmediately": True,
                    "taskPushNotificationConfig": {"url": inbox.url},
                }
                body = {"message": message, "configuration": configuration}
                answer = await http.post(f"{url}/message:send", json=body)
                tasks.append(answer.json()["task"]["id"])
            await inbox.came(60)
        before = len(inbox.posts)
        async with process(tmp_path) as url:
            posts = await ends(inbox, 5)
            found = [(await http.get(f"{url}/tasks/{task}")).json() for task in tasks]
    assert before < len(posts)
    events = told(posts)
    assert events.keys() == set(tasks)
    for task in found:
        *chunks, last = events[task["id"]]
        state = last["statusUpdate"]["status"]["state"]
        assert state == task["status"]["state"]
        assert state == "TASK_STATE_COMPLETED" or "worker stopped" in json.dumps(last)
        texts = [
            part["text"]
            for chunk in chunks
            for part in chunk.get("artifactUpdate", {}).get("artifact", {}).get("parts", ())
        ]
        kept = [part["text"] for artifact in task["artifacts"] for part in artifact["parts"]]
        assert "".join(texts) == "".join(kept)
        assert texts == [f"{number} " for number in range(len(texts))]
    twice = len(posts) - len({post.id for post in posts})
    assert twice <= 5, "what was on its way, and no more"
