"""The reference SDK manages push notification configs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from a2a.client import Client
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)

from dragoman import App
from tests.harness.server import serving
from tests.interop.agents import agent, book
from tests.interop.reference import Speak, asking, gather, send, state

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOOK = "https://client.example/hook"


def config(task: str, **fields: object) -> pb.TaskPushNotificationConfig:
    """A push config of a task, at an address that nobody calls."""
    return pb.TaskPushNotificationConfig(**{"task_id": task, "url": HOOK, **fields})


async def configs(client: Client, task: str) -> list[pb.TaskPushNotificationConfig]:
    """All configs of a task."""
    request = pb.ListTaskPushNotificationConfigsRequest(task_id=task)
    return list((await client.list_task_push_notification_configs(request)).configs)


@pytest.mark.clause("push.create", "push.read")
async def test_config_is_kept_as_it_was_made(meet: Speak) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        made = await peer.plain.create_task_push_notification_config(
            config(
                task.id,
                token="secret",
                authentication=pb.AuthenticationInfo(scheme="Bearer", credentials="abc"),
            )
        )
        assert made.id
        assert made == config(
            task.id,
            id=made.id,
            token="secret",
            authentication=pb.AuthenticationInfo(scheme="Bearer", credentials="abc"),
        )
        got = await peer.plain.get_task_push_notification_config(
            pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id=made.id)
        )
        assert got == made
        assert await configs(peer.plain, task.id) == [made]


@pytest.mark.parametrize("id", ["mine", "my own: ü?"])
async def test_config_with_an_id_of_the_clients_own(meet: Speak, id: str) -> None:
    """It is kept, and another config with that id takes its place."""
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        create = peer.plain.create_task_push_notification_config
        first = await create(config(task.id, id=id))
        assert first == config(task.id, id=id)
        second = await create(config(task.id, id=id, url=f"{HOOK}/2"))
        assert second == config(task.id, id=id, url=f"{HOOK}/2")
        assert await configs(peer.plain, task.id) == [second]


@pytest.mark.clause("push.read")
async def test_configs_page_by_page(meet: Speak) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        other = await send(peer.plain, "Nice")
        for name in "abcde":
            await peer.plain.create_task_push_notification_config(config(task.id, id=name))
        await peer.plain.create_task_push_notification_config(config(other.id, id="x"))
        request = pb.ListTaskPushNotificationConfigsRequest(task_id=task.id, page_size=2)
        pages: list[list[str]] = []
        while not pages or request.page_token:
            page = await peer.plain.list_task_push_notification_configs(request)
            pages.append([item.id for item in page.configs])
            request.page_token = page.next_page_token
    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(id_ for page in pages for id_ in page) == list("abcde")


@pytest.mark.clause("push.get-unknown")
async def test_config_can_be_deleted_twice(meet: Speak) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        for name in ("keep", "drop"):
            await peer.plain.create_task_push_notification_config(config(task.id, id=name))
        delete = pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="drop")
        for _ in range(2):
            await peer.plain.delete_task_push_notification_config(delete)
        assert [item.id for item in await configs(peer.plain, task.id)] == ["keep"]
        with pytest.raises(TaskNotFoundError):
            await peer.plain.get_task_push_notification_config(
                pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id="drop")
            )


@pytest.mark.clause("push.with-send")
@pytest.mark.parametrize("how", ["in the request", "in the client"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_config_that_comes_with_a_send(meet: Speak, how: str, streaming: bool) -> None:
    bare = pb.TaskPushNotificationConfig(url=HOOK, token="secret")
    options = {"push_notification_config": bare} if "client" in how else {}
    configuration = pb.SendMessageConfiguration(
        task_push_notification_config=None if options else bare
    )
    async with meet("book", **options) as peer:
        client = peer.live if streaming else peer.plain
        request = asking("Lyon", configuration=configuration)
        task = (await gather(client.send_message(request)))[0].task
        (kept,) = await configs(peer.plain, task.id)
    assert kept.id
    assert kept == config(task.id, id=kept.id, token="secret")


@pytest.mark.parametrize("url", ["", "hook", "ftp://client.example/hook", "https://"])
async def test_config_needs_an_address(meet: Speak, url: str) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        with pytest.raises(InvalidParamsError):
            await peer.plain.create_task_push_notification_config(config(task.id, url=url))
        assert await configs(peer.plain, task.id) == []


Call = Callable[[Client, str], Awaitable[object]]

CALLS: dict[str, Call] = {
    "create": lambda client, task: client.create_task_push_notification_config(config(task)),
    "get": lambda client, task: client.get_task_push_notification_config(
        pb.GetTaskPushNotificationConfigRequest(task_id=task, id="some")
    ),
    "list": lambda client, task: client.list_task_push_notification_configs(
        pb.ListTaskPushNotificationConfigsRequest(task_id=task)
    ),
    "delete": lambda client, task: client.delete_task_push_notification_config(
        pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id="some")
    ),
}


@pytest.mark.clause("push.unknown-task")
@pytest.mark.parametrize("name", CALLS)
async def test_config_of_an_unknown_task(meet: Speak, name: str) -> None:
    async with meet("book") as peer:
        with pytest.raises(TaskNotFoundError):
            await CALLS[name](peer.plain, "unknown")


@pytest.mark.clause("capability.push", "capability.push-in-send", "errors.validate-first")
async def test_agent_without_push(speak: Speak) -> None:
    async with serving(App(agent(book))) as url, speak(url) as peer:
        task = await send(peer.plain, "Lyon")
        for call in CALLS.values():
            with pytest.raises(PushNotificationNotSupportedError):
                await call(peer.plain, task.id)
        configuration = pb.SendMessageConfiguration(
            task_push_notification_config=pb.TaskPushNotificationConfig(url=HOOK)
        )
        for client in (peer.plain, peer.live):
            with pytest.raises(PushNotificationNotSupportedError):
                await gather(client.send_message(asking("Nice", configuration=configuration)))
        listed = await peer.plain.list_tasks(pb.ListTasksRequest())
    assert [item.id for item in listed.tasks] == [task.id]
    assert state(listed.tasks[0]) == "input_required"
