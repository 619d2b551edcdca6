"""The reference SDK as one caller among others: identities, tenants, extended cards, retries."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from a2a.client import A2AClientError, ClientCallContext
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from msgspec.structs import replace

from dragoman import Agent, AgentCard, App, Caller, Request
from tests.harness.server import serving
from tests.interop.agents import agent, book
from tests.interop.reference import Peer, Speak, asking, gather, send, state

pytestmark = pytest.mark.asyncio(loop_scope="session")

EXTENDED = pb.GetExtendedAgentCardRequest()


def identify(request: Request) -> Caller:
    """Who the caller says to be, as `name` or `name@tenant`; nobody if it does not say."""
    name, _, tenant = request.headers.get("x-name", "").partition("@")
    return Caller(identity=name, tenant=tenant)


def desk() -> Agent:
    """An agent that shows more of itself to those it knows."""
    made = agent(book, name="Desk")

    @made.extended_card
    def extended(caller: Caller, public: AgentCard) -> AgentCard:
        (skill,) = public.skills
        secret = replace(skill, id="secret", name=f"For {caller.identity}")
        return replace(public, skills=(skill, secret))

    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded() -> AsyncIterator[str]:
    """The URL of a server that tells its callers apart."""
    mute = agent(book, name="Mute", extended=True)
    async with serving(
        App(
            desk(),
            mute,
            identify=identify,
            push=True,
            egress_allow=["*.example"],
            drain_timeout=0.0,
        )
    ) as url:
        yield url


# ---- extended cards --------------------------------------------------------------------------


async def test_extended_card_for_those_who_are_known(guarded: str, speak: Speak) -> None:
    async with speak(f"{guarded}/desk", headers={"x-name": "alice"}) as peer:
        assert peer.card.capabilities.extended_agent_card
        assert [skill.id for skill in peer.card.skills] == ["book"]
        card = await peer.plain.get_extended_agent_card(EXTENDED)
        assert [skill.name for skill in card.skills] == ["Book", "For alice"]
        assert card.supported_interfaces == peer.card.supported_interfaces
        assert state(await send(peer.plain, "Lyon")) == "input_required"


async def test_no_extended_card_for_strangers(guarded: str, speak: Speak) -> None:
    async with speak(f"{guarded}/desk") as peer:
        with pytest.raises(A2AClientError, match="HTTP Error 401"):
            await peer.plain.get_extended_agent_card(EXTENDED)


@pytest.mark.clause("capability.extended-card-missing")
async def test_extended_card_that_is_only_declared(guarded: str, speak: Speak) -> None:
    async with speak(f"{guarded}/mute", headers={"x-name": "alice"}) as peer:
        with pytest.raises(ExtendedAgentCardNotConfiguredError):
            await peer.plain.get_extended_agent_card(EXTENDED)


@pytest.mark.clause("capability.extended-card")
async def test_agent_without_extended_card(meet: Speak) -> None:
    """A client that read the card does not ask; one that did not is refused."""
    async with meet("echo") as peer:
        assert await peer.plain.get_extended_agent_card(EXTENDED) == peer.card
    claims = pb.AgentCapabilities(extended_agent_card=True)
    async with meet("echo", capabilities=claims) as peer:
        with pytest.raises(UnsupportedOperationError):
            await peer.plain.get_extended_agent_card(EXTENDED)


# ---- whose tasks -----------------------------------------------------------------------------


@pytest.mark.clause("errors.not-found", "access.every-operation", "list.only-visible")
@pytest.mark.parametrize("stranger", ["bob", "", "alice@elsewhere"])
async def test_nobody_sees_what_is_not_theirs(guarded: str, speak: Speak, stranger: str) -> None:
    url, name = f"{guarded}/desk", f"alice-{uuid.uuid4().hex}"
    async with (
        speak(url, headers={"x-name": name}) as owner,
        speak(url, headers={"x-name": stranger.replace("alice", name)}) as other,
    ):
        task = await send(owner.plain, "Lyon")
        assert await _refused(other, task.id) == await _refused(other, "unknown")
        listed = await other.plain.list_tasks(pb.ListTasksRequest(context_id=task.context_id))
        assert (list(listed.tasks), listed.total_size) == ([], 0)
        assert await owner.plain.get_task(pb.GetTaskRequest(id=task.id)) == task
        listed = await owner.plain.list_tasks(pb.ListTasksRequest())
        assert [item.id for item in listed.tasks] == [task.id]


async def _refused(peer: Peer, task: str) -> list[str]:
    """What is said when this task is asked for in every way there is."""
    plain = peer.plain
    attempts = [
        plain.get_task(pb.GetTaskRequest(id=task)),
        plain.cancel_task(pb.CancelTaskRequest(id=task)),
        send(plain, "more", task=task),
        gather(peer.live.send_message(asking("more", task=task))),
        gather(peer.live.subscribe(pb.SubscribeToTaskRequest(id=task))),
        plain.create_task_push_notification_config(
            pb.TaskPushNotificationConfig(task_id=task, url="https://client.example/hook")
        ),
        plain.list_task_push_notification_configs(
            pb.ListTaskPushNotificationConfigsRequest(task_id=task)
        ),
        plain.get_task_push_notification_config(
            pb.GetTaskPushNotificationConfigRequest(task_id=task, id="some")
        ),
        plain.delete_task_push_notification_config(
            pb.DeleteTaskPushNotificationConfigRequest(task_id=task, id="some")
        ),
    ]
    said = []
    for attempt in attempts:
        with pytest.raises(TaskNotFoundError) as caught:
            await attempt
        said.append(repr(caught.value))
    return said


# ---- tenants ---------------------------------------------------------------------------------


@pytest.mark.clause("http.tenant-prefix")
async def test_tenant_of_the_interface_goes_with_every_request(meet: Speak) -> None:
    """The SDK copies it from the card; over HTTP+JSON it stands in the path too."""
    tenant = f"acme-{uuid.uuid4().hex}"
    async with meet("book", tenant=tenant) as inside, meet("book") as outside:
        events = await gather(inside.live.send_message(asking("Lyon")))
        task = events[0].task
        got = await inside.plain.get_task(pb.GetTaskRequest(id=task.id))
        assert state(got) == "input_required"
        listed = await inside.plain.list_tasks(pb.ListTasksRequest())
        assert [item.id for item in listed.tasks] == [task.id]

        made = await inside.plain.create_task_push_notification_config(
            pb.TaskPushNotificationConfig(task_id=task.id, url="https://client.example/hook")
        )
        found = await inside.plain.get_task_push_notification_config(
            pb.GetTaskPushNotificationConfigRequest(task_id=task.id, id=made.id)
        )
        assert found.url == "https://client.example/hook"
        several = await inside.plain.list_task_push_notification_configs(
            pb.ListTaskPushNotificationConfigsRequest(task_id=task.id)
        )
        assert [item.id for item in several.configs] == [made.id]
        await inside.plain.delete_task_push_notification_config(
            pb.DeleteTaskPushNotificationConfigRequest(task_id=task.id, id=made.id)
        )

        stream = inside.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        assert (await anext(stream)).task.id == task.id
        await _refused(outside, task.id)
        canceled = await inside.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        assert state(canceled) == "canceled"
        assert [event.status_update.status.state for event in await gather(stream)] == [
            pb.TASK_STATE_CANCELED
        ]


async def test_caller_of_another_tenant(guarded: str, speak: Speak) -> None:
    headers = {"x-name": "alice@acme"}
    async with (
        speak(f"{guarded}/desk", headers=headers, tenant="acme") as right,
        speak(f"{guarded}/desk", headers=headers, tenant="other") as wrong,
    ):
        task = await send(right.plain, "Lyon")
        with pytest.raises(A2AClientError, match="HTTP Error 403"):
            await wrong.plain.get_task(pb.GetTaskRequest(id=task.id))
        with pytest.raises(A2AClientError, match="HTTP Error 403"):
            await send(wrong.plain, "Lyon")


# ---- the same again --------------------------------------------------------------------------


@pytest.mark.clause("send.idempotent")
async def test_message_sent_twice_by_someone_known_runs_once(guarded: str, speak: Speak) -> None:
    id, context = uuid.uuid4().hex, uuid.uuid4().hex
    async with speak(f"{guarded}/desk", headers={"x-name": "alice"}) as peer:
        first = await send(peer.plain, "Lyon", id=id, context=context)
        again = await send(peer.plain, "Lyon", id=id, context=context)
        (*_, last) = await gather(peer.live.send_message(asking("Lyon", id=id, context=context)))
        other = await send(peer.plain, "Nice", id=id, context=context)
        listed = await peer.plain.list_tasks(pb.ListTasksRequest(context_id=context))
    assert again == first
    assert _task_id(last) == first.id
    assert other.id != first.id
    assert listed.total_size == 2


async def test_idempotency_key(meet: Speak) -> None:
    """It holds for strangers too; with another message it is refused."""
    id, context = uuid.uuid4().hex, uuid.uuid4().hex
    key = ClientCallContext(service_parameters={"Idempotency-Key": uuid.uuid4().hex})

    async with meet("echo") as peer:

        async def attempt(text: str) -> pb.Task:
            request = asking(text, id=id, context=context)
            (event,) = await gather(peer.plain.send_message(request, context=key))
            return event.task

        first = await attempt("hello")
        assert await attempt("hello") == first
        with pytest.raises(InvalidParamsError, match="Idempotency-Key"):
            await attempt("goodbye")
        listed = await peer.plain.list_tasks(pb.ListTasksRequest(context_id=context))
    assert listed.total_size == 1


async def test_strangers_may_reuse_message_ids(meet: Speak) -> None:
    async with meet("echo") as peer:
        first = await send(peer.plain, "hello", id="1")
        second = await send(peer.plain, "hello", id="1")
    assert first.id != second.id
    assert state(second) == "completed"


def _task_id(event: pb.StreamResponse) -> str:
    return event.task.id if event.HasField("task") else event.status_update.task_id
