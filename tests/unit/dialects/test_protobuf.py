"""Protobuf: every value survives it, the reference reads and writes the same, and bytes that are
wrong give an A2AError and nothing else."""

from __future__ import annotations

import json
import uuid
from enum import Enum
from typing import Any

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old
from a2a.types import a2a_pb2 as pb
from google.protobuf import json_format
from google.protobuf.message import Message as Reference
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.dialects import v1_0
from dragoman.dialects.protobuf import V0_3, V1, restored_status, status, words
from dragoman.dialects.protobuf.wellknown import varint
from dragoman.model import clock, errors, types
from dragoman.model.errors import (
    A2AError,
    AmbiguousRequest,
    InvalidParams,
    InvalidRequest,
    ParseError,
)
from dragoman.model.types import (
    AgentCapabilities,
    AgentCard,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    Metadata,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    WireStruct,
)
from tests.harness import wire_values as wire
from tests.harness.scale import examples
from tests.harness.wire_values import document, filled, same

NAMES = [kind.__name__ for kind in wire.KINDS]
ANY = {"a": 1, "b": 0.5, "c": "text", "d": [None, True, {"e": []}], "f": {}, "": False}


def message(**changes: Any) -> Message:
    """A small message."""
    return Message(**{"message_id": "m", "role": Role.USER, "parts": (Part(text="hi"),), **changes})


def sent(**changes: Any) -> SendMessageRequest:
    """A small send."""
    return SendMessageRequest(message=message(**changes))


# ---- every value ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_every_value_survives(name: str, data: st.DataObject) -> None:
    kind = getattr(types, name)
    value = data.draw(wire.values(kind))
    found = V1.decode(kind, V1.encode(value))
    assert document(found) == document(value)
    assert V1.decode(kind, V1.encode(found)) == found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_the_reference_reads_what_we_write(name: str, data: st.DataObject) -> None:
    value = data.draw(wire.values(getattr(types, name)))
    read = getattr(pb, name).FromString(V1.encode(value))
    found = json_format.MessageToDict(read)
    assert same(filled(found)) == same(filled(json.loads(v1_0.encode(value))))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_we_read_what_the_reference_writes(name: str, data: st.DataObject) -> None:
    kind = getattr(types, name)
    value = data.draw(wire.values(kind))
    written: Reference = getattr(pb, name)()
    json_format.ParseDict(json.loads(v1_0.encode(value)), written)
    assert document(V1.decode(kind, written.SerializeToString())) == document(value)


# ---- presence ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        Part(text=""),
        Part(raw=b""),
        Part(url=""),
        Part(data=None),
        Part(data=False),
        Part(data=0),
        Part(data=""),
        Part(data=[]),
        Part(data={}),
        Part(text="", metadata={}),
    ],
)
def test_an_empty_content_is_there(part: Part) -> None:
    body = V1.encode(part)
    assert V1.decode(Part, body) == part
    assert pb.Part.FromString(body).WhichOneof("content")


@pytest.mark.parametrize(
    "value",
    [
        GetTaskRequest(id="t", history_length=0),
        GetTaskRequest(id="t"),
        ListTasksRequest(page_size=0, include_artifacts=False),
        ListTasksRequest(page_size=-1),
        SendMessageConfiguration(history_length=0),
        AgentCapabilities(streaming=False, push_notifications=False, extended_agent_card=False),
        AgentCapabilities(),
        StreamResponse(),
    ],
)
def test_an_optional_default_is_there(value: WireStruct) -> None:
    assert V1.decode(type(value), V1.encode(value)) == value


def test_what_the_wire_leaves_out_is_given() -> None:
    page = ListTasksResponse(tasks=(), next_page_token="", page_size=0, total_size=0)
    assert V1.decode(ListTasksResponse, b"") == page
    assert V1.decode(ListTasksResponse, pb.ListTasksResponse().SerializeToString()) == page


def test_unspecified_is_absent() -> None:
    assert V1.decode(ListTasksRequest, b"\x18\x00").status is None


def test_what_nobody_knows_is_ignored() -> None:
    body = V1.encode(GetTaskRequest(id="t")) + b"\xfa\x7f\x03abc"
    assert V1.decode(GetTaskRequest, body) == GetTaskRequest(id="t")


# ---- JSON and time -------------------------------------------------------------------------


def test_whole_numbers_are_integers() -> None:
    found = V1.decode(Part, V1.encode(Part(data=[1.0, -3, 0.5, 1e300, 2.0**53 - 1])))
    assert repr(found.data) == "[1, -3, 0.5, 1e+300, 9007199254740991]"


def test_any_json_survives() -> None:
    value = sent(metadata=ANY, parts=(Part(data=ANY, metadata=ANY),))
    assert V1.decode(SendMessageRequest, V1.encode(value)) == value


def test_large_objects_cost_what_they_hold() -> None:
    value = Part(data={str(number): number for number in range(100_000)})
    assert V1.decode(Part, V1.encode(value)) == value


def test_other_things_are_as_in_json() -> None:
    class Mood(Enum):
        GOOD = "good"

    odd = {
        "id": uuid.UUID(int=7),
        "mood": Mood.GOOD,
        "nan": float("nan"),
        "pair": (1, 2),
        "part": Part(text="x"),
        3: b"raw",
    }
    value = Part(data=odd, metadata=odd)  # type: ignore[arg-type]
    found = V1.decode(Part, V1.encode(value))
    assert found == v1_0.decode(Part, v1_0.encode(value))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.500Z"),
        ("2026-01-31T12:00:00.123456Z", "2026-01-31T12:00:00.123456000Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123456789Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00.000Z"),
        ("1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"),
        ("0001-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
    ],
)
def test_times(text: str, found: str) -> None:
    body = V1.encode(TaskStatus(state=TaskState.WORKING, timestamp=text))
    assert V1.decode(TaskStatus, body).timestamp == found
    known = pb.TaskStatus.FromString(body).timestamp.ToJsonString()
    assert same(known) == same(found)


def test_our_own_times_stay_as_they_are() -> None:
    now = clock.now()
    body = V1.encode(TaskStatus(state=TaskState.WORKING, timestamp=now))
    assert V1.decode(TaskStatus, body).timestamp == now


# ---- what cannot be written ----------------------------------------------------------------


def nested(depth: int, shape: str) -> Any:
    """JSON of this depth."""
    value: Any = None
    for _ in range(depth):
        value = {"a": value} if shape == "object" else [value]
    return value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (sent(message_id="\ud800"), "surrogates not allowed"),
        (sent(metadata={"a": "\udfff"}), "surrogates not allowed"),
        (sent(metadata={"\udfff": 1}), "surrogates not allowed"),
        (sent(metadata={"a": 10**400}), "too large"),
        (sent(metadata={"a": object()}), "unsupported"),
        (sent(metadata=[]), "'items'"),
        (sent(metadata={"a": nested(200, "object")}), "nested too deeply"),
        (sent(metadata={"a": nested(100_000, "list")}), "nested too deeply"),
        (sent(parts=(Part(raw="text"),)), "can't concat str"),  # type: ignore[arg-type]
        (sent(parts=(Part(raw=5),)), "can't concat int"),  # type: ignore[arg-type]
        (sent(parts=(message(),)), "expected Part, got Message"),
        (sent(message_id=7), "'str' objects"),
        (sent(role="ROLE_NOBODY"), "ROLE_NOBODY"),
        (GetTaskRequest(id="t", history_length=2**31), "does not fit in 32 bits"),
        (TaskStatus(state=TaskState.FAILED, timestamp="2026-02-30T00:00:00Z"), "day"),
        (TaskStatus(state=TaskState.FAILED, timestamp="yesterday"), "RFC 3339"),
        (TaskStatus(state=TaskState.FAILED, timestamp=5), "cannot be written"),  # type: ignore[arg-type]
    ],
)
def test_what_the_wire_cannot_carry(value: WireStruct, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        V1.encode(value)


@pytest.mark.parametrize("shape", ["object", "list"])
def test_what_is_written_is_never_too_deep_to_be_read(shape: str) -> None:
    depth = 0
    for depth in range(60):
        status = TaskStatus(
            state=TaskState.WORKING,
            message=message(parts=(Part(data=nested(depth, shape), metadata={"a": None}),)),
        )
        task = Task(id="t", status=status)
        page = ListTasksResponse(tasks=(task,), next_page_token="", page_size=1, total_size=1)
        try:
            body = V1.encode(page)
        except ValueError:
            break
        assert V1.decode(ListTasksResponse, body) == page
    assert 25 < depth < 59


# ---- what cannot be read -------------------------------------------------------------------


def refused(body: bytes, kind: type[WireStruct] = SendMessageRequest) -> A2AError:
    """The error that these bytes give."""
    with pytest.raises(A2AError) as caught:
        V1.decode(kind, body)
    return caught.value


@pytest.mark.parametrize(
    ("request_", "field", "what"),
    [
        (pb.SendMessageRequest(), "message", "is required"),
        (pb.SendMessageRequest(message={"role": 1}), "message.messageId", "is required"),
        (
            pb.SendMessageRequest(message={"message_id": "m", "parts": [{"text": "hi"}]}),
            "message.role",
            "is required",
        ),
        (
            pb.SendMessageRequest(message={"message_id": "m", "role": 1}),
            "message.parts",
            "is required",
        ),
        (
            pb.SendMessageRequest(message={"message_id": "m", "role": 9, "parts": [{"text": ""}]}),
            "message.role",
            "invalid enum value '9'",
        ),
        (
            pb.SendMessageRequest(message={"message_id": "m", "role": 1, "parts": [{}]}),
            "message.parts[0]",
            "a part must have exactly one of text, raw, url, data",
        ),
    ],
)
def test_the_field_is_named(request_: Any, field: str, what: str) -> None:
    error = refused(request_.SerializeToString())
    assert isinstance(error, InvalidParams)
    assert error.violations == ((field, what),)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have(number: float) -> None:
    parts = [{"text": ""}, {"data": {"list_value": {"values": [{"number_value": number}]}}}]
    error = refused(
        pb.SendMessageRequest(
            message={"message_id": "m", "role": 1, "parts": parts}
        ).SerializeToString()
    )
    assert error.violations == (("message.parts[1].data", f"{number} is not a valid JSON number"),)


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [
        (253402300800, 0),
        (-62135596801, 0),
        (2**63 - 1, 0),
        (-(2**63), 0),
        (0, -1),
        (0, 1_000_000_000),
    ],
)
def test_times_that_there_are_not(seconds: int, nanos: int) -> None:
    asked = pb.ListTasksRequest()
    asked.status_timestamp_after.seconds = seconds
    asked.status_timestamp_after.nanos = nanos
    error = refused(asked.SerializeToString(), ListTasksRequest)
    assert error.violations == (("statusTimestampAfter", "time is out of range"),)


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x02\xff\xfe",  # no UTF-8
        b"\xff" * 20,
        b"\x0b" * 5000,  # groups in groups
        b"\x12\x7fabc",
    ],
)
def test_bytes_that_are_no_message(body: bytes) -> None:
    error = refused(body)
    assert isinstance(error, ParseError)
    assert error.message == "Body is not a valid SendMessageRequest"


@pytest.mark.parametrize("depth", [40, 90, 2000])
def test_deep_values(depth: int) -> None:
    value = b"\x08\x00"
    for _ in range(depth):
        inner = b"\x0a" + varint(len(value)) + value
        value = b"\x32" + varint(len(inner)) + inner
    body = b"\x22" + varint(len(value)) + value
    if depth < 50:
        assert V1.decode(Part, body).data == nested(depth, "list")
    else:
        assert isinstance(refused(body, Part), ParseError)


def attempt(kind: type[WireStruct], body: bytes) -> None:
    """A value or an A2AError; a value can be written again, and is the same then."""
    try:
        found = V1.decode(kind, body)
    except A2AError:
        return
    try:
        again = V1.encode(found)
    except ValueError as error:
        assert "nested too deeply" in str(error)
        return
    assert V1.decode(kind, again) == found


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(wire.KINDS), st.binary(max_size=64))
def test_random_bytes(kind: type[WireStruct], body: bytes) -> None:
    attempt(kind, body)


@settings(max_examples=examples(300), deadline=None)
@given(data=st.data())
def test_damaged_bytes(data: st.DataObject) -> None:
    kind = data.draw(
        st.sampled_from([SendMessageRequest, Task, TaskArtifactUpdateEvent, AgentCard])
    )
    body = bytearray(V1.encode(data.draw(wire.values(kind))))
    for _ in range(data.draw(st.integers(0, 4))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    attempt(kind, bytes(body[: data.draw(st.integers(0, len(body)))]))


def test_every_cut_and_every_flip() -> None:
    body = V1.encode(
        SendMessageRequest(
            message=message(metadata=ANY, parts=(Part(data=ANY), Part(raw=b"\0\1"))),
            configuration=SendMessageConfiguration(history_length=3),
        )
    )
    for size in range(len(body)):
        attempt(SendMessageRequest, body[:size])
    for place in range(len(body)):
        for bit in range(8):
            flipped = bytearray(body)
            flipped[place] ^= 1 << bit
            attempt(SendMessageRequest, bytes(flipped))


# ---- other structs -------------------------------------------------------------------------


class OldState(Enum):
    WORKING = "TASK_STATE_WORKING"
    CANCELLED = "TASK_STATE_CANCELLED"


class OldFile(WireStruct, frozen=True, kw_only=True):
    file_with_uri: str | None = None
    file_with_bytes: bytes | None = None
    mime_type: str = ""
    name: str = ""


class OldData(WireStruct, frozen=True, kw_only=True):
    data: Metadata = {}  # noqa: RUF012


class OldPart(WireStruct, frozen=True, kw_only=True):
    text: str | None = None
    file: OldFile | None = None
    data: OldData | None = None
    metadata: Metadata | None = None


class OldMessage(WireStruct, frozen=True, kw_only=True):
    """Without the extensions, which are ignored then."""

    message_id: str
    role: str = ""
    content: list[OldPart] = []  # noqa: RUF012


class OldStatus(WireStruct, frozen=True, kw_only=True):
    state: OldState
    message: OldMessage | None = None
    timestamp: str | None = None


class OldSend(WireStruct, frozen=True, kw_only=True):
    message: OldMessage


class Odd(WireStruct, frozen=True, kw_only=True):
    nonsense: str = ""


def test_structs_of_another_package() -> None:
    parts = [
        OldPart(text="", metadata={"a": 1}),
        OldPart(file=OldFile(file_with_bytes=b"", mime_type="text/plain", name="a.txt")),
        OldPart(data=OldData(data={"x": [1]})),
        OldPart(data=OldData()),
    ]
    value = OldSend(message=OldMessage(message_id="m", role="ROLE_AGENT", content=parts))
    body = V0_3.encode(value, "SendMessageRequest")
    assert V0_3.decode(OldSend, body, "SendMessageRequest") == value
    read = old.SendMessageRequest.FromString(body)
    assert read.request.role == old.ROLE_AGENT
    assert json_format.MessageToDict(read) == {
        "message": {
            "messageId": "m",
            "role": "ROLE_AGENT",
            "content": [
                {"text": "", "metadata": {"a": 1.0}},
                {"file": {"fileWithBytes": "", "mimeType": "text/plain", "name": "a.txt"}},
                {"data": {"data": {"x": [1.0]}}},
                {"data": {}},
            ],
        }
    }


def test_a_struct_may_know_less_than_the_message() -> None:
    body = old.SendMessageRequest(
        request={"message_id": "m", "context_id": "c", "extensions": ["x"]}
    ).SerializeToString()
    found = V0_3.decode(OldSend, body, "SendMessageRequest")
    assert found == OldSend(message=OldMessage(message_id="m"))


def test_enums_of_another_package() -> None:
    value = OldStatus(state=OldState.CANCELLED, message=OldMessage(message_id="m"))
    body = V0_3.encode(value, "TaskStatus")
    assert old.TaskStatus.FromString(body).state == old.TASK_STATE_CANCELLED
    assert V0_3.decode(OldStatus, body, "TaskStatus") == value


def test_a_struct_that_does_not_fit() -> None:
    with pytest.raises(TypeError, match=r"lf\.a2a\.v1\.Task has no field 'nonsense'"):
        V1.encode(Odd(), "Task")
    with pytest.raises(TypeError, match="no field"):
        V1.decode(Odd, b"", "Task")


# ---- errors --------------------------------------------------------------------------------


def every(kind: type[A2AError] = A2AError) -> list[type[A2AError]]:
    """All classes of errors."""
    known = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [found for child in known for found in (child, *every(child))]


@pytest.mark.parametrize("kind", every())
def test_every_error_survives(kind: type[A2AError]) -> None:
    error = kind("what happened", violations=[("a.b", "is wrong")], metadata={"key": "value"})
    code, text, details = restored_status(status(error))
    assert (text, details) == ("what happened", error.details())
    assert status_pb2.Status.FromString(status(error)).code == code
    again = errors.restored(text, details, http=kind.http)
    # of two that the wire does not tell apart, it is the more general
    assert type(again) is (InvalidRequest if kind is AmbiguousRequest else kind)
    assert again.details() == error.details()


def test_a_status_is_small_whatever_it_says() -> None:
    error = InvalidParams(
        "\ud800" + "ä" * 100_000,
        violations=[("f" * 5000, "d" * 5000)] * 50,
        metadata={f"{n}" * 1000: "v" * 5000 for n in range(50)},
    )
    code, text, details = restored_status(status(error))
    assert (code, text) == (3, words(error))
    assert len(text.encode()) <= 512
    assert len(details) == 2
    assert len(status(error)) * 4 / 3 + len(text.encode()) * 3 < 8000


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=64))
def test_a_status_of_random_bytes(body: bytes) -> None:
    restored_status(body)
    found = status_pb2.Status(code=5, message="x")
    for name in ("google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.Help"):
        found.details.add(type_url=f"type.googleapis.com/{name}", value=body)
    code, text, details = restored_status(found.SerializeToString())
    assert (code, text) == (5, "x")
    assert type(errors.restored(text, details)) in [errors.InternalError, *every()]


def test_a_status_that_is_none() -> None:
    assert restored_status(b"\xff\xff") == (0, "", [])
    assert restored_status(b"") == (0, "", [])


def test_a_status_with_details_of_others() -> None:
    found = status_pb2.Status(code=13, message="oh")
    found.details.add().Pack(error_details_pb2.DebugInfo(detail="secret"))
    found.details.add().Pack(error_details_pb2.ErrorInfo(reason="TASK_NOT_FOUND", domain="d"))
    info = {"@type": errors.ERROR_INFO, "reason": "TASK_NOT_FOUND", "domain": "d"}
    assert restored_status(found.SerializeToString()) == (13, "oh", [info])
