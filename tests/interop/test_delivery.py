"""What the reference SDK registers is delivered, and the SDK reads what arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format

from dragoman import App
from tests.harness.server import serving
from tests.harness.webhooks import Inbox, receiving
from tests.interop.agents import TaskGate, agent, echo, reply, story, talk
from tests.interop.reference import Peer, Speak, asking, gather, kinds, send, states

pytestmark = pytest.mark.asyncio(loop_scope="session")


@asynccontextmanager
async def both(speak: Speak, handler: object) -> AsyncIterator[tuple[Peer, Inbox]]:
    """An agent that pushes, as the SDK sees it, and where it pushes to."""
    app = App(agent(handler), push=True, egress_allow=["127.0.0.1"], drain_timeout=0.0)
    async with receiving() as inbox, serving(app) as url, speak(url) as peer:
        assert peer.card.capabilities.push_notifications
        yield peer, inbox


def parsed(inbox: Inbox) -> list[pb.StreamResponse]:
    """What arrived, as the SDK reads it: strictly, a field it does not know is an error."""
    return [json_format.Parse(post.body, pb.StreamResponse()) for post in inbox.posts]


def configured(inbox: Inbox, **fields: object) -> pb.SendMessageConfiguration:
    """A send that brings a webhook."""
    config = pb.TaskPushNotificationConfig(url=inbox.url, **fields)
    return pb.SendMessageConfiguration(task_push_notification_config=config)


@pytest.mark.clause("push.payload", "push.with-send", "push.at-least-once")
async def test_a_webhook_is_told_what_the_stream_is(speak: Speak) -> None:
    async with both(speak, talk) as (peer, inbox):
        request = asking("one two three", configuration=configured(inbox))
        events = await gather(peer.live.send_message(request))
        await inbox.end()
    assert kinds(events)[0] == "task"
    assert parsed(inbox) == events[1:]


@pytest.mark.clause("push.credentials")
async def test_credentials_are_those_of_the_config(speak: Speak) -> None:
    async with both(speak, talk) as (peer, inbox):
        secret = pb.AuthenticationInfo(scheme="Bearer", credentials="abc")
        configuration = configured(inbox, token="token-4711", authentication=secret)
        await send(peer.plain, "one", configuration=configuration)
        await inbox.end()
    for post in inbox.posts:
        assert post.headers["authorization"] == "Bearer abc"
        assert post.headers["x-a2a-notification-token"] == "token-4711"


@pytest.mark.clause("push.create")
async def test_a_webhook_that_is_created_while_the_task_works(speak: Speak) -> None:
    gate = TaskGate()
    async with both(speak, story) as (peer, inbox):
        stream = peer.live.send_message(asking(gate.name))
        seen = [await anext(stream) for _ in range(3)]
        task = seen[0].task.id
        made = await peer.plain.create_task_push_notification_config(
            pb.TaskPushNotificationConfig(task_id=task, url=inbox.url)
        )
        assert made.url == inbox.url
        gate.open.set()
        rest = await gather(stream)
        await inbox.end()
    assert parsed(inbox) == rest
    assert states(rest) == ["completed"]


@pytest.mark.clause("push.delete")
async def test_a_webhook_that_is_deleted_is_told_nothing_more(speak: Speak) -> None:
    gate = TaskGate()
    async with both(speak, story) as (peer, inbox), receiving() as other:
        stream = peer.live.send_message(asking(gate.name, configuration=configured(inbox)))
        task = (await anext(stream)).task.id
        await inbox.came(2)
        (config,) = (
            await peer.plain.list_task_push_notification_configs(
                pb.ListTaskPushNotificationConfigsRequest(task_id=task)
            )
        ).configs
        await peer.plain.create_task_push_notification_config(
            pb.TaskPushNotificationConfig(task_id=task, url=other.url)
        )
        await peer.plain.delete_task_push_notification_config(
            pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id=config.id)
        )
        gate.open.set()
        await gather(stream)
        await other.end()
        assert len(inbox.posts) == 2


async def test_a_direct_reply(speak: Speak) -> None:
    async with both(speak, reply) as (peer, inbox):
        request = asking("hello", configuration=configured(inbox))
        events = await gather(peer.plain.send_message(request))
        await inbox.came(1)
    assert kinds(events) == ["message"]
    assert parsed(inbox) == events


async def test_parts_of_every_kind_arrive_as_they_are(speak: Speak) -> None:
    data = pb.Part()
    data.data.struct_value.update({"a": [1, None, "ü\u2028"]})
    parts = [pb.Part(raw=b"\x00\xff", media_type="a/b"), pb.Part(url="https://x.example/"), data]
    async with both(speak, echo) as (peer, inbox):
        await send(peer.plain, *parts, configuration=configured(inbox))
        await inbox.end()
    (update,) = [event for event in parsed(inbox) if event.HasField("artifact_update")]
    assert list(update.artifact_update.artifact.parts) == parts
