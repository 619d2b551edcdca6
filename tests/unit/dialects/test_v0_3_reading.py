"""0.3 as others write it: their liberties, and what each SDK really sends."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2 as old_pb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.client import discovery
from dragoman.dialects import client_quirks
from dragoman.dialects.protobuf.package_codec import BARE, OLDER
from dragoman.dialects.v0_3 import card, card_proto, proto, rpc
from dragoman.model import types
from dragoman.model.types import Part, Role, TaskState
from tests.harness.scale import examples
from tests.unit.dialects.card_values import OLDER as OLDER_CARDS

RAW = b"\x00\xff\xfe"


def said(**fields: Any) -> dict[str, Any]:
    """A message over JSON-RPC."""
    parts = [{"kind": "text", "text": "hi"}]
    return {"kind": "message", "messageId": "m", "role": "user", "parts": parts, **fields}


def sent(*parts: Any) -> types.Message:
    """The message that is read from these parts over JSON-RPC."""
    body = json.dumps({"message": said(parts=parts)}).encode()
    return rpc.decode(types.SendMessageRequest, body).message


def posted(*parts: Any) -> types.Message:
    """The same over HTTP+JSON."""
    message = {"messageId": "m", "role": "ROLE_USER", "content": list(parts)}
    return proto.JSON.convert(types.SendMessageRequest, {"message": message}).message


def task(**fields: Any) -> dict[str, Any]:
    """A task over JSON-RPC."""
    return {"id": "t", "contextId": "c", "status": {"state": "working"}, **fields}


# ---- liberties -----------------------------------------------------------------------------

FILE = Part(raw=RAW, filename="a.bin", media_type="image/png")


@pytest.mark.parametrize(
    ("part", "meant"),
    [
        ({"kind": "text", "text": "hi"}, Part(text="hi")),
        ({"text": "hi"}, Part(text="hi")),
        ({"type": "text", "text": "hi"}, Part(text="hi")),
        ({"kind": "text", "text": ""}, Part(text="")),
        ({"kind": "text", "text": "hi", "metadata": None, "more": 1}, Part(text="hi")),
        ({"kind": "text", "text": "hi", "file": None, "data": None}, Part(text="hi")),
        ({"kind": "data", "data": {"n": None}}, Part(data={"n": None})),
        ({"data": {}}, Part(data={})),
        ({"kind": "data", "data": [1]}, Part(data=[1])),
        ({"kind": "data", "data": None}, Part(data=None)),
        ({"kind": "data", "data": {"value": 1}}, Part(data={"value": 1})),
        (
            {"kind": "data", "data": {"value": 1}, "metadata": {"data_part_compat": True, "a": 1}},
            Part(data=1, metadata={"a": 1}),
        ),
        (
            {"kind": "file", "file": {"bytes": "AP/+", "name": "a.bin", "mimeType": "image/png"}},
            FILE,
        ),
        (
            {"kind": "file", "file": {"bytes": "AP_-", "name": "a.bin", "mime_type": "image/png"}},
            FILE,
        ),
        ({"file": {"bytes": "AA", "name": "", "mimeType": None}}, Part(raw=b"\0")),
        ({"file": {"bytes": "", "uri": None}}, Part(raw=b"")),
        ({"kind": "file", "file": {"uri": "https://f", "bytes": None}}, Part(url="https://f")),
        ({"kind": "file", "file": {"uri": "u"}, "data": None, "text": None}, Part(url="u")),
    ],
)
def test_parts_over_rpc(part: Any, meant: Part) -> None:
    assert sent(part).parts == (meant,)


@pytest.mark.parametrize(
    ("part", "meant"),
    [
        ({"text": "hi"}, Part(text="hi")),
        ({"kind": "text", "text": "hi", "metadata": {}}, Part(text="hi", metadata={})),
        ({"data": {"data": {"n": 1.0}}}, Part(data={"n": 1.0})),
        ({"data": {}}, Part(data={})),
        (
            {"file": {"fileWithUri": "u", "mimeType": "text/csv"}},
            Part(url="u", media_type="text/csv"),
        ),
        (
            {"file": {"file_with_uri": "u", "mime_type": "a/b", "name": ""}},
            Part(url="u", media_type="a/b"),
        ),
        ({"file": {"fileWithBytes": "QVAvKw==", "name": "a"}}, Part(raw=RAW, filename="a")),
        ({"file": {"fileWithBytes": "QVAvKw"}}, Part(raw=RAW)),
        ({"file": {"fileWithBytes": "AP/+"}}, Part(raw=RAW)),
        ({"file": {"fileWithBytes": "AP_-"}}, Part(raw=RAW)),
        ({"file": {"fileWithBytes": ""}}, Part(raw=b"")),
    ],
)
def test_parts_over_http(part: Any, meant: Part) -> None:
    assert posted(part).parts == (meant,)


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("2026-11-16T02:39:24.402755+00:00", "2026-11-16T02:39:24.402755Z"),
        ("2026-11-16T02:41:22.692Z", "2026-11-16T02:41:22.692Z"),
        ("2026-11-16T03:41:22+01:00", "2026-11-16T02:41:22Z"),
        ("2026-11-16T02:43:17.131182", None),
        (None, None),
    ],
)
def test_times_of_a_status(told: str | None, meant: str | None) -> None:
    status = {"state": "working", "timestamp": told}
    assert rpc.convert(types.Task, task(status=status)).status.timestamp == meant
    status = {"state": "TASK_STATE_WORKING", "timestamp": told}
    assert proto.told(types.Task, task(status=status)).status.timestamp == meant


def test_a_state_that_is_not_known_is_submitted() -> None:
    found = rpc.convert(types.Task, task(status={"state": "unknown"}))
    assert found.status.state is TaskState.SUBMITTED
    for status in ({}, {"state": "TASK_STATE_UNSPECIFIED"}, {"state": 0}):
        told = proto.told(types.Task, task(status=status))
        assert told.status.state is TaskState.SUBMITTED


@pytest.mark.parametrize("state", ["TASK_STATE_CANCELLED", 5, "5"])
def test_states_by_number_and_in_the_older_spelling(state: Any) -> None:
    found = proto.told(types.Task, task(status={"state": state}))
    assert found.status.state is TaskState.CANCELED
    asked = proto.JSON.convert(types.ListTasksRequest, {"status": state}, text=True)
    assert asked.status is TaskState.CANCELED


def test_what_has_no_context_has_an_empty_one() -> None:
    for document in ({"id": "t", "status": {"state": "working"}}, task(contextId=None)):
        assert rpc.convert(types.Task, document).context_id == ""
    wire = rpc.encode(types.Task(id="t", status=types.TaskStatus(state=TaskState.WORKING)))
    assert json.loads(wire)["contextId"] == ""


@pytest.mark.parametrize(
    ("document", "member"),
    [
        (task(), "task"),
        (task(kind="task"), "task"),
        (said(), "message"),
        ({"messageId": "m", "role": "agent", "parts": [{"text": "x"}]}, "message"),
        ({"taskId": "t", "contextId": "c", "status": {"state": "failed"}}, "status_update"),
        ({"task_id": "t", "context_id": "c", "status": {"state": "failed"}}, "status_update"),
        (
            {
                "taskId": "t",
                "contextId": "c",
                "artifact": {"artifactId": "a", "parts": [{"text": "x"}]},
            },
            "artifact_update",
        ),
    ],
)
def test_answers_that_do_not_say_what_they_are(document: Any, member: str) -> None:
    found = rpc.convert(types.StreamResponse, document)
    assert getattr(found, member) is not None


@pytest.mark.parametrize("said_", [None, {}, {"blocking": None}, {"blocking": True}])
def test_a_send_waits_unless_it_says_otherwise(said_: Any) -> None:
    found = rpc.convert(types.SendMessageRequest, {"message": said(), "configuration": said_})
    assert found.configuration is None or not found.configuration.return_immediately


def test_over_http_a_configuration_without_a_word_does_not_wait() -> None:
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}]}
    for wishes, immediately in (
        ({}, True),
        ({"blocking": False}, True),
        ({"blocking": True}, False),
    ):
        document = {"message": message, "configuration": wishes}
        found = proto.JSON.convert(types.SendMessageRequest, document).configuration
        assert found is not None and found.return_immediately is immediately
    assert proto.JSON.convert(types.SendMessageRequest, {"message": message}).configuration is None


# ---- what SDKs send ------------------------------------------------------------------------


def test_a_send_of_the_python_sdk() -> None:
    body = (
        b'{"configuration":{"acceptedOutputModes":[],"blocking":true},"message":{"kind":"message",'
        b'"messageId":"u","parts":[{"kind":"text","text":"a"},{"data":{"n":1},"kind":"data"},'
        b'{"file":{"bytes":"AP/+","mimeType":"image/png","name":"a.bin"},"kind":"file"}],'
        b'"role":"user"}}'
    )
    found = rpc.decode(types.SendMessageRequest, body)
    assert found.message.parts == (Part(text="a"), Part(data={"n": 1}), FILE)
    assert found.configuration == types.SendMessageConfiguration()


def test_a_send_of_fasta2a() -> None:
    body = (
        b'{"message":{"role":"user","parts":[{"text":"hi"}],"messageId":"u"},'
        b'"configuration":{"acceptedOutputModes":["text/plain"],"blocking":true}}'
    )
    assert rpc.decode(types.SendMessageRequest, body).message.text == "hi"


def test_answers_of_the_python_server() -> None:
    result = {
        "artifacts": [
            {
                "artifactId": "u2",
                "name": "echo",
                "parts": [
                    {"data": {"n": 1, "none": None}, "kind": "data"},
                    {
                        "file": {"mimeType": "text/csv", "uri": "https://f.example/a"},
                        "kind": "file",
                    },
                ],
            }
        ],
        "contextId": "u3",
        "history": [said(contextId="u3", taskId="u4")],
        "id": "u4",
        "kind": "task",
        "status": {"state": "completed", "timestamp": "2026-11-16T02:39:24.402755+00:00"},
    }
    found = rpc.convert(types.SendMessageResponse, result).task
    assert found is not None and found.status.state is TaskState.COMPLETED
    assert found.artifacts[0].parts[1] == Part(url="https://f.example/a", media_type="text/csv")
    assert found.history[0].context_id == "u3"


def test_answers_over_http_of_the_python_server() -> None:
    document = {
        "task": {
            "id": "t",
            "contextId": "c",
            "status": {"state": "TASK_STATE_COMPLETED"},
            "artifacts": [
                {
                    "artifactId": "u",
                    "parts": [
                        {"data": {"data": {"none": None, "n": 1.0}}},
                        {
                            "file": {
                                "fileWithBytes": "QVAvKw==",
                                "mimeType": "image/png",
                                "name": "a.bin",
                            }
                        },
                    ],
                }
            ],
            "history": [
                {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "x"}], "metadata": {}}
            ],
        }
    }
    found = proto.told(types.SendMessageResponse, document).task
    assert found is not None
    assert found.artifacts[0].parts == (Part(data={"none": None, "n": 1.0}), FILE)
    assert found.history[0].role is Role.USER


NAME = "tasks/T/pushNotificationConfigs/one"
HOOK = {"url": "http://h", "token": "k"}


@pytest.mark.parametrize(
    "document",
    [
        {
            "configId": "one",
            "config": {"name": NAME, "pushNotificationConfig": {"id": "one", **HOOK}},
        },
        {"configId": "one", "config": {"pushNotificationConfig": HOOK}},
        {"name": NAME, "pushNotificationConfig": HOOK},
        {"name": "tasks/T", "push_notification_config": {"id": "one", **HOOK}},
    ],
)
def test_webhooks_as_clients_create_them(document: Any) -> None:
    found = proto.JSON.convert(types.TaskPushNotificationConfig, {"parent": "tasks/T", **document})
    assert found == types.TaskPushNotificationConfig(
        task_id="T", id="one", url="http://h", token="k"
    )


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("tasks/T/pushNotificationConfigs/None", "T"),
        ("tasks/T/pushNotificationConfigs/", "T"),
        ("tasks/T/pushNotificationConfigs", "T"),
        ("tasks/T", "T"),
        ("tasks/T/pushNotificationConfigs/AllOrNone", "AllOrNone"),
        ("tasks/T/pushNotificationConfigs/a/b\nc", "a/b\nc"),
    ],
)
def test_webhooks_whose_id_is_in_their_name(name: str, id: str) -> None:
    document = {"name": name, "pushNotificationConfig": {"url": "http://h"}}
    assert proto.told(types.TaskPushNotificationConfig, document).id == id
    asked = {"parent": "tasks/T", "config": document}
    assert proto.JSON.convert(types.TaskPushNotificationConfig, asked).id == id


def test_several_schemes_of_a_webhook() -> None:
    for schemes, meant in ((["", "Basic", "Bearer"], "Basic"), ([], "Bearer")):
        secrets = {"schemes": schemes, "credentials": "x"}
        document = {
            "taskId": "T",
            "pushNotificationConfig": {"url": "http://h", "authentication": secrets},
        }
        found = rpc.convert(types.TaskPushNotificationConfig, document)
        assert found.authentication == types.AuthenticationInfo(scheme=meant, credentials="x")
        assert found.id == "T"


def test_a_list_of_webhooks_is_bare() -> None:
    hook = {"taskId": "T", "pushNotificationConfig": {"id": "C", "url": "http://h"}}
    found = rpc.convert(types.ListTaskPushNotificationConfigsResponse, [hook])
    assert [config.id for config in found.configs] == ["C"]
    assert rpc.encode(types.ListTaskPushNotificationConfigsResponse()) == b"[]"


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OLDER_CARDS)
def test_the_forms_of_a_card_are_known_apart(found: types.AgentCard) -> None:
    assert not card_proto.meant(json.loads(msgspec.json.encode(card.old(found))))
    document = json.loads(msgspec.json.encode(card_proto.old(found)))
    differs = [*document.get("securitySchemes", {}).values(), *document.get("security", ())]
    assert card_proto.meant(document) is any(differs)


def test_the_card_that_the_javascript_server_answers_over_http() -> None:
    body = (
        b'{"protocolVersion":"0.3.0","name":"Desk","url":"http://h/rpc","capabilities":{},'
        b'"preferredTransport":"JSONRPC","skills":[],"security":[{"schemes":{"k":{"list":["s"]}}}],'
        b'"securitySchemes":{"k":{"apiKeySecurityScheme":{"location":"header","name":"X-Key"}}}}'
    )
    found = discovery.decode(body, "x")
    key = types.APIKeySecurityScheme(location="header", name="X-Key")
    assert found.security_schemes == {"k": types.SecurityScheme(api_key_security_scheme=key)}
    scopes = types.StringList(list=("s",))
    assert found.security_requirements == (types.SecurityRequirement(schemes={"k": scopes}),)


# ---- bytes ---------------------------------------------------------------------------------


@given(st.binary(max_size=40))
def test_files_are_base64_text_unless_the_client_reads_them_bare(content: bytes) -> None:
    message = types.Message(message_id="m", role=Role.AGENT, parts=(Part(raw=content),))
    answer = types.SendMessageResponse(message=message)
    text = json.loads(proto.JSON.encode(answer))["message"]["content"][0]["file"]
    bare = json.loads(proto.BARE.encode(answer))["message"]["content"][0]["file"]
    assert base64.b64decode(base64.b64decode(text["fileWithBytes"])) == content
    assert base64.b64decode(bare["fileWithBytes"]) == content
    assert base64.b64encode(content) in OLDER.encode(answer)
    assert content in BARE.encode(answer)


@given(st.binary(max_size=40))
def test_bare_bytes_are_read_as_they_are_unless_they_could_be_text(content: bytes) -> None:
    """The ambiguity: bytes that happen to be base64 text are taken for that."""
    told = base64.b64encode(content).decode()
    found = posted({"file": {"fileWithBytes": told}}).parts[0].raw
    try:
        meant = base64.b64decode(content, validate=True)
    except ValueError:
        meant = content
    assert found == meant


@given(st.binary(max_size=40) | st.just(b"abcd"))
def test_bare_bytes_of_those_who_are_known_are_not_guessed_at(content: bytes) -> None:
    part = {"file": {"fileWithBytes": base64.b64encode(content).decode()}}
    message = {"messageId": "m", "role": "ROLE_USER", "content": [part]}
    read = proto.BARE.convert(types.SendMessageRequest, {"message": message})
    assert read.message.parts == (Part(raw=content),)
    wire = old_pb.SendMessageRequest(
        request=old_pb.Message(
            message_id="m",
            role=old_pb.ROLE_USER,
            content=[old_pb.Part(file=old_pb.FilePart(file_with_bytes=content))],
        )
    )
    assert BARE.decode(types.SendMessageRequest, wire.SerializeToString()) == read


@pytest.mark.parametrize(
    ("agent", "is_node"),
    [
        ("node", True),
        ("grpc-node-js/1.14.7", True),
        ("python-httpx/0.28.1", False),
        ("grpc-python-asyncio/1.85.1 grpc-c/53.0.0", False),
        ("node-fetch/1.0", False),
        ("", False),
    ],
)
def test_who_reads_bare(agent: str, is_node: bool) -> None:
    assert client_quirks.is_javascript_sdk(agent) is is_node
