"""Logs, and the trace that a request belongs to.

The library only logs to `dragoman.*`; handlers are set up by the command alone. Traces are
OpenTelemetry's where the process uses it, and handed on as they came where it does not.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any

TASK: ContextVar[str] = ContextVar("dragoman_task", default="")
CORRELATION: ContextVar[str] = ContextVar("dragoman_correlation", default="")

logger = logging.getLogger("dragoman")
logger.addHandler(logging.NullHandler())

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "task",
    "correlation",
    "taskName",
    "color_message",
}


def carry(headers: MutableMapping[str, str], came: str = "") -> None:
    """Put the present trace into the headers of a request (W3C): that of OpenTelemetry if the
    process has loaded it and a span is open, else the one that came with the work."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)
    if came and "traceparent" not in headers:
        headers["traceparent"] = came


class Ids(logging.Filter):
    """Puts the task and correlation id of the running turn on each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops anything."""
        if not hasattr(record, "task"):
            record.task = TASK.get()
        if not hasattr(record, "correlation"):
            record.correlation = CORRELATION.get()
        return True


class Text(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the ids behind it where there are any."""
        ids = [
            f"{name}={value}"
            for name in ("task", "correlation")
            if (value := getattr(record, name, ""))
        ]
        line = super().formatMessage(record)
        return f"{line} [{' '.join(ids)}]" if ids else line


class Json(logging.Formatter):
    """A JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """All that is known of the record."""
        found: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("task", "correlation"):
            if value := getattr(record, name, ""):
                found[name] = value
        found |= {key: item for key, item in record.__dict__.items() if key not in _STANDARD}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str)


def configure(level: str, form: str) -> None:
    """Set up logging for a process that is ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    handler.addFilter(Ids())
    for name in ("dragoman", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level.upper())
    # uvicorn's own start and stop lines say what ours say already
    logging.getLogger("uvicorn.error").setLevel("WARNING")
