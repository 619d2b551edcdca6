"""The reference SDK raises its own typed exceptions for what a server refuses."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from a2a.client import A2AClientError, ClientCallContext
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.helpers import new_data_part
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InternalError,
    InvalidParamsError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from google.protobuf.json_format import MessageToDict

from dragoman import AgentExtension, App, Caller, Request
from dragoman.model.errors import Forbidden, Unauthenticated
from tests.harness.server import serving
from tests.interop.agents import agent, echo, modes
from tests.interop.reference import Speak, asking, gather, send

pytestmark = pytest.mark.asyncio(loop_scope="session")

NEEDED = "https://example.com/extensions/needed"


@pytest.mark.clause("send.terminal-task", "state.terminal-final")
@pytest.mark.parametrize("name", ["echo", "fall", "refuse", "book"])
async def test_message_for_a_task_that_has_ended(meet: Speak, name: str) -> None:
    async with meet(name) as peer:
        task = await send(peer.plain, "reject")
        if name == "book":
            task = await peer.plain.cancel_task(pb.CancelTaskRequest(id=task.id))
        with pytest.raises(UnsupportedOperationError):
            await send(peer.plain, "more", task=task.id)
        assert await peer.plain.get_task(pb.GetTaskRequest(id=task.id)) == task


@pytest.mark.clause("send.content-type", "errors.validate-first")
async def test_content_that_the_agent_does_not_take(meet: Speak) -> None:
    good = pb.Part(raw=b"..", media_type="image/png")
    bad = pb.Part(raw=b"%PDF", media_type="application/pdf")
    async with meet("picky", tenant=uuid.uuid4().hex) as peer:
        with pytest.raises(ContentTypeNotSupportedError, match="application/pdf") as caught:
            await send(peer.plain, good, bad)
        if peer.binding != "GRPC":  # where the SDK keeps the reason alone
            assert caught.value.data == {"field": "message.parts[1].mediaType"}
        assert (await peer.plain.list_tasks(pb.ListTasksRequest())).total_size == 0
        await send(peer.plain, good, pb.Part(raw=b"no type stated"))
        assert (await peer.plain.list_tasks(pb.ListTasksRequest())).total_size == 1


def without(field: str) -> pb.SendMessageRequest:
    """A request whose message lacks something."""
    request = asking("hello")
    request.message.ClearField(field)  # type: ignore[arg-type]
    return request


@pytest.mark.clause("fields.required", "message.required-fields")
@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.SendMessageRequest(), "message"),
        (without("message_id"), "messageId"),
        (without("role"), "role"),
        (without("parts"), "parts"),
        (asking(pb.Part()), "parts"),
        (
            asking("hello", configuration=pb.SendMessageConfiguration(history_length=-1)),
            "historyLength",
        ),
        (asking("hello", metadata={"skill": "juggle"}), "skill"),
    ],
    ids=["nothing", "no id", "no role", "no parts", "empty part", "history", "skill"],
)
async def test_message_that_is_not_whole(
    meet: Speak, request_: pb.SendMessageRequest, field: str
) -> None:
    async with meet("echo") as peer:
        for client in (peer.plain, peer.live):
            with pytest.raises(InvalidParamsError, match=field):
                await gather(client.send_message(request_))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"item": "pen"}, "price"),
        ({"item": 1, "price": 1}, "item"),
        ([], "data"),
        (None, "data"),
    ],
    ids=str,
)
async def test_data_that_the_handler_does_not_take(meet: Speak, data: Any, field: str) -> None:
    async with meet("order") as peer:
        with pytest.raises(InvalidParamsError, match=field):
            await send(peer.plain, new_data_part(data))
        with pytest.raises(InvalidParamsError, match="data part"):
            await send(peer.plain, "a pen, please")


async def test_history_length_below_nothing(meet: Speak) -> None:
    async with meet("echo") as peer:
        task = await send(peer.plain, "hello")
        with pytest.raises(InvalidParamsError, match="historyLength"):
            await peer.plain.get_task(pb.GetTaskRequest(id=task.id, history_length=-1))


@pytest.mark.clause("version.unsupported", "version.patch-ignored")
async def test_version_that_is_not_spoken(meet: Speak) -> None:
    async with meet("echo") as peer:
        task = await send(peer.plain, "hello")

        async def asked_in(version: str) -> pb.Task:
            context = ClientCallContext(service_parameters={"A2A-Version": version})
            return await peer.plain.get_task(pb.GetTaskRequest(id=task.id), context=context)

        assert await asked_in("1.0.7") == task
        for version in ("9.9", "1.1", "one"):
            with pytest.raises(VersionNotSupportedError):
                await asked_in(version)


@pytest.mark.clause("capability.required-extension", "extensions.opt-in")
async def test_extension_that_the_agent_requires(speak: Speak) -> None:
    strict = agent(modes, extensions=[AgentExtension(uri=NEEDED, required=True)])
    async with serving(App(strict)) as url, speak(url) as peer:
        declared = {item.uri: item.required for item in peer.card.capabilities.extensions}
        assert declared[NEEDED]
        for client in (peer.plain, peer.live):
            with pytest.raises(ExtensionSupportRequiredError, match=NEEDED):
                await gather(client.send_message(asking("hello")))
        named = with_a2a_extensions([NEEDED, "https://example.com/extensions/unknown"])
        context = ClientCallContext(service_parameters=ServiceParametersFactory.create([named]))
        (event,) = await gather(peer.plain.send_message(asking("hello"), context=context))
    known = MessageToDict(event.task.artifacts[0].parts[0].data)
    assert known["extensions"] == [NEEDED]


def refuse(error: Exception) -> Callable[[Request], Caller]:
    """An `identify` that lets nobody in."""

    def identify(request: Request) -> Caller:
        raise error

    return identify


@pytest.mark.parametrize(
    ("error", "status"), [(Unauthenticated("Who are you?"), 401), (Forbidden("Not you"), 403)]
)
async def test_caller_who_is_not_let_in(speak: Speak, error: Exception, status: int) -> None:
    """The SDK has no exceptions of its own for these, but tells the status."""
    async with serving(App(agent(echo), identify=refuse(error))) as url, speak(url) as peer:
        for client in (peer.plain, peer.live):
            with pytest.raises(A2AClientError, match=f"HTTP Error {status}"):
                await gather(client.send_message(asking("hello")))


@pytest.mark.clause("rpc.internal-error")
async def test_failure_inside_the_server(speak: Speak) -> None:
    broken = refuse(ZeroDivisionError("the secret of the house"))
    async with serving(App(agent(echo), identify=broken)) as url, speak(url) as peer:
        for client in (peer.plain, peer.live):
            with pytest.raises(InternalError) as caught:
                await gather(client.send_message(asking("hello")))
            assert "secret" not in str(caught.value)


@pytest.mark.clause("limits.sizes")
async def test_message_that_is_too_large(speak: Speak) -> None:
    async with serving(App(agent(echo), max_body=4096)) as url, speak(url) as peer:
        await send(peer.plain, "small")
        for client in (peer.plain, peer.live):
            with pytest.raises(A2AClientError, match="HTTP Error 413"):
                await gather(client.send_message(asking("x" * 5000)))


async def test_more_streams_than_the_server_takes(
    speak: Speak, constants: Callable[..., None]
) -> None:
    constants(max_streams=0)
    async with serving(App(agent(echo))) as url, speak(url) as peer:
        with pytest.raises(A2AClientError, match="HTTP Error 429"):
            await gather(peer.live.send_message(asking("hello")))
        await send(peer.plain, "hello")
