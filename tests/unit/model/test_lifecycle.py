"""The fold of a log: legal transitions, history, artifacts, and the same task however it is cut."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.model.caller import Caller
from dragoman.model.events import CancelRequested, Event, Received, Reply
from dragoman.model.lifecycle import Fold, IllegalEvent, advance, apply, birth, fold
from dragoman.model.types import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

AT = "2026-01-31T12:00:00.000Z"


def message(name: str, role: Role = Role.USER) -> Message:
    """A message of the task."""
    return Message(
        message_id=name, role=role, parts=(Part(text=name),), task_id="t", context_id="c"
    )


def received(name: str = "u1") -> Received:
    """A message from the user."""
    return Received(message=message(name), caller=Caller(), at=AT)


def status(
    state: TaskState, said: str = "", metadata: dict[str, Any] | None = None
) -> TaskStatusUpdateEvent:
    """A status, perhaps with a message."""
    words = message(said, Role.AGENT) if said else None
    return TaskStatusUpdateEvent(
        task_id="t",
        context_id="c",
        status=TaskStatus(state=state, message=words, timestamp=AT),
        metadata=metadata,
    )


def piece(key: str, *texts: str, append: bool = False, **fields: Any) -> TaskArtifactUpdateEvent:
    """An artifact, or more of one."""
    parts = tuple(Part(text=text) for text in texts)
    return TaskArtifactUpdateEvent(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id=key, parts=parts, **fields),
        append=append,
    )


CANCEL = CancelRequested(caller=Caller(), at=AT)
STATES = list(TaskState)


# ---- transitions ---------------------------------------------------------------------------

# Rows: from; columns: to, in the same order. A cross is a legal step.
TABLE = """
                S W C F X I R A
SUBMITTED       x x x x x x x x
WORKING         . x x x x x x x
COMPLETED       . . . . . . . .
FAILED          . . . . . . . .
CANCELED        . . . . . . . .
INPUT_REQUIRED  . x x x x x x x
REJECTED        . . . . . . . .
AUTH_REQUIRED   . x x x x x x x
"""
COLUMNS = dict(zip("SWCFXIRA", STATES, strict=True))
ROWS = {line.split()[0]: line.split()[1:] for line in TABLE.strip().splitlines()[1:]}
STEPS = [
    (TaskState[row], COLUMNS[letter], mark == "x")
    for row, marks in ROWS.items()
    for letter, mark in zip("SWCFXIRA", marks, strict=True)
]


def test_the_table_is_complete() -> None:
    assert len(STEPS) == len(STATES) ** 2 == 64
    assert {(a, b) for a, b, _ in STEPS} == {(a, b) for a in STATES for b in STATES}


def at(state: TaskState) -> Task:
    """A task in this state."""
    return replace(birth(received()), status=TaskStatus(state=state, timestamp=AT))


@pytest.mark.clause("state.terminal-final")
@pytest.mark.parametrize(
    ("before", "after", "legal"), STEPS, ids=lambda value: getattr(value, "name", str(value))
)
def test_every_transition(before: TaskState, after: TaskState, legal: bool) -> None:
    event = status(after)
    if legal:
        assert advance(before, event) is after
        assert apply(at(before), event).status == event.status
        return
    with pytest.raises(IllegalEvent):
        advance(before, event)
    with pytest.raises(IllegalEvent):
        apply(at(before), event)


@pytest.mark.clause("state.terminal-final")
@pytest.mark.parametrize("state", [state for state in STATES if state.terminal])
@pytest.mark.parametrize(
    "event",
    [received("u2"), piece("a", "x"), piece("a", "x", append=True), CANCEL, Reply(message("m"))],
    ids=lambda event: type(event).__name__,
)
def test_nothing_follows_a_terminal_state(state: TaskState, event: Event) -> None:
    with pytest.raises(IllegalEvent, match=state.name.lower()):
        apply(at(state), event)
    with pytest.raises(IllegalEvent):
        advance(state, event)


@pytest.mark.parametrize("state", [state for state in STATES if not state.terminal])
@pytest.mark.parametrize("event", [received("u2"), piece("a", "x"), CANCEL])
def test_other_events_leave_the_state(state: TaskState, event: Event) -> None:
    assert advance(state, event) is state
    assert apply(at(state), event).status.state is state


@pytest.mark.parametrize(
    "event", [status(TaskState.WORKING), piece("a", "x"), CANCEL, Reply(message("m"))]
)
def test_a_log_begins_with_a_message(event: Event) -> None:
    assert advance(None, received()) is TaskState.SUBMITTED
    with pytest.raises(IllegalEvent, match="must start with a message"):
        advance(None, event)
    with pytest.raises(IllegalEvent, match="must start with a message"):
        apply(None, event)


def test_an_empty_log_is_no_task() -> None:
    with pytest.raises(IllegalEvent):
        fold(None, ())


def test_birth() -> None:
    assert apply(None, received()) == Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.SUBMITTED, timestamp=AT),
        history=(message("u1"),),
    )


# ---- history -------------------------------------------------------------------------------


def names(task: Task) -> list[str]:
    """The ids of the messages in the history."""
    return [said.message_id for said in task.history]


def test_the_current_status_message_stays_out_of_the_history() -> None:
    task = fold(None, [received(), status(TaskState.WORKING, "a1")])
    assert names(task) == ["u1"]
    assert task.status.message == message("a1", Role.AGENT)


def test_the_next_status_moves_it_into_the_history() -> None:
    task = fold(
        None, [received(), status(TaskState.WORKING, "a1"), status(TaskState.COMPLETED, "a2")]
    )
    assert names(task) == ["u1", "a1"]
    assert task.status.message == message("a2", Role.AGENT)


def test_a_status_without_words_moves_it_too() -> None:
    task = fold(None, [received(), status(TaskState.WORKING, "a1"), status(TaskState.WORKING)])
    assert names(task) == ["u1", "a1"]
    assert task.status.message is None


def test_the_next_message_of_the_user_moves_it_before_itself() -> None:
    task = fold(None, [received(), status(TaskState.INPUT_REQUIRED, "a1"), received("u2")])
    assert names(task) == ["u1", "a1", "u2"]
    assert task.status == TaskStatus(state=TaskState.INPUT_REQUIRED, timestamp=AT)


def test_it_moves_once() -> None:
    task = fold(
        None,
        [
            received(),
            status(TaskState.INPUT_REQUIRED, "a1"),
            received("u2"),
            status(TaskState.WORKING),
            received("u3"),
            status(TaskState.COMPLETED, "a2"),
        ],
    )
    assert names(task) == ["u1", "a1", "u2", "u3"]


def test_other_events_leave_it_where_it_is() -> None:
    task = fold(None, [received(), status(TaskState.WORKING, "a1"), piece("a", "x"), CANCEL])
    assert names(task) == ["u1"]
    assert task.status.message == message("a1", Role.AGENT)


# ---- artifacts -----------------------------------------------------------------------------


def texts(task: Task) -> dict[str, list[str | None]]:
    """The artifacts, by what their parts say."""
    return {a.artifact_id: [part.text for part in a.parts] for a in task.artifacts}


@pytest.mark.clause("artifact-update.append")
def test_an_append_adds_its_parts() -> None:
    task = fold(
        None,
        [
            received(),
            piece("a", "1", name="n", description="d"),
            piece("b", "x"),
            piece("a", "2", "3", append=True, name="other"),
            piece("b", "y", append=True),
            piece("a", "4", append=True),
        ],
    )
    assert texts(task) == {"a": ["12", "34"], "b": ["xy"]}
    assert task.artifacts[0].name == "n"
    assert task.artifacts[0].description == "d"


@pytest.mark.clause("artifact.unique-id")
def test_without_append_an_artifact_is_replaced_in_its_place() -> None:
    task = fold(
        None,
        [
            received(),
            piece("a", "1", name="n"),
            piece("b", "x"),
            piece("a", "2", append=True),
            piece("a", "new"),
            piece("a", "more", append=True),
        ],
    )
    assert texts(task) == {"a": ["newmore"], "b": ["x"]}
    assert task.artifacts[0].name == ""


def chunks(*groups: list[Part]) -> Task:
    """A task with an artifact that was told in these chunks."""
    told = [
        TaskArtifactUpdateEvent(
            task_id="t",
            context_id="c",
            artifact=Artifact(artifact_id="a", parts=tuple(parts)),
            append=number > 0,
        )
        for number, parts in enumerate(groups)
    ]
    return fold(None, [received(), *told])


HTML = "text/html"
TEXTS: list[tuple[str, list[list[Part]], list[Part]]] = [
    ("text", [[Part(text="a")], [Part(text="b")], [Part(text="c")]], [Part(text="abc")]),
    (
        "one media type",
        [[Part(text="a", media_type=HTML)], [Part(text="b", media_type=HTML)]],
        [Part(text="ab", media_type=HTML)],
    ),
    (
        "another media type",
        [[Part(text="a", media_type=HTML)], [Part(text="b")]],
        [Part(text="a", media_type=HTML), Part(text="b")],
    ),
    (
        "parts of one event",
        [[Part(text="a"), Part(text="b")], [Part(text="c"), Part(text="d")]],
        [Part(text="a"), Part(text="bc"), Part(text="d")],
    ),
    (
        "a name",
        [[Part(text="a", filename="f")], [Part(text="b")], [Part(text="c", filename="f")]],
        [Part(text="a", filename="f"), Part(text="b"), Part(text="c", filename="f")],
    ),
    (
        "metadata",
        [
            [Part(text="a", metadata={"k": 1})],
            [Part(text="b")],
            [Part(text="c", metadata={"k": 1})],
        ],
        [Part(text="a", metadata={"k": 1}), Part(text="b"), Part(text="c", metadata={"k": 1})],
    ),
    (
        "what is not text",
        [[Part(text="a")], [Part(data="b")], [Part(text="c")], [Part(text="d"), Part(raw=b"e")]],
        [Part(text="a"), Part(data="b"), Part(text="cd"), Part(raw=b"e")],
    ),
    ("nothing", [[Part(text="")], [Part(text="a")], [Part(text="")]], [Part(text="a")]),
]


@pytest.mark.parametrize(
    ("groups", "parts"), [case[1:] for case in TEXTS], ids=[c[0] for c in TEXTS]
)
def test_text_in_chunks_is_one_text(groups: list[list[Part]], parts: list[Part]) -> None:
    assert list(chunks(*groups).artifacts[0].parts) == parts


def test_ten_thousand_chunks_cost_in_proportion() -> None:
    def cost(count: int) -> float:
        events: list[Event] = [received(), piece("a", "x" * 40)]
        events += [piece("a", "x" * 40, append=True, metadata={f"{n}": 1}) for n in range(count)]
        found = []
        for _ in range(3):
            began = time.process_time()
            task = fold(None, events)
            found.append(time.process_time() - began)
        assert task.artifacts[0].parts == (Part(text="x" * 40 * (count + 1)),)
        assert len(task.artifacts[0].metadata or {}) == count
        return min(found)

    # ten times the chunks; a hundred times the cost if each were added to a copy of the rest
    assert cost(10_000) < 30 * max(cost(1000), 0.001)


def test_an_append_to_an_unknown_artifact_is_refused() -> None:
    task = fold(None, [received(), piece("a", "1")])
    with pytest.raises(IllegalEvent, match="b"):
        apply(task, piece("b", "x", append=True))
    with pytest.raises(IllegalEvent, match="b"):
        fold(None, [received(), piece("a", "1"), piece("b", "x", append=True)])


def test_metadata_is_merged() -> None:
    task = fold(
        None,
        [
            received(),
            status(TaskState.WORKING, metadata={"a": 1, "b": 1}),
            status(TaskState.WORKING, metadata={"b": 2}),
            status(TaskState.WORKING),
            piece("a", "x", metadata={"c": 1}),
            piece("a", "y", append=True, metadata={"d": 2}),
            piece("a", "z", append=True),
        ],
    )
    assert task.metadata == {"a": 1, "b": 2}
    assert task.artifacts[0].metadata == {"c": 1, "d": 2}


# ---- whatever comes ------------------------------------------------------------------------

METADATA = st.none() | st.dictionaries(st.sampled_from("xyz"), st.integers(0, 2), max_size=2)
PARTS = st.builds(
    lambda text, kind, name, metadata: Part(
        text=text, media_type=kind, filename=name, metadata=metadata
    ),
    st.text("123", max_size=2),
    st.sampled_from(["", "", "", HTML]),
    st.sampled_from(["", "", "", "f"]),
    st.sampled_from([None, None, None, {"k": 1}]),
) | st.builds(lambda value: Part(data=value), st.integers(0, 2))
CHUNKS = st.builds(
    lambda key, parts, append, metadata: TaskArtifactUpdateEvent(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id=key, parts=tuple(parts), metadata=metadata),
        append=append,
    ),
    st.sampled_from("abc"),
    st.lists(PARTS, min_size=1, max_size=3),
    st.booleans(),
    METADATA,
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(received, st.text("uvw", min_size=1, max_size=3)),
    st.builds(
        status,
        # often a state that leaves something to follow
        st.sampled_from(STATES) | st.sampled_from([s for s in STATES if not s.terminal]),
        st.text("pqr", max_size=2),
        METADATA,
    ),
    CHUNKS,
    st.just(CANCEL),
)


class Model:
    """The rules of the log once more, as plainly as they can be written."""

    def __init__(self) -> None:
        self.states: list[TaskState] = []
        self.history: list[str] = []
        self.said: Message | None = None
        self.artifacts: dict[str, tuple[list[Part], dict[str, Any]]] = {}
        self.metadata: dict[str, Any] = {}

    def legal(self, event: Event) -> bool:
        """Whether the event can come next."""
        if not self.states:
            return isinstance(event, Received)
        state = self.states[-1]
        ended = {"COMPLETED", "FAILED", "CANCELED", "REJECTED"}
        if state.name in ended:
            return False
        match event:
            case TaskStatusUpdateEvent(status=TaskStatus(state=TaskState.SUBMITTED)):
                return state is TaskState.SUBMITTED
            case TaskArtifactUpdateEvent(append=True, artifact=artifact):
                return artifact.artifact_id in self.artifacts
        return True

    def take(self, event: Event) -> None:
        """The event comes."""
        match event:
            case Received():
                self._supersede()
                self.history.append(event.message.message_id)
                self.states.append(self.states[-1] if self.states else TaskState.SUBMITTED)
            case TaskStatusUpdateEvent():
                self._supersede()
                self.said = event.status.message
                self.states.append(event.status.state)
                self.metadata |= event.metadata or {}
            case TaskArtifactUpdateEvent(artifact=artifact):
                parts, known = self.artifacts.get(artifact.artifact_id, ([], {}))
                if not event.append:
                    parts, known = [], {}
                parts, more = list(parts), list(artifact.parts)
                if parts and self._one_text(parts[-1], more[0]):
                    text = f"{parts.pop().text}{more[0].text}"
                    more[0] = Part(text=text, media_type=more[0].media_type)
                self.artifacts[artifact.artifact_id] = (
                    parts + more,
                    known | (artifact.metadata or {}),
                )

    def _one_text(self, *parts: Part) -> bool:
        plain = all(p.text is not None and not p.filename and not p.metadata for p in parts)
        return plain and len({part.media_type for part in parts}) == 1

    def _supersede(self) -> None:
        if self.said is not None:
            self.history.append(self.said.message_id)
            self.said = None

    def check(self, task: Task) -> None:
        """The task is what the rules say."""
        assert task.status.state is self.states[-1]
        assert task.status.message == self.said
        assert names(task) == self.history
        assert {
            a.artifact_id: (list(a.parts), a.metadata or {}) for a in task.artifacts
        } == self.artifacts
        assert [a.artifact_id for a in task.artifacts] == list(self.artifacts)
        assert (task.metadata or {}) == self.metadata


@given(st.lists(EVENTS, max_size=30))
def test_whatever_comes_the_rules_hold(events: list[Event]) -> None:
    model, task = Model(), None
    for event in events:
        before = task
        if model.legal(event):
            task = apply(task, event)
            model.take(event)
            model.check(task)
        else:
            with pytest.raises(IllegalEvent):
                apply(task, event)
            assert task is before
    submitted = [state is TaskState.SUBMITTED for state in model.states]
    assert submitted == sorted(submitted, reverse=True), "submitted is never returned to"
    assert not any(state.terminal for state in model.states[:-1])


def legal(events: Sequence[Event]) -> list[Event]:
    """Those that can follow each other, behind a message."""
    model, found = Model(), []
    for event in (received(), *events):
        if model.legal(event):
            model.take(event)
            found.append(event)
    return found


@given(st.lists(EVENTS, max_size=30).map(legal), st.data())
def test_a_log_can_be_folded_in_any_pieces(events: list[Event], data: st.DataObject) -> None:
    whole = fold(None, events)

    one_by_one: Task | None = None
    for event in events:
        one_by_one = apply(one_by_one, event)
    assert one_by_one == whole

    cuts = data.draw(st.lists(st.integers(1, len(events)), max_size=5).map(sorted))
    task = birth(events[0])  # type: ignore[arg-type]
    for start, end in zip([1, *cuts], [*cuts, len(events)], strict=True):
        task = fold(task, events[start:end])
    assert task == whole

    assert fold(None, iter(events)) == whole


@given(st.lists(EVENTS, max_size=20).map(legal))
def test_the_fold_is_pure(events: list[Event]) -> None:
    before = [msgspec.json.encode(event) for event in events]
    task = fold(None, events[:1])
    image = msgspec.json.encode(task)
    fold(task, events[1:])
    assert msgspec.json.encode(task) == image
    assert [msgspec.json.encode(event) for event in events] == before


@given(st.lists(EVENTS, max_size=20).map(legal), st.integers(0, 20))
def test_a_task_that_was_shown_does_not_change(events: list[Event], cut: int) -> None:
    made = Fold(birth(events[0]))  # type: ignore[arg-type]
    for event in events[1:cut]:
        made.take(event)
    shown = made.task()
    image = msgspec.json.encode(shown)
    for event in events[max(cut, 1) :]:
        made.take(event)
    assert msgspec.json.encode(shown) == image
    assert made.task() == fold(None, events)


@given(st.lists(EVENTS, max_size=20).map(legal))
def test_the_fold_goes_the_way_that_advance_says(events: list[Event]) -> None:
    state: TaskState | None = None
    for event in events:
        state = advance(state, event)
    assert fold(None, events).status.state is state
