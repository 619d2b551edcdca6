"""0.3: what it can carry comes back, strict readers take it, and the reference means the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb
from a2a.compat.v0_3 import conversions, proto_utils
from a2a.compat.v0_3 import types as reference
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.dialects.protobuf import V1
from dragoman.dialects.protobuf.package_codec import BARE, OLDER, V03Codec
from dragoman.dialects.v0_3 import proto, rpc
from dragoman.model import types
from dragoman.model.events import Reply
from dragoman.model.types import WireStruct
from tests.harness.scale import examples
from tests.harness.wire_values import document, filled, same
from tests.unit.dialects.older_values import ASKED, EVENTS, TOLD, carried, values

EACH = settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def each(*kinds: type[WireStruct]) -> Any:
    """Each of these types, by its name."""
    return pytest.mark.parametrize("kind", [pytest.param(k, id=k.__name__) for k in kinds])


# ---- there and back ------------------------------------------------------------------------


@each(*dict.fromkeys((*ASKED, *TOLD, *EVENTS)))
@EACH
@given(data=st.data())
def test_rpc_and_back(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    found = rpc.decode(kind, rpc.encode(value))
    assert document(found) == document(carried(value, proto=False))


@each(*ASKED, types.ListTasksRequest)
@EACH
@given(data=st.data())
def test_asked_in_proto_json_and_back(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    assume(getattr(value, "id", "") != "None")  # what the Python SDK writes where there is none
    found = proto.JSON.convert(kind, json.loads(proto.ask(value)))
    assert document(found) == document(carried(value, proto=True))


@each(*TOLD, types.ListTasksResponse)
@EACH
@given(data=st.data())
def test_told_in_proto_json_and_back(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    found = proto.told(kind, json.loads(proto.JSON.encode(value)))
    assert document(found) == document(carried(value, proto=True))


@each(*ASKED)
@EACH
@given(data=st.data())
def test_asked_in_protobuf_and_back(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    found = OLDER.decode(kind, OLDER.ask(value))
    assert document(found) == document(carried(value, proto=True))


@each(*TOLD)
@EACH
@given(data=st.data())
def test_told_in_protobuf_and_back(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    found = OLDER.told(kind, OLDER.encode(value))
    assert document(found) == document(carried(value, proto=True))


@each(types.Task, *EVENTS)
@EACH
@given(data=st.data(), last=st.booleans())
def test_events_of_a_stream_are_told_in_every_form(
    kind: type[WireStruct], data: st.DataObject, last: bool
) -> None:
    value = data.draw(values(kind))
    event = Reply(value) if isinstance(value, types.Message) else value
    wires = rpc.response(event, last), proto.JSON.response(event, last)
    seen = [
        rpc.convert(types.StreamResponse, json.loads(wires[0])),
        proto.told(types.StreamResponse, json.loads(wires[1])),
        OLDER.told(types.StreamResponse, OLDER.response(event, last)),
    ]
    for form, found in zip((False, True, True), seen, strict=True):
        (told,) = (item for item in msgspec.structs.astuple(found) if item is not None)
        assert document(told) == document(carried(value, proto=form))
    if kind is types.TaskStatusUpdateEvent:
        assert json.loads(wires[0])["final"] is last
        assert json.loads(wires[1])["statusUpdate"].get("final", False) is last
    assert not any(mark in wire for wire in wires for mark in (b"\n", b"\xc2\x85", b"\xe2\x80\xa8"))


# ---- strict readers ------------------------------------------------------------------------

MODELS: dict[type[WireStruct], Any] = {
    types.SendMessageRequest: reference.MessageSendParams,
    types.GetTaskRequest: reference.TaskQueryParams,
    types.CancelTaskRequest: reference.TaskIdParams,
    types.SubscribeToTaskRequest: reference.TaskIdParams,
    types.TaskPushNotificationConfig: reference.TaskPushNotificationConfig,
    types.GetTaskPushNotificationConfigRequest: reference.GetTaskPushNotificationConfigParams,
    types.ListTaskPushNotificationConfigsRequest: reference.ListTaskPushNotificationConfigParams,
    types.DeleteTaskPushNotificationConfigRequest: reference.DeleteTaskPushNotificationConfigParams,
    types.Task: reference.Task,
    types.Message: reference.Message,
    types.TaskStatusUpdateEvent: reference.TaskStatusUpdateEvent,
    types.TaskArtifactUpdateEvent: reference.TaskArtifactUpdateEvent,
}


def dumped(model: Any) -> Any:
    """A model of the reference as it writes it."""
    return json.loads(model.model_dump_json(by_alias=True, exclude_none=True))


@each(*MODELS)
@EACH
@given(data=st.data())
def test_the_reference_knows_every_field_of_rpc(
    kind: type[WireStruct], data: st.DataObject
) -> None:
    wire = rpc.encode(data.draw(values(kind)))
    assert same(dumped(MODELS[kind].model_validate_json(wire))) == same(json.loads(wire))


@each(*ASKED)
@EACH
@given(data=st.data())
def test_the_reference_reads_what_is_asked_in_proto(
    kind: type[WireStruct], data: st.DataObject
) -> None:
    value = data.draw(values(kind))
    message = getattr(old_pb, proto.ASKED[kind][0].__name__)
    wire = json_format.ParseDict(json.loads(proto.ask(value)), message())
    assert shown(message.FromString(OLDER.ask(value))) == shown(wire)


@each(*TOLD)
@pytest.mark.parametrize("forms", [(proto.JSON, OLDER), (proto.BARE, BARE)], ids=["text", "bare"])
@EACH
@given(data=st.data())
def test_the_reference_reads_what_is_told_in_proto(
    forms: tuple[proto.Json, V03Codec], kind: type[WireStruct], data: st.DataObject
) -> None:
    value = data.draw(values(kind))
    message = getattr(old_pb, proto.TOLD[kind][0].__name__)
    wire = json_format.ParseDict(json.loads(forms[0].encode(value)), message())
    assert shown(message.FromString(forms[1].encode(value))) == shown(wire)


def shown(message: Any) -> Any:
    """A message of the reference as plain data, without what is empty."""
    return filled(same(json_format.MessageToDict(message)))


# ---- the same as the reference -------------------------------------------------------------

CONVERSIONS: dict[type[WireStruct], tuple[Any, Any]] = {
    types.SendMessageRequest: (
        lambda core: conversions.to_compat_send_message_request(core, 1).params,
        lambda params: conversions.to_core_send_message_request(
            reference.SendMessageRequest(id=1, params=params)
        ),
    ),
    types.GetTaskRequest: (
        lambda core: conversions.to_compat_get_task_request(core, 1).params,
        lambda params: conversions.to_core_get_task_request(
            reference.GetTaskRequest(id=1, params=params)
        ),
    ),
    types.CancelTaskRequest: (
        lambda core: conversions.to_compat_cancel_task_request(core, 1).params,
        lambda params: conversions.to_core_cancel_task_request(
            reference.CancelTaskRequest(id=1, params=params)
        ),
    ),
    types.TaskPushNotificationConfig: (
        conversions.to_compat_task_push_notification_config,
        conversions.to_core_task_push_notification_config,
    ),
    types.Task: (conversions.to_compat_task, conversions.to_core_task),
    types.Message: (conversions.to_compat_message, conversions.to_core_message),
    types.TaskStatusUpdateEvent: (
        conversions.to_compat_task_status_update_event,
        conversions.to_core_task_status_update_event,
    ),
    types.TaskArtifactUpdateEvent: (
        conversions.to_compat_task_artifact_update_event,
        conversions.to_core_task_artifact_update_event,
    ),
}


def common(value: Any) -> Any:
    """The value without that in which we differ from the reference:

    - The media type and name of a text or data part: it drops them, we carry them in metadata.
    - A `historyLength` of 0: over JSON-RPC it reads that as no limit at all. 0.3 has presence
      there, and says "the number of most recent messages": to us 0 is none of them.
    - A webhook without an id: it leaves it so, we give it its task's, as 0.3 says.
    - (Not among our values: `unknown` is UNSPECIFIED to it, which 1.0 does not allow.)
    """
    if isinstance(value, tuple):
        return tuple(common(item) for item in value)
    if not isinstance(value, WireStruct):
        return value
    found: Any = replace(
        value, **{name: common(getattr(value, name)) for name in value.__struct_fields__}
    )
    match found:
        case types.Part() if found.text is not None or found.data is not UNSET:
            return replace(found, media_type="", filename="")
        case (
            types.SendMessageConfiguration(history_length=0)
            | types.GetTaskRequest(history_length=0)
        ):
            return replace(found, history_length=None)
        case types.TaskPushNotificationConfig():
            return replace(found, id=found.id or found.task_id)
    return found


@each(*CONVERSIONS)
@EACH
@given(data=st.data())
def test_the_reference_writes_the_same(kind: type[WireStruct], data: st.DataObject) -> None:
    value = common(data.draw(values(kind)))
    core = getattr(pb, kind.__name__).FromString(V1.encode(value))
    theirs = dumped(CONVERSIONS[kind][0](core))
    assert filled(same(json.loads(rpc.encode(value)))) == filled(same(theirs))


@each(*CONVERSIONS)
@EACH
@given(data=st.data())
def test_the_reference_reads_the_same(kind: type[WireStruct], data: st.DataObject) -> None:
    value = common(data.draw(values(kind)))
    core = getattr(pb, kind.__name__).FromString(V1.encode(value))
    model = CONVERSIONS[kind][0](core)
    wire = model.model_dump_json(by_alias=True, exclude_none=True).encode()
    theirs = V1.decode(kind, CONVERSIONS[kind][1](model).SerializeToString())
    ours = rpc.decode(kind, wire)
    assert filled(document(ours)) == filled(document(theirs))
    # and what the reference has made is what we make of it
    assert filled(same(json.loads(rpc.encode(ours)))) == filled(same(json.loads(wire)))


TO_PROTO: dict[type[WireStruct], Any] = {
    types.Task: proto_utils.ToProto.task,
    types.Message: proto_utils.ToProto.message,
    types.TaskStatusUpdateEvent: proto_utils.ToProto.task_status_update_event,
    types.TaskArtifactUpdateEvent: proto_utils.ToProto.task_artifact_update_event,
    types.TaskPushNotificationConfig: proto_utils.ToProto.task_push_notification_config,
}
FROM_PROTO: dict[type[WireStruct], Any] = {
    types.Task: proto_utils.FromProto.task,
    types.Message: proto_utils.FromProto.message,
    types.TaskStatusUpdateEvent: proto_utils.FromProto.task_status_update_event,
    types.TaskArtifactUpdateEvent: proto_utils.FromProto.task_artifact_update_event,
    types.TaskPushNotificationConfig: proto_utils.FromProto.task_push_notification_config,
}


def unreferring(value: Any) -> Any:
    """Without what the proto has no field for; the reference drops it, we carry it in metadata.
    And with ids of webhooks that the reference's pattern for names can read."""
    if isinstance(value, tuple):
        return tuple(unreferring(item) for item in value)
    if not isinstance(value, WireStruct):
        return value
    inner = {name: unreferring(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, types.Message):
        inner["reference_task_ids"] = ()
    elif isinstance(value, types.TaskPushNotificationConfig):
        inner["id"] = inner["id"] or inner["task_id"]
    return replace(value, **inner)


@each(*TO_PROTO)
@EACH
@given(data=st.data())
def test_both_forms_are_what_the_reference_makes_of_each_other(
    kind: type[WireStruct], data: st.DataObject
) -> None:
    value = unreferring(data.draw(values(kind)))
    model = MODELS[kind].model_validate_json(rpc.encode(value))
    ours = written(value)
    assert shown(TO_PROTO[kind](model)) == shown(ours)
    assert filled(same(dumped(FROM_PROTO[kind](ours)))) == filled(same(dumped(model)))


def written(value: Any) -> Any:
    """What we write over gRPC, as the reference sees it."""
    if isinstance(value, types.TaskPushNotificationConfig):
        return old_pb.TaskPushNotificationConfig.FromString(OLDER.encode(value))
    event = Reply(value) if isinstance(value, types.Message) else value
    last = isinstance(value, types.TaskStatusUpdateEvent) and value.status.state.terminal
    found = old_pb.StreamResponse.FromString(OLDER.response(event, last))
    return getattr(found, found.WhichOneof("payload"))
