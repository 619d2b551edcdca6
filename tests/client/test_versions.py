"""The client in every version and over every binding, against dragoman itself on real sockets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from dragoman import Agent, App, Caller, Part, TaskState, Turn
from dragoman.client import Client, ClientCertificate, Inbox, Unreachable, tls
from dragoman.client.bindings import supported_bindings
from dragoman.client.credentials import CredentialsNotSent, StaticToken
from dragoman.client.transport import ASGITransport, HTTPTransport
from dragoman.client.upload import File
from dragoman.model.errors import (
    A2AError,
    TaskNotCancelable,
    TaskNotFound,
    Unauthenticated,
    UnsupportedOperation,
    VersionNotSupported,
)
from dragoman.model.types import (
    AgentCard,
    APIKeySecurityScheme,
    MutualTlsSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
    TaskArtifactUpdateEvent,
)
from tests.client.test_client import parrot
from tests.harness.raw_server import Certificate as Selfmade
from tests.harness.server import BINDINGS, serving

CONNECTIONS = [
    ("JSONRPC", "1.0"),
    ("HTTP+JSON", "1.0"),
    ("GRPC", "1.0"),
    ("JSONRPC", "0.3"),
    ("HTTP+JSON", "0.3"),
    ("GRPC", "0.3"),
    ("JSONRPC", "0.2"),
    ("JSONRPC", "0.1"),
]


@asynccontextmanager
async def desk(agent: Agent | None = None, **settings: Any) -> AsyncIterator[tuple[App, str]]:
    """An agent that can be reached in every way."""
    app = App(agent or parrot(), grpc_port=0, bindings=BINDINGS, drain_timeout=0.0, **settings)
    async with serving(app) as url:
        yield app, url


async def only(url: str, binding: str, version: str) -> AgentCard:
    """The agent's card as if it knew nothing but this."""
    async with Client.connect(url) as client:
        card = client.card
    found = next(each for each in card.supported_interfaces if each.protocol_binding == binding)
    return replace(card, supported_interfaces=(replace(found, protocol_version=version),))


@pytest.fixture(params=CONNECTIONS, ids=lambda connected: "-".join(connected))
async def connected(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Client, str, str]]:
    """A client that speaks one of them."""
    binding, version = request.param
    async with (
        desk() as (_, url),
        Client.connect(await only(url, binding, version), attempts=2) as client,
    ):
        yield client, binding, version


async def test_everything_that_can_be_said(
    connected: tuple[Client, str, str], tmp_path: Path
) -> None:
    client, _, version = connected
    done = await client.send("hello")
    assert (done.state, done.text) == (TaskState.COMPLETED, "hello")
    asked = await client.send("ask")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.task is not None
    answered = await client.send("more", task=asked.task.id)
    assert (answered.state, answered.text) == (TaskState.COMPLETED, "more")
    whole = await client.task(asked.task.id).get()
    # what was asked, said, asked back, answered, and said again
    assert [message.text for message in whole.history] == ["ask", "on it", "What?", "more", "on it"]
    file = tmp_path / "data.bin"
    file.write_bytes(bytes(range(256)))
    found = await client.send([Part(data={"n": 1}), File(file, media_type="text/plain")])
    assert found.task is not None
    data, raw = found.task.artifacts[0].parts
    assert (data.data, raw.raw, raw.filename) == ({"n": 1}, bytes(range(256)), "data.bin")
    with pytest.raises(TaskNotFound, match=r"^Task not found: unknown$"):
        await client.task("unknown").get()
    with pytest.raises(TaskNotCancelable):
        await client.task(asked.task.id).cancel()
    begun = await client.send("gate", wait=False) if version != "0.1" else None
    if begun is not None and begun.task is not None:
        assert (await client.task(begun.task.id).cancel()).status.state is TaskState.CANCELED


async def test_streams(connected: tuple[Client, str, str]) -> None:
    client, _, version = connected
    async with client.stream("count 30") as stream:
        events = [event async for event in stream]
    chunks = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    assert "".join(e.artifact.parts[0].text or "" for e in chunks[:-1]) == "".join(
        f"{n}," for n in range(30)
    )
    assert stream.task is not None
    assert stream.task.status.state is TaskState.COMPLETED
    assert [artifact.name for artifact in stream.task.artifacts][-1] == "sum"
    if version == "0.1":
        return  # whoever sends chooses the id
    with pytest.raises(TaskNotFound):
        async for _ in client.stream("more", task="unknown"):
            pass


async def test_what_a_version_does_not_have(connected: tuple[Client, str, str]) -> None:
    client, binding, version = connected
    await client.send("hello")
    if version == "1.0" or (binding, version) == ("HTTP+JSON", "0.3"):
        assert len([task async for task in client.list()]) == 1
        return
    with pytest.raises(UnsupportedOperation, match=rf"uses A2A {version}, which has no ListTasks"):
        _ = [task async for task in client.list()]


async def test_a_place_of_its_own_for_what_is_pushed() -> None:
    for binding, version in (("JSONRPC", "0.3"), ("GRPC", "1.0"), ("JSONRPC", "0.1")):
        agent = parrot()
        agent.streaming = False
        async with desk(agent, push=True, egress_allow=["127.0.0.1"], poll=60.0) as (_, url):
            inbox = Inbox("http://127.0.0.1:1/")
            async with serving(inbox.app) as hook:
                inbox._url = hook
                card = await only(url, binding, version)
                async with Client.connect(card, inbox=inbox) as client:
                    begun = await client.send("ask")
                    assert begun.state is TaskState.INPUT_REQUIRED
                    assert begun.task is not None
                    waiting = asyncio.ensure_future(client.task(begun.task.id).wait())
                    done = await client.send("more", task=begun.task.id)
                    assert done.text == "more"
                    await waiting


# ---- gRPC ------------------------------------------------------------------------------------


async def test_a_stream_goes_on_after_a_break_over_grpc() -> None:
    agent = parrot()
    async with desk(agent) as (app, url):
        card = await only(url, "GRPC", "1.0")
        async with Client.connect(card) as client, client.stream("gate") as stream:
            events = [await anext(stream), await anext(stream)]
            (flow,) = app.streams.open
            flow.cut()  # as the server does with a reader that takes nothing
            agent.gate.set()  # type: ignore[attr-defined]
            events += [event async for event in stream]
            assert stream.task is not None
            assert stream.task.status.state is TaskState.COMPLETED
        assert [type(event).__name__ for event in events].count("Task") == 1
        assert agent.runs == ["gate"]  # type: ignore[attr-defined]


async def test_an_agent_that_is_not_there_over_grpc() -> None:
    async with desk() as (_, url):
        card = await only(url, "GRPC", "1.0")
    async with Client.connect(card, attempts=1) as client:
        with pytest.raises(Unreachable):
            await client.send("hello")
        with pytest.raises(Unreachable):
            _ = [event async for event in client.stream("hello")]


async def test_a_silent_stream_is_taken_up_again_over_grpc() -> None:
    agent = parrot()
    async with desk(agent) as (app, url):
        card = await only(url, "GRPC", "1.0")
        async with Client.connect(card, patience=0.2) as client, client.stream("gate") as stream:
            following = asyncio.ensure_future(_all(stream))
            seen = set()
            while len(seen) < 3:  # one connection after the other
                seen |= set(app.streams.open)
                await asyncio.sleep(0.01)
            agent.gate.set()  # type: ignore[attr-defined]
            assert (await following)[-1].status.state is TaskState.COMPLETED
        assert agent.runs == ["gate"]  # type: ignore[attr-defined]


async def _all(stream: Any) -> list[Any]:
    return [event async for event in stream]


async def test_credentials_do_not_go_to_another_port_unless_trusted() -> None:
    agent = Agent("Closed", description="Wants a key.", version="1")

    @agent.skill(tags=["x"])
    async def work(turn: Turn) -> str:
        """Say who asks."""
        return turn.caller.identity

    def identify(request: Any) -> Caller:
        if request.headers.get("x-key") != "open":
            raise Unauthenticated
        return Caller(identity=f"{request.client} {request.path}")

    async with desk(agent, identify=identify) as (app, url):
        async with Client.connect(url) as client:
            card = replace(
                client.card,
                security_schemes={
                    "key": SecurityScheme(
                        api_key_security_scheme=APIKeySecurityScheme(
                            location="header", name="X-Key"
                        )
                    )
                },
                security_requirements=(SecurityRequirement(schemes={"key": StringList()}),),
            )
        at = rf"grpcs?://127\.0\.0\.1:{app.ports[0].number}"
        over = {"auth": StaticToken("open"), "bindings": ["GRPC"]}
        async with Client.connect(card, **over) as client:  # who gives the card vouches for it
            told = (await client.send("hello")).text
            assert told == "127.0.0.1 /lf.a2a.v1.A2AService/SendMessage"
        async with Client.connect(card, bindings=["GRPC"]) as client:
            with pytest.raises(Unauthenticated):
                await client.send("hello")
        with pytest.raises(CredentialsNotSent, match=at):
            guard = Client.connect(url, **over)
            guard._connection.target = url
            guard._connection.guard.enter(url)
            guard._connection.card = card
            guard._connection.choose()


def test_what_can_be_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supported_bindings(HTTPTransport()) == ["JSONRPC", "HTTP+JSON", "GRPC"]
    assert supported_bindings(ASGITransport(None)) == ["JSONRPC", "HTTP+JSON"]
    monkeypatch.setattr("dragoman.client.bindings._installed", lambda: False)
    assert supported_bindings(HTTPTransport()) == ["JSONRPC", "HTTP+JSON"]


async def test_grpc_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk() as (_, url):
        card = await only(url, "GRPC", "1.0")
        monkeypatch.setattr("dragoman.client.bindings._installed", lambda: False)
        with pytest.raises(VersionNotSupported, match=r"dragoman\[grpc\]"):
            async with Client.connect(card):
                pass


async def test_a_server_without_grpc_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dragoman.bindings.grpc", None)
    app = App(parrot(), grpc_port=0)
    with pytest.raises(A2AError, match=r"pip install 'dragoman\[grpc\]'"):
        await app.start()


async def test_an_agent_that_forgets_its_version_is_tried_out() -> None:
    """0.2 first; one that knows only `tasks/send` refuses that, and is spoken to in 0.1."""
    async with desk() as (_, url):
        card = await only(url, "JSONRPC", "0.2")
        (first,) = card.supported_interfaces
        card = replace(card, supported_interfaces=(first, replace(first, protocol_version="0.1")))
        async with Client.connect(card) as client:
            assert (await client.send("hello")).text == "hello"
            assert client.interface.protocol_version == "0.2"

        class Oldest(HTTPTransport):
            async def send(self, request: Any) -> Any:
                if isinstance(request.body, bytes):
                    body = request.body.replace(b'"message/', b'"no/')
                    request = replace(request, body=body)
                return await super().send(request)

        for way in ("send", "stream"):
            async with Client.connect(card, transport=Oldest()) as client:
                if way == "send":
                    assert (await client.send("hello")).text == "hello"
                else:
                    async with client.stream("hello") as stream:
                        _ = [event async for event in stream]
                    assert stream.result.text == "hello"
                assert client.interface.protocol_version == "0.1"


async def test_deadlines_are_the_client_s_own() -> None:
    agent = parrot()
    async with desk(agent) as (_, url):
        card = await only(url, "GRPC", "1.0")
        async with Client.connect(card, timeout=0.2, attempts=1) as client:
            with pytest.raises(TimeoutError):
                await client.send("gate")
            assert agent.runs == ["gate"]  # type: ignore[attr-defined]


async def test_channels_are_closed() -> None:
    async with desk() as (_, url):
        transport = HTTPTransport()
        async with Client.connect(await only(url, "GRPC", "1.0"), transport=transport) as client:
            await client.send("hello")
            calls = transport._calls
            assert calls is not None
            (channel,) = calls._channels.values()
        assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


@pytest.fixture
def papers(tmp_path: Path) -> tuple[Selfmade, Selfmade]:
    """A certificate for the server, and one for the client."""
    for name in ("server", "mine"):
        (tmp_path / name).mkdir()
    return Selfmade(tmp_path / "server", "127.0.0.1"), Selfmade(tmp_path / "mine", "robot")


async def test_tls_over_grpc(papers: tuple[Selfmade, Selfmade]) -> None:
    server, mine = papers
    files = {"cert": str(server.file), "key": str(server.file)}
    async with desk(**files) as (app, url):
        card = await only(url, "GRPC", "1.0")
        at = replace(card.supported_interfaces[0], url=f"https://127.0.0.1:{app.ports[0].number}")
        card = replace(card, supported_interfaces=(at,))
        async with Client.connect(
            card, transport=HTTPTransport(ssl=tls.context(ca=str(server.file)))
        ) as client:
            assert client.interface.url.startswith("grpcs://")
            assert (await client.send("hello")).text == "hello"
        async with Client.connect(card, attempts=1) as client:  # nobody has vouched for it
            with pytest.raises(Unreachable):
                await client.send("hello")
    async with desk(**files, ca=str(mine.file)) as (app, url):
        at = replace(at, url=f"https://127.0.0.1:{app.ports[0].number}")
        card = replace(
            card,
            supported_interfaces=(at,),
            security_schemes={"it": SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())},
            security_requirements=(SecurityRequirement(schemes={"it": StringList()}),),
        )
        auth = ClientCertificate(str(mine.file), ca=str(server.file))
        async with Client.connect(card, auth=auth) as client:
            assert (await client.send("hello")).text == "hello"
        async with Client.connect(
            card, transport=HTTPTransport(ssl=tls.context(ca=str(server.file))), attempts=1
        ) as client:
            with pytest.raises(Unreachable):
                await client.send("hello")
