"""The reference SDK sends messages and waits for the answers."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from a2a.helpers import new_data_part, new_raw_part, new_url_part
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict

from tests.interop.agents import TaskGate
from tests.interop.reference import Speak, asking, begin, gather, kinds, send, state, states, texts

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.clause("send.blocking", "send.blocking-complete", "results.in-artifacts")
async def test_send_waits_for_the_end(meet: Speak) -> None:
    gate = TaskGate()
    async with meet("story") as peer:
        sending = asyncio.create_task(send(peer.plain, gate.name))
        await gate.reached.wait()
        assert not sending.done()
        gate.open.set()
        task = await sending
    assert state(task) == "completed"
    assert texts(task.status.message.parts) == ["Through"]
    (artifact,) = task.artifacts
    assert artifact.name == "story"
    assert texts(artifact.parts) == ["beforeafter"]


@pytest.mark.clause("context.generated", "task-id.unique", "task.required-fields")
async def test_every_task_has_ids_of_its_own(meet: Speak) -> None:
    async with meet("echo") as peer:
        tasks = [await send(peer.plain, "hello") for _ in range(3)]
    assert len({task.id for task in tasks}) == 3
    assert len({task.context_id for task in tasks}) == 3
    for task in tasks:
        said, status = task.history
        assert said.task_id == status.task_id == task.id
        assert said.context_id == status.context_id == task.context_id
        assert (said.role, status.role) == (pb.ROLE_USER, pb.ROLE_AGENT)
        assert task.status.timestamp.seconds > 0


async def test_many_at_once_each_get_their_own(meet: Speak) -> None:
    words = [f"word {number}" for number in range(20)]
    async with meet("echo") as peer:
        tasks = await asyncio.gather(*(send(peer.plain, word) for word in words))
    assert [task.artifacts[0].parts[0].text for task in tasks] == words


@pytest.mark.clause("send.return-immediately")
@pytest.mark.parametrize("how", ["asked for in the request", "set in the client"])
async def test_send_returns_immediately(meet: Speak, how: str) -> None:
    gate = TaskGate()
    config = {"polling": True} if "client" in how else {}
    async with meet("story", **config) as peer:
        sending = send(peer.plain, gate.name) if config else begin(peer.plain, gate.name)
        task = await sending
        assert state(task) in ("submitted", "working")
        await gate.reached.wait()
        stream = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        assert (await anext(stream)).task.id == task.id
        gate.open.set()
        assert states(await gather(stream)) == ["completed"]
        assert state(await peer.plain.get_task(pb.GetTaskRequest(id=task.id))) == "completed"


@pytest.mark.clause("send.task-or-message", "send.return-immediately-no-effect")
@pytest.mark.parametrize("immediately", [False, True])
async def test_direct_reply(meet: Speak, immediately: bool) -> None:
    configuration = pb.SendMessageConfiguration(return_immediately=immediately)
    context = uuid.uuid4().hex
    async with meet("reply") as peer:
        request = asking("hello", context=context, configuration=configuration)
        (event,) = await gather(peer.plain.send_message(request))
        assert event.WhichOneof("payload") == "message"
        listed = await peer.plain.list_tasks(pb.ListTasksRequest(context_id=context))
    message = event.message
    assert message.role == pb.ROLE_AGENT
    assert message.context_id == context
    assert message.message_id not in ("", request.message.message_id)
    assert texts(message.parts) == ["You said hello"]
    assert listed.total_size == 0


@pytest.mark.clause("message.agent-ids")
async def test_direct_reply_names_no_task(meet: Speak) -> None:
    async with meet("reply") as peer:
        (event,) = await gather(peer.plain.send_message(asking("hello")))
    assert event.message.task_id == ""


# ---- conversations ---------------------------------------------------------------------------


@pytest.mark.clause("turns.input-required", "context.inferred")
async def test_questions_and_answers(meet: Speak) -> None:
    async with meet("book") as peer:
        first = await send(peer.plain, "Lyon")
        assert state(first) == "input_required"
        assert texts(first.status.message.parts) == ["Which dates?"]
        second = await send(peer.plain, "In May", task=first.id)
        assert state(second) == "input_required"
        assert texts(second.status.message.parts) == ["Which class?"]
        third = await send(peer.plain, "Second", task=first.id, context=first.context_id)
    assert state(third) == "completed"
    assert {first.id, second.id, third.id} == {first.id}
    assert {first.context_id, second.context_id, third.context_id} == {first.context_id}
    assert texts(third.artifacts[0].parts) == ["Lyon, In May, Second"]
    said = ["Lyon", "Which dates?", "In May", "Which class?", "Second"]
    assert [text for message in third.history for text in texts(message.parts)] == said
    assert [message.role for message in third.history] == [1, 2, 1, 2, 1]


@pytest.mark.clause("context.mismatch")
async def test_context_must_be_that_of_the_task(meet: Speak) -> None:
    async with meet("book") as peer:
        task = await send(peer.plain, "Lyon")
        with pytest.raises(InvalidParamsError, match="contextId"):
            await send(peer.plain, "In May", task=task.id, context="another")
        after = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
    assert after == task


@pytest.mark.clause("task-id.server-only", "send.unknown-task")
async def test_client_cannot_choose_the_id_of_a_task(meet: Speak) -> None:
    async with meet("echo") as peer:
        with pytest.raises(TaskNotFoundError):
            await send(peer.plain, "hello", task="my-own")


@pytest.mark.clause(
    "context.client-chosen", "context.grouping", "turns.new-task-in-context", "turns.references"
)
async def test_tasks_of_one_conversation(meet: Speak) -> None:
    context = uuid.uuid4().hex
    async with meet("recall") as peer:
        first = await send(peer.plain, "one", context=context)
        apart = await send(peer.plain, "elsewhere")
        second = await send(peer.plain, "two", context=context, references=[apart.id])
    assert first.id != second.id
    assert first.context_id == second.context_id == context
    (part,) = second.artifacts[0].parts
    assert MessageToDict(part.data) == {"context": [first.id], "references": [apart.id]}


@pytest.mark.clause("auth-required.state", "auth-required.messages")
async def test_authorization_by_a_further_message(meet: Speak) -> None:
    async with meet("permit") as peer:
        task = await send(peer.plain, "later")
        assert state(task) == "auth_required"
        assert texts(task.status.message.parts) == ["Sign in at https://login.example/"]
        task = await send(peer.plain, "I have", task=task.id)
    assert state(task) == "completed"
    assert texts(task.artifacts[0].parts) == ["let in"]


async def test_authorization_elsewhere(meet: Speak) -> None:
    """The send is answered; the agent goes on by itself once it is let in."""
    gate = TaskGate()
    async with meet("permit") as peer:
        task = await send(peer.plain, gate.name)
        assert state(task) == "auth_required"
        stream = peer.live.subscribe(pb.SubscribeToTaskRequest(id=task.id))
        assert states([await anext(stream)]) == ["auth_required"]
        gate.open.set()
        events = await gather(stream)
    assert kinds(events) == ["status_update", "artifact_update", "status_update"]
    assert states(events) == ["working", "completed"]


@pytest.mark.clause("send.while-working")
async def test_message_for_a_task_at_work(meet: Speak) -> None:
    """It is taken, and the task ends when it has been read too."""
    gate = TaskGate()
    async with meet("story") as peer:
        task = await begin(peer.plain, gate.name)
        await gate.reached.wait()
        sending = asyncio.create_task(send(peer.plain, "and then?", task=task.id))
        got = pb.Task()
        while len(got.history) < 3:
            got = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
        gate.open.set()
        task = await sending
    assert state(task) == "completed"
    assert "and then?" in [m.parts[0].text for m in task.history if m.role == pb.ROLE_USER]


# ---- content ---------------------------------------------------------------------------------


PARTS = {
    "text": pb.Part(text='Grüße, 世界 🌍\r\n\t\u2028\x85 \\ " </script>'),
    "empty text": pb.Part(text=""),
    "file": new_raw_part(bytes(range(256)) * 4, media_type="image/png", filename="pixels.png"),
    "empty file": pb.Part(raw=b""),
    "large file": new_raw_part(b"\x00\xff\x10" * 400_000, media_type="application/pdf"),
    "url": new_url_part("https://example.com/a?b=c&d=ü", media_type="audio/ogg", filename="a.ogg"),
    "object": new_data_part({"a": [1, 2.5, None, True, {"b": "ü"}], "": {}, "e": []}),
    "list": new_data_part([1, "two", [3]], media_type="application/json"),
    "string": new_data_part("text as data"),
    "number": new_data_part(-0.125),
    "false": new_data_part(False),
    "null": new_data_part(None),
}


@pytest.mark.clause("part.one-content", "part.raw-base64", "part.data-any-json")
@pytest.mark.parametrize("name", PARTS)
async def test_part_comes_back_as_it_was_sent(meet: Speak, name: str) -> None:
    part = PARTS[name]
    async with meet("echo") as peer:
        task = await send(peer.plain, part)
        again = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
    assert list(task.artifacts[0].parts) == [part]
    assert list(task.history[0].parts) == [part]
    assert again == task


@pytest.mark.clause("artifact.required-fields", "artifact.unique-id")
async def test_parts_of_all_kinds_in_one_message(meet: Speak) -> None:
    async with meet("echo") as peer:
        task = await send(peer.plain, *PARTS.values())
    (artifact,) = task.artifacts
    assert artifact.artifact_id
    assert (artifact.name, artifact.description) == ("echo", "What was said")
    assert list(artifact.parts) == list(PARTS.values())


@pytest.mark.clause("metadata.any-json")
async def test_metadata_comes_back_as_it_was_given(meet: Speak) -> None:
    metadata: dict[str, Any] = {"a": {"b": [1, None, "ü"]}, "https://example.com/x": False}
    part = pb.Part(text="hello")
    part.metadata.update({"page": 7})
    async with meet("echo") as peer:
        task = await send(peer.plain, part, metadata=metadata)
    assert MessageToDict(task.history[0].metadata) == metadata
    assert MessageToDict(task.artifacts[0].metadata) == metadata
    assert MessageToDict(task.artifacts[0].parts[0].metadata) == {"page": 7}


async def test_structured_data_in_and_out(meet: Speak) -> None:
    async with meet("order") as peer:
        task = await send(peer.plain, new_data_part({"item": "pen", "price": 1.5}))
    (part,) = task.artifacts[0].parts
    assert MessageToDict(part.data) == {"items": ["pen"], "total": 1.5}


async def test_whole_numbers_in_structured_data(meet: Speak) -> None:
    """The SDK holds all numbers as floats, so it writes 2 as 2.0."""
    async with meet("order") as peer:
        task = await send(peer.plain, new_data_part({"item": "pen", "price": 1.5, "count": 2}))
    (part,) = task.artifacts[0].parts
    assert MessageToDict(part.data) == {"items": ["pen", "pen"], "total": 3}


@pytest.mark.clause("send.accepted-output-modes")
async def test_agent_learns_what_the_client_accepts(meet: Speak) -> None:
    request = asking("hello")
    request.metadata.update({"trace": "abc"})
    async with meet("modes", accepted_output_modes=["text/html", "image/*"]) as peer:
        (event,) = await gather(peer.plain.send_message(request))
    known = MessageToDict(event.task.artifacts[0].parts[0].data)
    assert known["output"] == ["text/html", "image/*"]
    assert known["metadata"] == {"trace": "abc"}


@pytest.mark.clause("history.everywhere", "history.zero", "history.limit")
@pytest.mark.parametrize(("length", "kept"), [(0, 0), (1, 1), (2, 2), (50, 2)])
async def test_history_in_the_answer(meet: Speak, length: int, kept: int) -> None:
    configuration = pb.SendMessageConfiguration(history_length=length)
    async with meet("echo") as peer:
        task = await send(peer.plain, "hello", configuration=configuration)
        whole = await peer.plain.get_task(pb.GetTaskRequest(id=task.id))
    assert len(whole.history) == 2
    assert list(task.history) == list(whole.history)[2 - kept :]


# ---- endings ---------------------------------------------------------------------------------


async def test_agent_that_raises(meet: Speak) -> None:
    """The task is failed, and says so without telling what went wrong inside."""
    async with meet("fall") as peer:
        task = await send(peer.plain, "hello")
    assert state(task) == "failed"
    (text,) = texts(task.status.message.parts)
    assert "RuntimeError" in text
    assert "secret" not in str(task)


async def test_agent_that_answers_against_the_protocol(meet: Speak) -> None:
    async with meet("blunder") as peer:
        task = await send(peer.plain, "hello")
    assert state(task) == "failed"
    assert "Invalid agent response" in task.status.message.parts[0].text


@pytest.mark.parametrize(
    ("said", "end", "why"),
    [("reject", "rejected", "Not my business"), ("fail", "failed", "Out of paper")],
)
async def test_agent_that_will_not_or_cannot(meet: Speak, said: str, end: str, why: str) -> None:
    async with meet("refuse") as peer:
        task = await send(peer.plain, said)
    assert state(task) == end
    assert texts(task.status.message.parts) == [why]
