"""0.3 and 0.1 got wrong: the field is named in their own words, and nothing but our errors comes
of anything at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.dialects import client_quirks, v0_1, v1_0
from dragoman.dialects.protobuf.package_codec import OLDER
from dragoman.dialects.v0_3 import card, proto, rpc
from dragoman.model import types
from dragoman.model.caller import Scope
from dragoman.model.errors import A2AError, InvalidParams
from dragoman.model.types import WireStruct
from tests.harness import wire_values as wire
from tests.harness.scale import examples


def said(**fields: Any) -> dict[str, Any]:
    """A message over JSON-RPC."""
    return {"kind": "message", "messageId": "m", "role": "user", "parts": [TEXT], **fields}


# ---- mistakes ------------------------------------------------------------------------------

TEXT = {"kind": "text", "text": "x"}


@pytest.mark.parametrize(
    ("kind", "document", "field"),
    [
        (types.SendMessageRequest, {}, "message"),
        (types.SendMessageRequest, {"message": 1}, "message"),
        (types.SendMessageRequest, {"message": said(messageId=5)}, "message.messageId"),
        (types.SendMessageRequest, {"message": said(role="ROLE_USER")}, "message.role"),
        (types.SendMessageRequest, {"message": said(parts=[])}, "message.parts"),
        (types.SendMessageRequest, {"message": said(parts=[{}])}, "message.parts[0]"),
        (types.SendMessageRequest, {"message": said(parts=[{"kind": "text"}])}, "message.parts[0]"),
        (
            types.SendMessageRequest,
            {"message": said(parts=[TEXT, {"kind": "file", "text": "x"}])},
            "message.parts[1]",
        ),
        (
            types.SendMessageRequest,
            {"message": said(parts=[{"kind": "file", "file": {"bytes": "*"}}])},
            "message.parts[0].file.bytes",
        ),
        (
            types.SendMessageRequest,
            {"message": said(parts=[{"kind": "file", "file": {}}])},
            "message.parts[0].file",
        ),
        (
            types.SendMessageRequest,
            {"message": said(parts=[{"kind": "file", "file": {"bytes": "AA==", "uri": "u"}}])},
            "message.parts[0].file",
        ),
        (
            types.SendMessageRequest,
            {"message": said(), "configuration": {"pushNotificationConfig": {}}},
            "configuration.pushNotificationConfig.url",
        ),
        (
            types.SendMessageRequest,
            {"message": said(), "configuration": {"blocking": "yes"}},
            "configuration.blocking",
        ),
        (types.GetTaskRequest, {}, "id"),
        (types.GetTaskRequest, {"id": 7}, "id"),
        (types.GetTaskRequest, {"id": "t", "historyLength": "a"}, "historyLength"),
        (types.TaskPushNotificationConfig, {"taskId": "t"}, "pushNotificationConfig"),
        (
            types.TaskPushNotificationConfig,
            {"taskId": "t", "pushNotificationConfig": {"url": ""}},
            "pushNotificationConfig.url",
        ),
        (types.DeleteTaskPushNotificationConfigRequest, {"id": "t"}, "pushNotificationConfigId"),
        (types.StreamResponse, {"kind": "tasks"}, "kind"),
        (types.StreamResponse, {"kind": ["task"]}, "kind"),
        (types.StreamResponse, {"kind": "task", "id": "t"}, "status"),
        (types.StreamResponse, [], "params"),
        (
            types.SendMessageResponse,
            {
                "kind": "status-update",
                "taskId": "t",
                "contextId": "c",
                "status": {"state": "failed"},
            },
            "kind",
        ),
        (types.Task, {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}, "status.state"),
    ],
)
def test_mistakes_over_rpc_are_named_in_its_own_words(
    kind: type[WireStruct], document: Any, field: str
) -> None:
    for read in (rpc.convert, lambda k, d: rpc.decode(k, json.dumps(d).encode())):
        with pytest.raises(InvalidParams) as error:
            read(kind, document)
        assert [name for name, _ in error.value.violations] == [field]


def content(*parts: Any, **fields: Any) -> dict[str, Any]:
    """A send over HTTP+JSON."""
    message = {"messageId": "m", "role": "ROLE_USER", "content": list(parts), **fields}
    return {"message": message}


@pytest.mark.parametrize(
    ("kind", "document", "field"),
    [
        (types.SendMessageRequest, {}, "message"),
        (types.SendMessageRequest, content(), "message.content"),
        (types.SendMessageRequest, content({"text": "x"}, role="user"), "message.role"),
        (types.SendMessageRequest, content({"text": "x", "data": {}}), "message.content[0]"),
        (
            types.SendMessageRequest,
            content({"file": {"fileWithBytes": "*"}}),
            "message.content[0].file.fileWithBytes",
        ),
        (types.SendMessageRequest, content({"file": {"name": "x"}}), "message.content[0].file"),
        (
            types.SendMessageRequest,
            content({"data": {"data": [1]}}),
            "message.content[0].data.data",
        ),
        (types.GetTaskRequest, {}, "name"),
        (types.GetTaskRequest, {"name": "t"}, "name"),
        (types.GetTaskRequest, {"name": "tasks/"}, "name"),
        (types.GetTaskRequest, {"name": "tasks/a/b"}, "name"),
        (types.GetTaskRequest, {"name": "tasks/a/pushNotificationConfigs/b"}, "name"),
        (types.CancelTaskRequest, {"name": "tasks/a/pushNotificationConfigs"}, "name"),
        (types.SubscribeToTaskRequest, {"name": "tasks/a/pushNotificationConfigs/b"}, "name"),
        (types.ListTaskPushNotificationConfigsRequest, {"parent": "t"}, "parent"),
        (
            types.TaskPushNotificationConfig,
            {"config": {"pushNotificationConfig": {"url": "u"}}},
            "parent",
        ),
        (types.TaskPushNotificationConfig, {"parent": "tasks/t"}, "config"),
        (
            types.TaskPushNotificationConfig,
            {"parent": "tasks/t", "config": {"name": "x", "pushNotificationConfig": {"url": "u"}}},
            "config.name",
        ),
    ],
)
def test_mistakes_over_http_are_named_in_its_own_words(
    kind: type[WireStruct], document: Any, field: str
) -> None:
    with pytest.raises(InvalidParams) as error:
        proto.JSON.convert(kind, document)
    assert [name for name, _ in error.value.violations] == [field]


def test_mistakes_of_agents_are_named_in_their_own_words() -> None:
    document = {"name": "x", "pushNotificationConfig": {"url": "u"}}
    with pytest.raises(InvalidParams, match=r"^name: "):
        proto.told(types.TaskPushNotificationConfig, document)


# ---- anything at all -----------------------------------------------------------------------

NAMES = sorted(
    {
        name
        for module in (rpc, proto, v0_1, card, types)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, WireStruct)
        for name in kind.__struct_encode_fields__
    }
)
WORDS = [
    "task",
    "message",
    "status-update",
    "text",
    "user",
    "working",
    "ROLE_USER",
    "tasks/t",
    "AA",
]
ANYTHING = st.recursive(
    wire.JSON | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
"""JSON in the words of the protocol, which gets further than any."""
FIRST = (
    types.SendMessageRequest,
    types.GetTaskRequest,
    types.CancelTaskRequest,
    types.SubscribeToTaskRequest,
    types.TaskPushNotificationConfig,
    types.GetTaskPushNotificationConfigRequest,
)
"""What 0.1 can be asked."""


@settings(max_examples=examples(300), deadline=None)
@given(ANYTHING)
def test_whatever_comes_is_read_or_refused(document: Any) -> None:
    body = json.dumps(document).encode()
    for kind in (*rpc.READ, types.SendMessageResponse, types.StreamResponse):
        attempt(rpc.decode, kind, body)
        attempt(rpc.convert, kind, document)
    attempt(rpc.convert, types.ListTaskPushNotificationConfigsResponse, document)
    for kind in proto.ASKED:
        attempt(proto.JSON.convert, kind, document)
    for kind in proto.TOLD:
        attempt(proto.told, kind, document)
    for kind in FIRST:
        attempt(v0_1.V01Codec(Scope("a")).decode, kind, body)
    for kind in proto.TOLD:
        attempt(v0_1.told, kind, document)
    attempt(lambda _, body: client_quirks.is_0_2_by_its_params(body), None, body)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=40))
def test_whatever_bytes_come_are_read_or_refused(body: bytes) -> None:
    for kind in proto.ASKED:
        if kind is not types.ListTasksRequest:
            attempt(OLDER.decode, kind, body)
    for kind in proto.TOLD:
        if kind is not types.ListTasksResponse:
            attempt(OLDER.told, kind, body)
    attempt(rpc.decode, types.SendMessageRequest, body)
    attempt(v0_1.V01Codec(Scope("a")).decode, types.SendMessageRequest, body)
    attempt(lambda _, body: client_quirks.is_0_2_by_its_params(body), None, body)


def attempt(read: Any, kind: Any, document: Any) -> None:
    """Read it, or be told by one of our errors; and what was read can be written in 1.0."""
    try:
        found = read(kind, document)
    except A2AError:
        return
    if isinstance(found, WireStruct):
        v1_0.encode(found)
