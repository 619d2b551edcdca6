"""gRPC only: deadlines, metadata, rich statuses, health, reflection, TLS, encoding."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb2
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc as old_grpc
from a2a.types import a2a_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from dragoman import Agent, App, Caller, Request, Turn
from dragoman.dialects import protobuf
from dragoman.model.errors import Unavailable
from tests.contract.bindings.conftest import identify, user
from tests.contract.bindings.test_send import ended, until
from tests.contract.bindings.test_task_across_bindings import assembly, hall, only
from tests.harness import agents
from tests.harness.app import RunningApp, running
from tests.harness.clients import REQUESTS, Failed, Grpc, JsonRpc, asked
from tests.harness.older_clients import Grpc03, old_request
from tests.harness.raw_server import Certificate
from tests.harness.server import BINDINGS, serving

__all__ = ["hall"]  # a fixture
SERVICES = ("lf.a2a.v1.A2AService", "a2a.v1.A2AService")
both = pytest.mark.parametrize("kind", [Grpc, Grpc03], ids=lambda kind: kind.name)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def gone(server: RunningApp) -> None:
    """Until no stream is open."""
    async with asyncio.timeout(30):
        while server.app.streams.open:
            await asyncio.sleep(0.01)


# ---- calls ---------------------------------------------------------------------------------


@both
async def test_a_deadline_ends_the_call_and_not_the_task(
    hall: RunningApp, kind: type[Grpc]
) -> None:
    client = hall.client(kind)
    assert isinstance(client, Grpc)
    call = client.start("SendMessage", {"message": user("gate")}, timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    task = await only(hall)
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    stream = client.start("SubscribeToTask", {"id": task["id"]}, timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async for _ in stream:
            pass
    assert failed.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await gone(hall)
    hall.gate.set()
    found = await ended(client, task["id"])
    assert found["artifacts"][0]["parts"] == [{"text": "through the gate"}]


@both
async def test_a_reader_that_cancels_is_gone_at_once(hall: RunningApp, kind: type[Grpc]) -> None:
    client = hall.client(kind)
    async with client.open("SendStreamingMessage", message=user("gate")) as events:
        task = (await anext(events)).event["task"]["id"]
        assert len(hall.app.streams.open) == 1
    await gone(hall)
    await until(client, task, "WORKING")
    hall.gate.set()
    assert (await ended(client, task))["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.clause("grpc.error-info")
@both
async def test_errors_say_all_in_their_details(hall: RunningApp, kind: type[Grpc]) -> None:
    client = hall.client(kind)
    assert isinstance(client, Grpc)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.start("GetTask", {"id": "x", "historyLength": -1})
    error = failed.value
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    status = status_pb2.Status.FromString(
        dict(error.trailing_metadata())["grpc-status-details-bin"]
    )
    assert (status.code, status.message) == (3, "historyLength: must not be negative")
    names = [detail.type_url.rpartition(".")[2] for detail in status.details]
    assert names == ["ErrorInfo", "BadRequest"]
    prefix = "InvalidParamsError: " if kind is Grpc03 else ""
    assert error.details() == f"{prefix}{status.message}"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await client.start("GetTask", {"id": "none"})
    status = status_pb2.Status.FromString(
        dict(failed.value.trailing_metadata())["grpc-status-details-bin"]
    )
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("TASK_NOT_FOUND", "a2a-protocol.org")


@both
async def test_a_long_error_still_arrives(hall: RunningApp, kind: type[Grpc]) -> None:
    message = user("x", metadata={"skill": "ü" * 20_000})
    with pytest.raises(Failed) as failed:
        await hall.client(kind).call("SendMessage", message=message)
    assert failed.value.reason == "INVALID_PARAMS"
    assert failed.value.fields == ["message.metadata.skill"]


async def test_a_message_that_is_too_large() -> None:
    async with assembly(max_body=20_000) as server:
        for kind in (Grpc, Grpc03):
            client = server.client(kind)
            assert isinstance(client, Grpc)
            for name in ("SendMessage", "SendStreamingMessage"):
                call = client.start(name, {"message": user("x" * 30_000)})
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await (call if name == "SendMessage" else call.read())
                assert failed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not await client.tasks()
        for kind in (Grpc, Grpc03):
            sent = await server.client(kind).call("SendMessage", message=user("x" * 15_000))
            assert sent["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_answers_may_be_larger_than_requests(hall: RunningApp) -> None:
    channel = grpc.aio.insecure_channel(
        hall.address, options=[("grpc.max_receive_message_length", -1)]
    )
    part = {"raw": "QUFB" * 400_000}  # of 1.2 MB, four times in the answer's task
    sent = await Grpc(hall.url, hall.http, {}, channel).call(
        "SendMessage", message=user(parts=[part] * 3, metadata={"skill": "files"})
    )
    assert sent["task"]["artifacts"][0]["parts"] == [part] * 3
    await channel.close()


@pytest.mark.parametrize(
    "content", [b"\x00\xff bytes", b"dGVzdA=="], ids=["bytes", "looks-encoded"]
)
async def test_files_of_those_who_send_them_bare(hall: RunningApp, content: bytes) -> None:
    options = [("grpc.primary_user_agent", "grpc-node-js/1.14.7")]
    params = {"message": user(parts=[{"raw": ""}], metadata={"skill": "files"})}
    request = old_request("SendMessage", params)
    request.request.content[0].file.file_with_bytes = content
    async with grpc.aio.insecure_channel(hall.address, options=options) as channel:
        answer = await old_grpc.A2AServiceStub(channel).SendMessage(request)
    assert answer.task.artifacts[0].parts[0].file.file_with_bytes == content
    found = await only(hall)
    assert base64.b64decode(found["artifacts"][0]["parts"][0]["raw"]) == content


@pytest.mark.parametrize("service", [*SERVICES, "no.such.Service"])
async def test_methods_that_are_none(hall: RunningApp, service: str) -> None:
    for method in ("Dance", "message/send", "sendMessage"):
        call = hall.channel.unary_unary(f"/{service}/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"")
        assert failed.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert not hall.app.streams.open


# ---- who calls -----------------------------------------------------------------------------


@pytest.mark.clause("grpc.metadata")
async def test_identify_sees_a_call_as_a_request() -> None:
    seen: list[Request] = []

    def notice(request: Request) -> Caller:
        seen.append(request)
        return identify(request)

    app = App(agents.make(), grpc_port=0, identify=notice, drain_timeout=0.1)
    async with running(app) as server:
        for kind in (Grpc, Grpc03):
            client = server.client(kind, X_User="ann", Authorization="Bearer x")
            client.headers["x-odd-bin"] = b"\x00\xff"  # type: ignore[assignment]
            await client.call("SendMessage", message=user("hello"))
            (request,) = seen
            assert request.method == "POST"
            assert request.path.endswith("A2AService/SendMessage")
            assert request.headers["authorization"] == "Bearer x"
            assert request.headers["x-odd-bin"] == "\x00\xff"
            assert request.client == "127.0.0.1"
            nobody = server.client(kind, X_User="nobody")
            for name in ("call", "stream"):
                method = "SendMessage" if name == "call" else "SendStreamingMessage"
                with pytest.raises(Failed) as failed:
                    await getattr(nobody, name)(method, message=user("x"))
                assert (failed.value.reason, failed.value.status) == ("UNAUTHENTICATED", 401)
                assert nobody.last.headers["www-authenticate"] == "Bearer"
            seen.clear()
        assert (
            len(await server.client(JsonRpc, X_User="ann").tasks()) == 1
        )  # the same message twice


async def test_the_number_of_streams_counts_all_of_them(constants: Callable[..., None]) -> None:
    constants(max_streams=2)
    async with assembly() as server:
        task = (await server.client(Grpc).call("SendMessage", message=user("ask")))["task"]["id"]
        async with (
            server.client(Grpc03).open("SubscribeToTask", id=task) as one,
            server.client(JsonRpc).open("SubscribeToTask", id=task) as two,
        ):
            await anext(one)
            await anext(two)
            for kind in (Grpc, Grpc03):
                client = server.client(kind)
                with pytest.raises(Failed) as failed:
                    await client.stream("SubscribeToTask", id=task)
                assert (failed.value.reason, failed.value.status) == ("RESOURCE_EXHAUSTED", 429)
                assert client.last.headers["retry-after"] == "1"
        await gone(server)
        async with server.client(Grpc).open("SubscribeToTask", id=task) as again:
            await anext(again)


# ---- health and reflection -----------------------------------------------------------------


async def test_health_while_it_drains() -> None:
    async with assembly(drain_timeout=0.05) as server:
        stub = health_pb2_grpc.HealthStub(server.channel)
        names = ("", *SERVICES)
        for name in names:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.Check(health_pb2.HealthCheckRequest(service="none"))
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICES[0]))
        assert (await watch.read()).status == SERVING
        task = (await server.client(Grpc).call("SendMessage", message=user("ask")))["task"]["id"]
        async with (
            server.client(Grpc).open("SubscribeToTask", id=task) as newer,
            server.client(Grpc03).open("SubscribeToTask", id=task) as older,
        ):
            await anext(newer)
            await anext(older)
            await server.app.drain()
            async with asyncio.timeout(30):
                assert (await watch.read()).status == NOT_SERVING
            for name in names:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == NOT_SERVING
            assert [seen async for seen in newer] == [seen async for seen in older] == []
        watch.cancel()
        for kind in (Grpc, Grpc03):
            with pytest.raises(Failed) as failed:
                await server.client(kind).call("SendMessage", message=user("late"))
            assert (failed.value.reason, failed.value.status) == ("UNAVAILABLE", 503)
            assert (await server.client(kind).call("GetTask", id=task))["id"] == task


@pytest.mark.clause("grpc.service")
async def test_reflection_tells_both_services(hall: RunningApp) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(hall.channel)

    async def ask(**question: Any) -> Any:
        async def requests() -> AsyncIterator[Any]:
            yield reflection_pb2.ServerReflectionRequest(**question)

        return await stub.ServerReflectionInfo(requests()).read()

    listed = (await ask(list_services="")).list_services_response.service
    assert {service.name for service in listed} == {
        *SERVICES,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    for service, modules in ((SERVICES[0], a2a_pb2), (SERVICES[1], old_pb2)):
        answer = await ask(file_containing_symbol=service)
        files = [
            FileDescriptorProto.FromString(body)
            for body in answer.file_descriptor_response.file_descriptor_proto
        ]
        (file,) = [file for file in files if file.service]
        assert file.package == service.rpartition(".")[0]
        ours = FileDescriptorProto()  # not the reference SDK's, which is here only for the tests
        protobuf.pool().FindFileContainingSymbol(service).CopyToProto(ours)
        assert file == ours
        known = modules.DESCRIPTOR.services_by_name["A2AService"]
        assert {m.name for m in file.service[0].method} >= {m.name for m in known.methods}
        # what it imports can be had as well, by whoever puts it together
        have, wanted = {file.name for file in files}, set(file.dependency)
        while missing := wanted - have:
            name = missing.pop()
            found = await ask(file_by_filename=name)
            for body in found.file_descriptor_response.file_descriptor_proto:
                more = FileDescriptorProto.FromString(body)
                have.add(more.name)
                wanted |= set(more.dependency)
            assert name in have
    assert (await ask(file_containing_symbol="no.Such")).error_response.error_code == 5


# ---- ports ---------------------------------------------------------------------------------


async def test_each_agent_has_a_port_of_its_own() -> None:
    one, two = Agent("One", description="."), Agent("Two", description=".")

    @one.handler
    async def first(turn: Turn) -> str:
        return "One"

    @two.handler
    async def second(turn: Turn) -> str:
        return "Two"

    app = App(one, two, grpc_port=0, bindings=BINDINGS, drain_timeout=0.1)
    async with serving(app) as url, httpx.AsyncClient() as http:
        assert len({port.number for port in app.ports}) == 2
        for port, agent in zip(app.ports, (one, two), strict=True):
            address = f"127.0.0.1:{port.number}"
            async with grpc.aio.insecure_channel(address) as channel:
                sent = await Grpc(url, http, {}, channel).call("SendMessage", message=user("x"))
            assert sent["task"]["artifacts"][0]["parts"] == [{"text": agent.name}]
            card = (await http.get(f"{url}/{agent.key}/.well-known/agent-card.json")).json()
            found = {
                i["url"] for i in card["supportedInterfaces"] if i["protocolBinding"] == "GRPC"
            }
            assert found == {address}
    assert app.ports == []


async def test_a_port_that_is_taken(hall: RunningApp) -> None:
    number = hall.app.ports[0].number
    app = App(agents.make(), grpc_port=number)
    with pytest.raises(Unavailable, match=f"grpc_port: cannot listen on .*:{number}"):
        await app.start()
    await app.stop()


# ---- TLS -----------------------------------------------------------------------------------


@asynccontextmanager
async def secured(
    server: RunningApp, certified: Certificate, own: Certificate | None
) -> AsyncIterator[Any]:
    """A channel to a server with this certificate, with one of one's own."""
    mine = own.file.read_bytes() if own else None
    credentials = grpc.ssl_channel_credentials(certified.file.read_bytes(), mine, mine)
    async with grpc.aio.secure_channel(server.address, credentials) as channel:
        yield channel


def certificate(folder: Path, name: str) -> Certificate:
    """One of this name."""
    (folder / name).mkdir()
    return Certificate(folder / name, "127.0.0.1", "localhost")


async def test_tls(tmp_path: Path) -> None:
    certified = certificate(tmp_path, "server")
    file = str(certified.file)
    async with assembly(cert=file, key=file) as server:
        async with secured(server, certified, None) as channel:
            client = Grpc(server.url, server.http, {}, channel)
            sent = await client.call("SendMessage", message=user("x"))
            assert sent["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        stranger = certificate(tmp_path, "stranger")
        for channel in (
            grpc.aio.insecure_channel(server.address),
            grpc.aio.secure_channel(
                server.address, grpc.ssl_channel_credentials(stranger.file.read_bytes())
            ),
        ):
            call = Grpc(server.url, server.http, {}, channel).start(
                "GetTask", {"id": "x"}, timeout=2
            )
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            assert failed.value.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            await channel.close()


async def test_certificates_of_clients(tmp_path: Path) -> None:
    certified, ann, eve = (certificate(tmp_path, name) for name in ("server", "ann", "eve"))
    file = str(certified.file)
    async with assembly(cert=file, key=file, ca=str(ann.file)) as server:
        async with secured(server, certified, ann) as channel:
            client = Grpc(server.url, server.http, {}, channel)
            await client.call("SendMessage", message=user("x"))
        for own in (None, eve):
            async with secured(server, certified, own) as channel:
                client = Grpc(server.url, server.http, {}, channel)
                call = client.start("GetTask", {"id": "x"}, timeout=2)
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await call
                assert failed.value.code() in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                )


async def test_files_of_tls_that_are_not_there(tmp_path: Path) -> None:
    app = App(agents.make(), grpc_port=0, cert=str(tmp_path / "no.pem"), key="no.pem")
    with pytest.raises(Unavailable, match=r"^(key|cert): .*no\.pem: No such file"):
        await app.start()
    await app.stop()


# ---- bytes ---------------------------------------------------------------------------------

PARAMS: dict[str, dict[str, Any]] = {
    name: {
        "SendMessage": {"message": user("hello", metadata={"a": [1, {"b": None}]})},
        "SendStreamingMessage": {"message": user(parts=[{"raw": "AAEC"}, {"data": {"x": 1}}])},
        "ListTasks": {"pageSize": 5, "contextId": "c"},
        "CreateTaskPushNotificationConfig": {
            "taskId": "t",
            "url": "https://example.com/hook",
            "authentication": {"scheme": "Bearer", "credentials": "c"},
        },
        "GetExtendedAgentCard": {},
        "ListTaskPushNotificationConfigs": {"taskId": "t", "pageSize": 3},
        "GetTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
        "DeleteTaskPushNotificationConfig": {"taskId": "t", "id": "c"},
    }.get(name, {"id": "t"})
    for name in REQUESTS
}
PROPER = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
}


def twisted(body: bytes, dice: random.Random) -> list[bytes]:
    """Bytes that are hardly a message any more."""
    found = [b"", b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f", dice.randbytes(3), dice.randbytes(120)]
    found += [body[: dice.randrange(len(body) + 1)] for _ in range(6)]
    for _ in range(16 if body else 0):
        flipped = bytearray(body)
        for _ in range(dice.randint(1, 4)):
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
        found.append(bytes(flipped))
    found.append(body * 2)
    found.append(b"\x12\x80\x01" * 500)  # deeply nested, or nothing at all
    return found


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_hostile_bytes_get_a_proper_answer(hall: RunningApp, version: str) -> None:
    dice = random.Random(version)
    kind = Grpc if version == "1.0" else Grpc03
    client = hall.client(kind)
    assert isinstance(client, Grpc)
    seen = set()
    for name, params in PARAMS.items():
        if version == "0.3" and name == "ListTasks":
            continue
        sample = asked(name, params) if version == "1.0" else old_request(name, params)
        path = f"/{SERVICES[version == '0.3']}/{client.method(name)}"

        async def call(body: bytes, path: str = path, name: str = name) -> Any:
            if name in ("SendStreamingMessage", "SubscribeToTask"):
                stream = hall.channel.unary_stream(path)(body, timeout=10)
                async for _ in stream:
                    pass
                return await stream.code()
            one = hall.channel.unary_unary(path)(body, timeout=10)
            await one
            return await one.code()

        async def tried(body: bytes, call: Any = call) -> Any:
            try:
                return await call(body)
            except grpc.aio.AioRpcError as error:
                assert error.code() in PROPER, (body, error)
                assert "grpc-status-details-bin" in dict(error.trailing_metadata())
                return error.code()

        seen |= set(await asyncio.gather(*map(tried, twisted(sample.SerializeToString(), dice))))
    assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT} <= seen
    await gone(hall)
    sent = await client.call("SendMessage", message=user("hello"))
    assert sent["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"grpc_port": 65536}, "grpc_port: must be at most 65535, not 65536"),
        ({"grpc_port": 0, "key": "k.pem"}, "key: needs cert"),
        ({"grpc_port": 0, "ca": "ca.pem"}, "ca: needs cert"),
    ],
)
def test_what_makes_no_sense_is_told_at_once(settings: dict[str, Any], reason: str) -> None:
    """A port that is open without the certificates that were asked for would be worse."""
    with pytest.raises(ValueError, match=reason):
        App(agents.make(), **settings)


async def test_why_one_cannot_listen(tmp_path: Path) -> None:
    (junk := tmp_path / "junk.pem").write_text("junk")
    for settings, reason in (
        ({"host": "192.0.2.1"}, r"grpc_port: cannot listen on 192\.0\.2\.1:0: .*assign"),
        ({"cert": str(junk), "key": str(junk)}, "cert, key: are no"),
    ):
        app = App(agents.make(), grpc_port=0, **settings)
        with pytest.raises(Unavailable, match=reason):
            await app.start()
