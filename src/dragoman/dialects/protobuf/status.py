"""Errors over gRPC: a `google.rpc.Status` in the trailer `grpc-status-details-bin`."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from dragoman.model.errors import BAD_REQUEST, ERROR_INFO, A2AError

LONGEST = 256
MOST = 4
"""The maximum length of a text and the maximum number of entries in an error. Proxies reject
responses with trailers of more than 8 KB."""


def words(error: A2AError) -> str:
    """Return the message of an error, cut to a length that fits into the trailers."""
    return _cut(error.message, 2 * LONGEST)


def status(error: A2AError) -> bytes:
    """Encode an error as a `google.rpc.Status`."""
    from google.rpc import code_pb2, error_details_pb2, status_pb2

    found = status_pb2.Status(code=code_pb2.Code.Value(error.grpc), message=words(error))
    for detail in error.details():
        if detail["@type"] == ERROR_INFO:
            metadata = list(detail.get("metadata", {}).items())[:MOST]
            info = error_details_pb2.ErrorInfo(
                reason=detail["reason"],
                domain=detail["domain"],
                metadata={_cut(key): _cut(value) for key, value in metadata},
            )
            found.details.add().Pack(info)
        else:
            request = error_details_pb2.BadRequest()
            for item in detail["fieldViolations"][:MOST]:
                field, what = _cut(item["field"]), _cut(item["description"])
                request.field_violations.add(field=field, description=what)
            found.details.add().Pack(request)
    body: bytes = found.SerializeToString()
    return body


def restored_status(body: bytes) -> tuple[int, str, list[dict[str, Any]]]:
    """Decode a Status to its code, message and details, the details as in `A2AError.details`.
    Details that cannot be decoded are omitted."""
    from google.rpc import error_details_pb2, status_pb2

    try:
        found = status_pb2.Status.FromString(body)
    except (DecodeError, UnicodeDecodeError):
        return 0, "", []
    details: list[dict[str, Any]] = []
    for item in found.details:
        name = item.type_url.rpartition("/")[2]
        try:
            if name == "google.rpc.ErrorInfo":
                info = error_details_pb2.ErrorInfo.FromString(item.value)
                detail = {"@type": ERROR_INFO, "reason": info.reason, "domain": info.domain}
                if info.metadata:
                    detail["metadata"] = dict(info.metadata)
                details.append(detail)
            elif name == "google.rpc.BadRequest":
                request = error_details_pb2.BadRequest.FromString(item.value)
                fields = [
                    {"field": item.field, "description": item.description}
                    for item in request.field_violations
                ]
                details.append({"@type": BAD_REQUEST, "fieldViolations": fields})
        except (DecodeError, UnicodeDecodeError):
            continue
    return found.code, found.message, details


def _cut(text: str, size: int = LONGEST) -> str:
    return str(text).encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
