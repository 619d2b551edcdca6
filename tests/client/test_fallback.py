"""An agent with several interfaces: the next one is used when one does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dragoman import App, TaskState
from dragoman.client import Client, Transport, Unreachable
from dragoman.client.transport import ASGITransport
from dragoman.model.errors import TaskNotFound, VersionNotSupported
from dragoman.model.types import AgentCard
from dragoman.security import Anonymous
from tests.client.test_client import Cutting, parrot
from tests.client.transports import (
    BINDINGS,
    Answer,
    Dead,
    Mute,
    Script,
    Ways,
    card,
    document,
    free_port,
    interface,
    result,
    task,
)
from tests.harness.raw_server import Visit, listening
from tests.harness.server import serving

ORDERS = [BINDINGS, BINDINGS[::-1]]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries again without a pause."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    """An agent, running."""
    async with App(
        parrot(), auth=Anonymous(tenants=["north"]), drain_timeout=0.0, poll=0.02
    ) as app:
        yield app


async def known(app: App) -> AgentCard:
    """Its card."""
    async with Client.connect(app=app) as client:
        return client.card


async def two(app: App, *bindings: str, tenant: str = "") -> AgentCard:
    """Its card, with an interface at each of two hosts."""
    return card(
        *(
            interface(f"http://{host}", binding, tenant=tenant)
            for host, binding in zip(("one", "two"), bindings, strict=True)
        ),
        like=await known(app),
    )


# ---- over sockets --------------------------------------------------------------------------


@pytest.mark.parametrize("bindings", ORDERS)
async def test_a_closed_port(bindings: list[str]) -> None:
    async with serving(App(parrot())) as url:
        dead = f"http://127.0.0.1:{free_port()}"
        found = card(interface(dead, bindings[0]), interface(url, bindings[1]))
        async with asyncio.timeout(10), Client.connect(found) as client:
            assert (await client.send("hello")).text == "hello"
            assert client.interface.url == url
        async with (
            asyncio.timeout(10),
            Client.connect(found) as client,
            client.stream("count 3") as stream,
        ):
            assert len([event async for event in stream]) == 7
            assert stream.result.text == "0,1,2,"


@pytest.mark.parametrize("bindings", ORDERS)
async def test_a_server_that_takes_the_call_and_never_answers(bindings: list[str]) -> None:
    async def silent(visit: Visit) -> None:
        await visit.over()

    agent = parrot()
    async with listening(silent) as listener, serving(App(agent)) as url:
        async with Client.connect(url) as client:
            told = client.card  # whose places say that a send may be repeated
        mute = f"http://127.0.0.1:{listener.port}"
        found = card(interface(mute, bindings[0]), interface(url, bindings[1]), like=told)
        async with asyncio.timeout(15), Client.connect(found, timeout=0.5) as client:
            assert (await client.send("hello")).text == "hello"
            assert client.interface.url == url
        async with (
            asyncio.timeout(15),
            Client.connect(found, patience=0.5) as client,
            client.stream("count 3") as stream,
        ):
            assert len([event async for event in stream]) == 7
        assert listener.visits >= 2
    assert agent.runs == ["hello", "count 3"]  # type: ignore[attr-defined]


# ---- in the middle of a stream -------------------------------------------------------------


class Leaving:
    """A transport that is gone once its first stream has broken off."""

    def __init__(self, transport: Cutting) -> None:
        self._transport = transport
        self.asked = 0

    async def send(self, request: object) -> object:
        """Pass it on while there are cuts to be made."""
        self.asked += 1
        if not self._transport.places:
            raise Unreachable("gone")
        return await self._transport.send(request)  # type: ignore[arg-type]

    async def close(self) -> None:
        """Close what is behind."""
        await self._transport.close()


@pytest.mark.parametrize("bindings", ORDERS)
@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("place", [150, 1200, 2500])
async def test_the_middle_of_a_stream(
    app: App, bindings: list[str], resumes: bool, place: int
) -> None:
    first = Leaving(Cutting(app, place))
    ways = Ways(one=first, two=ASGITransport(app))  # type: ignore[arg-type]
    found = await two(app, *bindings, tenant="north")
    async with asyncio.timeout(10), Client.connect(found, transport=ways) as client:
        client._connection.resumes = resumes
        async with client.stream("count 20") as stream:
            _ = [event async for event in stream]
        assert stream.result.text == "".join(f"{number}," for number in range(20))
        assert client.interface.protocol_binding == bindings[1]
    assert first.asked == 1
    assert app.agents["parrot"].runs == ["count 20"]  # type: ignore[attr-defined]


# ---- which one, and how --------------------------------------------------------------------


async def test_the_tenant_of_each_interface_is_told_there() -> None:
    def answer(_: object) -> Answer:
        raise Unreachable("busy")

    one, two = Script(answer), Script(answer)
    found = card(
        interface("http://one/rpc", tenant="north"),
        interface("http://two/a", "HTTP+JSON", tenant="south sea/x"),
    )
    ways = Ways(one=one, two=two)
    async with Client.connect(found, transport=ways, attempts=2) as client:
        for call in (
            client.send("x"),
            client.task("7").get(),
            client.extended_card(),
            client.task("7").delete_webhook("w"),
        ):
            with pytest.raises(Unreachable):
                await call
        with pytest.raises(Unreachable):
            _ = [event async for event in client.task("7").subscribe()]
    assert [document(request)["params"]["tenant"] for request in one.asked] == ["north"] * 5
    assert [request.url.partition("?")[0] for request in two.asked] == [
        f"http://two/a/south%20sea%2Fx{path}"
        for path in (
            "/message:send",
            "/tasks/7",
            "/extendedAgentCard",
            "/tasks/7/pushNotificationConfigs/w",
            "/tasks/7:subscribe",
        )
    ]
    assert "tenant" not in document(two.asked[0])


async def test_a_task_is_found_by_its_tenant_at_either_interface(app: App) -> None:
    ways = Ways(one=ASGITransport(app), two=ASGITransport(app))
    found = await two(app, *BINDINGS, tenant="north")
    async with Client.connect(found, transport=ways) as client:
        made = (await client.send("hello")).task
        assert made is not None
        ways.ways["one"] = Dead()
        assert await client.task(made.id).get() == made
        assert client.interface.url == "http://two"
    async with Client.connect(app=app) as client:
        with pytest.raises(TaskNotFound):
            await client.task(made.id).get()


async def test_never_to_a_version_that_is_not_spoken() -> None:
    others = [
        interface("http://two", version="0.9"),
        interface("http://two", "HTTP+JSON", version="0.9.0"),
        interface("http://two", version="2.0"),
    ]
    ways = Ways(one=Dead(), two=Script(lambda _: Answer(result(task()))))
    found = card(interface("http://one"), *others)
    async with Client.connect(found, transport=ways, attempts=4) as client:
        with pytest.raises(Unreachable):
            await client.task("t").get()
        with pytest.raises(Unreachable):
            _ = [event async for event in client.stream("x")]
    assert set(ways.hosts()) == {"one"}
    with pytest.raises(VersionNotSupported, match=r"JSONRPC 0\.9"):
        async with Client.connect(card(*others), transport=ways):
            pass


async def test_patch_releases_are_the_same_version() -> None:
    ways = Ways(one=Script(lambda _: Answer(result(task()))))
    async with Client.connect(card(interface("http://one", version="1.0.1")), transport=ways) as c:
        assert (await c.task("t").get()).id == "t"


async def test_an_error_is_an_answer(app: App) -> None:
    ways = Ways(one=ASGITransport(app), two=ASGITransport(app))
    async with Client.connect(await two(app, *BINDINGS), transport=ways) as client:
        with pytest.raises(TaskNotFound):
            await client.task("unknown").get()
        assert client.interface.url == "http://one"
    assert ways.hosts() == ["one"]


async def test_it_stays_where_it_found_an_answer(app: App) -> None:
    ways = Ways(one=Dead(), two=ASGITransport(app))
    async with Client.connect(await two(app, *BINDINGS), transport=ways) as client:
        for text in "abc":
            await client.send(text)
    assert ways.hosts() == ["one", "two", "two", "two"]


@pytest.mark.parametrize("many", [2, 3, 20, 31])
async def test_many_at_once_find_the_next_together(app: App, many: int) -> None:
    ways = Ways(one=Dead(), two=ASGITransport(app))
    async with (
        asyncio.timeout(10),
        Client.connect(await two(app, *BINDINGS), transport=ways, attempts=2) as client,
    ):
        found = await asyncio.gather(*(client.send(f"{number}") for number in range(many)))
    assert [result.text for result in found] == [f"{number}" for number in range(many)]
    assert ways.hosts().count("one") <= many


async def test_many_streams_at_once_find_the_next_together(app: App) -> None:
    async def count(client: Client) -> str:
        async with client.stream("count 2") as stream:
            _ = [event async for event in stream]
        return stream.result.text

    ways = Ways(one=Dead(), two=ASGITransport(app))
    async with (
        asyncio.timeout(10),
        Client.connect(await two(app, *BINDINGS), transport=ways, attempts=2) as client,
    ):
        assert await asyncio.gather(*(count(client) for _ in range(20))) == ["0,1,"] * 20


@pytest.mark.parametrize("transport", [Dead, Mute])
async def test_all_of_them_are_tried(transport: type[Transport]) -> None:
    ways = Ways(one=transport(), two=transport(), three=transport())
    found = card(*(interface(f"http://{host}") for host in ways.ways))
    async with Client.connect(found, transport=ways, attempts=4, timeout=0.02) as client:
        with pytest.raises((Unreachable, TimeoutError)):
            await client.task("t").get()
    assert ways.hosts() == ["one", "two", "three", "one"]


async def test_a_cancel_that_was_lost_is_looked_for_before_it_is_asked_for_again(app: App) -> None:
    """Done twice, it would be answered otherwise."""
    ways = Ways(one=Dead(), two=ASGITransport(app))
    async with Client.connect(await two(app, *BINDINGS), transport=ways) as client:
        with pytest.raises(TaskNotFound):
            await client.task("t").cancel()
    assert ways.hosts() == ["one", "one", "two"]
    assert ways.asked[-1].url == "http://two/tasks/t"


async def test_a_stranger_that_takes_long_is_not_asked_again_elsewhere() -> None:
    """It keeps no receipts, and would begin again."""
    ways = Ways(one=Mute(), two=Script(lambda _: Answer(result({"task": task()}))))
    found = card(interface("http://one"), interface("http://two"))
    async with Client.connect(found, transport=ways, timeout=0.02) as client:
        with pytest.raises(TimeoutError):
            await client.send("x")
    assert ways.hosts() == ["one"]


async def test_the_state_of_the_answer(app: App) -> None:
    ways = Ways(one=Dead(), two=ASGITransport(app))
    async with Client.connect(await two(app, *BINDINGS), transport=ways) as client:
        begun = await client.send("gate", wait=False)
        assert begun.task is not None
        waiting = asyncio.create_task(client.task(begun.task.id).wait())
        await asyncio.sleep(0)
        ways.ways.update(one=ASGITransport(app), two=Dead())
        app.agents["parrot"].gate.set()  # type: ignore[attr-defined]
        async with asyncio.timeout(10):
            assert (await waiting).status.state is TaskState.COMPLETED
