"""The turn: what a handler learns from it, and the words it gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dragoman import Agent, App, Caller, Message, Part, Role, Task, TaskState, Turn
from dragoman.model.caller import Call
from dragoman.model.errors import InvalidAgentResponse
from dragoman.model.events import Reply
from dragoman.model.types import (
    AgentExtension,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from dragoman.server.service import Service
from dragoman.telemetry.logs import logger
from dragoman.testing import message, run_handler
from dragoman.testing import turn as turn_of
from tests.harness.workers import WorkerHarness

EXTENSION = "urn:example:colors"


class Seen(list[Turn]):
    """An agent's turns, kept to be looked at."""

    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.agent = Agent(
            "Test", description="For tests.", extensions=[AgentExtension(uri=EXTENSION)]
        )
        self.agent.handler(self.look)
        self.agent.skill(id="other")(self.look)
        self.answer = answer or (lambda turn: turn.complete())

    async def look(self, turn: Turn) -> Any:
        """Keep the turn."""
        self.append(turn)
        answer = self.answer(turn)
        return await answer if asyncio.iscoroutine(answer) else answer


@asynccontextmanager
async def service(agent: Agent) -> AsyncIterator[Service]:
    """The operations of an agent that is being worked for."""
    async with asyncio.timeout(10), App(agent, drain_timeout=0.0) as app:
        yield app.endpoints[agent.key].service


async def send(
    service: Service, what: Any, caller: Caller | None = None, **more: Any
) -> tuple[Task, Message]:
    """Send a message, as somebody; the task that came of it."""
    fields = {name: more.pop(name) for name in ("configuration", "metadata") if name in more}
    asked = message(what)
    asked = Message(
        message_id=asked.message_id,
        role=Role.USER,
        parts=asked.parts,
        **more,
    )
    answer = await service.send(SendMessageRequest(message=asked, **fields), Call(caller or ANN))
    assert answer.task is not None
    return answer.task, asked


ANN, BOB = Caller(identity="ann"), Caller(identity="bob")


# ---- what came in --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ("hello", "hello"),
        (["one", "two"], "one\ntwo"),
        (["one", Part(data=1), "two", b"3"], "one\ntwo"),
        ({"no": "text"}, ""),
        ([b"a", b"b"], ""),
        ("", ""),
    ],
)
def test_text(parts: Any, text: str) -> None:
    assert turn_of(parts).text == text


@pytest.mark.parametrize(
    ("parts", "data"),
    [
        ({"a": 1}, {"a": 1}),
        (["text", Part(data=[1]), Part(data=[2])], [1]),
        ("text", None),
        (Part(data=0), 0),
        (Part(data=None), None),
    ],
)
def test_data(parts: Any, data: Any) -> None:
    assert turn_of(parts).data == data


def test_files() -> None:
    raw = Part(raw=b"x", filename="x.bin")
    url = Part(url="https://example.com/y")
    empty = Part(raw=b"")
    assert turn_of(["text", raw, Part(data=1), url, empty]).files == [raw, url, empty]
    assert turn_of("text").files == []


async def test_history_has_all_messages_and_the_present_one_last() -> None:
    seen = Seen(lambda turn: turn.ask(f"after {turn.text}?"))
    found = await run_handler(seen.agent, "one", "two")
    assert [m.text for m in seen[0].history] == ["one"]
    assert [m.text for m in seen[1].history] == ["one", "after one?", "two"]
    for turn in seen:
        assert turn.history[-1] == turn.message
        assert turn.task.id == found.task.id if found.task else False
        assert turn.context_id == turn.task.context_id
    assert [m.role for m in seen[1].history] == [Role.USER, Role.AGENT, Role.USER]


async def test_a_turn_is_not_changed_by_what_comes_after() -> None:
    seen = Seen(lambda turn: turn.ask("?"))
    await run_handler(seen.agent, "one", "two")
    assert [m.text for m in seen[0].history] == ["one"]
    # it has what the turn said itself
    assert seen[0].task.status.state is TaskState.INPUT_REQUIRED
    assert [m.text for m in seen[0].task.history] == ["one"]


@pytest.mark.clause("metadata.any-json", "send.accepted-output-modes")
async def test_what_the_request_says() -> None:
    seen = Seen()
    metadata = {"k": [1, {"deep": None}]}
    async with service(seen.agent) as server:
        await send(
            server,
            "x",
            metadata=metadata,
            configuration=SendMessageConfiguration(accepted_output_modes=("image/png", "text/*")),
        )
        await send(server, "y")
    assert seen[0].metadata == metadata
    assert seen[0].accepted_output_modes == ("image/png", "text/*")
    assert seen[0].message.metadata is None
    assert seen[1].metadata == {}
    assert seen[1].accepted_output_modes == ()


async def test_who_asks_and_with_which_extensions() -> None:
    seen = Seen()
    caller = Caller(identity="ann", tenant="t", scopes=frozenset(["read"]), extensions=(EXTENSION,))
    async with service(seen.agent) as server:
        await send(server, "x", caller)
        await send(server, "y")
    assert seen[0].caller == caller
    assert seen[0].extensions == (EXTENSION,)
    assert seen[1].extensions == ()


async def test_the_skill_that_was_asked_for() -> None:
    seen = Seen()
    await run_handler(seen.agent, "x")
    await run_handler(seen.agent, "x", skill="other")
    assert [turn.skill for turn in seen] == ["", "other"]


async def test_the_idempotency_key_is_that_of_the_turn() -> None:
    seen = Seen(lambda turn: turn.ask("?"))
    one = await run_handler(seen.agent, "a", "b", "c")
    two = await run_handler(seen.agent, "a")
    keys = [turn.idempotency_key for turn in seen]
    assert len(set(keys)) == 4
    assert one.task is not None
    assert two.task is not None
    assert all(key.startswith(one.task.id) for key in keys[:3])
    assert keys[3].startswith(two.task.id)
    assert [turn.attempt for turn in seen] == [1, 1, 1, 1]


async def test_the_state_is_that_of_the_lifespan() -> None:
    seen = Seen()
    state = object()
    await run_handler(seen.agent, "x", state=state)
    assert seen[0].state is state
    await run_handler(seen.agent, "x")
    assert seen[1].state is None


# ---- what is around it ---------------------------------------------------------------------


@pytest.mark.clause("context.grouping")
async def test_the_other_tasks_of_the_context() -> None:
    found: list[list[Task]] = []

    async def look(turn: Turn) -> None:
        found.append(await turn.context_tasks())

    async with service(Seen(look).agent) as server:
        first, _ = await send(server, "one", context_id="shared")
        await asyncio.sleep(0.002)
        second, _ = await send(server, "two", context_id="shared")
        await send(server, "elsewhere", context_id="another")
        await send(server, "three", context_id="shared")
    assert [[task.id for task in tasks] for tasks in found] == [
        [],
        [first.id],
        [],
        [second.id, first.id],
    ]
    assert found[-1][1].history[0].text == "one"


@pytest.mark.clause("context.grouping", "access.every-operation")
@pytest.mark.parametrize(
    "other", [BOB, Caller(identity="ann", tenant="t"), Caller()], ids=["owner", "tenant", "nobody"]
)
async def test_the_context_of_another_caller_is_not_shared(other: Caller) -> None:
    found: list[int] = []

    async def look(turn: Turn) -> None:
        found.append(len(await turn.context_tasks()))

    async with service(Seen(look).agent) as server:
        await send(server, "mine", other, context_id="shared")
        await send(server, "yours", context_id="shared")
        await send(server, "mine", other, context_id="shared")
    assert found == [0, 0, 1]


@pytest.mark.clause("turns.references", "access.every-operation")
async def test_referenced_tasks_are_those_that_the_caller_may_see() -> None:
    found: list[list[str]] = []

    async def look(turn: Turn) -> None:
        found.append([task.id for task in await turn.referenced_tasks()])

    async with service(Seen(look).agent) as server:
        mine, _ = await send(server, "mine")
        theirs, _ = await send(server, "theirs", BOB)
        late, _ = await send(server, "late", context_id="elsewhere")
        ids = (late.id, theirs.id, "nothing", mine.id)
        await send(server, "x", reference_task_ids=ids)
        await send(server, "x", BOB, reference_task_ids=ids)
        await send(server, "x")
    assert found[3:] == [[late.id, mine.id], [theirs.id], []]


@pytest.mark.clause("access.every-operation")
async def test_a_reference_to_another_agents_task_shows_nothing() -> None:
    found: list[int] = []

    async def look(turn: Turn) -> None:
        found.append(len(await turn.referenced_tasks()))

    agents = []
    for name in ("One", "Two"):
        agent = Agent(name, description="x")
        agent.handler(look)
        agents.append(agent)
    async with App(*agents, drain_timeout=0.0) as app:
        one, two = (app.endpoints[agent.key].service for agent in agents)
        task, _ = await send(one, "x")
        await send(two, "x", reference_task_ids=(task.id,))
        await send(one, "x", reference_task_ids=(task.id,))
    assert found == [0, 0, 1]


# ---- what goes out -------------------------------------------------------------------------

WORDS = {
    "working": TaskState.WORKING,
    "ask": TaskState.INPUT_REQUIRED,
    "require_auth": TaskState.AUTH_REQUIRED,
    "complete": TaskState.COMPLETED,
    "reject": TaskState.REJECTED,
    "fail": TaskState.FAILED,
}


@pytest.mark.clause("updates.required-fields", "message.agent-ids", "time.utc")
@pytest.mark.parametrize("word", WORDS)
def test_words(word: str) -> None:
    turn = turn_of("x")
    event = getattr(turn, word)("so it is", metadata={"k": 1})
    assert isinstance(event, TaskStatusUpdateEvent)
    assert (event.task_id, event.context_id) == (turn.task.id, turn.context_id)
    assert event.status.state is WORDS[word]
    assert event.status.timestamp
    assert event.status.timestamp.endswith("Z")
    assert event.metadata == {"k": 1}
    said = event.status.message
    assert said is not None
    assert (said.text, said.role) == ("so it is", Role.AGENT)
    assert (said.task_id, said.context_id) == (turn.task.id, turn.context_id)
    assert said.message_id != getattr(turn, word)("so it is").status.message.message_id


@pytest.mark.parametrize("word", [word for word in WORDS if word != "ask"])
def test_words_without_content(word: str) -> None:
    assert getattr(turn_of("x"), word)().status.message is None


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"a": 1}, (Part(data={"a": 1}),)),
        ([Part(text="a"), Part(text="b")], (Part(text="a"), Part(text="b"))),
        (0, (Part(data=0),)),
        ("", (Part(text=""),)),
    ],
)
def test_content_of_words(content: Any, parts: Any) -> None:
    event = turn_of("x").working(content)
    assert isinstance(event, TaskStatusUpdateEvent)
    assert event.status.message is not None
    assert event.status.message.parts == parts


def test_a_reply_has_no_task() -> None:
    turn = turn_of("x")
    event = turn.reply("hi", metadata={"k": 1})
    assert isinstance(event, Reply)
    assert (event.message.text, event.message.task_id) == ("hi", "")
    assert (event.message.context_id, event.message.metadata) == (turn.context_id, {"k": 1})


def artifacts(*events: Any) -> list[tuple[str, bool, bool, str]]:
    """The id, whether it appends, whether it is the last, and the name of each."""
    assert all(isinstance(event, TaskArtifactUpdateEvent) for event in events)
    return [(e.artifact.artifact_id, e.append, e.last_chunk, e.artifact.name) for e in events]


@pytest.mark.clause("artifact-update.append", "artifact-update.last-chunk")
def test_pieces_of_one_artifact() -> None:
    turn = turn_of("x")
    one, two, end = turn.write("a"), turn.write("b"), turn.write("c", last=True)
    key = one.artifact.artifact_id  # type: ignore[union-attr]
    assert artifacts(one, two, end) == [
        (key, False, False, ""),
        (key, True, False, ""),
        (key, True, True, ""),
    ]


@pytest.mark.clause("artifact.unique-id")
def test_each_name_is_an_artifact_of_its_own() -> None:
    turn = turn_of("x")
    found = artifacts(
        turn.write("a", name="log"),
        turn.write("b", name="text"),
        turn.write("c"),
        turn.artifact("d", name="log"),
        turn.write("e", name="log"),
        turn.write("f", name="text"),
    )
    ids = [key for key, _, _, _ in found]
    assert len(set(ids)) == 4
    assert ids[0] == ids[4]
    assert ids[1] == ids[5]
    assert [append for _, append, _, _ in found] == [False, False, False, False, True, True]
    assert [name for _, _, _, name in found] == ["log", "text", "", "log", "", ""]


@pytest.mark.clause("artifact.unique-id")
def test_a_name_is_no_id() -> None:
    turn = turn_of("x")
    named, known = turn.write("a", name="log"), turn.write("b", id="log")
    assert artifacts(named, known)[1] == ("log", False, False, "")
    assert named.artifact.artifact_id != "log"  # type: ignore[union-attr]


def test_an_id_of_ones_own() -> None:
    turn = turn_of("x")
    assert artifacts(turn.write("a", id="mine"), turn.write("b", id="mine")) == [
        ("mine", False, False, ""),
        ("mine", True, False, ""),
    ]
    assert artifacts(turn.artifact("c", id="whole")) == [("whole", False, True, "")]


async def test_ids_are_a_function_of_turn_and_ordinal() -> None:
    def answer(turn: Turn) -> Any:
        return [turn.artifact("a"), turn.write("b"), turn.write("c", name="n")]

    found: list[list[str]] = []

    async def keep(turn: Turn) -> Any:
        events = answer(turn)
        found.append([event.artifact.artifact_id for event in events])
        for event in events:
            await turn.emit(event)
        return turn.ask("?")

    await run_handler(Seen(keep).agent, "one", "two")
    await run_handler(Seen(keep).agent, "other words", {"of": "another task"})
    assert found[0] == found[2]
    assert found[1] == found[3]
    assert len(set(found[0] + found[1])) == 6
    # and what was streamed in between does not matter
    assert found[0] == [event.artifact.artifact_id for event in answer(turn_of("x"))]


@pytest.mark.parametrize("word", ["working", "artifact", "write", "reply"])
def test_content_that_cannot_be_sent(word: str) -> None:
    with pytest.raises(InvalidAgentResponse, match="object"):
        getattr(turn_of("x"), word)(object())


# ---- turns without a run -------------------------------------------------------------------


def test_a_turn_for_tests() -> None:
    turn = turn_of("hello", caller=ANN, skill="talk")
    assert (turn.text, turn.caller, turn.skill) == ("hello", ANN, "talk")
    assert turn.message.metadata == {"skill": "talk"}
    assert turn.message.task_id == turn.task.id
    assert turn.message.context_id == turn.task.context_id == turn.context_id
    assert turn.task.status.state is TaskState.SUBMITTED
    assert turn.history == (turn.message,)
    assert turn.task.id != turn_of("hello").task.id
    assert not turn.canceled
    assert turn.attempt == 1


@pytest.mark.parametrize("make", ["turn", "run_handler"])
async def test_a_message_is_taken_as_it_is(make: str) -> None:
    given = Message(
        message_id="m-1",
        role=Role.USER,
        context_id="c-1",
        parts=(Part(text="x", media_type="text/plain"),),
        metadata={"k": 1},
        extensions=(EXTENSION,),
        reference_task_ids=("t-1",),
    )
    if make == "turn":
        found = turn_of(given)
    else:
        seen = Seen()
        await run_handler(seen.agent, given)
        (found,) = seen
    assert found.message.message_id == "m-1"
    assert found.message.parts == given.parts
    assert found.message.metadata == {"k": 1}
    assert found.message.extensions == (EXTENSION,)
    assert found.message.reference_task_ids == ("t-1",)
    assert found.message.context_id == found.context_id == "c-1"


async def test_a_turn_that_is_not_running() -> None:
    turn = turn_of("x")
    with pytest.raises(RuntimeError, match="not running"):
        await turn.emit("too bad")
    assert await turn.context_tasks() == []
    assert await turn.referenced_tasks() == []


async def test_handlers_can_be_tried_with_a_turn_alone() -> None:
    async def handler(turn: Turn) -> AsyncIterator[Any]:
        yield turn.working("busy")
        yield turn.artifact(turn.text)

    first, second = [event async for event in handler(turn_of("x"))]
    assert first.status.state is TaskState.WORKING
    assert second.artifact.parts == (Part(text="x"),)


@pytest.mark.parametrize("word", ["complete", "ask"])
async def test_what_a_turn_says_when_it_is_over_is_dropped(
    word: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "propagate", True)
    seen = Seen(lambda turn: getattr(turn, word)("the last word"))
    async with service(seen.agent) as server:
        task, _ = await send(server, "x")
        (turn,) = seen
        for late in (turn.working("on my own"), "more", turn.complete()):
            await turn.emit(late)
            await asyncio.sleep(0)
        assert await server._task(server.scopes.of_call("", Call(ANN)), task.id) == task
    assert any("handler look: dropped" in record.getMessage() for record in caplog.records)


async def test_the_task_of_a_long_turn_does_not_fill_the_memory() -> None:
    sizes: list[int] = []

    async def handler(turn: Turn) -> None:
        for _ in range(5):
            await turn.emit(turn.write("x" * 500_000))
        await turn.emit(turn.working("last"))
        status = turn.task.status.message
        assert status is not None
        assert status.text == "last"
        sizes.append(sum(len(part.text or "") for part in turn.task.artifacts[0].parts))

    harness = WorkerHarness(handler)
    await harness.send()
    await harness.run()
    assert sizes == [1_000_000]
