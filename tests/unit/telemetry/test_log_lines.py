"""No text that a caller chose looks like a line of the log, or steers a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest

from dragoman.bindings.access_log import AccessLine
from dragoman.model.caller import Caller
from dragoman.telemetry import logs
from dragoman.telemetry.logs import (
    Ids,
    Json,
    Text,
    access_logger,
    auditor,
    escaped,
    logger,
    utc,
)
from tests.harness.webhooks import pushing, receiving

FORGED = "12:00:00 ERROR   forged"
ODD = {
    "line feed": "\n",
    "carriage return": "\r",
    "nul": "\0",
    "tab": "\t",
    "escape": "\x1b[2J\x1b]0;title\x07",
    "delete": "\x7f",
    "next line": "\x85",
    "csi": "\x9b2J",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "override": "\u202e",
    "isolate": "\u2067",
    "mark": "\u200f",
    "surrogate": "\ud800",
}
BAD = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\u200e\u200f\ud800-\udfff]")
FORMS = {
    "text": Text(),
    "json": Json(),
    "own": logging.Formatter(
        "%(asctime)s %(levelname)-7s %(message)s %(task)s %(more)s", defaults={"more": ""}
    ),
}


@pytest.fixture(params=FORMS)
def log(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What the library logs, in one of our forms, or by a formatter of the application."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FORMS[request.param])
    handler.addFilter(Ids())
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def harmless(said: str) -> None:
    """Nothing but the first of these lines looks like a line of the log."""
    assert not BAD.search(said), repr(said)
    first, *others = said.splitlines()
    assert "forged" in said
    assert not first.startswith(FORGED)
    heads = ("", "Traceback (most recent call last):", "Stack (most recent call last):")
    assert not [line for line in others if line[:1] != " " and line not in heads], repr(said)


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_one_line_whatever_is_in_it(log: io.StringIO, odd: str) -> None:
    text = f"hook{odd}{FORGED}"
    logger.warning("webhook %s: %s", text, [text], extra={"task": text, "more": text})
    said = log.getvalue()
    harmless(said)
    assert said.count("\n") == 1
    assert said.count("forged") >= 3


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_exceptions_are_indented(log: io.StringIO, odd: str) -> None:
    text = f"no{odd}{FORGED}"
    try:
        try:
            raise KeyError(text)
        except KeyError as error:
            error.add_note(text)
            raise RuntimeError(text) from error
    except RuntimeError:
        logger.exception("it failed", stack_info=True, extra={"task": "t", "more": {"x": text}})
    harmless(log.getvalue())
    assert "RuntimeError: no" in log.getvalue()


def test_plain_records_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("plain")
    except ValueError:
        logger.exception("webhook %s: ärger", "h", extra={"task": "t"})
    record = caplog.records[-1]
    assert (record.msg, record.args) == ("webhook %s: ärger", ("h",))
    assert record.exc_info is not None
    assert str(record.exc_text).startswith("Traceback")


def test_the_records_of_an_application_are_its_own(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("mine").warning("two\nlines")
    assert caplog.records[-1].getMessage() == "two\nlines"


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_requests(log: io.StringIO, odd: str) -> None:
    text = f"x{odd}{FORGED}"
    line = AccessLine(text, text, text)
    line.agent = line.operation = line.task = text
    line.caller = Caller(identity=text, realm=text, tenant=text)
    line.status = 200
    logger.removeHandler(handler := logger.handlers[-1])
    access_logger.addHandler(handler)
    try:
        line.write()
    finally:
        access_logger.removeHandler(handler)
        logger.addHandler(handler)
    harmless(log.getvalue())
    assert log.getvalue().count("\n") == 1


def test_times_are_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    try:
        record = logging.LogRecord("dragoman", 20, "", 0, "hello", (), None)
        record.created = 1_790_000_000.9996
        assert json.loads(Json().format(record))["time"] == "2026-09-21T14:13:20.999Z"
        assert utc(0.0) == "1970-01-01T00:00:00.000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    names = "".join(ODD.values()).replace("\ud800", "")
    logs.audit("refused", identity=f"ann{names}{FORGED}")
    (said,) = [record.getMessage() for record in caplog.records if record.name == auditor.name]
    assert said.isascii() and said.isprintable()
    assert json.loads(said)["identity"] == f"ann{names}{FORGED}"


async def test_the_id_of_a_webhook(log: io.StringIO) -> None:
    async with receiving(410) as inbox, pushing() as sender:
        await sender.send("a", inbox.url, id=f"h\n{FORGED}\x1b[2J")
        await sender.parked()
    (line,) = [line for line in log.getvalue().splitlines() if "parked" in line]
    assert "h\\x0a12:00:00 ERROR" in line.replace("\\\\", "\\")
    assert not BAD.search(line)


def test_it_is_cheap() -> None:
    text = "webhook 7: entry after 3 not delivered (answered 500); again in 5 s"
    begun = time.thread_time()
    for _ in range(1000):
        assert escaped(text) is text
    assert time.thread_time() - begun < 0.1
