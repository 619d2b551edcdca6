"""The same conversation with an agent of each framework, served by `dragoman serve`.

Each framework has a desk: a module of `desks/`, whose agent follows the same script.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from uuid import uuid4

import a2a.client
import a2a.types
import httpx
import pytest
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import SendMessageRequest

from dragoman import Part, TaskArtifactUpdateEvent, TaskState
from dragoman.client import Client
from tests.interop.peers import FULL
from tests.interop.peers.environments import Absent
from tests.products.bridges.desk import FRAMEWORKS, QUICK, Desk, Framework
from tests.products.bridges.features import feature

C = TaskState.COMPLETED
USAGE = "urn:dragoman:usage:v1"
TYPED = ("Pydantic AI", "LangGraph", "Microsoft", "CrewAI")
"""The frameworks whose desks say of which type structured answers are. Others have one more."""
ONE_PLACE = ("LangGraph", "Strands")
"""The frameworks whose stores have one place for each conversation: the next task moves it."""
HALF = 20
NAMES = [name for name in FRAMEWORKS if FULL or name in QUICK]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """A framework."""
    found: str = request.param
    return found


@pytest.fixture
def framework(name: str, request: pytest.FixtureRequest) -> Framework:
    """The framework, if it has what the test shows."""
    found = FRAMEWORKS[name]
    mark = request.node.get_closest_marker("feature")
    if mark is not None:
        (key,) = mark.args
        if key in found.lacks:
            pytest.skip(found.lacks[key])
    return found


def started(desk: Desk) -> Desk:
    """The desk, if its framework can be installed."""
    try:
        desk.start()
    except Absent as absent:
        pytest.skip(f"{desk.framework.environment} cannot be installed: {absent}")
    return desk


@pytest.fixture(scope="module")
def served(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The agent, served once for all tests of a framework."""
    desk = Desk(FRAMEWORKS[name], tmp_path_factory.mktemp("desk"))
    yield started(desk)
    desk.stop()


@pytest.fixture
def desk(framework: Framework, served: Desk) -> Desk:
    """The agent, for tests that leave it alive."""
    return served


@pytest.fixture
def serve(framework: Framework, tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    """Serves an object of the framework's module for one test, which may kill it."""
    desks = []

    def serve(served: str = "desk") -> Desk:
        desk = Desk(framework.object(served), tmp_path)
        desks.append(desk)
        return started(desk)

    yield serve
    for desk in desks:
        desk.stop()


@pytest.fixture
async def client(desk: Desk) -> AsyncIterator[Client]:
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        yield client


@asynccontextmanager
async def sdk_client(url: str) -> AsyncIterator[a2a.client.Client]:
    """A client of the reference SDK."""
    async with httpx.AsyncClient(timeout=30) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        yield ClientFactory(ClientConfig(streaming=True, httpx_client=http)).create(card)


def sdk_message(text: str, task: str = "") -> SendMessageRequest:
    parts = [a2a.types.Part(text=text)]
    id = str(uuid4())
    message = a2a.types.Message(message_id=id, role="ROLE_USER", task_id=task, parts=parts)
    return SendMessageRequest(message=message)


async def until(desk: Desk, what: str, times: int = 1) -> None:
    async with asyncio.timeout(20):
        while desk.done.count(what) < times:
            await asyncio.sleep(0.02)


async def test_the_card_says_what_the_framework_says(client: Client) -> None:
    assert client.card.name == "Desk"
    assert "secret prompt" not in str(client.card)
    (skill,) = client.card.skills
    assert (skill.name, skill.description) == ("Desk", client.card.description)


@feature("stream")
async def test_an_answer_is_streamed(client: Client) -> None:
    chunks = []
    async with client.stream("good morning") as stream:
        async for event in stream:
            if isinstance(event, TaskArtifactUpdateEvent):
                chunks.append(event.text)
    assert "".join(chunks) == "You said good morning as message 1"
    assert len(chunks) == 3
    assert stream.result.state is C


@feature("tools")
async def test_a_tool_is_called(desk: Desk, client: Client) -> None:
    result = await client.send("weather")
    assert result.state is C
    assert result.text.endswith("sunny in Rome")
    assert "weather" in desk.done
    assert result.task is not None
    assert "Calling weather" in [message.text for message in result.task.history]


@feature("files")
async def test_a_file_reaches_the_model(client: Client) -> None:
    file = Part(raw=b"x" * 77, media_type="image/png", filename="x.png")
    result = await client.send([Part(text="look at this"), file])
    assert result.text == "77 bytes of image/png"


@feature("structured")
async def test_a_structured_result_is_data(client: Client) -> None:
    result = await client.send("structured")
    assert result.state is C
    assert result.task is not None
    data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
    assert {"city": "Rome", "degrees": 21} in data


@feature("schema")
async def test_the_card_has_the_schema_of_structured_results(
    name: str, served: Desk, serve: Callable[..., Desk]
) -> None:
    desk = served if name in TYPED else serve("typed")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        (skill,) = client.skills.values()
        assert skill.output is not None
        assert set(skill.output["properties"]) == {"city", "degrees"}
        result = await client.send("structured")
    assert result.task is not None
    data = [part.data for artifact in result.task.artifacts for part in artifact.parts]
    assert {"city": "Rome", "degrees": 21} in data


@feature("questions")
async def test_a_question_is_answered_in_words(client: Client) -> None:
    asked = await client.send("question")
    assert (asked.state, asked.text) == (TaskState.INPUT_REQUIRED, "Which color?")
    assert asked.task is not None
    result = await client.send("red", task=asked.task.id)
    assert result.state is C
    assert result.text.endswith("red")


@feature("attached")
async def test_a_file_in_an_answer_reaches_the_model(client: Client) -> None:
    asked = await client.send("question")
    assert asked.task is not None
    file = Part(raw=b"x" * 77, media_type="image/png", filename="x.png")
    result = await client.send([Part(text="like this"), file], task=asked.task.id)
    assert result.state is C
    assert "image/png" in result.text


@feature("approvals")
async def test_a_yes_in_words_approves_nothing(desk: Desk, client: Client) -> None:
    before = desk.done.count("delete")
    asked = await client.send("delete")
    assert asked.state is TaskState.AUTH_REQUIRED
    assert "/tmp/x" in asked.text
    assert asked.task is not None
    again = await client.send("yes", task=asked.task.id)
    assert again.state is TaskState.AUTH_REQUIRED
    assert desk.done.count("delete") == before
    assert again.grant is not None
    result = await client.task(asked.task.id).approve(again.grant)
    assert result.state is C
    assert result.text.endswith("deleted /tmp/x")
    assert desk.done.count("delete") == before + 1


@feature("approvals")
async def test_an_approval_that_is_declined(desk: Desk, client: Client) -> None:
    before = desk.done.count("delete")
    asked = await client.send("delete")
    assert asked.task is not None
    assert asked.grant is not None
    result = await client.task(asked.task.id).decline(asked.grant)
    assert result.state is C
    assert desk.done.count("delete") == before


@feature("cancel")
async def test_a_cancel_stops_the_work(desk: Desk, client: Client) -> None:
    result = await client.send("slow", wait=False)
    assert result.task is not None
    await until(desk, "slow begins")
    canceled = await client.task(result.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED
    await until(desk, "slow is stopped")


@feature("waiting")
async def test_a_cancel_of_a_task_that_asks(client: Client) -> None:
    asked = await client.send("question")
    assert asked.task is not None
    canceled = await client.task(asked.task.id).cancel()
    assert canceled.status.state is TaskState.CANCELED


@feature("masked")
async def test_an_error_is_masked(client: Client) -> None:
    result = await client.send("fail")
    assert result.state is TaskState.FAILED
    assert "secret" not in result.text


@feature("memory")
async def test_a_conversation_is_remembered(client: Client) -> None:
    context = "memory"
    assert (await client.send("one", context=context)).text == "You said one as message 1"
    assert (await client.send("two", context=context)).text == "You said two as message 2"
    other = await client.send("one", context="elsewhere")
    assert other.text == "You said one as message 1"


@feature("order")
async def test_two_tasks_of_a_conversation_at_the_same_time(client: Client) -> None:
    found = await asyncio.gather(*(client.send(f"n{n}", context="both") for n in range(3)))
    numbers = sorted(result.text.rpartition(" ")[2] for result in found)
    assert numbers == ["1", "2", "3"]


@feature("between")
async def test_a_task_that_runs_while_another_one_waits(client: Client) -> None:
    context = "between"
    assert (await client.send("zero", context=context)).text == "You said zero as message 1"
    asked = await client.send("question", context=context)
    assert asked.state is TaskState.INPUT_REQUIRED
    assert (await client.send("one", context=context)).text == "You said one as message 2"
    assert asked.task is not None
    result = await client.send("red", task=asked.task.id)
    assert result.state is C
    assert result.text.endswith("red")
    assert (await client.send("two", context=context)).text == "You said two as message 4"


@feature("restart")
async def test_the_answer_comes_to_a_new_server(serve: Callable[..., Desk]) -> None:
    desk = serve()
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("question")
        assert asked.state is TaskState.INPUT_REQUIRED
        desk.kill()
        desk.start()
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
    assert result.state is C
    assert result.text.endswith("red")


@feature("durable")
async def test_a_crash_calls_no_model_and_no_tool_again(serve: Callable[..., Desk]) -> None:
    desk = serve()
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("slow", context="c", wait=False)
        await until(desk, "slow begins")
        before = desk.done.count("model")
        desk.kill()
        desk.start()
        async with asyncio.timeout(20):
            while desk.done.count("slow begins") < 2:
                await asyncio.sleep(0.05)
        assert desk.done.count("model") == before
        assert result.task is not None
        await client.task(result.task.id).cancel()


@feature("replaced")
async def test_what_was_streamed_before_a_crash_is_replaced(serve: Callable[..., Desk]) -> None:
    desk = serve()
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("half", wait=False)
        assert result.task is not None
        await until(desk, "half")  # the model has written half of its answer, and hangs
        handle = client.task(result.task.id)
        while not (await handle.get()).artifacts:
            await asyncio.sleep(0.02)
        desk.kill()
        desk.start()
        task = await handle.wait()
    assert task.status.state is C
    assert [artifact.text for artifact in task.artifacts] == ["You said half as message 1"]


@feature("made")
async def test_a_file_that_the_agent_makes_is_an_artifact(client: Client) -> None:
    result = await client.send("picture")
    assert result.state is C
    assert result.task is not None
    parts = [part for artifact in result.task.artifacts for part in artifact.parts]
    assert (b"pixels", "image/png") in [(part.raw, part.media_type) for part in parts]


@feature("files")
async def test_data_of_the_message_reaches_the_model(client: Client) -> None:
    result = await client.send([Part(data={"color": "red"})])
    assert result.state is C
    assert '"color": "red"' in result.text


@feature("memory")
async def test_the_logs_of_a_conversation_grow_linearly(
    name: str, desk: Desk, client: Client
) -> None:
    """Each task has the same to say, and begins with a longer memory. Every fifth one asks."""
    tasks = []
    for number in range(2 * HALF):
        asks = number % 5 == 0
        text = "question" if asks else os.urandom(60).hex()
        result = await client.send(text, context="growth")
        assert result.task is not None
        tasks.append(result.task.id)
        if asks:
            result = await client.send("red", task=result.task.id)
        assert result.state is C, result.text
    with closing(sqlite3.connect(desk.folder / "desk.db")) as store:
        sizes = dict(store.execute("SELECT id, size FROM task"))
        assert store.execute("SELECT count(*) FROM replay_value").fetchone() == (0,)
        (memory,) = store.execute("SELECT max(length(body)) FROM context_value").fetchone()
    first, second = (sum(sizes[task] for task in half) for half in (tasks[:HALF], tasks[HALF:]))
    assert memory > 2 * HALF * 60, "all of it is remembered"
    # the events of LlamaIndex repeat all messages in another form: some bytes of each are logged
    assert second < first * (1.15 if name == "LlamaIndex" else 1.05), sizes


@feature("usage")
async def test_the_result_says_what_the_model_has_used(client: Client) -> None:
    used = []
    async with client.stream("good morning") as stream:
        async for event in stream:
            used.append(getattr(event, "metadata", None) or {})
    (found,) = (metadata[USAGE] for metadata in used if USAGE in metadata)
    assert found["input_tokens"] > 0
    assert found["output_tokens"] > 0


@feature("words")
async def test_a_yes_in_words_approves_if_the_author_says_so(serve: Callable[..., Desk]) -> None:
    desk = serve("by_words")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        for answer, deleted in (("no", 0), ("Yes.", 1)):
            asked = await client.send("delete")
            assert asked.state is TaskState.INPUT_REQUIRED
            assert asked.task is not None
            result = await client.send(answer, task=asked.task.id)
            assert result.state is C
            assert desk.done.count("delete") == deleted


@feature("own")
async def test_the_users_own_store_keeps_the_conversation(serve: Callable[..., Desk]) -> None:
    desk = serve("own")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert (await client.send("one", context="a")).text == "You said one as message 1"
        assert (await client.send("one", context="b")).text == "You said one as message 1"
        desk.kill()
        desk.start()
        assert (await client.send("two", context="a")).text == "You said two as message 2"
    names = {line for line in desk.done if line.startswith("session ")}
    assert len(names) == 2, "each conversation has a name of its own"
    assert not names & {"session a", "session b"}, "which nobody else can give"


@feature("own")
async def test_your_own_store_while_another_task_runs(
    name: str, serve: Callable[..., Desk]
) -> None:
    desk = serve("own")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        asked = await client.send("question", context="a")
        assert (await client.send("one", context="a")).state is C
        assert asked.task is not None
        result = await client.send("red", task=asked.task.id)
    if name in ONE_PLACE:
        assert result.state is TaskState.FAILED
        assert "does not wait for this answer any more" in result.text
    else:
        assert result.state is C
        assert result.text.endswith("red")


@feature("old")
@pytest.mark.parametrize("inside", [False, True])
async def test_a_state_that_cannot_be_read_fails_with_a_clear_message(
    serve: Callable[..., Desk], inside: bool
) -> None:
    """The state itself is of another time, or what is inside of it."""
    if inside:
        desk = serve()
        async with asyncio.timeout(60), Client.connect(desk.url) as client:
            assert (await client.send("one", context="c")).state is C
        desk.stop()
    desk = serve("unreadable")  # it saves a state that no version can read
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        assert (await client.send("one", context="c")).state is C
    desk.stop()
    desk = serve()
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        result = await client.send("two", context="c")
        assert result.state is TaskState.FAILED
        assert "cannot read it; start a new conversation" in result.text
        assert (await client.send("one", context="d")).text == "You said one as message 1"


@feature("gone")
async def test_a_file_of_a_task_that_was_deleted_is_not_shown_to_the_model(
    serve: Callable[..., Desk],
) -> None:
    desk = serve()
    photo = Part(raw=b"x" * 5000, media_type="image/png")
    async with asyncio.timeout(60), Client.connect(desk.url) as client:
        await client.send([Part(text="look at this"), photo], context="c")
        assert (await client.send("files", context="c")).text == "1 files"
        desk.stop()
        with closing(sqlite3.connect(desk.folder / "desk.db")) as store, store:
            for table in ("task", "entry", "message", "snapshot"):
                store.execute(f"DELETE FROM {table}")
        desk.start()
        for _ in range(2):
            assert (await client.send("files", context="c")).text == "0 files"


@feature("foreign")
async def test_the_reference_sdks_client_calls_it(desk: Desk) -> None:
    async with asyncio.timeout(60), sdk_client(desk.url) as client:
        said = [event async for event in client.send_message(sdk_message("good morning"))]
        text = "".join(
            part.text
            for event in said
            if event.HasField("artifact_update")
            for part in event.artifact_update.artifact.parts
        )
        assert text == "You said good morning as message 1"
        assert said[-1].status_update.status.state == a2a.types.TaskState.TASK_STATE_COMPLETED
