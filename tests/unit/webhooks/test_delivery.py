"""Deliveries: what arrives, in which order, how often, and when no more."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman import Agent, Caller, Request, Turn
from dragoman.model import clock
from dragoman.model.types import TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from dragoman.security.egress import Egress, EgressResponse
from dragoman.webhooks import delivery as webhooks
from dragoman.webhooks import signature
from dragoman.webhooks.delivery import LONGEST, Failure, _verdict, delivery
from dragoman.webhooks.receiver import Notification, Receiver
from tests.harness.server import serving
from tests.harness.webhooks import Inbox, pushing, receiving


@pytest.fixture(params=["memory", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the logs are kept."""
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/{clock.uuid7()}.db"


def words(inbox: Inbox) -> list[str]:
    """What was said, as it came."""
    updates = [post.event.get("artifactUpdate") for post in inbox.posts]
    return [found["artifact"]["parts"][0]["text"] for found in updates if found]


# ---- what arrives --------------------------------------------------------------------------


@pytest.mark.clause("push.payload", "push.at-least-once", "push.with-send")
async def test_every_event_in_order_and_once(kept: str) -> None:
    async with receiving() as inbox, pushing(store=kept) as sender:
        task = await sender.send(" ".join(f"w{number}" for number in range(150)), inbox.url)
        await inbox.end()
        await sender.lines(lambda lines: not lines)
        assert [post.event for post in inbox.posts] == await sender.log(task)
    assert len(inbox.posts) == 152
    for post in inbox.posts:
        assert post.line == "POST /hook?who=me HTTP/1.1"
        assert post.headers["content-type"] == "application/a2a+json"
        assert len(post.event) == 1
    assert len({post.id for post in inbox.posts}) == 152
    assert inbox.most == 1, "one after the other"


@pytest.mark.clause("push.payload")
async def test_a_task_that_came_by_rpc_is_told_in_the_same_form() -> None:
    async with receiving() as inbox, pushing() as sender:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}
        configuration = {"taskPushNotificationConfig": {"url": inbox.url}}
        params = {"message": message, "configuration": configuration}
        answer = await sender.ask("/", jsonrpc="2.0", id=1, method="SendMessage", params=params)
        await inbox.end()
        task = answer.json()["result"]["task"]["id"]
        assert [post.event for post in inbox.posts] == await sender.log(task)


async def test_events_come_while_the_task_works_without_waiting_for_the_poll() -> None:
    async with receiving() as inbox, pushing(poll=60.0) as sender, asyncio.timeout(3):
        await sender.send("a gate b", inbox.url)
        await inbox.came(2)
        assert not inbox.ends
        sender.agent.gate.set()
        await inbox.end()
    assert words(inbox) == ["a", "b"]


async def test_the_next_turn_is_told_as_well() -> None:
    async with receiving() as inbox, pushing() as sender:
        task = await sender.send("a ask", inbox.url)
        await inbox.came(3)
        await sender.send("b", task=task)
        await inbox.end()
        assert [post.event for post in inbox.posts] == await sender.log(task)


async def test_a_direct_reply_is_told() -> None:
    async with receiving() as inbox, pushing() as sender:
        message = {
            "messageId": "m",
            "role": "ROLE_USER",
            "parts": [{"text": "hello"}],
            "metadata": {"skill": "answer"},
        }
        configuration = {"taskPushNotificationConfig": {"url": inbox.url}}
        answer = await sender.ask("/message:send", message=message, configuration=configuration)
        (post,) = await inbox.came(1)
        assert post.event == {"message": answer.json()["message"]}


async def test_a_cancelled_task_is_told() -> None:
    async with receiving() as inbox, pushing() as sender:
        task = await sender.send("gate", inbox.url)
        await inbox.came(1)
        await sender.ask(f"/tasks/{task}:cancel")
        posts = await inbox.end()
    assert posts[-1].event["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"


async def test_a_webhook_that_is_created_later_is_told_what_comes_after_it() -> None:
    async with receiving() as early, receiving() as late, pushing() as sender:
        task = await sender.send("a b gate c", early.url)
        await early.came(3)
        await sender.hook(task, late.url)
        sender.agent.gate.set()
        await early.end()
        await late.end()
    assert (words(early), words(late)) == (["a", "b", "c"], ["c"])


# ---- headers -------------------------------------------------------------------------------


@pytest.mark.clause("push.credentials")
async def test_headers() -> None:
    before = int(time.time())
    async with receiving() as inbox, pushing() as sender:
        task = await sender.send(
            "a",
            inbox.url,
            id="mine",
            token="token-4711",
            authentication={"scheme": "Bearer", "credentials": "abc def"},
        )
        await inbox.end()
    for number, post in enumerate(inbox.posts, start=2):
        headers = post.headers
        assert headers["authorization"] == "Bearer abc def"
        assert headers["x-a2a-notification-token"] == "token-4711"
        assert headers["user-agent"].startswith("dragoman/")
        assert post.id == delivery(task, "mine", number)
        assert before <= int(headers["webhook-timestamp"]) <= time.time()
        assert "webhook-signature" not in headers


async def test_no_headers_that_were_not_asked_for() -> None:
    async with receiving() as inbox, pushing() as sender:
        await sender.send("a", inbox.url)
        await inbox.end()
    for post in inbox.posts:
        assert not {"authorization", "x-a2a-notification-token"} & post.headers.keys()


def test_the_id_of_a_delivery() -> None:
    """It is stored by receivers: another version must not make another one of it."""
    assert delivery("t", "w", 3) == "msg_9ae7e934609997950b988c5ba120caa1"
    others = {delivery(*one) for one in (("t", "w", 4), ("t", "v", 3), ("s", "w", 3))}
    assert len(others | {delivery("t", "w", 3)}) == 4


SECRET, PRIVATE = signature.secret(), signature.private()


@pytest.mark.parametrize(
    "keys",
    [[SECRET.text], [PRIVATE.public().text], [SECRET.text, PRIVATE.public().text]],
    ids=["hmac", "ed25519", "both"],
)
async def test_a_receiver_believes_it(keys: list[str]) -> None:
    got: list[Notification] = []
    done = asyncio.Event()

    async def notified(notification: Notification) -> None:
        got.append(notification)
        event = notification.event
        if isinstance(event, TaskStatusUpdateEvent) and event.status.state.terminal:
            done.set()

    receiver = Receiver(token="token-4711", keys=keys)
    signed = [SECRET.text, PRIVATE.text]
    async with serving(receiver.app(notified)) as url, pushing(push_keys=signed) as sender:
        task = await sender.send("a b", f"{url}/hooks", token="token-4711")
        await asyncio.wait_for(done.wait(), 5)
    assert {notification.task_id for notification in got} == {task}
    assert all(notification.fresh for notification in got)
    kinds = [type(notification.event) for notification in got]
    told, chunk = TaskStatusUpdateEvent, TaskArtifactUpdateEvent
    assert kinds == [told, chunk, chunk, told]


async def test_a_receiver_that_fails_is_told_again_and_one_that_did_not_is_not() -> None:
    calls: Counter[str] = Counter()
    done = asyncio.Event()

    async def notified(notification: Notification) -> None:
        calls[notification.id] += 1
        if calls[notification.id] == 1:
            raise RuntimeError("not now")
        event = notification.event
        if isinstance(event, TaskStatusUpdateEvent) and event.status.state.terminal:
            done.set()

    receiver = Receiver(keys=[SECRET.text])
    async with serving(receiver.app(notified)) as url, pushing(push_keys=[SECRET.text]) as sender:
        await sender.send("a", f"{url}/hooks")
        await asyncio.wait_for(done.wait(), 5)
    assert list(calls.values()) == [2, 2, 2]


# ---- trying again --------------------------------------------------------------------------


@pytest.mark.clause("push.retry")
async def test_what_fails_is_tried_again_under_the_same_id(kept: str) -> None:
    async with receiving(500, 404, 200, 302) as inbox, pushing(store=kept) as sender:
        task = await sender.send("a b", inbox.url)
        await inbox.end()
        log = await sender.log(task)
    tried = [post.event for post in inbox.posts]
    assert tried == [log[0]] * 3 + [log[1]] * 2 + log[2:]
    first, second, third = inbox.posts[:3]
    assert first.id == second.id == third.id
    assert first.body == third.body
    assert second.at - first.at > 0.9 * 0.02
    assert third.at - second.at > 0.9 * 0.04


async def test_each_entry_has_all_of_the_plan() -> None:
    """Two failures are allowed, for each one anew."""
    async with receiving(*[500, 500, 200] * 4) as inbox, pushing() as sender:
        await sender.send("a b", inbox.url)
        await inbox.came(12)
        await sender.lines(lambda lines: not lines)
    assert len({post.id for post in inbox.posts}) == 4


async def test_what_fails_too_often_is_parked_and_goes_on_when_redriven(kept: str) -> None:
    async with receiving() as inbox, pushing(store=kept) as sender:
        inbox.always = 503
        inbox.answers = [200]
        task = await sender.send("a", inbox.url, id="mine")
        (line,) = await sender.parked()
        assert (line.task, line.webhook.config.id, line.cursor) == (task, "mine", 2)
        assert (line.attempts, line.reason) == (3, "answered 503")
        assert len(inbox.posts) == 4, "the first, and three times the second"
        inbox.always = 200
        assert await sender.store.redrive(task, "mine") == 1
        await inbox.end()
        assert [post.event for post in inbox.posts[4:]] == (await sender.log(task))[1:]
        assert len({post.id for post in inbox.posts[1:5]}) == 1
        assert not await sender.store.undelivered(9, parked=True)


async def test_gone_is_believed_at_once() -> None:
    async with receiving(410) as inbox, pushing() as sender:
        await sender.send("a", inbox.url)
        (line,) = await sender.parked()
        assert line.reason == "answered 410"
        assert len(inbox.posts) == 1


async def test_the_receiver_may_ask_for_more_time() -> None:
    answer = b"HTTP/1.1 503 Later\r\nRetry-After: 100\r\n"
    async with receiving(answer) as inbox, pushing() as sender:
        before = time.time()
        await sender.send("a", inbox.url)
        (line,) = await sender.lines(lambda lines: lines and lines[0].reason)
        assert before + 100 <= line.due <= time.time() + 100
        assert not line.parked


@pytest.mark.parametrize(
    ("status", "wish", "expected"),
    [
        (200, "", None),
        (204, "9", None),
        (299, "", None),
        (199, "", Failure("answered 199", "199")),
        (301, "", Failure("answered 301", "301")),
        (401, "", Failure("answered 401", "401")),
        (410, "", Failure("answered 410", "410", final=True)),
        (429, "7", Failure("answered 429", "429", after=7.0)),
        (429, "9" * 40, Failure("answered 429", "429", after=LONGEST)),
        (429, "-1", Failure("answered 429", "429")),
        (429, "1.5", Failure("answered 429", "429")),
        (429, "²", Failure("answered 429", "429")),
        (429, "Fri, 31 Dec 2026 23:59:59 GMT", Failure("answered 429", "429")),
    ],
)
def test_verdicts(status: int, wish: str, expected: Failure | None) -> None:
    assert _verdict(EgressResponse(status, {"retry-after": wish}, b"")) == expected


# ---- side by side --------------------------------------------------------------------------


async def test_webhooks_of_one_task_do_not_wait_for_each_other() -> None:
    async with receiving() as dead, receiving() as well, pushing() as sender:
        dead.gate.clear()
        task = await sender.send("a gate b", dead.url)
        await sender.hook(task, well.url)
        sender.agent.gate.set()
        await well.end()
        assert len(dead.posts) == 1


async def test_one_host_gets_only_so_many_at_once() -> None:
    async with receiving() as inbox, pushing(push_per_host=3) as sender:
        inbox.gate.clear()
        for _ in range(10):
            await sender.send("a", inbox.url)
        await inbox.came(3)
        await sender.lines(lambda lines: len(lines) == 10)
        assert inbox.busy == 3
        inbox.gate.set()
        await inbox.until(lambda: len(inbox.ends) == 10)
        assert inbox.most == 3


async def test_the_limits_are_those_of_the_make_egress() -> None:
    """Nothing else limits deliveries: not the settings once more."""
    way = Egress(allow=["127.0.0.1"], per_host=3, timeout=60.0)
    async with receiving() as inbox, pushing(egress=way, push_per_host=1) as sender:
        inbox.gate.clear()
        for _ in range(5):
            await sender.send("a", inbox.url)
        await inbox.came(3)
        inbox.gate.set()
        await inbox.until(lambda: len(inbox.ends) == 5)
        assert inbox.most == 3


async def test_all_hosts_together_get_only_so_many_at_once() -> None:
    async with (
        receiving() as first,
        receiving() as second,
        pushing(push_running=3, push_per_host=2, egress_allow=["127.0.0.1", "localhost"]) as sender,
    ):
        other = second.url.replace("127.0.0.1", "localhost")
        for inbox in (first, second):
            inbox.gate.clear()
        for _ in range(4):
            await sender.send("a", first.url)
            await sender.send("a", other)
        await first.came(1)
        await second.came(1)
        await sender.lines(lambda lines: len(lines) == 8)
        assert first.busy + second.busy == 3
        for inbox in (first, second):
            inbox.gate.set()
        await first.until(lambda: len(first.ends) == 4)
        await second.until(lambda: len(second.ends) == 4)
        assert first.most <= 2
        assert second.most <= 2


async def test_many_lines_to_one_host_do_not_wait_for_the_poll(kept: str) -> None:
    async with receiving() as inbox, pushing(store=kept, poll=60.0) as sender, asyncio.timeout(3):
        inbox.pace = 0.001
        await asyncio.gather(*(sender.send("a", inbox.url) for _ in range(100)))
        await inbox.until(lambda: len(inbox.ends) == 100)
        assert inbox.most == 8


async def test_many_lines_to_a_host_that_hangs_do_not_delay_another_host(kept: str) -> None:
    allow = ["127.0.0.1", "localhost"]
    async with receiving() as dead, receiving() as well:
        dead.gate.clear()
        async with pushing(store=kept, egress_allow=allow, push_timeout=60.0) as sender:
            await asyncio.gather(*(sender.send("a", dead.url) for _ in range(400)))
            await sender.lines(lambda lines: len(lines) == 400)
            async with asyncio.timeout(3):
                await sender.send("a", well.url.replace("127.0.0.1", "localhost"))
                await well.end()
            assert len(dead.posts) == 8


def named(request: Request) -> Caller:
    """Whoever says so."""
    return Caller(identity=request.headers["x-name"])


async def test_hosts_of_one_owner_that_hang_do_not_delay_another_owner(kept: str) -> None:
    async def resolve(host: str) -> Sequence[str]:
        return ["127.0.0.1"]

    way = Egress(allow=["*.test"], resolve=resolve, timeout=60.0, total=128)
    async with receiving() as dead, receiving() as well:
        dead.gate.clear()
        async with pushing(store=kept, egress=way, push_timeout=60.0, identify=named) as sender:
            sender.http.headers["x-name"] = "ann"
            for number in range(200):
                await sender.send(f"a{number}", dead.url.replace("127.0.0.1", f"h{number}.test"))
            await dead.until(lambda: dead.busy == 64)
            sender.http.headers["x-name"] = "ben"
            async with asyncio.timeout(5):
                await sender.send("a", well.url.replace("127.0.0.1", "well.test"))
                await well.end()
            assert dead.most == 64, "one owner alone has all that one may have"


async def test_names_of_one_owner_that_hang_do_not_delay_another_owner() -> None:
    async def resolve(host: str) -> Sequence[str]:
        if host != "well.test":
            await asyncio.Event().wait()
        return ["127.0.0.1"]

    way = Egress(allow=["*.test"], resolve=resolve, timeout=60.0, total=128)
    settings: dict[str, Any] = {"push_timeout": 60.0, "identify": named}
    async with receiving() as well, pushing(egress=way, **settings) as sender:
        sender.http.headers["x-name"] = "ann"
        for number in range(250):
            await sender.send(f"a{number}", f"http://h{number}.test/")
        sender.http.headers["x-name"] = "ben"
        async with asyncio.timeout(4):  # a look-up has five seconds
            await sender.send("a", well.url.replace("127.0.0.1", "well.test"))
            await well.end()


# ---- whole tasks, for clients before 1.0 ---------------------------------------------------


def chatter() -> Agent:
    """An agent that says many things, after its gate was opened."""
    agent = Agent("Chatter", description="Says much.")
    agent.gate = asyncio.Event()  # type: ignore[attr-defined]

    @agent.handler
    async def talk(turn: Turn) -> AsyncIterator[Any]:
        await agent.gate.wait()  # type: ignore[attr-defined]
        for number in range(int(turn.text)):
            yield turn.working(f"{number} {'x' * 100}")
        yield turn.complete("That is it")

    return agent


async def send_older(sender: Any, text: str, url: str) -> None:
    """Begin a task as a client of 0.3 does."""
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": []}
    message["parts"] = [{"kind": "text", "text": text}]
    configuration = {"blocking": False, "pushNotificationConfig": {"url": url}}
    params = {"message": message, "configuration": configuration}
    answer = await sender.ask("/", jsonrpc="2.0", id=1, method="message/send", params=params)
    assert "result" in answer.json(), answer.text


async def test_whole_tasks_are_bounded_in_bytes(kept: str) -> None:
    async with receiving() as inbox, pushing(chatter(), store=kept) as sender:
        inbox.pace = 0.005
        await send_older(sender, "2000", inbox.url)
        begun = time.monotonic()
        sender.agent.gate.set()
        posts = await inbox.end()
        took = time.monotonic() - begun
    sizes = [len(post.body) for post in posts]
    assert posts[-1].event["status"]["state"] == "completed"
    assert len(posts[-1].event["history"]) == 2001
    assert sum(sizes) < took * webhooks.RATE + sizes[-1] + webhooks.SMALL
    told = [len(post.event["history"]) for post in posts]
    assert told == sorted(told), "in order"
    assert len({post.id for post in posts}) == len(posts)


async def test_a_line_that_is_behind_gets_the_last_whole_task_alone(kept: str) -> None:
    async with receiving() as inbox, pushing(chatter(), store=kept) as sender:
        inbox.always = 503
        await send_older(sender, "20", inbox.url)
        sender.agent.gate.set()
        (line,) = await sender.parked()
        inbox.always, inbox.posts, inbox.ends = 200, [], []
        assert await sender.store.redrive(line.task) == 1
        (post,) = await inbox.end()
        assert post.event["status"]["state"] == "completed"
        await sender.lines(lambda lines: not lines)
        assert len(inbox.posts) == 1


async def test_few_small_tasks_are_all_posted() -> None:
    async with receiving() as inbox, pushing(chatter(), poll=60.0) as sender:
        await send_older(sender, "3", inbox.url)
        sender.agent.gate.set()
        posts = await inbox.end()
    states = [post.event["status"]["state"] for post in posts]
    assert states == ["working"] * 3 + ["completed"]


async def test_a_task_that_never_ends_does_not_keep_the_place_at_its_host(kept: str) -> None:
    agent = Agent("Endless", description="Goes on.")

    @agent.handler
    async def go_on(turn: Turn) -> AsyncIterator[Any]:
        while turn.text == "on":
            yield turn.write("on ")
            await asyncio.sleep(0)
        yield turn.complete()

    async with receiving() as inbox, pushing(agent, store=kept, push_per_host=1) as sender:
        await sender.send("on", inbox.url)
        await inbox.came(10)
        await sender.send("end", inbox.url)
        await inbox.end()


async def test_a_line_that_waits_in_vain_for_its_host_has_not_failed() -> None:
    async with receiving() as inbox:
        inbox.gate.clear()
        async with pushing(push_per_host=1, push_timeout=0.2, push_retries=(60.0,)) as sender:
            await sender.send("a", inbox.url)
            await inbox.came(1)
            await sender.send("b", inbox.url)
            third = await sender.send("c", inbox.url)
            # while the first two have the place, the third waits as long as one may
            lines = await sender.lines(lambda lines: sum(line.attempts for line in lines) == 2)
            assert {line.reason for line in lines} == {"", "no answer within 0.2 s"}
            inbox.gate.set()
            await inbox.end(third)
            assert {post.task for post in inbox.ends} == {third}


# ---- when no more --------------------------------------------------------------------------


@pytest.mark.clause("push.delete")
async def test_a_deleted_webhook_gets_nothing_more(kept: str) -> None:
    """Its host has one place: what comes after has waited for its last delivery to end."""
    async with receiving() as inbox, pushing(store=kept, push_per_host=1) as sender:
        inbox.gate.clear()
        task = await sender.send("a b c", inbox.url, id="mine")
        await inbox.came(1)
        other = await sender.send("d", inbox.url)
        await sender.unhook(task, "mine")
        inbox.gate.set()
        await inbox.end(other)
    assert [post.task for post in inbox.posts] == [task, other, other, other]


async def test_one_that_is_deleted_while_it_waits_for_its_host_gets_nothing(kept: str) -> None:
    async with receiving() as inbox, pushing(store=kept, push_per_host=1) as sender:
        inbox.gate.clear()
        first = await sender.send("a", inbox.url)
        await inbox.came(1)
        second = await sender.send("b", inbox.url, id="mine")
        third = await sender.send("c", inbox.url)
        await sender.ended(third)
        await sender.unhook(second, "mine")
        inbox.gate.set()
        await inbox.end(first)
        await inbox.end(third)
        assert second not in {post.task for post in inbox.posts}


async def test_a_replaced_webhook_goes_on_at_its_new_address(kept: str) -> None:
    async with receiving() as old, receiving() as new, pushing(store=kept) as sender:
        old.gate.clear()
        task = await sender.send("a b", old.url, id="mine")
        await old.came(1)
        await sender.ended(task)
        await sender.hook(task, new.url, id="mine")
        await new.end()
        old.gate.set()
        await sender.lines(lambda lines: not lines)
        assert [post.event for post in new.posts] == await sender.log(task)
        assert len(old.posts) == 1
