"""The client's fold: the same task as the server's, and no text that is told twice."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.client import Client, TransportRequest
from dragoman.client.fold import Event, Folding
from dragoman.model.events import RESUME, Received
from dragoman.model.lifecycle import fold
from dragoman.model.types import (
    AgentExtension,
    Artifact,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from tests.client.scripted_agent import begun, chunk, status
from tests.client.transports import STREAM, Answer, Script, card, document, result, task
from tests.client.transports import event as sse_event
from tests.unit.model.test_lifecycle import CHUNKS, EVENTS, PARTS, legal

STREAMED = (TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


@given(st.lists(EVENTS, max_size=5), st.lists(CHUNKS, max_size=9), st.data())
def test_it_is_the_fold_of_the_server(
    events: list[Any], chunks: list[Any], data: st.DataObject
) -> None:
    """A stream that begins at any place has the same task in the end."""
    log: list[Any] = legal([*events, *chunks])
    last = max(n for n, event in enumerate(log, 1) if isinstance(event, Received))
    start = data.draw(st.integers(last, len(log)))
    folding = Folding()
    folding.take(fold(None, log[:start]))
    for event in log[start:]:
        if isinstance(event, STREAMED):
            folding.take(event)
            if data.draw(st.booleans()):
                assert folding.task is not None  # looking at it changes nothing
    assert folding.task == fold(None, log)


def test_metadata_of_a_chunk_are_merged() -> None:
    folding = Folding()
    folding.take(begun())
    for n, known in enumerate([{"a": 1, "b": 1}, {"b": 2}, None, {"c": 3}]):
        made = Artifact(artifact_id="a", parts=(Part(text="x"),), metadata=known)
        folding.take(
            TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=made, append=n > 0)
        )
    assert folding.task is not None
    assert folding.task.artifacts[0].metadata == {"a": 1, "b": 2, "c": 3}


def test_it_forgives_what_a_server_refuses() -> None:
    folding = Folding()
    folding.take(chunk("no ", append=True))  # neither a task nor an artifact
    folding.take(chunk("beginning"))
    folding.take(status(TaskState.COMPLETED))
    folding.take(chunk(" and no end"))
    task = folding.task
    assert task is not None
    assert (task.id, task.status.state) == ("t", TaskState.COMPLETED)
    assert task.artifacts[0].parts == (Part(text="no beginning and no end"),)


@pytest.mark.parametrize("keep", [True, False])
def test_each_event_costs_the_same(keep: bool) -> None:
    def cost(count: int) -> float:
        events = [chunk("x" * 40, append=n > 0) for n in range(count)]
        found = []
        for _ in range(3):
            folding = Folding(keep=keep)
            began = time.process_time()
            for event in events:
                folding.take(event)
            found.append(time.process_time() - began)
        assert (folding.task is not None and folding.task.artifacts != ()) is keep
        return min(found)

    # ten times the events; a hundred times the cost if each were added to a copy of the rest
    assert cost(10_000) < 30 * max(cost(1000), 0.001)


# ---- after a reconnect ---------------------------------------------------------------------


def made(parts: Sequence[Part]) -> Artifact:
    """An artifact of these parts."""
    return Artifact(artifact_id="a", parts=tuple(parts))


def now(parts: Sequence[Part], state: TaskState = TaskState.WORKING) -> Task:
    """The task with this artifact."""
    return Task(id="t", context_id="c", status=TaskStatus(state=state), artifacts=(made(parts),))


def canonical(parts: Sequence[Part]) -> list[Part]:
    """The parts with all text joined that can be."""
    found: list[Part] = []
    for part in parts:
        text, kind = part.text, part.media_type
        if text is None or part != Part(text=text, media_type=kind):
            found.append(part)
        elif text and found and found[-1] == Part(text=found[-1].text or "", media_type=kind):
            found[-1] = Part(text=f"{found[-1].text}{text}", media_type=kind)
        elif text:
            found.append(part)
    return found


def recut(parts: Sequence[Part], data: st.DataObject) -> list[Part]:
    """The same content, its text cut into other parts."""
    found: list[Part] = []
    for part in parts:
        if part.text is None or part.filename or part.metadata or len(part.text) < 2:
            found.append(part)
            continue
        places = data.draw(st.lists(st.integers(0, len(part.text)), max_size=3).map(sorted))
        for start, end in pairwise([0, *places, len(part.text)]):
            found.append(Part(text=part.text[start:end], media_type=part.media_type))
    return found


@settings(deadline=None)
@given(
    before=st.lists(st.lists(PARTS, min_size=1, max_size=3), min_size=1, max_size=5),
    after=st.lists(PARTS, max_size=4),
    keep=st.booleans(),
    data=st.data(),
)
def test_no_content_is_told_twice(
    before: list[list[Part]], after: list[Part], keep: bool, data: st.DataObject
) -> None:
    """However the agent cuts the text of its task into parts, only what is new is told."""
    folding = Folding(keep=keep)
    folding.take(begun())
    for number, parts in enumerate(before):
        folding.take(
            TaskArtifactUpdateEvent(
                task_id="t", context_id="c", artifact=made(parts), append=number > 0
            )
        )
    known = [part for parts in before for part in parts]
    whole = recut(canonical(known + after), data) or [Part(text="")]
    gained = folding.catch_up(now(whole))
    told: list[Part] = []
    for event in gained:
        assert isinstance(event, TaskArtifactUpdateEvent)
        assert event.append
        told += event.artifact.parts
    assert canonical(known + told) == canonical(whole)
    assert len(canonical(told)) <= len(canonical(after)) + 1
    assert folding.catch_up(now(whole)) == []
    if keep:
        assert folding.task == now(whole)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        [Part(text="other text")],
        [Part(text="Hell")],
        [Part(text="Hello", media_type="text/html")],
        [Part(data="Hello")],
        [Part(text="Hello", filename="f")],
        [Part(data=1), Part(text="Hello")],
    ],
)
def test_what_is_not_the_same_any_more_is_told_as_a_whole(parts: list[Part], keep: bool) -> None:
    folding = Folding(keep=keep)
    folding.take(begun())
    folding.take(chunk("Hel", append=False))
    folding.take(chunk("lo"))
    told: list[Event] = folding.catch_up(now(parts, TaskState.COMPLETED))
    assert told[0] == TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=made(parts))
    assert isinstance(told[1], TaskStatusUpdateEvent)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("texts", [("Hello wor",), ("Hel", "lo ", "wor"), ("He", "llo wo", "r")])
async def test_no_text_is_told_twice_after_a_reconnect(
    texts: tuple[str, ...], placed: bool, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the agent joins the text of its task or not, and also if it starts anew (`placed`)
    because it does not know the place that it is asked for."""
    monkeypatch.setattr("dragoman.client.retry_pauses.FIRST", 0.0)

    def at(number: int, value: dict[str, Any], **mark: Any) -> bytes:
        if placed:
            next(iter(value.values()))["metadata"] = {RESUME: {"place": number, **mark}}
        return sse_event(value)

    def said(text: str) -> dict[str, Any]:
        found = {"artifactId": "a", "parts": [{"text": text}]}
        return {
            "artifactUpdate": {"taskId": "t", "contextId": "c", "append": True, "artifact": found}
        }

    def answer(request: TransportRequest) -> Answer:
        method = document(request)["method"]
        if method == "GetTask":
            return Answer(result(task("COMPLETED", *texts, "ld")))
        if method == "SendStreamingMessage":
            first = [at(1, {"task": task("WORKING")}), at(2, said("Hel")), at(3, said("lo "))]
            return Answer(first, headers=STREAM)
        assert method == "SubscribeToTask"
        ended = {"taskId": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
        return Answer(
            [
                at(9, {"task": task("WORKING", *texts)}, reset=True),
                at(10, said("ld")),
                at(11, {"statusUpdate": ended}),
            ],
            headers=STREAM,
        )

    known = card()
    if placed:
        offered = known.capabilities.replace(extensions=(AgentExtension(uri=RESUME),))
        known = known.replace(capabilities=offered)
    async with (
        Client.connect(known, transport=Script(answer)) as client,
        client.stream("x", keep=keep) as stream,
    ):
        told = [happened async for happened in stream]
    chunks = [happened for happened in told if isinstance(happened, TaskArtifactUpdateEvent)]
    assert [chunk.text for chunk in chunks] == ["Hel", "lo ", "wor", "ld"]
    assert [type(happened) for happened in told if happened not in chunks] == [
        *(Task, TaskStatusUpdateEvent)
    ]
    assert stream.result.ok
    if keep:
        assert stream.text == "Hello world"
