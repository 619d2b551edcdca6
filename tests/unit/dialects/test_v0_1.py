"""0.1: ids that clients choose, tasks as the only answer, and artifacts by their order."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.client.wire_formats import RPC
from dragoman.dialects import client_quirks, v0_1
from dragoman.model import types
from dragoman.model.caller import Caller, Scope
from dragoman.model.errors import InvalidParams
from dragoman.model.events import CancelRequested, Reply
from dragoman.model.types import Artifact, Part, Role, TaskState, TaskStatus
from tests.harness.wire_values import TEXT

MINE = Scope("agent", "tenant", "me")
IDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=v0_1.LONGEST)
HELLO = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}


def codec() -> v0_1.V01Codec:
    """The dialect as one request has it."""
    return v0_1.V01Codec(MINE)


def asked(found: v0_1.V01Codec | None = None, **params: Any) -> types.SendMessageRequest:
    """What a send means."""
    body = json.dumps({"id": "t", "message": HELLO, **params}).encode()
    return (found or codec()).decode(types.SendMessageRequest, body)


def message(**fields: Any) -> types.Message:
    """What an agent says."""
    parts = (Part(text="hi"),)
    return types.Message(**{"message_id": "m", "role": Role.AGENT, "parts": parts, **fields})


def task(id: str = "t", state: TaskState = TaskState.WORKING, **fields: Any) -> types.Task:
    """A task of ours."""
    return types.Task(id=v0_1.internal_id(id, MINE), status=TaskStatus(state=state), **fields)


def artifact(id: str, **fields: Any) -> Artifact:
    """An artifact that says its id."""
    return Artifact(artifact_id=id, parts=(Part(text=id),), **fields)


def update(state: TaskState) -> types.TaskStatusUpdateEvent:
    """A new status of the task `t`."""
    status = TaskStatus(state=state)
    return types.TaskStatusUpdateEvent(
        task_id=v0_1.internal_id("t", MINE), context_id="c", status=status
    )


def chunk(id: str, **fields: Any) -> types.TaskArtifactUpdateEvent:
    """More of an artifact of the task `t`."""
    return types.TaskArtifactUpdateEvent(
        task_id=v0_1.internal_id("t", MINE), context_id="c", artifact=artifact(id), **fields
    )


def read(wire: bytes) -> Any:
    """A document that we wrote."""
    return json.loads(wire)


# ---- ids -----------------------------------------------------------------------------------


@given(IDS)
def test_every_id_is_found_again(id: str) -> None:
    ours = v0_1.internal_id(id, MINE)
    assert v0_1.chosen_id(ours) == id
    assert ours.isascii() and ours.isprintable() and not {"/", " ", ":", "?"} & set(ours)


@given(IDS, IDS, st.builds(Scope, TEXT, TEXT, TEXT), st.builds(Scope, TEXT, TEXT, TEXT))
def test_other_ids_and_other_owners_are_other_tasks(
    one: str, other: str, whose: Scope, others: Scope
) -> None:
    same = (one, whose) == (other, others)
    assert (v0_1.internal_id(one, whose) == v0_1.internal_id(other, others)) is same


def test_whose_it_is_cannot_be_tried_out() -> None:
    owner = v0_1.internal_id("", MINE).removeprefix(v0_1.PREFIX).rstrip("-")
    assert len(owner) * 4 >= 128
    assert "me" not in v0_1.internal_id("x", MINE)


@given(IDS)
def test_ids_of_ours_are_left_as_they_are(id: str) -> None:
    if not id.startswith(v0_1.PREFIX):
        assert v0_1.chosen_id(id) == id


def test_ids_have_a_limit() -> None:
    assert asked(id="x" * v0_1.LONGEST)
    for id in ("", "x" * (v0_1.LONGEST + 1), None, 7):
        with pytest.raises(InvalidParams, match=r"^id: "):
            asked(id=id)


def test_an_id_that_looks_like_ours_is_one_like_any_other() -> None:
    theirs = v0_1.internal_id("t", Scope("agent", "tenant", "you"))
    found = asked(id=theirs).message.task_id
    assert found != theirs and v0_1.chosen_id(found) == theirs


# ---- what is asked -------------------------------------------------------------------------


def test_a_send() -> None:
    found = asked(
        sessionId="s",
        acceptedOutputModes=["text/plain"],
        historyLength=2,
        metadata={"a": 1},
        status={"state": "submitted", "timestamp": "2026-11-16T02:43:17.131182"},
    )
    assert found.message.task_id == v0_1.internal_id("t", MINE)
    assert found.message.context_id == "s"
    assert found.message.message_id
    assert found.message.message_id != asked().message.message_id
    assert found.configuration is not None
    assert found.configuration.accepted_output_modes == ("text/plain",)
    assert found.configuration.history_length == 2
    assert not found.configuration.return_immediately
    assert found.metadata == {"a": 1}


def test_a_message_of_0_2_under_the_older_method() -> None:
    said = {"kind": "message", "messageId": "m", "contextId": "x", "taskId": "y"}
    found = asked(sessionId="s", message={**HELLO, **said}).message
    assert (found.message_id, found.context_id) == ("m", "s")
    assert found.task_id == v0_1.internal_id("t", MINE)


@pytest.mark.parametrize(
    ("document", "is_alias"),
    [
        ({"message": {"messageId": "m"}}, True),
        ({"id": "", "message": {"messageId": "m"}}, True),
        ({"id": None, "message": {"messageId": "m"}}, True),
        ({"id": "t", "message": {"messageId": "m"}}, False),
        ({"message": {"messageId": ""}}, False),
        ({"message": {}}, False),
        ({"message": []}, False),
        ({}, False),
        ([], False),
        (None, False),
    ],
)
def test_where_only_the_name_of_the_method_is_older(document: Any, is_alias: bool) -> None:
    assert client_quirks.is_0_2_by_its_params(json.dumps(document).encode()) is is_alias


def test_a_webhook_has_the_id_of_its_task() -> None:
    ours = v0_1.internal_id("t", MINE)
    hook = {"url": "http://h", "token": "k", "authentication": {"schemes": ["Bearer"]}}
    body = json.dumps({"id": "t", "pushNotificationConfig": {"id": "x", **hook}}).encode()
    found = codec().decode(types.TaskPushNotificationConfig, body)
    assert (found.id, found.task_id, found.token) == (ours, ours, "k")
    get = codec().decode(types.GetTaskPushNotificationConfigRequest, b'{"id":"t"}')
    assert (get.task_id, get.id) == (ours, ours)
    # the service gives it that of the task, which the dialect alone does not know to be new
    wishes = asked(pushNotification={"id": "x", **hook}).configuration
    assert wishes is not None and wishes.task_push_notification_config is not None
    assert wishes.task_push_notification_config.id == ""
    assert read(codec().encode(found)) == {"id": "t", "pushNotificationConfig": hook}


@pytest.mark.parametrize(
    "kind", [types.GetTaskRequest, types.CancelTaskRequest, types.SubscribeToTaskRequest]
)
def test_tasks_are_asked_for_by_the_ids_of_their_owners(kind: Any) -> None:
    assert codec().decode(kind, b'{"id":"t"}').id == v0_1.internal_id("t", MINE)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"message": None}, "message"),
        ({"message": {**HELLO, "parts": []}}, "message.parts"),
        ({"message": {**HELLO, "parts": [{"type": "image"}]}}, "message.parts[0]"),
        ({"message": {**HELLO, "role": "ROLE_USER"}}, "message.role"),
        ({"sessionId": 7}, "sessionId"),
        ({"pushNotification": {}}, "pushNotification.url"),
        ({"historyLength": "x"}, "historyLength"),
    ],
)
def test_mistakes_are_named(params: Any, field: str) -> None:
    with pytest.raises(InvalidParams) as error:
        asked(**params)
    assert [name for name, _ in error.value.violations] == [field]


# ---- what is answered ----------------------------------------------------------------------


def test_a_task() -> None:
    found = task(
        context_id="s",
        artifacts=(artifact("x", name="one", extensions=("e",)), artifact("y")),
        history=(message(extensions=("e",), reference_task_ids=("r",)),),
    )
    assert read(codec().encode(types.SendMessageResponse(task=found))) == {
        "id": "t",
        "sessionId": "s",
        "status": {"state": "working"},
        "artifacts": [
            {"name": "one", "parts": [{"type": "text", "text": "x"}], "index": 0},
            {"parts": [{"type": "text", "text": "y"}], "index": 1},
        ],
        "history": [{"role": "agent", "parts": [{"type": "text", "text": "hi"}]}],
    }
    assert v0_1.encode(found) == codec().encode(found)


@pytest.mark.parametrize("state", TaskState)
def test_states_that_came_later(state: TaskState) -> None:
    later = {TaskState.REJECTED: "failed", TaskState.AUTH_REQUIRED: "input-required"}
    meant = later.get(state, state.name.lower().replace("_", "-"))
    assert read(codec().encode(task(state=state)))["status"]["state"] == meant


def test_a_reply_is_a_completed_task_of_the_id_that_was_chosen() -> None:
    found = codec()
    asked(found, id="t/1 é", sessionId="s")
    reply = message(context_id="s")
    answer = read(found.encode(types.SendMessageResponse(message=reply)))
    assert (answer["id"], answer["sessionId"]) == ("t/1 é", "s")
    assert answer["status"]["state"] == "completed"
    assert answer["status"]["message"] == {
        "role": "agent",
        "parts": [{"type": "text", "text": "hi"}],
    }
    event = read(found.response(Reply(reply)))
    assert (event["id"], event["final"]) == ("t/1 é", True)


# ---- events --------------------------------------------------------------------------------


def test_events() -> None:
    found = codec()
    assert read(found.response(update(TaskState.WORKING))) == {
        "id": "t",
        "status": {"state": "working"},
        "final": False,
    }
    assert read(found.response(update(TaskState.COMPLETED), True))["final"] is True
    assert read(found.response(task())) == {
        "id": "t",
        "status": {"state": "working"},
        "final": False,
    }
    assert found.response(task(state=TaskState.INPUT_REQUIRED)) == b""
    canceling = CancelRequested(caller=Caller(), at="2026-11-16T02:43:17Z")
    assert found.response(canceling) == b""


def test_artifacts_are_numbered_as_they_come() -> None:
    found = codec()
    wires = [
        found.response(chunk("x")),
        found.response(chunk("y")),
        found.response(chunk("x", append=True, last_chunk=True)),
    ]
    seen = [read(wire)["artifact"] for wire in wires]
    assert [each["index"] for each in seen] == [0, 1, 0]
    assert (seen[0]["append"], seen[0]["lastChunk"]) == (False, False)
    assert (seen[2]["append"], seen[2]["lastChunk"]) == (True, True)


@pytest.mark.parametrize("state", [TaskState.WORKING, TaskState.INPUT_REQUIRED])
def test_artifacts_have_the_numbers_that_the_task_gives_them(state: TaskState) -> None:
    before = task(state=state, artifacts=(artifact("x"), artifact("y")))
    found = codec()
    found.response(before)
    indices = [read(found.response(chunk(id)))["artifact"]["index"] for id in ("z", "y")]
    after = replace(before, artifacts=(*before.artifacts, artifact("z")))
    assert indices == [2, 1]
    told = read(found.encode(after))["artifacts"]
    assert {each["parts"][0]["text"]: each["index"] for each in told} == {"x": 0, "y": 1, "z": 2}


# ---- calling -------------------------------------------------------------------------------


def test_a_client_calls_a_new_task_as_its_message() -> None:
    request = types.SendMessageRequest(message=message(message_id="m", role=Role.USER))
    assert read(v0_1.encode_request(request))["id"] == "m"
    again = replace(request, message=message(task_id="t", context_id="s"))
    assert read(v0_1.encode_request(again))["id"] == "t"
    assert read(v0_1.encode_request(again))["sessionId"] == "s"


def test_what_a_client_asks_is_what_a_server_reads() -> None:
    hook = types.TaskPushNotificationConfig(url="http://h", task_id="t", token="k")
    request = types.SendMessageRequest(
        message=message(role=Role.USER, task_id="t", context_id="s", metadata={"a": 1}),
        configuration=types.SendMessageConfiguration(
            history_length=3, task_push_notification_config=replace(hook, task_id="")
        ),
        metadata={"b": 2},
    )
    found = codec().decode(types.SendMessageRequest, v0_1.encode_request(request))
    kept = replace(found.message, message_id="m", task_id="t")
    assert replace(found, message=kept) == request
    told = v0_1.decode_response(types.TaskPushNotificationConfig, read(v0_1.encode_request(hook)))
    assert told == hook


def test_what_a_server_answers_is_what_a_client_reads() -> None:
    found = task(context_id="s", artifacts=(artifact("0"), artifact("1")))
    told = v0_1.decode_response(types.Task, read(v0_1.encode(found)))
    assert told == replace(found, id="t")
    events = [
        v0_1.decode_response(types.StreamResponse, read(codec().response(event)))
        for event in (update(TaskState.FAILED), chunk("0", append=True))
    ]
    assert events[0].status_update == replace(update(TaskState.FAILED), task_id="t", context_id="")
    assert events[1].artifact_update == replace(chunk("0", append=True), task_id="t", context_id="")


def test_messages_without_ids_have_the_same_each_time_they_are_told() -> None:
    document = {"id": "t", "status": {"state": "completed"}, "history": [HELLO]}
    first, again = (v0_1.decode_response(types.Task, document).history[0] for _ in range(2))
    assert first.message_id == again.message_id != ""


def test_answers_of_python_a2a() -> None:
    document = {
        "artifacts": [{"parts": [{"text": "hello", "type": "text"}]}],
        "id": "t1",
        "message": {"metadata": {"message_id": "u"}, "parts": [], "role": "user"},
        "sessionId": "s1",
        "status": {"state": "completed", "timestamp": "2026-11-16T02:43:17.131182"},
    }
    found = v0_1.decode_response(types.SendMessageResponse, document).task
    assert found is not None
    assert (found.context_id, found.status.timestamp) == ("s1", None)
    assert found.artifacts == (Artifact(artifact_id="0", parts=(Part(text="hello"),)),)
    assert v0_1.decode_response(types.StreamResponse, document).task == found


def test_there_is_no_list_in_0_1() -> None:
    assert "list" not in RPC["0.1"].names
    with pytest.raises(InvalidParams):
        v0_1.decode_response(types.ListTasksResponse, {})
