"""Logs without secrets, the audit log, and the trace context of a request.

The library only logs to `dragoman.*`; handlers are set up by the command alone. A process that sets
up none gets warnings and errors on standard error, as Python shows them. What looks like a secret,
is registered as one, or came as one with the request that is being answered is masked before any
handler sees it; control characters are escaped, so that no text that a caller chose can look like a
line of the log, or steer a terminal. Traces are OpenTelemetry's where the process uses it, and
handed on as they came where it does not.
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
"""The headers and the query of the request that is being answered."""

# No NullHandler: it would keep Python from showing warnings and errors on standard error in a
# process that has set up no logging.
logger = logging.getLogger("dragoman")
auditor = logging.getLogger("dragoman.audit")
auditor.setLevel(logging.INFO)  # whatever else is logged
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
    """Put the present trace into the headers of a request (W3C): that of OpenTelemetry if the
    process has loaded it and a span is open, else the one that came with the work."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)
    if came and "traceparent" not in headers:
        headers["traceparent"] = came


# ---- secrets -------------------------------------------------------------------------------

MASK = "***"
SHORTEST = 6
"""What is shorter cannot be told from other words."""

# None of the patterns can match where this one does not: nearly all lines end here.
_HINT = re.compile(
    r"auth|cookie|token|secret|passw|key|credential|bearer|basic|whs|eyj|://[^/\s]*@", re.IGNORECASE
)
_SEPARATOR = r"""(?:["']?\s{0,4}[:=]\s{0,4}b?["']?|["'],\s{0,4}b?["'])"""
# each begins with something fixed, or one long line could hold up everything
_PATTERNS = (
    # headers: all of the value, up to its quote or the end of the line
    re.compile(
        rf"""((?:authorization|cookie|api-?key|-token|-secret){_SEPARATOR})[^\r\n"']+""",
        re.IGNORECASE,
    ),
    # fields of forms, JSON and reprs
    re.compile(
        r"""((?:token|secret|password|passwd|api_?key|credentials?)(?:["']?=b?["']?"""
        r"""|["']\s{0,4}:\s{0,4}b?["']))[^\s"'&,;)]+""",
        re.IGNORECASE,
    ),
    # a scheme and its credentials, which have something that words have not
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
    """Whether a header or parameter of this name is likely to hold a secret."""
    return bool(_NAME.search(name)) and name.lower() not in _HARMLESS


def secret(*values: str) -> None:
    """Never show these in a log."""
    global _secrets
    _known.update(value for value in values if len(value) >= SHORTEST)
    longest_first = sorted(_known, key=len, reverse=True)
    _secrets = re.compile("|".join(map(re.escape, longest_first))) if _known else None


def redacted(text: str) -> str:
    """The text without what is or looks like a secret."""
    if _secrets is not None:
        text = _secrets.sub(MASK, text)
    if (shown := SHOWN.get()) is not None:
        for value in sorted(_came(*shown), key=len, reverse=True):
            text = text.replace(value, MASK)
    if _HINT.search(text):
        for pattern in _PATTERNS:
            text = pattern.sub(rf"\1{MASK}", text)
    return text


def _came(headers: Mapping[str, str], query: str) -> Iterator[str]:
    """The secrets that came with a request, in the forms in which one could quote them."""
    pairs = [*headers.items()]
    if query:
        pairs += [*parse_qsl(query), *_written(query)]
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


def _written(query: str) -> Iterator[tuple[str, str]]:
    """The parameters of a query as they stand in it."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        yield name, value


# ---- control characters ----------------------------------------------------------------------

# C0, DEL and C1; marks that turn the direction of text; separators of lines; halves of characters
_ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_NEXT = re.compile(r"\n(?=[^\n])")


def escaped(text: str) -> str:
    """The text on one line, without characters that steer a terminal or turn the text around."""
    return _ODD.sub(_escape, text) if _ODD.search(text) else text


def indented(text: str) -> str:
    """The same of a text that has lines, such as a traceback: all but the first are indented, so
    that none of them looks like a line of the log."""
    lines = text.replace("\t", "    ").split("\n")
    return _NEXT.sub("\n  ", "\n".join(map(escaped, lines)))


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


class Lines(str):
    """A text whose lines are indented already."""

    __slots__ = ()


class Redaction(logging.Filter):
    """Masks secrets and escapes control characters in the message, the exception and the extras of
    each record. It stands at the logger, so that it holds with whatever handlers and formatters an
    application has."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops anything, and never fails."""
        try:
            self._clear(record)
        except Exception as error:  # noqa: BLE001 - a log call must not break what logs
            # what cannot be looked at is not shown
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
            # formatters use this text, and make their own only where there is none
            record.exc_text = Lines(indented(shown))
            if shown != text:
                # the exception itself would tell it to whoever formats it anew
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
"""Those of `_STANDARD` that may hold what a caller chose."""
_USUAL = len(logging.LogRecord("", 0, "", 0, "", (), None).__dict__)
logger.addFilter(Redaction())
access_logger.addFilter(Redaction())  # a logger's filter does not see the records of its children


# ---- who did what --------------------------------------------------------------------------


def audit(event: str, **fields: str) -> None:
    """Put down who did what, with what result: a JSON object as a line of `dragoman.audit`."""
    told = {key: redacted(value) for key, value in fields.items() if value}
    # in ASCII: JSON escapes all else, and whoever reads it gets the names as they are
    auditor.info("%s", json.dumps({"time": utc(time.time()), "event": event, **told}))


# ---- forms ---------------------------------------------------------------------------------


def utc(seconds: float) -> str:
    """A Unix time as ISO 8601 in UTC, with milliseconds."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03d}Z"


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
            and not record.message.endswith(f"{name} id {value}")  # it says so itself
        ]
        line = super().formatMessage(record)
        return f"{line} [{' '.join(ids)}]" if ids else line


class Json(logging.Formatter):
    """A JSON object a line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        """All that is known of the record."""
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
    """Set up logging for a process that is ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    handler.addFilter(Ids())
    handler.addFilter(Redaction())  # uvicorn's, too
    for name in ("dragoman", "uvicorn"):
        target = logging.getLogger(name)
        target.handlers = [handler]
        target.propagate = False
        target.setLevel(level.upper())
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(message)s"))
    auditor.handlers, auditor.propagate = [lines], False
    # uvicorn's own start and stop lines say what ours say already
    logging.getLogger("uvicorn.error").setLevel("WARNING")
