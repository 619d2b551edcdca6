"""One class per error, with all of its wire forms on it.

A2AError
├── TaskNotFound                      ├── ParseError
├── TaskNotCancelable                 ├── InvalidRequest
├── PushNotificationNotSupported      │   └── AmbiguousRequest
├── UnsupportedOperation              ├── MethodNotFound
│   └── HandoverEnded                 │   └── MethodNotAllowed
├── ContentTypeNotSupported           ├── InvalidParams
├── InvalidAgentResponse              ├── InternalError
├── ExtendedAgentCardNotConfigured    ├── Unauthenticated
├── ExtensionSupportRequired          ├── Forbidden
└── VersionNotSupported               ├── Unavailable
                                      ├── MediaTypeNotAccepted
                                      ├── Misdirected
                                      └── LimitExceeded
                                          ├── BodyTooLarge
                                          └── TooSlow
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

__all__ = [
    "A2AError",
    "AmbiguousRequest",
    "BodyTooLarge",
    "ContentTypeNotSupported",
    "ExtendedAgentCardNotConfigured",
    "ExtensionSupportRequired",
    "Forbidden",
    "HandoverEnded",
    "InternalError",
    "InvalidAgentResponse",
    "InvalidParams",
    "InvalidRequest",
    "LimitExceeded",
    "MediaTypeNotAccepted",
    "MethodNotAllowed",
    "MethodNotFound",
    "Misdirected",
    "ParseError",
    "PushNotificationNotSupported",
    "TaskNotCancelable",
    "TaskNotFound",
    "TooSlow",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedOperation",
    "VersionNotSupported",
]


DOMAIN = "a2a-protocol.org"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"


LONGEST = 1024
"""The most characters of an error's message: some messages repeat what the caller has sent."""


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class A2AError(Exception):
    """An error that a caller receives. The class sets the codes, the instance the message."""

    rpc: ClassVar[int] = -32603
    http: ClassVar[int] = 500
    grpc: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "INTERNAL_ERROR"
    text: ClassVar[str] = "Internal error"
    legacy: ClassVar[str] = "InternalError"
    """The name of the error in 0.3."""
    transport: ClassVar[bool] = False
    """True if a JSON-RPC response has this HTTP status, too."""

    def __init__(
        self,
        message: str = "",
        *,
        violations: Iterable[tuple[str, str]] = (),
        metadata: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = _short(message) or self.text
        self.violations = tuple((_short(field), _short(what)) for field, what in violations)
        self.metadata = dict(metadata or {})
        self.headers = dict(headers or {})
        super().__init__(self.message)

    def details(self) -> list[dict[str, Any]]:
        """The typed details that all bindings send."""
        info: dict[str, Any] = {"@type": ERROR_INFO, "reason": self.reason, "domain": DOMAIN}
        if self.metadata:
            info["metadata"] = self.metadata
        found: list[dict[str, Any]] = [info]
        if self.violations:
            fields = [{"field": name, "description": text} for name, text in self.violations]
            found.append({"@type": BAD_REQUEST, "fieldViolations": fields})
        return found

    def to_rpc(self) -> dict[str, Any]:
        """The `error` member of a JSON-RPC response."""
        return {"code": self.rpc, "message": self.message, "data": self.details()}

    def to_http(self) -> dict[str, Any]:
        """The body of an HTTP+JSON error response."""
        return {
            "error": {
                "code": self.http,
                "status": self.grpc,
                "message": self.message,
                "details": self.details(),
            }
        }


class TaskNotFound(A2AError):
    """The task does not exist, or the caller may not see it."""

    rpc, http, grpc = -32001, 404, "NOT_FOUND"
    reason, text = "TASK_NOT_FOUND", "Task not found"
    legacy = "TaskNotFoundError"


class TaskNotCancelable(A2AError):
    """The task has already ended."""

    rpc, http, grpc = -32002, 400, "FAILED_PRECONDITION"
    reason, text = "TASK_NOT_CANCELABLE", "Task cannot be canceled"
    legacy = "TaskNotCancelableError"


class PushNotificationNotSupported(A2AError):
    """The agent sends no push notifications."""

    rpc, http, grpc = -32003, 400, "FAILED_PRECONDITION"
    reason, text = "PUSH_NOTIFICATION_NOT_SUPPORTED", "Push notifications are not supported"
    legacy = "PushNotificationNotSupportedError"


class UnsupportedOperation(A2AError):
    """The agent does not offer the operation, or not in this state of the task."""

    rpc, http, grpc = -32004, 400, "FAILED_PRECONDITION"
    reason, text = "UNSUPPORTED_OPERATION", "Operation is not supported"
    legacy = "UnsupportedOperationError"


class HandoverEnded(UnsupportedOperation):
    """The task is not handed over any more: it has ended, asks its client, or is canceled."""

    http = 409
    reason, text = "HANDOVER_ENDED", "The task is not handed over any more"


class ContentTypeNotSupported(A2AError):
    """A part has a media type that neither the agent nor the skill accepts."""

    rpc, http, grpc = -32005, 400, "INVALID_ARGUMENT"
    reason, text = "CONTENT_TYPE_NOT_SUPPORTED", "Content type is not supported"
    legacy = "ContentTypeNotSupportedError"


class InvalidAgentResponse(A2AError):
    """The agent's response violates the protocol."""

    rpc, http, grpc = -32006, 500, "INTERNAL"
    reason, text = "INVALID_AGENT_RESPONSE", "Invalid agent response"
    legacy = "InvalidAgentResponseError"


class ExtendedAgentCardNotConfigured(A2AError):
    """The card declares an extended card, but there is none."""

    rpc, http, grpc = -32007, 400, "FAILED_PRECONDITION"
    reason, text = "EXTENDED_AGENT_CARD_NOT_CONFIGURED", "Extended agent card is not configured"
    legacy = "AuthenticatedExtendedCardNotConfiguredError"


class ExtensionSupportRequired(A2AError):
    """The agent requires an extension that the request does not name."""

    rpc, http, grpc = -32008, 400, "FAILED_PRECONDITION"
    reason, text = "EXTENSION_SUPPORT_REQUIRED", "Extension support is required"


class VersionNotSupported(A2AError):
    """The agent does not support the protocol version of the request."""

    rpc, http, grpc = -32009, 400, "FAILED_PRECONDITION"
    reason, text = "VERSION_NOT_SUPPORTED", "Protocol version is not supported"


class ParseError(A2AError):
    """The body is not JSON."""

    rpc, http, grpc = -32700, 400, "INVALID_ARGUMENT"
    reason, text = "PARSE_ERROR", "Body is not valid JSON"
    legacy = "JSONParseError"


class InvalidRequest(A2AError):
    """The body is JSON, but not a request."""

    rpc, http, grpc = -32600, 400, "INVALID_ARGUMENT"
    reason, text = "INVALID_REQUEST", "Invalid request"
    legacy = "InvalidRequestError"


class AmbiguousRequest(InvalidRequest):
    """The request contains something twice that may appear only once, so readers could disagree."""

    text, transport = "A header is repeated", True


class MethodNotFound(A2AError):
    """There is no such method or path."""

    rpc, http, grpc = -32601, 404, "UNIMPLEMENTED"
    reason, text = "METHOD_NOT_FOUND", "Method not found"
    legacy = "MethodNotFoundError"


class MethodNotAllowed(MethodNotFound):
    """The path exists, but not with this HTTP method."""

    http = 405
    text = "Method not allowed"


class InvalidParams(A2AError):
    """A field is missing, of the wrong type or out of range."""

    rpc, http, grpc = -32602, 400, "INVALID_ARGUMENT"
    reason, text = "INVALID_PARAMS", "Invalid parameters"
    legacy = "InvalidParamsError"

    @classmethod
    def at(cls, field: str, description: str) -> InvalidParams:
        """The error for one field, named in the message and in the details."""
        return cls(f"{field}: {description}", violations=[(field, description)])


class InternalError(A2AError):
    """A fault of the server. Only the log has the details."""

    @classmethod
    def of(cls, error: BaseException) -> InternalError:
        """Describe an unexpected exception to a caller: only its type."""
        return cls(f"Internal error ({type(error).__name__})")


class Unauthenticated(A2AError):
    """The caller has sent no credentials, or they are not valid."""

    http, grpc = 401, "UNAUTHENTICATED"
    reason, text, transport = "UNAUTHENTICATED", "Authentication is required", True
    legacy = "UnauthenticatedError"

    def __init__(self, message: str = "", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.headers.setdefault("www-authenticate", "Bearer")


class Forbidden(A2AError):
    """The caller is authenticated but lacks permission."""

    http, grpc = 403, "PERMISSION_DENIED"
    reason, text, transport = "PERMISSION_DENIED", "Permission denied", True
    legacy = "PermissionDeniedError"


class Unavailable(A2AError):
    """The server cannot process this now; the same request may succeed later."""

    http, grpc = 503, "UNAVAILABLE"
    reason, text, transport = "UNAVAILABLE", "Service is unavailable", True
    legacy = "UnavailableError"


class MediaTypeNotAccepted(A2AError):
    """The Content-Type of the body is not JSON."""

    rpc, http, grpc = -32600, 415, "INVALID_ARGUMENT"
    reason, text, transport = "MEDIA_TYPE_NOT_ACCEPTED", "Content-Type must be JSON", True
    legacy = "InvalidRequestError"


class Misdirected(A2AError):
    """The request names a host that is not this server's."""

    rpc, http, grpc = -32600, 421, "INVALID_ARGUMENT"
    reason, text, transport = "MISDIRECTED", "This server does not accept this host", True
    legacy = "InvalidRequestError"


class LimitExceeded(A2AError):
    """A limit of the server is reached; `Retry-After` says when to try again."""

    http, grpc = 429, "RESOURCE_EXHAUSTED"
    reason, text, transport = "RESOURCE_EXHAUSTED", "A limit is exceeded", True
    legacy = "LimitExceededError"

    def __init__(self, message: str = "", *, retry_after: int = 1, **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        if self.http == 429:
            self.headers.setdefault("retry-after", str(retry_after))


class BodyTooLarge(LimitExceeded):
    """The body is larger than the server accepts."""

    rpc, http = -32600, 413
    legacy = "InvalidRequestError"


class TooSlow(LimitExceeded):
    """The body did not arrive in time; the connection is closed."""

    rpc, http = -32600, 408
    legacy = "InvalidRequestError"

    def __init__(self, message: str = "", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.headers.setdefault("connection", "close")


STATUSES: dict[str, type[A2AError]] = {"INVALID_ARGUMENT": InvalidParams, "INTERNAL": InternalError}
"""What a gRPC status alone means, where several errors have it."""


def restored(
    message: str,
    details: Iterable[Any] = (),
    *,
    rpc: int = 0,
    http: int = 0,
    grpc: str = "",
    headers: Mapping[str, str] | None = None,
) -> A2AError:
    """Decode the error of a response: by its reason, else by its JSON-RPC code, else by its HTTP or
    gRPC status. Missing fields are filled in, additional ones are kept."""
    reason, metadata, violations = "", {}, []
    for detail in details if isinstance(details, list | tuple) else ():
        if not isinstance(detail, dict):
            continue
        if detail.get("@type") == ERROR_INFO and not reason:
            reason = str(detail.get("reason", ""))
            given = detail.get("metadata")
            metadata = {str(k): str(v) for k, v in given.items()} if isinstance(given, dict) else {}
        elif detail.get("@type") == BAD_REQUEST:
            found = detail.get("fieldViolations")
            for item in found if isinstance(found, list) else ():
                if isinstance(item, dict):
                    field, what = item.get("field", ""), item.get("description", "")
                    violations.append((str(field), str(what)))
    kinds = _every(A2AError)
    named = [kind for kind in kinds if reason and kind.reason == reason]
    legacy, colon, rest = message.partition(": ") if grpc else ("", "", "")
    older = [kind for kind in kinds if colon and kind.legacy == legacy]
    if older:  # 0.3 reports them like this over gRPC
        named, message = named or older, rest
    kind = (
        next((kind for kind in named if kind.http == http), named[0] if named else None)
        or next((kind for kind in kinds if rpc and rpc != -32603 and kind.rpc == rpc), None)
        # A status alone does not identify an error that only A2A has.
        or next((k for k in kinds if http and k.http == http and k.rpc < -32099), None)
        or STATUSES.get(grpc)
        or next((k for k in kinds if grpc and k.grpc == grpc), InternalError)
    )
    error = kind(message, violations=violations, metadata=metadata)
    error.headers = dict(headers or {})
    return error


def _every(kind: type[A2AError]) -> list[type[A2AError]]:
    return [found for child in kind.__subclasses__() for found in (child, *_every(child))]
