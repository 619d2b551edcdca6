"""Every error, with its codes and both of its wire forms."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from dragoman.model import errors
from dragoman.model.errors import (
    BAD_REQUEST,
    DOMAIN,
    ERROR_INFO,
    A2AError,
    InternalError,
    InvalidParams,
)

# name: JSON-RPC code, HTTP status, gRPC status, reason, answered by the HTTP status over JSON-RPC
TABLE: dict[str, tuple[int, int, str, str, bool]] = {
    "TaskNotFound": (-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND", False),
    "TaskNotCancelable": (-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE", False),
    "PushNotificationNotSupported": (
        -32003,
        400,
        "FAILED_PRECONDITION",
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
        False,
    ),
    "UnsupportedOperation": (-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION", False),
    "ContentTypeNotSupported": (
        -32005,
        400,
        "INVALID_ARGUMENT",
        "CONTENT_TYPE_NOT_SUPPORTED",
        False,
    ),
    "InvalidAgentResponse": (-32006, 500, "INTERNAL", "INVALID_AGENT_RESPONSE", False),
    "ExtendedAgentCardNotConfigured": (
        -32007,
        400,
        "FAILED_PRECONDITION",
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        False,
    ),
    "ExtensionSupportRequired": (
        -32008,
        400,
        "FAILED_PRECONDITION",
        "EXTENSION_SUPPORT_REQUIRED",
        False,
    ),
    "VersionNotSupported": (-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED", False),
    "ParseError": (-32700, 400, "INVALID_ARGUMENT", "PARSE_ERROR", False),
    "InvalidRequest": (-32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST", False),
    "AmbiguousRequest": (-32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST", True),
    "MethodNotFound": (-32601, 404, "UNIMPLEMENTED", "METHOD_NOT_FOUND", False),
    "MethodNotAllowed": (-32601, 405, "UNIMPLEMENTED", "METHOD_NOT_FOUND", False),
    "InvalidParams": (-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS", False),
    "HandoverEnded": (-32004, 409, "FAILED_PRECONDITION", "HANDOVER_ENDED", False),
    "InternalError": (-32603, 500, "INTERNAL", "INTERNAL_ERROR", False),
    "Unauthenticated": (-32603, 401, "UNAUTHENTICATED", "UNAUTHENTICATED", True),
    "Forbidden": (-32603, 403, "PERMISSION_DENIED", "PERMISSION_DENIED", True),
    "Unavailable": (-32603, 503, "UNAVAILABLE", "UNAVAILABLE", True),
    "MediaTypeNotAccepted": (-32600, 415, "INVALID_ARGUMENT", "MEDIA_TYPE_NOT_ACCEPTED", True),
    "Misdirected": (-32600, 421, "INVALID_ARGUMENT", "MISDIRECTED", True),
    "LimitExceeded": (-32603, 429, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", True),
    "BodyTooLarge": (-32600, 413, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", True),
    "TooSlow": (-32600, 408, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", True),
}
OWN = {"HandoverEnded"}
"""Errors that only our own requests have, which are not operations of A2A."""
A2A = [name for name, row in TABLE.items() if -32009 <= row[0] <= -32001 and name not in OWN]
GRPC = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
}


def known(kind: type[A2AError] = A2AError) -> Iterator[type[A2AError]]:
    """Every class of the hierarchy."""
    for child in kind.__subclasses__():
        yield child
        yield from known(child)


def test_the_table_is_complete() -> None:
    ours = {kind.__name__ for kind in known() if kind.__module__ == errors.__name__}
    assert ours == set(TABLE)
    assert len(A2A) == 9
    assert {row[2] for row in TABLE.values()} == GRPC


@pytest.mark.clause("errors.rpc-codes", "errors.http-status")
@pytest.mark.parametrize("name", TABLE)
def test_codes(name: str) -> None:
    kind = getattr(errors, name)
    assert (kind.rpc, kind.http, kind.grpc, kind.reason, kind.transport) == TABLE[name]


def test_each_a2a_error_has_a_code_and_a_reason_of_its_own() -> None:
    assert len({TABLE[name][0] for name in A2A}) == len(A2A)
    assert len({TABLE[name][3] for name in A2A}) == len(A2A)


@pytest.mark.parametrize("name", TABLE)
def test_every_error_has_words_of_its_own(name: str) -> None:
    kind = getattr(errors, name)
    error = kind()
    assert error.message
    assert error.message == str(error) == kind.text
    assert kind("other words").message == "other words"


@pytest.mark.clause("errors.payload", "rpc.error-info")
@pytest.mark.parametrize("name", TABLE)
def test_the_form_in_json_rpc(name: str) -> None:
    code, _, _, reason, _ = TABLE[name]
    error = getattr(errors, name)("words", metadata={"key": "value"})
    assert error.to_rpc() == {
        "code": code,
        "message": "words",
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": reason,
                "domain": "a2a-protocol.org",
                "metadata": {"key": "value"},
            }
        ],
    }
    msgspec.json.encode(error.to_rpc())


@pytest.mark.clause("errors.payload", "http.error-shape", "http.error-info")
@pytest.mark.parametrize("name", TABLE)
def test_the_form_in_http(name: str) -> None:
    _, status, grpc, reason, _ = TABLE[name]
    error = getattr(errors, name)("words")
    assert error.to_http() == {
        "error": {
            "code": status,
            "status": grpc,
            "message": "words",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": reason,
                    "domain": "a2a-protocol.org",
                }
            ],
        }
    }
    msgspec.json.encode(error.to_http())


@pytest.mark.clause("http.error-info", "rpc.error-info")
@pytest.mark.parametrize("name", TABLE)
def test_every_error_begins_its_details_with_an_error_info(name: str) -> None:
    error = getattr(errors, name)(violations=[("field", "is wrong")])
    for details in (error.details(), error.to_rpc()["data"], error.to_http()["error"]["details"]):
        info, bad = details
        assert (info["@type"], info["domain"]) == (ERROR_INFO, DOMAIN)
        assert info["reason"] == TABLE[name][3]
        assert bad["@type"] == BAD_REQUEST


@pytest.mark.clause("errors.field-violations", "rpc.error-info")
def test_violations_are_a_bad_request_with_all_fields() -> None:
    error = InvalidParams("words", violations=[("a", "is required"), ("b.c[0]", "is wrong")])
    assert error.details()[1] == {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [
            {"field": "a", "description": "is required"},
            {"field": "b.c[0]", "description": "is wrong"},
        ],
    }


def test_the_error_of_a_field_names_it_in_the_message_too() -> None:
    error = InvalidParams.at("message.parts[0].text", "expected str")
    assert error.message == "message.parts[0].text: expected str"
    assert error.violations == (("message.parts[0].text", "expected str"),)


@pytest.mark.clause("rpc.internal-error")
def test_an_unexpected_exception_is_told_by_its_type_alone() -> None:
    error = InternalError.of(KeyError("secret"))
    assert "KeyError" in error.message
    assert "secret" not in str(error.to_rpc()) + str(error.to_http())


@pytest.mark.clause("errors.temporary")
def test_a_limit_says_when_to_come_back() -> None:
    assert errors.LimitExceeded().headers == {"retry-after": "1"}
    assert errors.LimitExceeded("words", retry_after=30).headers == {"retry-after": "30"}
    assert errors.LimitExceeded(headers={"retry-after": "7"}).headers == {"retry-after": "7"}
    assert "retry-after" not in errors.BodyTooLarge().headers
    assert "retry-after" not in errors.TooSlow().headers


def test_headers_and_metadata_are_the_error_s_own() -> None:
    metadata = {"key": "value"}
    error = errors.TaskNotFound(metadata=metadata)
    metadata["key"] = "changed"
    assert error.metadata == {"key": "value"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("NOT_FOUND", errors.TaskNotFound),
        ("FAILED_PRECONDITION", errors.TaskNotCancelable),
        ("INVALID_ARGUMENT", InvalidParams),
        ("UNIMPLEMENTED", errors.MethodNotFound),
        ("INTERNAL", InternalError),
        ("UNKNOWN", InternalError),
    ],
)
def test_what_a_grpc_status_alone_means(status: str, kind: type[errors.A2AError]) -> None:
    assert type(errors.restored("words", grpc=status)) is kind
