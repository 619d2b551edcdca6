"""Executors that were written for a2a-sdk, served as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dragoman import App, Caller, Request, TaskState
from dragoman.bridges import adopt, sdk
from dragoman.client import Client
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import EXECUTORS, Desk

C = TaskState.COMPLETED


@pytest.fixture(scope="module", params=EXECUTORS)
def desk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    """The executor, served once for all tests."""
    desk = Desk(EXECUTORS[request.param], tmp_path_factory.mktemp("desk"))
    try:
        desk.start()
    except Absent as absent:
        pytest.skip(f"{request.param}: {absent}")
    yield desk
    desk.stop()


@pytest.fixture
async def client(desk: Desk) -> AsyncIterator[Client]:
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        yield client


async def until(desk: Desk, *done: str) -> None:
    """Wait until this is what the executor has done last."""
    async with asyncio.timeout(10):
        while tuple(desk.done[-len(done) :]) != done:
            await asyncio.sleep(0.02)


async def test_the_card_is_the_executors(client: Client) -> None:
    card = client.card
    assert (card.name, card.version) == ("Desk", "2.1.0")
    assert [skill.id for skill in card.skills] == ["desk"]
    assert "image/*" in card.default_input_modes


async def test_a_task_with_an_artifact(client: Client) -> None:
    result = await client.send("hello")
    assert (result.state, result.text) == (C, "You said hello")
    assert result.task is not None
    (artifact,) = result.task.artifacts
    assert artifact.artifact_id == "random-1"
    assert [m.text for m in result.task.history if m.role.name == "AGENT"] == ["at work"]
    assert result.task.status.message is not None
    assert result.task.status.message.text == "done"


async def test_a_message_without_a_task(client: Client) -> None:
    result = await client.send("say")
    assert (result.task, result.text) == (None, "just a message")


async def test_a_task_that_is_enqueued_as_a_whole(client: Client) -> None:
    result = await client.send("whole")
    assert (result.state, result.text) == (C, "as a whole")


async def test_a_question_and_its_answer(desk: Desk, client: Client) -> None:
    asked = await client.send("question")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which color?")
    assert asked.task is not None
    result = await client.send("red", task=asked.task.id)
    assert (result.state, result.text) == (C, "You said red")
    said = [line for line in desk.done if line.startswith("answers")]
    assert said[-1] in ("answers TASK_STATE_INPUT_REQUIRED", "answers input-required")


async def test_an_artifact_of_an_earlier_turn_grows(desk: Desk, client: Client) -> None:
    asked = await client.send("grow")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert asked.task is not None
    result = await client.send("more", task=asked.task.id)
    assert result.task is not None
    assert [(a.artifact_id, a.text) for a in result.task.artifacts] == [("log", "grow more ")]
    assert desk.done[-1] == "1 artifacts"
    async with asyncio.timeout(10):
        while "after close: dropped" not in desk.log:
            await asyncio.sleep(0.02)


async def test_a_cancel_stops_execute_and_calls_cancel(desk: Desk, client: Client) -> None:
    result = await client.send("slow", wait=False)
    assert result.task is not None
    async with asyncio.timeout(10):
        while "execute slow" not in desk.done:
            await asyncio.sleep(0.02)
    canceled = await client.task(result.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    assert canceled.status.message is not None
    assert canceled.status.message.text == "as you wish"
    await until(desk, "cancel", "slow is stopped")  # in the order of the SDK


async def test_a_cancel_that_is_refused_ends_the_task(desk: Desk, client: Client) -> None:
    result = await client.send("stubborn", wait=False)
    assert result.task is not None
    async with asyncio.timeout(10):
        while "execute stubborn" not in desk.done:
            await asyncio.sleep(0.02)
    canceled = await client.task(result.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    await until(desk, "cancel", "stubborn is stopped")
    assert "cancel raised" in desk.log


async def test_a_cancel_of_a_task_that_asks_calls_cancel(desk: Desk, client: Client) -> None:
    asked = await client.send("question")
    assert asked.task is not None
    canceled = await client.task(asked.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    assert desk.done[-1] == "cancel"


async def test_an_error_is_masked(client: Client) -> None:
    result = await client.send("fail")
    assert result.state is TaskState.FAILED
    assert "secret" not in result.text


async def test_an_error_for_the_client_is_told(client: Client) -> None:
    result = await client.send("refuse")
    assert (result.state, result.text) == (TaskState.FAILED, "Which flight?")


def imported(name: str) -> ModuleType:
    """A module of `desks`."""
    found = spec_from_file_location(name, Path(__file__).parent / f"desks/{name}.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


async def test_the_executor_knows_its_caller_and_its_extensions() -> None:
    patterns = imported("patterns")

    def identify(request: Request) -> Caller:
        return Caller(identity=request.headers["x-user"], tenant="acme")

    app = App(sdk.serve(patterns.Patterns, patterns.card), identify=identify)
    connected = Client.connect(
        app=app, headers={"x-user": "ann"}, extensions=[patterns.EXTENSION, "https://else.where"]
    )
    async with connected as client:
        assert client.card.provider is not None
        assert client.card.provider.organization == "Example"
        assert client.card.documentation_url == "https://example.com/docs"
        result = await client.send("context", metadata={"a": 1}, modes=["text/csv"])
    await app.stop()
    assert result.task is not None
    seen = result.task.artifacts[0].parts[0].data
    assert (seen["user"], seen["tenant"]) == ([True, "ann"], "acme")
    assert patterns.EXTENSION in seen["extensions"]
    assert "https://else.where" not in seen["extensions"]
    assert seen["configuration"] == {"acceptedOutputModes": ["text/csv"]}
    assert seen["metadata"] == {"a": 1}


def test_a_card_may_have_two_names_in_its_module() -> None:
    module = imported("patterns")
    names = {**vars(module), "alias": module.card}
    found = adopt(module.Patterns, "Patterns", SimpleNamespace(**names))
    assert found is not None
    assert found.name == module.card.name
    other = type(module.card)()
    with pytest.raises(ValueError, match="the module has 2 objects of AgentCard"):
        adopt(module.Patterns, "Patterns", SimpleNamespace(**names, other=other))
