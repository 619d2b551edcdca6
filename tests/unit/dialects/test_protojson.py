"""ProtoJSON: every liberty of a reader, the exact form of a writer, errors that name the field."""

from __future__ import annotations

import base64
import json
import types as kinds
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.dialects import protojson, v1_0
from dragoman.model.caller import Caller
from dragoman.model.errors import InvalidParams, ParseError
from dragoman.model.events import CancelRequested, Entry, Received, Reply
from dragoman.model.types import (
    ENUM_NUMBERS,
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    AuthenticationInfo,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    OAuth2SecurityScheme,
    OpenIdConnectSecurityScheme,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    WireStruct,
)
from tests.harness import wire_values as wire
from tests.harness.scale import examples

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


def read(kind: type[WireStruct], document: Any) -> Any:
    """A document as a value."""
    return v1_0.decode(kind, json.dumps(document).encode())


def send(**changes: Any) -> dict[str, Any]:
    """A send with some members of the message changed."""
    return {"message": {**MESSAGE, **changes}}


def one(**part: Any) -> Part:
    """The only part of a message, as it was read."""
    request: SendMessageRequest = read(SendMessageRequest, send(parts=[part]))
    return request.message.parts[0]


# ---- liberties: names ----------------------------------------------------------------------


def test_snake_case_names() -> None:
    found = read(
        SendMessageRequest,
        {
            "message": {
                "message_id": "m",
                "context_id": "c",
                "task_id": "t",
                "role": "ROLE_USER",
                "parts": [{"text": "hi", "media_type": "text/plain"}],
                "reference_task_ids": ["r"],
            },
            "configuration": {
                "accepted_output_modes": ["text/plain"],
                "history_length": 3,
                "return_immediately": True,
                "task_push_notification_config": {"task_id": "t", "url": "http://x"},
            },
        },
    )
    assert found == SendMessageRequest(
        message=Message(
            message_id="m",
            context_id="c",
            task_id="t",
            role=Role.USER,
            parts=(Part(text="hi", media_type="text/plain"),),
            reference_task_ids=("r",),
        ),
        configuration=SendMessageConfiguration(
            accepted_output_modes=("text/plain",),
            history_length=3,
            return_immediately=True,
            task_push_notification_config=TaskPushNotificationConfig(task_id="t", url="http://x"),
        ),
    )


def test_one_snake_case_name_in_an_otherwise_strict_request() -> None:
    # The rest is as strict as can be: a decoder that ignores what it does not know would answer
    # this with a request that blocks.
    document = {"message": MESSAGE, "configuration": {"return_immediately": True}}
    found = read(SendMessageRequest, document)
    assert found.configuration == SendMessageConfiguration(return_immediately=True)


@pytest.mark.parametrize("kind", wire.KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_snake_case_names_everywhere(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(wire.values(kind))
    assert read(kind, liberal(value, kind, names=True)) == value


def test_a_name_is_read_as_it_stands_in_the_proto() -> None:
    scheme = read(OAuth2SecurityScheme, {"flows": {}, "oauth2_metadata_url": "http://x"})
    assert scheme.oauth2_metadata_url == "http://x"
    scheme = read(OpenIdConnectSecurityScheme, {"open_id_connect_url": "http://x"})
    assert scheme.open_id_connect_url == "http://x"


# ---- liberties: enums ----------------------------------------------------------------------


@pytest.mark.parametrize(("number", "state"), ENUM_NUMBERS[TaskState].items())
def test_a_state_by_number(number: int, state: TaskState) -> None:
    assert read(ListTasksRequest, {"status": number}).status is state


@pytest.mark.parametrize(("number", "role"), ENUM_NUMBERS[Role].items())
def test_a_role_by_number(number: int, role: Role) -> None:
    assert read(SendMessageRequest, send(role=number)).message.role is role


@pytest.mark.parametrize("unspecified", [0, "TASK_STATE_UNSPECIFIED"])
def test_unspecified_is_absent(unspecified: Any) -> None:
    assert read(ListTasksRequest, {"status": unspecified}).status is None


@pytest.mark.parametrize("unspecified", [0, "ROLE_UNSPECIFIED"])
def test_unspecified_is_not_enough_where_a_value_is_required(unspecified: Any) -> None:
    assert fault(SendMessageRequest, send(role=unspecified)) == ("message.role", "is required")


@pytest.mark.parametrize("wrong", ["FOO_UNSPECIFIED", "ROLE_UNSPECIFIED", "_UNSPECIFIED"])
def test_unspecified_of_another_enum_is_no_state(wrong: str) -> None:
    field, _ = fault(ListTasksRequest, {"status": wrong})
    assert field == "status"


@pytest.mark.parametrize("number", [-1, 9, 2**40])
def test_a_number_beyond_the_enum_is_refused(number: int) -> None:
    field, _ = fault(ListTasksRequest, {"status": number})
    assert field == "status"


# ---- liberties: bytes ----------------------------------------------------------------------

BYTES = bytes(range(256)) + b"\xfb\xff\xbe"


@pytest.mark.clause("part.raw-base64")
@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", b"\xff\xfe\xfd", BYTES])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("padded", [True, False])
def test_base64_of_either_alphabet_with_or_without_padding(
    data: bytes, encode: Any, padded: bool
) -> None:
    text = encode(data).decode()
    assert one(raw=text if padded else text.rstrip("=")).raw == data


@pytest.mark.parametrize("wrong", ["a", "abcde", "a*c=", "ä", "ab c", "ab\nc"])
def test_what_is_not_base64_is_refused(wrong: str) -> None:
    field, text = fault(SendMessageRequest, send(parts=[{"raw": wrong}]))
    assert field == "message.parts[0].raw"
    assert "base64" in text


# ---- liberties: null -----------------------------------------------------------------------


def test_null_is_absent() -> None:
    document = {
        "tenant": None,
        "message": {
            **MESSAGE,
            "contextId": None,
            "taskId": None,
            "metadata": None,
            "extensions": None,
            "referenceTaskIds": None,
            "parts": [{"text": "hi", "raw": None, "url": None, "filename": None}],
        },
        "configuration": None,
        "metadata": None,
    }
    assert read(SendMessageRequest, document) == read(SendMessageRequest, send())


def test_null_is_absent_in_a_configuration() -> None:
    document = {
        "message": MESSAGE,
        "configuration": {
            "acceptedOutputModes": None,
            "taskPushNotificationConfig": None,
            "historyLength": None,
            "returnImmediately": None,
        },
    }
    assert read(SendMessageRequest, document).configuration == SendMessageConfiguration()


@pytest.mark.clause("fields.required")
def test_null_is_absent_where_a_value_is_required() -> None:
    assert fault(SendMessageRequest, {"message": None}) == ("message", "is required")
    assert fault(SendMessageRequest, send(messageId=None)) == ("message.messageId", "is required")
    assert fault(SendMessageRequest, send(parts=None)) == ("message.parts", "is required")


@pytest.mark.clause("part.data-any-json")
def test_null_is_a_value_in_data() -> None:
    part = one(data=None)
    assert part.data is None
    assert part == Part(data=None)
    assert part != Part(text="")


def test_null_is_a_value_inside_of_data_and_metadata() -> None:
    assert one(data={"a": None}).data == {"a": None}
    found = read(SendMessageRequest, {"message": {**MESSAGE, "metadata": {"a": None}}})
    assert found.message.metadata == {"a": None}


def test_null_is_a_value_in_data_on_the_lenient_path_too() -> None:
    part = one(data=None, media_type="application/json")  # snake_case: not strict
    assert part == Part(data=None, media_type="application/json")


def test_null_data_counts_as_content() -> None:
    field, text = fault(SendMessageRequest, send(parts=[{"text": "hi", "data": None}]))
    assert (field, text) == (
        "message.parts[0]",
        "a part must have exactly one of text, raw, url, data",
    )


def test_null_in_a_list_is_no_element() -> None:
    field, _ = fault(SendMessageRequest, send(parts=[None]))
    assert field == "message.parts[0]"


# ---- liberties: integers -------------------------------------------------------------------


@pytest.mark.parametrize("five", [5, "5", 5.0])
def test_an_integer_as_number_string_or_float(five: Any) -> None:
    assert read(GetTaskRequest, {"id": "t", "historyLength": five}).history_length == 5


@pytest.mark.parametrize("text", ["5.0", "5e0", "0.5e1", "5E+0"])
def test_an_integer_as_any_number_that_is_one(text: str) -> None:
    body = b'{"id":"t","historyLength":%b}' % text.encode()
    found = v1_0.decode(GetTaskRequest, body)
    assert found.history_length == 5
    assert type(found.history_length) is int


@pytest.mark.parametrize("text", ["-3", "0", "2147483647", "-2147483648"])
def test_integers_as_strings(text: str) -> None:
    assert read(GetTaskRequest, {"id": "t", "historyLength": text}).history_length == int(text)


@pytest.mark.parametrize(
    "wrong", [5.5, "", "five", " 5", "5 ", "\u0665", "0x5", True, [5], {}, "5_0"]
)
def test_what_is_no_integer_is_refused(wrong: Any) -> None:
    field, _ = fault(GetTaskRequest, {"id": "t", "historyLength": wrong})
    assert field == "historyLength"


# ---- liberties: times ----------------------------------------------------------------------


@pytest.mark.clause("time.parsed")
@pytest.mark.parametrize(
    ("said", "read_as"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00.5Z", "2026-01-31T12:00:00.5Z"),
        ("2026-01-31T12:00:00.123Z", "2026-01-31T12:00:00.123Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123456789Z"),
        ("2026-01-31T12:00:00.1234567891Z", "2026-01-31T12:00:00.123456789Z"),
        ("2026-01-31T12:00:00+00:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00-00:00", "2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00Z"),
        ("2026-01-31T23:30:00.25-05:30", "2026-02-01T05:00:00.25Z"),
        ("2026-01-31t12:00:00z", "2026-01-31T12:00:00Z"),
        ("2026-01-31 12:00:00Z", "2026-01-31T12:00:00Z"),
        ("2024-02-29T00:00:00+14:00", "2024-02-28T10:00:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
    ],
)
def test_a_time_in_any_zone_with_any_fraction(said: str, read_as: str) -> None:
    found = read(ListTasksRequest, {"statusTimestampAfter": said})
    assert found.status_timestamp_after == read_as


@pytest.mark.parametrize(
    ("said", "read_as"),
    [
        ("2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00Z"),
        ("2026-01-31T12:00:00", None),
        ("2026-01-31 12:00:00.123456", None),
    ],
)
def test_a_time_without_a_zone_tells_nothing(said: str, read_as: str | None) -> None:
    status = {"state": "TASK_STATE_WORKING", "timestamp": said}
    assert read(TaskStatus, status).timestamp == read_as
    with pytest.raises(InvalidParams, match="timestamp"):
        read(TaskStatus, {**status, "timestamp": "yesterday"})


# A date that no calendar has is refused by whoever uses it: see `clock.ceiling`.
@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "now",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00Z\n",
        "2026-01-31T12:00:00+1:00",
        "2026-01-31T12:00:00+25:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "\u0662\u0660\u0662\u0666-01-31T12:00:00Z",
        "2026-01-31T12:00:00.\u0665Z",
        1769860800,
    ],
)
def test_what_is_no_time_is_refused(wrong: Any) -> None:
    field, _ = fault(ListTasksRequest, {"statusTimestampAfter": wrong})
    assert field == "statusTimestampAfter"


# ---- liberties: unknown fields -------------------------------------------------------------


@pytest.mark.clause("fields.unknown-ignored")
def test_unknown_fields_are_ignored_at_every_level() -> None:
    document = {
        "new": 1,
        "message": {**MESSAGE, "kind": "message", "parts": [{"text": "hi", "new": {"a": []}}]},
        "configuration": {
            "new": [1],
            "taskPushNotificationConfig": {
                "url": "http://x",
                "new": None,
                "authentication": {"scheme": "Bearer", "new": ""},
            },
        },
    }
    assert read(SendMessageRequest, document) == SendMessageRequest(
        message=Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),)),
        configuration=SendMessageConfiguration(
            task_push_notification_config=TaskPushNotificationConfig(
                url="http://x", authentication=AuthenticationInfo(scheme="Bearer")
            )
        ),
    )


@pytest.mark.clause("fields.unknown-ignored")
@pytest.mark.parametrize("kind", wire.KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_unknown_fields_are_ignored_everywhere(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(wire.values(kind))
    assert read(kind, liberal(value, kind, unknown=True)) == value


# ---- liberties: all of them together -------------------------------------------------------


@pytest.mark.parametrize("kind", wire.KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_all_liberties_at_once(kind: type[WireStruct], data: st.DataObject) -> None:
    value = data.draw(wire.values(kind))
    document = liberal(
        value, kind, names=True, enums=True, codes=True, nulls=True, integers=True, unknown=True
    )
    assert read(kind, document) == value


def liberal(value: Any, kind: Any, **liberties: bool) -> Any:
    """The document of a value, written with some of the liberties."""
    if get_origin(kind) is Annotated:
        return liberal(value, kind.__origin__, **liberties)
    if get_origin(kind) in (Union, kinds.UnionType):
        inner = [item for item in get_args(kind) if item not in (type(None), msgspec.UnsetType)]
        return liberal(value, inner[0], **liberties)
    if get_origin(kind) is tuple:
        return [liberal(item, get_args(kind)[0], **liberties) for item in value]
    if get_origin(kind) is dict:
        return {key: liberal(item, get_args(kind)[1], **liberties) for key, item in value.items()}
    if isinstance(value, WireStruct):
        return _struct(value, **liberties)
    if isinstance(value, Enum):
        numbers = {member: number for number, member in ENUM_NUMBERS[type(value)].items()}
        return numbers[value] if liberties.get("enums") else value.value
    if isinstance(value, bytes):
        if liberties.get("codes"):
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        return base64.b64encode(value).decode()
    if kind is int and liberties.get("integers"):
        return str(value) if value % 2 else float(value)
    return value


def _struct(value: WireStruct, **liberties: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"unknownField": {"a": [1, None]}} if liberties.get("unknown") else {}
    for item in msgspec.structs.fields(type(value)):
        name = item.name if liberties.get("names") else item.encode_name
        content = getattr(value, item.name)
        if content is msgspec.UNSET:
            continue
        if not item.required and content in (None, "", (), False, {}) and item.name != "data":
            if content is None and not liberties.get("nulls"):
                continue
            absent = item.default in (None, "", False, ()) and content == item.default
            if absent and liberties.get("nulls"):
                found[name] = None
                continue
        found[name] = None if content is None else liberal(content, item.type, **liberties)
    return found


# ---- what is not JSON ----------------------------------------------------------------------


@pytest.mark.clause("rpc.parse-error", "http.utf8")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{]",
        b"[1,]",
        b'{"a":1,}',
        b"{'a':1}",
        b'{"a":1} x',
        b"nul",
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"01",
        b"1.",
        b"+1",
        b'"\\ud800"',
        b'"\\udc00"',
        b'"\\ud800\\u0041"',
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\x01"',
        b'"\\x41"',
        b"\xef\xbb\xbf{}",
        b"9" * 100_000,
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_not_json_is_a_parse_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        v1_0.parse(body)
    with pytest.raises(ParseError):
        v1_0.decode(SendMessageRequest, body)


def test_the_last_of_duplicate_keys_counts() -> None:
    assert v1_0.decode(GetTaskRequest, b'{"id":"a","id":"b"}') == GetTaskRequest(id="b")


def test_numbers_of_any_size_are_data() -> None:
    body = b'{"data":[123456789012345678901234567890,-0.0,1e300,0.1]}'
    part = v1_0.decode(Part, body)
    assert part.data == [123456789012345678901234567890, -0.0, 1e300, 0.1]
    assert v1_0.encode(part) == body


# ---- errors name the field -----------------------------------------------------------------


def fault(kind: type[WireStruct], document: Any) -> tuple[str, str]:
    """The field and description of the violation that reading ends with."""
    with pytest.raises(InvalidParams) as caught:
        read(kind, document)
    ((field, text),) = caught.value.violations
    assert caught.value.message == f"{field}: {text}"
    return field, text


CARD = {
    "name": "n",
    "description": "d",
    "version": "1",
    "supportedInterfaces": [{"url": "u", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "i", "name": "n", "description": "d", "tags": ["t"]}],
}
EMPTY = "must not be empty"
NO_ELEMENT = "must have at least one element"
MISSING = "is required"
ONE_CONTENT = "a part must have exactly one of text, raw, url, data"


@pytest.mark.clause("errors.field-violations", "fields.required")
@pytest.mark.parametrize(
    ("kind", "document", "field", "text"),
    [
        (SendMessageRequest, [], "params", "expected object, got array"),
        (SendMessageRequest, None, "params", "expected object, got null"),
        (SendMessageRequest, "x", "params", "expected object, got str"),
        (SendMessageRequest, {}, "message", MISSING),
        (SendMessageRequest, {"message": []}, "message", "expected object, got array"),
        (SendMessageRequest, {"message": {}}, "message.messageId", MISSING),
        (SendMessageRequest, send(messageId=""), "message.messageId", EMPTY),
        (SendMessageRequest, send(messageId=7), "message.messageId", "expected str, got int"),
        (SendMessageRequest, send(role="user"), "message.role", "invalid enum value 'user'"),
        (SendMessageRequest, send(role=3), "message.role", None),
        (SendMessageRequest, send(role=[]), "message.role", None),
        (SendMessageRequest, send(parts=[]), "message.parts", NO_ELEMENT),
        (SendMessageRequest, send(parts={}), "message.parts", "expected array, got object"),
        (SendMessageRequest, send(parts=["hi"]), "message.parts[0]", "expected object, got str"),
        (SendMessageRequest, send(parts=[{}]), "message.parts[0]", ONE_CONTENT),
        (
            SendMessageRequest,
            send(parts=[{"text": "a", "url": "b"}]),
            "message.parts[0]",
            ONE_CONTENT,
        ),
        (SendMessageRequest, send(parts=[{"text": 5}]), "message.parts[0].text", None),
        (
            SendMessageRequest,
            send(parts=[{"text": "a"}, {"text": "b"}, {"text": []}]),
            "message.parts[2].text",
            None,
        ),
        (SendMessageRequest, send(parts=[{"url": {}}]), "message.parts[0].url", None),
        (SendMessageRequest, send(parts=[{"raw": 1}]), "message.parts[0].raw", None),
        (
            SendMessageRequest,
            send(parts=[{"text": "a", "metadata": []}]),
            "message.parts[0].metadata",
            None,
        ),
        (
            SendMessageRequest,
            send(parts=[{"text": "a", "mediaType": 1}]),
            "message.parts[0].mediaType",
            "expected str, got int",
        ),
        (
            SendMessageRequest,
            send(parts=[{"text": "a", "media_type": 1}]),
            "message.parts[0].mediaType",
            "expected str, got int",
        ),
        (SendMessageRequest, send(extensions=[1]), "message.extensions[0]", None),
        (SendMessageRequest, send(referenceTaskIds="t"), "message.referenceTaskIds", None),
        (SendMessageRequest, send(metadata="x"), "message.metadata", None),
        (
            SendMessageRequest,
            {"message": MESSAGE, "configuration": {"historyLength": "x"}},
            "configuration.historyLength",
            None,
        ),
        (
            SendMessageRequest,
            {"message": MESSAGE, "configuration": {"returnImmediately": "true"}},
            "configuration.returnImmediately",
            "expected bool, got str",
        ),
        (
            SendMessageRequest,
            {"message": MESSAGE, "configuration": {"taskPushNotificationConfig": {}}},
            "configuration.taskPushNotificationConfig.url",
            MISSING,
        ),
        (
            SendMessageRequest,
            {
                "message": MESSAGE,
                "configuration": {
                    "taskPushNotificationConfig": {"url": "u", "authentication": {"scheme": ""}}
                },
            },
            "configuration.taskPushNotificationConfig.authentication.scheme",
            EMPTY,
        ),
        (GetTaskRequest, {}, "id", MISSING),
        (GetTaskRequest, {"id": ""}, "id", EMPTY),
        (ListTasksRequest, {"pageSize": "many"}, "pageSize", None),
        (ListTasksRequest, {"status": "working"}, "status", None),
        (ListTasksRequest, {"includeArtifacts": 1}, "includeArtifacts", None),
        (
            ListTasksRequest,
            {"statusTimestampAfter": "yesterday"},
            "statusTimestampAfter",
            "expected an RFC 3339 time such as 2026-01-31T12:00:00Z",
        ),
        (AgentCard, {**CARD, "skills": [{"id": "i"}]}, "skills[0].name", MISSING),
        (AgentCard, {**CARD, "supportedInterfaces": []}, "supportedInterfaces", NO_ELEMENT),
        (AgentCard, {**CARD, "defaultInputModes": [None]}, "defaultInputModes[0]", None),
        (
            AgentCard,
            {**CARD, "securitySchemes": {"k": {"apiKeySecurityScheme": {"location": "header"}}}},
            "securitySchemes[...].apiKeySecurityScheme.name",
            MISSING,
        ),
    ],
)
def test_an_error_names_the_field(
    kind: type[WireStruct], document: Any, field: str, text: str | None
) -> None:
    found = fault(kind, document)
    assert found[0] == field
    assert found[1] == text if text else found[1]


def test_text_from_a_query_becomes_what_the_field_is() -> None:
    query = {
        "contextId": "5",
        "status": "TASK_STATE_WORKING",
        "pageSize": "5",
        "page_token": "t",
        "includeArtifacts": "true",
        "statusTimestampAfter": "2026-01-31T12:00:00+01:00",
        "unknown": "x",
    }
    assert protojson.convert(ListTasksRequest, query, text=True) == ListTasksRequest(
        context_id="5",
        status=TaskState.WORKING,
        page_size=5,
        page_token="t",
        include_artifacts=True,
        status_timestamp_after="2026-01-31T11:00:00Z",
    )
    assert not protojson.convert(
        ListTasksRequest, {"includeArtifacts": "false"}, text=True
    ).include_artifacts


@pytest.mark.parametrize("wrong", ["yes", "1", "True", ""])
def test_other_words_are_no_booleans_in_a_query(wrong: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        protojson.convert(ListTasksRequest, {"includeArtifacts": wrong}, text=True)
    assert caught.value.violations[0][0] == "includeArtifacts"


def test_words_are_no_booleans_in_a_document() -> None:
    field, _ = fault(ListTasksRequest, {"includeArtifacts": "true"})
    assert field == "includeArtifacts"


# ---- the exact form of the writer ----------------------------------------------------------

SAID = Message(message_id="m", role=Role.AGENT, parts=(Part(text=""),))
STATUS = TaskStatus(state=TaskState.INPUT_REQUIRED, timestamp="2026-01-31T12:00:00.000Z")


@pytest.mark.clause("json.camel-case", "json.enum-names", "json.no-kind")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        # parts: one content each, kept when it is empty; defaults beside it left out
        (Part(text=""), '{"text":""}'),
        (Part(url=""), '{"url":""}'),
        (Part(raw=b""), '{"raw":""}'),
        (Part(raw=b"\xfb\xff"), '{"raw":"+/8="}'),
        (Part(data=None), '{"data":null}'),
        (Part(data=False), '{"data":false}'),
        (Part(data={}), '{"data":{}}'),
        (Part(data={"snake_case": 1}), '{"data":{"snake_case":1}}'),
        (
            Part(text="é\u2028", filename="f", media_type="text/plain", metadata={}),
            '{"text":"é\u2028","metadata":{},"filename":"f","mediaType":"text/plain"}',
        ),
        # messages, tasks and events
        (SAID, '{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":""}]}'),
        (
            Task(id="t", context_id="c", status=STATUS),
            '{"id":"t","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED",'
            '"timestamp":"2026-01-31T12:00:00.000Z"}}',
        ),
        (
            Task(id="t", status=TaskStatus(state=TaskState.WORKING, message=SAID)),
            '{"id":"t","status":{"state":"TASK_STATE_WORKING","message":'
            '{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":""}]}}}',
        ),
        (
            TaskStatusUpdateEvent(task_id="t", context_id="c", status=STATUS, metadata={"a": 1}),
            '{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_INPUT_REQUIRED",'
            '"timestamp":"2026-01-31T12:00:00.000Z"},"metadata":{"a":1}}',
        ),
        (
            TaskArtifactUpdateEvent(
                task_id="t",
                context_id="c",
                artifact=Artifact(artifact_id="a", parts=(Part(text="x"),)),
                append=True,
                last_chunk=True,
            ),
            '{"taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[{"text":"x"}]},'
            '"append":true,"lastChunk":true}',
        ),
        (
            TaskArtifactUpdateEvent(
                task_id="t",
                context_id="c",
                artifact=Artifact(artifact_id="a", parts=(Part(text="x"),)),
            ),
            '{"taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[{"text":"x"}]}}',
        ),
        # oneofs: the member that is there names what it is
        (
            SendMessageResponse(message=SAID),
            '{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":""}]}}',
        ),
        (
            StreamResponse(
                task=Task(id="t", status=TaskStatus(state=TaskState.SUBMITTED)),
            ),
            '{"task":{"id":"t","status":{"state":"TASK_STATE_SUBMITTED"}}}',
        ),
        # fields with presence are kept when they are set, whatever they hold
        (AgentCapabilities(), "{}"),
        (
            AgentCapabilities(streaming=False, push_notifications=True, extended_agent_card=False),
            '{"streaming":false,"pushNotifications":true,"extendedAgentCard":false}',
        ),
        (GetTaskRequest(id="t", history_length=0), '{"id":"t","historyLength":0}'),
        (GetTaskRequest(id="t"), '{"id":"t"}'),
        (ListTasksRequest(include_artifacts=False), '{"includeArtifacts":false}'),
        # fields without presence are left out when they hold their default
        (SendMessageConfiguration(return_immediately=False), "{}"),
        (SendMessageConfiguration(return_immediately=True), '{"returnImmediately":true}'),
        # required fields are always there
        (
            ListTasksResponse(tasks=(), next_page_token="", page_size=50, total_size=0),
            '{"tasks":[],"nextPageToken":"","pageSize":50,"totalSize":0}',
        ),
        (
            AgentCard(
                name="n",
                description="d",
                supported_interfaces=(
                    AgentInterface(url="u", protocol_binding="JSONRPC", protocol_version="1.0"),
                ),
                version="1",
                capabilities=AgentCapabilities(),
                default_input_modes=("text/plain",),
                default_output_modes=("text/plain",),
                skills=(),
                documentation_url="",
            ),
            '{"name":"n","description":"d","supportedInterfaces":[{"url":"u",'
            '"protocolBinding":"JSONRPC","protocolVersion":"1.0"}],"version":"1",'
            '"documentationUrl":"","capabilities":{},"defaultInputModes":["text/plain"],'
            '"defaultOutputModes":["text/plain"],"skills":[]}',
        ),
        (
            AgentSkill(id="i", name="n", description="d", tags=("t",)),
            '{"id":"i","name":"n","description":"d","tags":["t"]}',
        ),
        (
            OAuth2SecurityScheme(flows=read(OAuth2SecurityScheme, {"flows": {}}).flows),
            '{"flows":{}}',
        ),
    ],
)
def test_the_exact_form(value: WireStruct, text: str) -> None:
    assert v1_0.encode(value).decode() == text
    assert v1_0.decode(type(value), text.encode()) == value


@pytest.mark.clause("stream.one-of")
def test_a_streamed_entry_is_a_stream_response() -> None:
    artifact = Artifact(artifact_id="a", parts=(Part(text="x"),))
    for event, name in [
        (Task(id="t", status=STATUS), "task"),
        (Reply(SAID), "message"),
        (TaskStatusUpdateEvent(task_id="t", context_id="c", status=STATUS), "status_update"),
        (
            TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact),
            "artifact_update",
        ),
    ]:
        expected = StreamResponse(**{name: event.message if name == "message" else event})
        assert v1_0.streamed(Entry(1, event)) == v1_0.encode(expected)
    at = "2026-01-31T12:00:00.000Z"
    for inner in (
        Received(message=SAID, caller=Caller(), at=at),
        CancelRequested(caller=Caller(), at=at),
    ):
        assert not v1_0.streamed(Entry(1, inner))
