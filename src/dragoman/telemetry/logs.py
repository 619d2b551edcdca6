"""Logs without secrets, the audit log, and the trace context of a request.

The library logs to `dragoman.*`; only the command sets up handlers. Without handlers, Python prints
warnings and errors on standard error. Secrets are masked before any handler sees them: text that
looks like a secret, registered secrets, and the secrets of the current request. Control characters
are escaped, so that text from a caller cannot look like a log line or control a terminal. Traces
are OpenTelemetry's if the process uses it; otherwise the trace context is passed on as it came.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qsl

TASK: ContextVar[str] = ContextVar("dragoman_task", default="")
CORRELATION: ContextVar[str] = ContextVar("dragoman_correlation", default="")
SHOWN: ContextVar[tuple[Mapping[str, str], str] | None] = ContextVar("dragoman_shown", default=None)
"""The headers and the query of the current request."""

# No NullHandler: with it, a process that has set up no logging would not see warnings and errors on
# standard error.
logger = logging.getLogger("dragoman")
auditor = logging.getLogger("dragoman.audit")
auditor.setLevel(logging.INFO)  # independent of the log level
access_logger = logging.getLogger("dragoman.access")
access_logger.setLevel(logging.INFO)  # the setting `access_log` decides

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "task",
    "correlation",
    "taskName",
    "color_message",
}


def carry(headers: MutableMapping[str, str], came: str = "") -> None:
    """Put the current trace context into the headers of a request (W3C): OpenTelemetry's if the
    process has loaded it and a span is open, else the one that came with the work."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)
    if came and "traceparent" not in headers:
        headers["traceparent"] = came


# ---- secrets -------------------------------------------------------------------------------

MASK = "***"
SHORTEST = 6
"""A shorter secret cannot be distinguished from other words."""

# If this pattern does not match, none of the others can: nearly all lines end here.
_HINT = re.compile(
    r"auth|cookie|token|secret|passw|key|credential|bearer|basic|whs|eyj|://[^/\s]*@", re.IGNORECASE
)
_SEPARATOR = r"""(?:["']?\s{0,4}[:=]\s{0,4}b?["']?|["'],\s{0,4}b?["'])"""
# Each starts with fixed text, so that one long line cannot take much time.
_PATTERNS = (
    # Headers: the whole value, up to its quote or the end of the line.
    re.compile(
        rf"""((?:authorization|cookie|api-?key|-token|-secret){_SEPARATOR})[^\r\n"']+""",
        re.IGNORECASE,
    ),
    # Fields of forms, JSON and reprs.
    re.compile(
        r"""((?:token|secret|password|passwd|api_?key|credentials?)(?:["']?=b?["']?"""
        r"""|["']\s{0,4}:\s{0,4}b?["']))[^\s"'&,;)]+""",
        re.IGNORECASE,
    ),
    # A scheme and its credentials, which contain characters that words do not.
    re.compile(
        r"(\b(?:bearer|basic|dpop)\s{1,4})(?=[\w.~+/=-]*[\d_~+/=-]|\w+\.\w)[\w.~+/=-]{6,}",
        re.IGNORECASE,
    ),
    re.compile(r"(wh(?:sec|sk)_)[\w+/=-]{4,}"),
    re.compile(r"()(?<![\w-])eyJ[\w-]{5,}(?:\.[\w-]*){2,4}"),
    re.compile(r"""(://[^/\s:@"']*:)[^/\s"'?#]+(?=@)"""),
)
_NAME = re.compile(r"auth|cookie|key|token|secret|passw|session|credential", re.IGNORECASE)
_HARMLESS = {"idempotency-key", "sec-websocket-key", "www-authenticate"}
_known: set[str] = set()
_secrets: re.Pattern[str] | None = None


def secretive(name: str) -> bool:
    """Whether a header or parameter with this name probably holds a secret."""
    return bool(_NAME.search(name)) and name.lower() not in _HARMLESS


def secret(*values: str) -> None:
    """Register secrets that must never appear in a log."""
    global _secrets
    _known.update(value for value in values if len(value) >= SHORTEST)
    longest_first = sorted(_known, key=len, reverse=True)
    _secrets = re.compile("|".join(map(re.escape, longest_first))) if _known else None


def redacted(text: str) -> str:
    """Mask everything that is or looks like a secret."""
    if _secrets is not None:
        text = _secrets.sub(MASK, text)
    if (shown := SHOWN.get()) is not None:
        for value in sorted(_request_secrets(*shown), key=len, reverse=True):
            text = text.replace(value, MASK)
    if _HINT.search(text):
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\1{MASK}", text)
    return text


def _request_secrets(headers: Mapping[str, str], query: str) -> Iterator[str]:
    """The secrets of a request, in all forms in which a text could quote them."""
    pairs = [*headers.items()]
    if query:
        pairs += [*parse_qsl(query), *_raw_parameters(query)]
    for name, value in pairs:
        if not secretive(name):
            continue
        scheme, _, rest = value.strip().partition(" ")
        parts = [value.strip(), rest.strip()]
        if scheme.lower() == "basic":
            with suppress(ValueError):
                login = base64.b64decode(rest.strip() + "==").decode()
                parts += [login, login.partition(":")[2]]
        if name == "cookie":
            parts += [item.partition("=")[2].strip() for item in value.split(";")]
        yield from (part for part in parts if len(part) >= SHORTEST)


def _raw_parameters(query: str) -> Iterator[tuple[str, str]]:
    """The parameters of a query, not decoded."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        yield name, value


# ---- control characters ----------------------------------------------------------------------

# C0, DEL and C1; marks that change the direction of text; line separators; lone surrogates.
_ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_NEXT = re.compile(r"\n(?=[^\n])")


def escaped(text: str) -> str:
    """Put the text on one line, without characters that control a terminal or reverse the text."""
    return _ODD.sub(_escape, text) if _ODD.search(text) else text


def indented(text: str) -> str:
    """Escape a text with several lines, such as a traceback: all but the first are indented, so
    that none of them looks like a log line."""
    lines = text.replace("\t", "    ").split("\n")
    return _NEXT.sub("\n  ", "\n".join(map(escaped, lines)))


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


class Lines(str):
    """A text whose lines are already indented."""

    __slots__ = ()


class Redaction(logging.Filter):
    """Masks secrets and escapes control characters in the message, the exception and the extras of
    each record. It is a filter of the logger, so it works with any handlers and formatters of an
    application."""

    def filter(self, record: logging.LogRecord) -> bool:
        """It never drops a record, and never fails."""
        try:
            self._clear(record)
        except Exception as error:  # noqa: BLE001 - a log call must never raise
            # A value that cannot be formatted is not shown.
            record.msg, record.args = f"cannot format a log record ({type(error).__name__})", ()
            record.exc_info = record.exc_text = record.stack_info = None
            for key in record.__dict__.keys() - _STANDARD:
                del record.__dict__[key]
        return True

    def _clear(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if (shown := escaped(redacted(said))) != said:
            record.msg, record.args = shown, ()
        if (
            record.exc_info
            and record.exc_info[0] is not None
            and type(record.exc_text) is not Lines
        ):
            text = _FORMATTER.formatException(record.exc_info)
            shown = redacted(text)
            # Formatters use this text, and format the exception only if it is missing.
            record.exc_text = Lines(indented(shown))
            if shown != text:
                # A handler could format the exception again and show the secret.
                record.exc_info = None
        if record.stack_info and type(record.stack_info) is not Lines:
            record.stack_info = Lines(indented(redacted(record.stack_info)))
        if len(record.__dict__) > _USUAL:
            for key in (record.__dict__.keys() - _STANDARD) | (record.__dict__.keys() & _NAMES):
                value = record.__dict__[key]
                if not isinstance(value, int | float | bool | None):
                    text = value if isinstance(value, str) else str(value)
                    shown = escaped(redacted(text))
                    if shown != text:
                        record.__dict__[key] = shown


_FORMATTER = logging.Formatter()
_NAMES = {"task", "correlation", "color_message"}
"""The names in `_STANDARD` that may hold text from a caller."""
_USUAL = len(logging.LogRecord("", 0, "", 0, "", (), None).__dict__)
logger.addFilter(Redaction())
access_logger.addFilter(Redaction())  # a logger's filter does not see records of its children


# ---- audit log -----------------------------------------------------------------------------


def audit(event: str, **fields: str) -> None:
    """Log who did what, with what result: a JSON object as a line of `dragoman.audit`."""
    masked = {key: redacted(value) for key, value in fields.items() if value}
    # In ASCII: JSON escapes everything else, and a reader gets the names unchanged.
    auditor.info("%s", json.dumps({"time": utc(time.time()), "event": event, **masked}))


# ---- formats -------------------------------------------------------------------------------


def utc(seconds: float) -> str:
    """A Unix time as ISO 8601 in UTC, with milliseconds."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03d}Z"


class Ids(logging.Filter):
    """Adds the task and correlation id of the running turn to each record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """It never drops a record."""
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
        """The line, followed by the ids if there are any."""
        ids = [
            f"{name}={value}"
            for name in ("task", "correlation")
            if (value := getattr(record, name, ""))
            and not record.message.endswith(f"{name} id {value}")  # already in the message
        ]
        line = super().formatMessage(record)
        return f"{line} [{' '.join(ids)}]" if ids else line


class Json(logging.Formatter):
    """A JSON object per line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """Format all fields of the record."""
        found: dict[str, Any] = {
            "time": utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("task", "correlation"):
            if value := getattr(record, name, ""):
                found[name] = value
        found |= {key: item for key, item in record.__dict__.items() if key not in _STANDARD}
        if record.exc_text:
            found["exception"] = record.exc_text
        elif record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            found["stack"] = record.stack_info
        return json.dumps(found, default=str)


def configure(level: str, form: str) -> None:
    """Set up logging for the command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    handler.addFilter(Ids())
    handler.addFilter(Redaction())  # for uvicorn's records, too
    for name in ("dragoman", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level.upper())
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(message)s"))
    auditor.handlers, auditor.propagate = [lines], False
    # uvicorn's start and stop messages repeat ours.
    logging.getLogger("uvicorn.error").setLevel("WARNING")
