"""The access log: one record for each request, written when its response ends."""

from __future__ import annotations

import time
from typing import Any

from dragoman.model.caller import Caller
from dragoman.telemetry.logs import access_logger

GONE = "CLIENT_GONE"
"""The outcome of a request whose client disconnected before the end of the response."""
LONGEST = 1024
"""The maximum number of characters of a path or of a task id."""


class AccessLine:
    """Collects the fields of one request; `write` logs them."""

    __slots__ = (
        *("agent", "binding", "caller", "client", "complete", "grpc_status", "method"),
        *("operation", "outcome", "path", "status", "task", "version", "_began"),
    )

    def __init__(self, method: str, path: str, client: str) -> None:
        self.method, self.path, self.client = method, path[:LONGEST], client
        self.status = 0
        """The HTTP status; 0 before the response begins."""
        self.grpc_status = ""
        self.agent = self.operation = self.binding = self.version = self.task = ""
        self.caller: Caller | None = None
        self.outcome = ""
        """The reason of the error in the response, if there is one."""
        self.complete = False
        """Whether the whole response was sent."""
        self._began = time.perf_counter()

    def begins(self, agent: str, operation: str, binding: str) -> None:
        """Set the fields that are known once the operation is."""
        self.agent, self.operation, self.binding = agent, operation, binding

    def write(self) -> None:
        """Log the request, with all known values as fields of the record."""
        milliseconds = (time.perf_counter() - self._began) * 1000
        outcome = self.outcome
        if not outcome and self.status < 400:
            outcome = "ok" if self.complete else GONE
        caller = self.caller or _ANONYMOUS
        fields: dict[str, Any] = {
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "grpc_status": self.grpc_status,
            "duration_ms": round(milliseconds, 3),
            "client": self.client,
            "agent": self.agent,
            "operation": self.operation,
            "binding": self.binding,
            "version": self.version,
            "caller": caller.identity,
            "realm": caller.realm,
            "tenant": caller.tenant,
            "task": self.task[:LONGEST],
            "outcome": outcome,
        }
        words = [self.operation, "" if outcome == "ok" else outcome]
        if caller.identity:
            words.append(f"caller={caller.identity}")
        access_logger.info(
            "%s %s %s %s %.1f ms%s",
            self.client or "-",
            self.method,
            self.path,
            self.status or self.grpc_status or "-",
            milliseconds,
            "".join(f" {word}" for word in words if word),
            extra={name: value for name, value in fields.items() if value != "" and value != 0},
        )


_ANONYMOUS = Caller()
